/* SPDX-License-Identifier: Apache-2.0
 *
 * The place of libgumbel in an engine's decode loop. The trunk of the model is missing: the hidden
 * state of the next step is the embedding of the token just drawn, so this model is a bigram.
 */
#include <gumbel/gumbel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, V = 1000, D = 64, STEPS = 16 };

static float weight[V][D], hidden[B][D]; /* LM head [V, D], tied to the embedding; hidden [B, D] */

/* Draw one token [B] a row; report what the library refuses. */
static int decode_step(gumbel_device *device, uint64_t position, void *workspace, size_t bytes,
                       int32_t tokens[B])
{
    const uint64_t seed = 42;
    const float temperature = 0.8f;
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = {.data = hidden, .dtype = GUMBEL_FLOAT32, .rows = B, .cols = D},
                        .weight = {.data = weight, .dtype = GUMBEL_FLOAT32, .rows = V, .cols = D}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&temperature, GUMBEL_SAME},
                                .seed = {&seed, GUMBEL_SAME},
                                .position = {&position, GUMBEL_SAME}};
    gumbel_output output = {.struct_size = sizeof output, .tokens = tokens};
    gumbel_error error;
    if (gumbel_sample(device, NULL, &head, &sampling, &output, workspace, bytes, &error) ==
        GUMBEL_OK)
        return 0;
    fprintf(stderr, "engine: %s: %s\n", error.field, error.message);
    return 1;
}

int main(void)
{
    gumbel_device *device;
    gumbel_error error;
    const gumbel_limits limits = {.struct_size = sizeof limits, .batch = B, .hidden_size = D};
    size_t bytes;
    if (gumbel_open(NULL, &device, &error) != GUMBEL_OK ||
        gumbel_workspace_most(device, &limits, &bytes, &error) != GUMBEL_OK) {
        fprintf(stderr, "engine: %s: %s\n", error.field, error.message);
        return 1;
    }
    bytes = (bytes + 63) / 64 * 64; /* aligned_alloc() requires a multiple of the alignment */
    void *workspace = aligned_alloc(64, bytes);
    int failed = workspace == NULL;

    for (int i = 0; i < V * D; i++) /* any trained weights would do better */
        weight[i / D][i % D] = (float)((i * 2654435761u >> 8) % 2001) / 2000 - 0.5f;
    memcpy(hidden, weight, sizeof hidden); /* the prompts are tokens 0 and 1 */

    int32_t tokens[B];
    for (uint64_t position = 0; position < STEPS && !failed; position++) {
        failed = decode_step(device, position, workspace, bytes, tokens);
        for (int b = 0; b < B && !failed; b++) {
            printf("%4d%c", (int)tokens[b], b + 1 < B ? ' ' : '\n');
            memcpy(hidden[b], weight[tokens[b]], sizeof hidden[b]); /* the trunk goes here */
        }
    }
    free(workspace);
    gumbel_close(device);
    return failed;
}
