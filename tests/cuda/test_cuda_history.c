/* SPDX-License-Identifier: Apache-2.0
 *
 * Histories in device memory, started from lists and updated in captured graphs, have the CPU's
 * bits; so have rings of recent tokens, their windows, and the lists made from them.
 */
#include "cuda_support.h"
#include "inputs.h"

#include <gumbel/recent.h>
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

static void free_lists(const gumbel_token_lists *lists, void (*release)(void *))
{
    release((void *)lists->offsets);
    release((void *)lists->ids);
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
    free_lists(&p, gpu_free);
    free_lists(&o, gpu_free);
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
    free_lists(&prompts, free);
    free_lists(&outputs, free);
    histories_free(&h);
}

/* --------------------------------------------------------------------------- recent tokens ---- */

enum { CAPACITY = 4096, PLACES = 300, WINDOW = 64, TEXT = 7 };

/* Rings, rules and lists in the memory of one device. */
typedef struct recent_rows {
    gumbel_recent recent;
    gumbel_list_rules rules;
    gumbel_row_lists lists;
} recent_rows;

static const float multipliers[ROWS] = {0.8f, 1, 0, 2, 3e38f};
static const float bases[ROWS] = {1.75f, 2, 1.5f, 1, 1.1f};
static const int32_t ngrams[ROWS] = {0, 3, 1, 2, 4}, window = WINDOW;
static const int64_t breaks[] = {0, 1, 3}, bad[] = {0, 1, 3, 6};
static const int32_t breakers[] = {2, 5, 6}, bad_words[] = {11, 4, 12, 3, 4, 13};

/* `copy` copies constants to the device, `make` makes zeroed memory there. */
static recent_rows make_recent(const gumbel_history *h, void *(*copy)(const void *, size_t),
                               void *(*make)(size_t))
{
    recent_rows r = {.recent = {.struct_size = sizeof r.recent, .capacity = CAPACITY},
                     .rules = {.struct_size = sizeof r.rules},
                     .lists = {.struct_size = sizeof r.lists, .capacity = PLACES}};
    r.recent.tokens = make(ROWS * CAPACITY * sizeof *r.recent.tokens);
    r.recent.count = make(ROWS * sizeof *r.recent.count);
    r.recent.history = h;
    r.recent.window = (gumbel_row_i32){copy(&window, sizeof window), GUMBEL_SAME};
    r.rules.dry_multiplier.data = copy(multipliers, sizeof multipliers);
    r.rules.dry_base.data = copy(bases, sizeof bases);
    r.rules.dry_breakers = (gumbel_sequences){copy(breaks, sizeof breaks),
                                              copy(breakers, sizeof breakers), 2, NULL, 0};
    r.rules.ngram_size.data = copy(ngrams, sizeof ngrams);
    r.rules.bad_words =
        (gumbel_sequences){copy(bad, sizeof bad), copy(bad_words, sizeof bad_words), 3, NULL, 0};
    r.lists.offsets = make((ROWS + 1) * sizeof *r.lists.offsets);
    r.lists.banned = make(ROWS * PLACES * sizeof *r.lists.banned);
    r.lists.late_ids = make(ROWS * PLACES * sizeof *r.lists.late_ids);
    r.lists.late_values = make(ROWS * PLACES * sizeof *r.lists.late_values);
    r.lists.status = make(ROWS * sizeof *r.lists.status);
    return r;
}

static void *copy_on_host(const void *from, size_t size)
{
    return memcpy(make_zeroed(size, 1), from, size);
}

static void *make_on_host(size_t size) { return make_zeroed(size, 1); }

static void *make_on_gpu(size_t size)
{
    void *zeros = make_zeroed(size, 1), *there = gpu_copy(zeros, size);
    free(zeros);
    return there;
}

static void free_recent(recent_rows *r, void (*release)(void *))
{
    void *const owned[] = {r->recent.tokens,
                           r->recent.count,
                           (void *)r->recent.window.data,
                           (void *)r->rules.dry_multiplier.data,
                           (void *)r->rules.dry_base.data,
                           (void *)r->rules.dry_breakers.offsets,
                           (void *)r->rules.dry_breakers.ids,
                           (void *)r->rules.ngram_size.data,
                           (void *)r->rules.bad_words.offsets,
                           (void *)r->rules.bad_words.ids,
                           r->lists.offsets,
                           r->lists.banned,
                           r->lists.late_ids,
                           r->lists.late_values,
                           r->lists.status};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        release(owned[i]);
}

static void compare_recent(const recent_rows *host, const recent_rows *device)
{
    const gumbel_row_lists *a = &host->lists, *b = &device->lists;
    const size_t places = ROWS * PLACES;
    compare_bytes(host->recent.tokens, device->recent.tokens,
                  ROWS * CAPACITY * sizeof *host->recent.tokens, "rings");
    compare_bytes(host->recent.count, device->recent.count, ROWS * sizeof *host->recent.count,
                  "counts of rings");
    compare_bytes(a->offsets, b->offsets, (ROWS + 1) * sizeof *a->offsets, "offsets of lists");
    compare_bytes(a->banned, b->banned, places * sizeof *a->banned, "banned tokens");
    compare_bytes(a->late_ids, b->late_ids, places * sizeof *a->late_ids, "late ids");
    compare_bytes(a->late_values, b->late_values, places * sizeof *a->late_values, "late values");
    compare_bytes(a->status, b->status, ROWS * sizeof *a->status, "statuses of lists");
}

static void run_recent(gumbel_device *device, void *stream, const recent_rows *r,
                       const int32_t *tokens)
{
    gumbel_error error = {"", ""};
    CHECK(gumbel_recent_append(device, stream, &r->recent, ROWS, NULL, tokens, 1, NULL, &error) ==
                  GUMBEL_OK &&
              gumbel_make_lists(device, stream, &r->rules, &r->recent, ROWS, NULL, &r->lists,
                                &error) == GUMBEL_OK,
          "%s: %s", error.field, error.message);
}

/* Rings started from long prompts, appended to and read in a captured graph. */
static void recent_lists(void)
{
    histories h = histories_make();
    recent_rows host = make_recent(&h.host, copy_on_host, make_on_host);
    recent_rows device = make_recent(&h.device, gpu_copy, make_on_gpu);
    gumbel_token_lists prompts = make_lists(4), outputs = make_lists(5);
    gumbel_token_lists p = copy_lists(&prompts), o = copy_lists(&outputs);
    uint64_t random = 6;
    int32_t tokens[ROWS], *on_gpu = gpu_make(sizeof tokens);
    gumbel_error error = {"", ""};
    CHECK(gumbel_recent_start(cpu, NULL, &host.recent, ROWS, NULL, &prompts, &outputs, &error) ==
                  GUMBEL_OK &&
              gumbel_recent_start(gpu, NULL, &device.recent, ROWS, NULL, &p, &o, &error) ==
                  GUMBEL_OK,
          "%s: %s", error.field, error.message);
    GPU(cuCtxSynchronize);
    gpu_graph graph = gpu_graph_begin();
    run_recent(gpu, graph.stream, &device, on_gpu);
    gpu_graph_end(&graph);
    for (int step = 0; step < 10 * STEPS; step++) {
        for (int b = 0; b < ROWS; b++) /* periodic texts, with a few other tokens */
            tokens[b] = random_below(&random, 30) ? (step + b) % TEXT + b
                                                  : (int32_t)random_below(&random, 9) - 1;
        gpu_put(on_gpu, tokens, sizeof tokens);
        gpu_graph_replay(&graph);
        run_recent(cpu, NULL, &host, tokens);
        if (step % STEPS == 0)
            compare_recent(&host, &device);
    }
    compare_recent(&host, &device);
    compare_histories(&h);
    gpu_graph_free(&graph);
    gpu_free(on_gpu);
    free_lists(&prompts, free);
    free_lists(&outputs, free);
    free_lists(&p, gpu_free);
    free_lists(&o, gpu_free);
    free_recent(&host, free);
    free_recent(&device, gpu_free);
    histories_free(&h);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"history", history}, {"recent_lists", recent_lists}, {NULL, NULL}};
    return cuda_run_tests(argc, argv, tests);
}
