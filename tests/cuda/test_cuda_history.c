/* SPDX-License-Identifier: Apache-2.0
 *
 * Histories in device memory, started from lists and updated in captured graphs, have the CPU's
 * bits.
 */
#include "cuda_support.h"
#include "inputs.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, TOKENS = 40001, WORDS = (TOKENS + 31) / 32, STEPS = 20, LISTED = 3000 };

/* A history in host memory and its copy on the GPU. */
typedef struct histories {
    gumbel_history host, device;
} histories;

static histories histories_make(void)
{
    histories generated = {.host = {.struct_size = sizeof generated.host, .vocab_size = TOKENS}};
    generated.device = generated.host;
    generated.host.prompt = make_zeroed(ROWS * WORDS, sizeof(uint32_t));
    generated.host.output = make_zeroed(ROWS * WORDS, sizeof(uint32_t));
    generated.host.counts = make_zeroed(ROWS * TOKENS, sizeof(uint16_t));
    generated.device.prompt = gpu_make(ROWS * WORDS * sizeof(uint32_t));
    generated.device.output = gpu_make(ROWS * WORDS * sizeof(uint32_t));
    generated.device.counts = gpu_make(ROWS * TOKENS * sizeof(uint16_t));
    return generated;
}

static void histories_free(histories *h)
{
    free(h->host.prompt);
    free(h->host.output);
    free(h->host.counts);
    gpu_free(h->device.prompt);
    gpu_free(h->device.output);
    gpu_free(h->device.counts);
}

static void compare_bytes(const void *host, const void *device, size_t bytes, const char *what)
{
    void *fetched = make_zeroed(bytes, 1);
    gpu_fetch(fetched, device, bytes);
    CHECK(memcmp(host, fetched, bytes) == 0, "%s differ", what);
    free(fetched);
}

static void compare_histories(const histories *h)
{
    compare_bytes(h->host.prompt, h->device.prompt, ROWS * WORDS * sizeof(uint32_t), "prompts");
    compare_bytes(h->host.output, h->device.output, ROWS * WORDS * sizeof(uint32_t), "outputs");
    compare_bytes(h->host.counts, h->device.counts, ROWS * TOKENS * sizeof(uint16_t), "counts");
    draws_compared += ROWS;
}

/* Lists of up to LISTED ids, many of them equal and some past the vocabulary. */
static gumbel_token_lists make_lists(uint64_t seed)
{
    int64_t *offsets = make_zeroed(ROWS + 1, sizeof *offsets);
    int32_t *ids = make_zeroed(ROWS * LISTED, sizeof *ids);
    for (int b = 0; b < ROWS; b++) {
        offsets[b + 1] = offsets[b] + random_below(&seed, LISTED);
        for (int64_t k = offsets[b]; k < offsets[b + 1]; k++)
            ids[k] = (int32_t)random_below(&seed, k % 2 ? 50 : TOKENS + 100);
    }
    return (gumbel_token_lists){.offsets = offsets, .ids = ids};
}

static gumbel_token_lists copy_lists(const gumbel_token_lists *host)
{
    return (gumbel_token_lists){
        .offsets = gpu_copy(host->offsets, (ROWS + 1) * sizeof *host->offsets),
        .ids = gpu_copy(host->ids, (size_t)host->offsets[ROWS] * sizeof *host->ids)};
}

static void start_both(histories *h, const gumbel_token_lists *prompts,
                       const gumbel_token_lists *outputs)
{
    gumbel_token_lists p = copy_lists(prompts), o = copy_lists(outputs);
    gumbel_error error = {"", ""};
    CHECK(gumbel_history_start(cpu, NULL, &h->host, ROWS, NULL, prompts, outputs, &error) ==
                  GUMBEL_OK &&
              gumbel_history_start(gpu, NULL, &h->device, ROWS, NULL, &p, &o, &error) == GUMBEL_OK,
          "%s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_free((void *)p.offsets);
    gpu_free((void *)p.ids);
    gpu_free((void *)o.offsets);
    gpu_free((void *)o.ids);
}

/* Start, and update in a captured graph that is replayed with other tokens. */
static void history(void)
{
    histories h = histories_make();
    gumbel_token_lists prompts = make_lists(1), outputs = make_lists(2);
    uint64_t random = 3;
    int32_t tokens[ROWS], *on_gpu = gpu_make(sizeof tokens);
    gumbel_error error = {"", ""};
    start_both(&h, &prompts, &outputs);
    compare_histories(&h);
    gpu_graph graph = gpu_graph_begin();
    CHECK(gumbel_history_update(gpu, graph.stream, &h.device, ROWS, NULL, on_gpu, 1, NULL,
                                &error) == GUMBEL_OK,
          "%s: %s", error.field, error.message);
    gpu_graph_end(&graph);
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < ROWS; b++)
            tokens[b] = step % 5 == b ? -1 : (int32_t)random_below(&random, step % 3 ? 9 : TOKENS);
        gpu_put(on_gpu, tokens, sizeof tokens);
        gpu_graph_replay(&graph);
        CHECK(gumbel_history_update(cpu, NULL, &h.host, ROWS, NULL, tokens, 1, NULL, &error) ==
                  GUMBEL_OK,
              "%s", error.message);
    }
    compare_histories(&h);
    gpu_graph_free(&graph);
    gpu_free(on_gpu);
    free((void *)prompts.offsets);
    free((void *)prompts.ids);
    free((void *)outputs.offsets);
    free((void *)outputs.ids);
    histories_free(&h);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {{"history", history}, {NULL, NULL}};
    return cuda_run_tests(argc, argv, tests);
}
