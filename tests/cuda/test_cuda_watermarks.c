/* SPDX-License-Identifier: Apache-2.0
 *
 * Watermarks on a GPU: random rows and nodes of drafts have the CPU's seeds and positions, and so
 * have the steps of a captured graph that watermarks, draws, appends and advances, whose tokens are
 * the CPU's, too.
 */
#include "cuda_support.h"
#include "gpu_copies.h"
#include "watermark_calls.h"

#include <stdlib.h>
#include <string.h>

/* A call's structs in device memory; its results, which are poisoned, are the call's `draws`. */
static void copy_call(gpu_copies *a, const watermark_call *c, gumbel_watermark *w,
                      gumbel_recent *recent, gumbel_watermark_draws *draws)
{
    *w = c->watermark;
    *recent = c->recent;
    w->key = gpu_copies_add(a, w->key, sizeof c->key);
    w->context.data = gpu_copies_add(a, w->context.data, sizeof c->context);
    w->text_start.data = gpu_copies_add(a, w->text_start.data, sizeof c->text_start);
    w->seed.data = gpu_copies_add(a, w->seed.data, sizeof c->own_seed);
    w->position.data = gpu_copies_add(a, w->position.data, sizeof c->own_position);
    w->slots.of_row = gpu_copies_add(a, w->slots.of_row, sizeof c->of_row);
    w->live_rows = gpu_copies_add(a, w->live_rows, sizeof c->live);
    w->drafts = gpu_copies_add(a, w->drafts, sizeof c->drafts);
    recent->tokens = gpu_copies_add(a, c->ring, sizeof c->ring);
    recent->count = gpu_copies_add(a, c->count, sizeof c->count);
    *draws = c->draws;
    draws->seed = gpu_copies_add(a, c->seed, sizeof c->seed);
    draws->position = gpu_copies_add(a, c->position, sizeof c->position);
    draws->watermarked = gpu_copies_add(a, c->watermarked, sizeof c->watermarked);
}

static void random_rows(void)
{
    watermark_call *c = make_zeroed(1, sizeof *c);
    gpu_copies arrays = {.count = 0};
    gumbel_error error = {"", ""};
    int64_t watermarked = 0, repeats = 0;
    for (uint64_t index = 0; index < 300; index++) {
        gumbel_watermark w;
        gumbel_recent recent;
        gumbel_watermark_draws draws;
        watermark_call_make(c, index);
        copy_call(&arrays, c, &w, &recent, &draws);
        CHECK(gumbel_watermark_rows(gpu, NULL, &w, &recent, c->batch, &draws, &error) == GUMBEL_OK,
              "%s: %s", error.field, error.message);
        GPU(cuCtxSynchronize);
        gpu_fetch(c->seed, draws.seed, sizeof c->seed);
        gpu_fetch(c->position, draws.position, sizeof c->position);
        gpu_fetch(c->watermarked, draws.watermarked, sizeof c->watermarked);
        CHECK(watermark_call_agrees(c, &watermarked, &repeats), "call %d", (int)index);
        gpu_copies_free(&arrays);
    }
    CHECK(watermarked > 100 && repeats > 100, "%d watermarked, %d repeats", (int)watermarked,
          (int)repeats);
    free(c);
}

/* Chains and trees over the rings of random calls, on both devices. */
static void random_nodes(void)
{
    enum { NODES = 40, ROWS = WATERMARK_PLACES * NODES };
    watermark_call *c = make_zeroed(1, sizeof *c);
    gpu_copies arrays = {.count = 0};
    gumbel_error error = {"", ""};
    for (uint64_t index = 0; index < 100; index++) {
        static int32_t tokens[ROWS], parents[ROWS], marks[2][ROWS];
        static uint64_t positions[2][ROWS];
        gumbel_watermark w;
        gumbel_recent recent;
        gumbel_watermark_draws draws;
        uint64_t random = index, seeds[WATERMARK_PLACES];
        watermark_call_make(c, index);
        c->watermark.drafts = NULL;
        c->watermark.num_drafts = 0;
        c->watermark.draft_stride = 0;
        for (int j = 0; j < ROWS; j++) {
            tokens[j] = (int32_t)random_below(&random, 3);
            parents[j] = j % NODES ? (int32_t)random_below(&random, (uint32_t)(j % NODES)) : 0;
        }
        gumbel_draft draft = {.struct_size = sizeof draft,
                              .requests = c->batch,
                              .max_nodes = NODES,
                              .tokens = tokens,
                              .parents = index % 2 ? parents : NULL};
        gumbel_draft on_gpu = draft;
        const int64_t rows = c->batch * NODES;
        gumbel_watermark_draws host = {.struct_size = sizeof host,
                                       .seed = c->seed,
                                       .position = positions[0],
                                       .watermarked = marks[0]};
        copy_call(&arrays, c, &w, &recent, &draws);
        on_gpu.tokens = gpu_copies_add(&arrays, tokens, sizeof tokens);
        on_gpu.parents = gpu_copies_add(&arrays, draft.parents, sizeof parents);
        draws.position = gpu_copies_add(&arrays, positions[1], sizeof positions[1]);
        draws.watermarked = gpu_copies_add(&arrays, marks[1], sizeof marks[1]);
        CHECK(gumbel_watermark_nodes(cpu, NULL, &c->watermark, &c->recent, &draft, rows, &host,
                                     &error) == GUMBEL_OK &&
                  gumbel_watermark_nodes(gpu, NULL, &w, &recent, &on_gpu, rows, &draws, &error) ==
                      GUMBEL_OK,
              "%s: %s", error.field, error.message);
        GPU(cuCtxSynchronize);
        gpu_fetch(positions[1], draws.position, sizeof positions[1]);
        gpu_fetch(marks[1], draws.watermarked, sizeof marks[1]);
        gpu_fetch(seeds, draws.seed, sizeof seeds);
        CHECK(memcmp(positions[0], positions[1], (size_t)rows * 8) == 0, "positions, call %d",
              (int)index);
        CHECK(memcmp(marks[0], marks[1], (size_t)rows * 4) == 0, "marks, call %d", (int)index);
        CHECK(memcmp(c->seed, seeds, sizeof seeds) == 0, "seeds, call %d", (int)index);
        gpu_copies_free(&arrays);
    }
    free(c);
}

/* ---------------------------------------------------------------------------------- decode ---- */

enum { BATCH = 24, VOCAB = 3000, CAPACITY = 500, STEPS = 600 };

/* A decode loop's memory on a device, and its arguments. */
typedef struct decode_loop {
    gumbel_watermark watermark;
    gumbel_recent recent;
    gumbel_watermark_draws draws;
    gumbel_logits in;
    gumbel_sampling how;
    gumbel_output out;
    gumbel_step next;
    void *workspace;
    size_t bytes;
} decode_loop;

/* Memory of the loop on the host. */
typedef struct decode_memory {
    uint64_t key[2 * BATCH], seed[BATCH], own_seed[BATCH], position[BATCH], own_position[BATCH];
    uint64_t count[BATCH];
    int32_t context[BATCH], ring[BATCH * CAPACITY], tokens[BATCH], watermarked[BATCH];
    float logits[BATCH * VOCAB];
} decode_memory;

static void make_loop(decode_loop *l, decode_memory *m)
{
    l->watermark = (gumbel_watermark){.struct_size = sizeof l->watermark,
                                      .key = m->key,
                                      .context = {m->context, 0},
                                      .seed = {m->own_seed, 0},
                                      .position = {m->own_position, 0}};
    l->recent = (gumbel_recent){.struct_size = sizeof l->recent,
                                .capacity = CAPACITY,
                                .tokens = m->ring,
                                .count = m->count};
    l->draws = (gumbel_watermark_draws){.struct_size = sizeof l->draws,
                                        .seed = m->seed,
                                        .position = m->position,
                                        .watermarked = m->watermarked};
    l->in = (gumbel_logits){.struct_size = sizeof l->in,
                            .logits = tensor_of(m->logits, GUMBEL_FLOAT32, BATCH, VOCAB, VOCAB)};
    l->how = (gumbel_sampling){
        .struct_size = sizeof l->how, .seed = {m->seed, 1}, .position = {m->position, 1}};
    l->out = (gumbel_output){.struct_size = sizeof l->out, .tokens = m->tokens};
    l->next = (gumbel_step){.struct_size = sizeof l->next,
                            .batch = BATCH,
                            .num_samples = 1,
                            .tokens = m->tokens,
                            .position = m->own_position};
}

/* Queues a step: watermark, draw, append, advance. */
static void run_step(gumbel_device *device, CUstream stream, const decode_loop *l)
{
    gumbel_error error = {"", ""};
    if (gumbel_watermark_rows(device, stream, &l->watermark, &l->recent, BATCH, &l->draws,
                              &error) != GUMBEL_OK ||
        gumbel_sample_logits(device, stream, &l->in, &l->how, &l->out, l->workspace, l->bytes,
                             &error) != GUMBEL_OK ||
        gumbel_recent_append(device, stream, &l->recent, BATCH, NULL, l->out.tokens, 1, NULL,
                             &error) != GUMBEL_OK ||
        gumbel_advance(device, stream, &l->next, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
}

static size_t count_workspace(const gumbel_device *device, const decode_loop *l)
{
    size_t bytes;
    gumbel_error error = {"", ""};
    if (gumbel_workspace_size(device, NULL, &l->in, &l->how, &l->out, &bytes, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    return bytes;
}

static void fill_memory(decode_memory *m, uint64_t *random)
{
    for (int b = 0; b < BATCH; b++) {
        m->key[2 * b] = random_bits(random);
        m->key[2 * b + 1] = random_bits(random);
        m->own_seed[b] = random_bits(random);
        m->own_position[b] = (uint64_t)b;
        m->context[b] = b % (GUMBEL_CONTEXT_MAX + 1);
    }
}

/* A few likely tokens, so that contexts repeat; other ones for each step. */
static void fill_logits(decode_memory *m, uint64_t *random)
{
    for (int i = 0; i < BATCH * VOCAB; i++)
        m->logits[i] = -30;
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < 3 + b % 4; i++)
            m->logits[b * VOCAB + 700 * i] = random_normal(random);
}

/* Fetches a field of the loop in device memory, and compares it with the host's. */
#define SAME(field)                                                                                \
    (gpu_fetch(found->field,                                                                       \
               (const char *)on_gpu + ((const char *)host->field - (const char *)host),            \
               sizeof host->field),                                                                \
     memcmp(found->field, host->field, sizeof host->field) == 0)

static void decodes_by_a_graph(void)
{
    decode_memory *host = make_zeroed(1, sizeof *host), *found = make_zeroed(1, sizeof *found);
    decode_loop here, there;
    uint64_t random = 4;
    int64_t watermarked = 0;
    int step = 0;
    fill_memory(host, &random);
    decode_memory *on_gpu = gpu_copy(host, sizeof *host);
    make_loop(&here, host);
    make_loop(&there, on_gpu);
    here.bytes = count_workspace(cpu, &here);
    there.bytes = count_workspace(gpu, &there);
    here.workspace = poisoned_workspace(here.bytes);
    there.workspace = gpu_hostile(there.bytes);
    gpu_graph graph = gpu_graph_begin();
    run_step(gpu, graph.stream, &there);
    gpu_graph_end(&graph);
    for (int same = 1; step < STEPS && same; step++) {
        fill_logits(host, &random);
        gpu_put(on_gpu->logits, host->logits, sizeof host->logits);
        gpu_graph_replay(&graph);
        run_step(cpu, NULL, &here);
        same = CHECK(SAME(seed) && SAME(position) && SAME(watermarked), "step %d: draws", step) &&
               CHECK(SAME(tokens) && SAME(count) && SAME(own_position), "step %d: tokens", step);
        for (int b = 0; b < BATCH; b++)
            watermarked += host->watermarked[b];
    }
    CHECK(watermarked > BATCH * STEPS / 4 && watermarked < BATCH * STEPS * 9 / 10,
          "%d draws are watermarked", (int)watermarked);
    gpu_graph_free(&graph);
    gpu_free(there.workspace);
    gpu_free(on_gpu);
    free(here.workspace);
    free(host);
    free(found);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"random_rows", random_rows},
        {"random_nodes", random_nodes},
        {"decodes_by_a_graph", decodes_by_a_graph},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
