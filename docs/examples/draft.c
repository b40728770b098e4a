/* SPDX-License-Identifier: Apache-2.0
 *
 * Speculative decoding with libgumbel: drafts the tokens that followed the last time, runs the
 * target on all drafts at once, and accepts by gumbel_verify() those that equal the target's own
 * draws. The text is the one of plain decoding, for any drafts. The model is that of engine.c: a
 * token's hidden state is its embedding.
 */
#include <gumbel/drafts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 60, D = 32, DRAFTS = 4, M = DRAFTS + 1, LENGTH = 400 };

static float weight[V][D], hidden[M][D];
static int32_t follower[V]; /* of each token, when it was last seen; -1: never */

/* A cycle: draft behind `root`, verify, and learn. Tokens [M] come back; 0 on an error. */
static int32_t run_cycle(gumbel_device *device, uint64_t *position, int32_t root, void *workspace,
                         size_t bytes, int32_t tokens[M])
{
    const float temperature = 0.3f;
    int32_t drafted[M] = {root}, nodes = 1, emitted = 0;
    while (nodes < M && follower[drafted[nodes - 1]] >= 0) {
        drafted[nodes] = follower[drafted[nodes - 1]];
        nodes++;
    }
    for (int j = 0; j < nodes; j++)
        memcpy(hidden[j], weight[drafted[j]], sizeof hidden[j]); /* the trunk goes here */
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = {.data = hidden, .dtype = GUMBEL_FLOAT32, .rows = M, .cols = D},
                        .weight = {.data = weight, .dtype = GUMBEL_FLOAT32, .rows = V, .cols = D}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&temperature, GUMBEL_SAME},
                                .position = {position, 0}};
    gumbel_draft draft = {.struct_size = sizeof draft,
                          .requests = 1,
                          .max_nodes = M,
                          .tokens = drafted,
                          .nodes = &nodes};
    gumbel_verified verified = {.struct_size = sizeof verified,
                                .tokens = tokens,
                                .emitted = &emitted,
                                .position = position}; /* moves on */
    gumbel_error error;
    if (gumbel_verify(device, NULL, &head, &sampling, &draft, &verified, workspace, bytes,
                      &error) != GUMBEL_OK)
        fprintf(stderr, "draft: %s: %s\n", error.field, error.message);
    for (int i = 0; i < emitted; i++)
        follower[i > 0 ? tokens[i - 1] : root] = tokens[i];
    return emitted;
}

int main(void)
{
    gumbel_device *device;
    gumbel_error error;
    if (gumbel_open(NULL, &device, &error) != GUMBEL_OK) {
        fprintf(stderr, "draft: %s: %s\n", error.field, error.message);
        return 1;
    }
    size_t bytes = 1 << 20; /* gumbel_verify_workspace_size() returns the size that is required */
    void *workspace = aligned_alloc(64, bytes);
    int32_t tokens[M], root = 0, cycles = 0, written = 0, emitted = workspace != NULL;
    uint64_t position = 0;
    for (int i = 0; i < V * D; i++) /* any trained weights would do better */
        weight[i / D][i % D] = (float)((i * 2654435761u >> 8) % 2001) / 2000 - 0.5f;
    memset(follower, -1, sizeof follower);
    for (; emitted > 0 && written<LENGTH; written += emitted, cycles += emitted> 0) {
        emitted = run_cycle(device, &position, root, workspace, bytes, tokens);
        for (int i = 0; i < emitted; i++)
            printf("%d ", (int)tokens[i]);
        root = emitted > 0 ? tokens[emitted - 1] : root;
    }
    if (cycles > 0)
        printf("\n%.2f tokens a cycle\n", (double)written / cycles);
    free(workspace);
    gumbel_close(device);
    return written < LENGTH;
}
