/* SPDX-License-Identifier: Apache-2.0
 *
 * Grouped draws on a GPU: a part is drawn by the log-masses of all parts. Every choice, token, sum
 * and status has the host's bits, for all parts at once and for a stream of parts, also in a graph
 * whose masses and positions change between replays.
 */
#include "cuda_support.h"

#include <gumbel/dist.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sizes and inputs of a call, in host memory or on the GPU. */
typedef struct parts_case {
    int32_t parts, samples;
    int64_t batch;
    int slotted;
    float *log_masses;
    int32_t *tokens, *of_row;
    uint64_t *seed, *position;
    uint32_t *first_sample;
    gumbel_sampling sampling;
} parts_case;

/* Outputs of a case. */
typedef struct parts_found {
    int32_t *drawn, *which, *status;
    float *lse;
    gumbel_stream_draw *stream;
} parts_found;

static size_t draws_of(const parts_case *c) { return (size_t)(c->batch * c->samples); }

/* A random log-mass: some parts are empty, some rows have no mass, and some have a NaN or +inf. */
static float mass_at(uint64_t *random, int64_t row)
{
    if (row % 13 == 5)
        return -INFINITY;
    if (random_below(random, 7) == 0)
        return -INFINITY;
    if (row % 17 == 3 && random_below(random, 4) == 0)
        return random_below(random, 2) ? NAN : INFINITY;
    return (row % 5 == 1 ? 300.0f : 2.0f) * random_normal(random);
}

static void fill(parts_case *c, uint64_t *random)
{
    for (int32_t k = 0; k < c->parts; k++)
        for (int64_t b = 0; b < c->batch; b++)
            c->log_masses[k * c->batch + b] = mass_at(random, b);
    for (size_t i = 0; i < (size_t)c->parts * draws_of(c); i++)
        c->tokens[i] = (int32_t)random_below(random, 1u << 30);
    for (int64_t b = 0; b < c->batch; b++) {
        c->seed[b] = (uint64_t)random_below(random, 1u << 31) << 33 | (uint64_t)b;
        c->position[b] = (uint64_t)random_below(random, 3) << 32 | random_below(random, 1000);
        c->first_sample[b] = 7 - 40503 * (uint32_t)b;
        c->of_row[b] = (int32_t)(c->batch - 1 - b);
    }
}

static void point(parts_case *c)
{
    c->sampling = (gumbel_sampling){.struct_size = sizeof c->sampling,
                                    .seed = {c->seed, c->slotted ? GUMBEL_SAME : 0},
                                    .position = {c->position, 0},
                                    .first_sample = {c->first_sample, 0},
                                    .num_samples = c->samples};
    if (c->slotted)
        c->sampling.slots = (gumbel_slots){c->of_row, c->batch};
}

static parts_case make_case(int32_t parts, int64_t batch, int32_t samples, uint64_t *random)
{
    parts_case c = {.parts = parts, .samples = samples, .batch = batch};
    size_t rows = (size_t)batch;
    c.slotted = (parts + samples) % 2;
    c.log_masses = make_zeroed((size_t)parts * rows, sizeof *c.log_masses);
    c.tokens = make_zeroed((size_t)parts * draws_of(&c), sizeof *c.tokens);
    c.seed = make_zeroed(rows, sizeof *c.seed);
    c.position = make_zeroed(rows, sizeof *c.position);
    c.first_sample = make_zeroed(rows, sizeof *c.first_sample);
    c.of_row = make_zeroed(rows, sizeof *c.of_row);
    fill(&c, random);
    point(&c);
    return c;
}

static void free_case(parts_case *c, void (*drop)(void *))
{
    drop(c->log_masses);
    drop(c->tokens);
    drop(c->seed);
    drop(c->position);
    drop(c->first_sample);
    drop(c->of_row);
}

#define MASS_BYTES(c)  ((size_t)(c)->parts * (size_t)(c)->batch * sizeof(float))
#define TOKEN_BYTES(c) ((size_t)(c)->parts * draws_of(c) * sizeof(int32_t))

static parts_case copy_case(const parts_case *host)
{
    parts_case c = *host;
    size_t rows = (size_t)c.batch;
    c.log_masses = gpu_copy(host->log_masses, MASS_BYTES(host));
    c.tokens = gpu_copy(host->tokens, TOKEN_BYTES(host));
    c.seed = gpu_copy(host->seed, rows * sizeof *c.seed);
    c.position = gpu_copy(host->position, rows * sizeof *c.position);
    c.first_sample = gpu_copy(host->first_sample, rows * sizeof *c.first_sample);
    c.of_row = gpu_copy(host->of_row, rows * sizeof *c.of_row);
    point(&c);
    return c;
}

static parts_found make_found(const parts_case *c)
{
    size_t rows = (size_t)c->batch, draws = draws_of(c);
    parts_found f = {make_zeroed(draws, 4), make_zeroed(draws, 4), make_zeroed(rows, 4),
                     make_zeroed(rows, 4), make_zeroed(draws, sizeof *f.stream)};
    gumbel_stream_draw_clear(f.stream, (int64_t)draws);
    return f;
}

static parts_found make_found_there(const parts_case *c, const parts_found *host)
{
    size_t rows = (size_t)c->batch, draws = draws_of(c);
    return (parts_found){gpu_hostile(draws * 4), gpu_hostile(draws * 4), gpu_hostile(rows * 4),
                         gpu_hostile(rows * 4),
                         gpu_copy(host->stream, draws * sizeof *host->stream)};
}

static void free_found(parts_found *f, void (*drop)(void *))
{
    drop(f->drawn);
    drop(f->which);
    drop(f->status);
    drop(f->lse);
    drop(f->stream);
}

/* Calls gumbel_draw_group(), and gumbel_stream_draw_add() for all parts, the last one first. */
static void call_both(gumbel_device *device, CUstream stream, const parts_case *c,
                      const parts_found *f)
{
    gumbel_error error = {"", ""};
    gumbel_status status =
        gumbel_draw_group(device, stream, c->parts, c->batch, c->log_masses, c->tokens,
                          &c->sampling, f->drawn, f->which, f->lse, f->status, &error);
    for (int32_t k = c->parts - 1; k >= 0 && status == GUMBEL_OK; k--)
        status = gumbel_stream_draw_add(device, stream, k, c->batch, c->log_masses + k * c->batch,
                                        c->tokens + (size_t)k * draws_of(c), &c->sampling,
                                        f->stream, &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
}

static int same_bytes(const void *host, const void *there, size_t bytes, const char *name,
                      const parts_case *c)
{
    void *found = make_zeroed(bytes, 1);
    gpu_fetch(found, there, bytes);
    size_t at = 0;
    while (at < bytes && ((const char *)found)[at] == ((const char *)host)[at])
        at++;
    free(found);
    return CHECK(at == bytes, "%s: byte %zu, of %d parts, %d rows, %d samples", name, at,
                 (int)c->parts, (int)c->batch, (int)c->samples);
}

static void compare_found(const parts_case *c, const parts_found *host, const parts_found *there)
{
    size_t rows = (size_t)c->batch, draws = draws_of(c);
    float *lse = make_zeroed(rows, sizeof *lse);
    same_bytes(host->drawn, there->drawn, draws * 4, "drawn", c);
    same_bytes(host->which, there->which, draws * 4, "which", c);
    same_bytes(host->status, there->status, rows * 4, "status", c);
    same_bytes(host->stream, there->stream, draws * sizeof *host->stream, "stream", c);
    gpu_fetch(lse, there->lse, rows * sizeof *lse);
    for (size_t b = 0; b < rows; b++) /* all NaNs are equal */
        CHECK(memcmp(&lse[b], &host->lse[b], 4) == 0 || (isnan(lse[b]) && isnan(host->lse[b])),
              "lse[%zu] is %a, on the host %a", b, (double)lse[b], (double)host->lse[b]);
    draws_compared += (int64_t)(2 * draws);
    free(lse);
}

static void check_case(int32_t parts, int64_t batch, int32_t samples, uint64_t *random)
{
    parts_case host = make_case(parts, batch, samples, random), there = copy_case(&host);
    parts_found ours = make_found(&host), theirs = make_found_there(&host, &ours);
    call_both(NULL, NULL, &host, &ours);
    call_both(gpu, NULL, &there, &theirs);
    GPU(cuCtxSynchronize);
    compare_found(&host, &ours, &theirs);
    free_found(&ours, free);
    free_found(&theirs, gpu_free);
    free_case(&host, free);
    free_case(&there, gpu_free);
}

static void grouped_small(void)
{
    uint64_t random = 1;
    check_case(1, 1, 1, &random);
    check_case(3, 40, 2, &random);
    check_case(33, 20, 1, &random);
}

static void grouped_sizes(void)
{
    static const int32_t parts[] = {1, 2, 5, 8, 31, 32, 33, 64, 200};
    uint64_t random = 2;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int32_t samples = 1; samples <= 3; samples++)
            check_case(parts[i], 1 + (int64_t)random_below(&random, 300), samples, &random);
    check_case(GUMBEL_PARTS_MAX, 3, 1, &random);
    check_case(4, 20000, 5, &random);
}

/* A graph reads the arrays at each replay. */
static void grouped_graph(void)
{
    uint64_t random = 3;
    parts_case host = make_case(8, 100, 2, &random), there = copy_case(&host);
    parts_found ours = make_found(&host), theirs = make_found_there(&host, &ours);
    gpu_graph graph = gpu_graph_begin();
    call_both(gpu, graph.stream, &there, &theirs);
    gpu_graph_end(&graph);
    for (int turn = 0; turn < 3; turn++) {
        fill(&host, &random);
        gpu_put(there.log_masses, host.log_masses, MASS_BYTES(&host));
        gpu_put(there.tokens, host.tokens, TOKEN_BYTES(&host));
        gpu_put(there.seed, host.seed, (size_t)host.batch * sizeof *host.seed);
        gpu_put(there.position, host.position, (size_t)host.batch * sizeof *host.position);
        call_both(NULL, NULL, &host, &ours);
        gpu_graph_replay(&graph);
        compare_found(&host, &ours, &theirs);
    }
    gpu_graph_free(&graph);
    free_found(&ours, free);
    free_found(&theirs, gpu_free);
    free_case(&host, free);
    free_case(&there, gpu_free);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"grouped_small", grouped_small},
        {"grouped_sizes", grouped_sizes},
        {"grouped_graph", grouped_graph},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
