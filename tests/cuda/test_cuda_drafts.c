/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts verified on the GPU: texts equal the CPU's step-by-step decoding; an invalid draft affects
 * only its own request; a replayed graph verifies other drafts of its shape; rows have the bits of
 * a plain draw.
 */
#include "cuda_drafts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Log-probabilities computed by the logarithms of two libraries. */
#define TOLERANCE 1e-5f

/* Verify a cycle and CHECK its outputs; emitted tokens are counted in `progress`. */
static void check_cycle(const cycle *req, int32_t *progress, const char *what)
{
    const texts *of = req->of;
    verified_arrays *found =
        verified_make(of->plan.requests, req->max_nodes, of->plan.requests + 3);
    verified_arrays *on_gpu = gpu_verified_make(found);
    gpu_cycle *generated = gpu_cycle_make(req);
    gpu_cycle_prepare(generated, on_gpu);
    gpu_cycle_verify(NULL, generated, on_gpu);
    GPU(cuCtxSynchronize);
    gpu_verified_fetch(on_gpu, found);
    CHECK(cycle_agrees(req, progress, found, TOLERANCE), "%s", what);
    for (int32_t r = 0; r < of->plan.requests; r++) {
        draws_compared += req->emitted[r];
        progress[r] += req->emitted[r];
        if (progress[r] + 10 > of->plan.length)
            progress[r] = 0;
    }
    gpu_cycle_free(generated);
    gpu_verified_free(on_gpu);
    verified_free(found);
}

/* Decodes texts from logits, and from a head whose product has the CPU's bits. */
static void check_texts(int first, int count, int cycles)
{
    for (int index = first; index < first + count; index++) {
        const texts_plan plan = texts_plan_at_random(index);
        texts *of = texts_make(&plan, cpu);
        int32_t progress[8] = {0};
        uint64_t random = (uint64_t)index;
        char what[40];
        for (int turn = 0; turn < cycles; turn++) {
            cycle *req = cycle_make(of, progress, &random);
            snprintf(what, sizeof what, "plan %d, cycle %d", index, turn);
            check_cycle(req, progress, what);
            cycle_free(req);
        }
        texts_free(of);
    }
}

static void texts_of_the_target(void) { check_texts(0, 24, 8); }

static void nightly_texts(void) { check_texts(24, 200, 8); }

/* Make the draft of request r impossible. */
static void spoil(cycle *c, int32_t r, int how)
{
    if (how == 0)
        c->nodes[r] = -1;
    else if (how == 1)
        c->nodes[r] = c->max_nodes + 1;
    else
        c->nodes[r] = INT32_MAX;
    c->emitted[r] = c->finished[r] = 0;
    c->status[r] = GUMBEL_ROW_DRAFT;
    memset(c->path + r * c->max_nodes, 0xff, (size_t)c->max_nodes * sizeof *c->path);
}

static void impossible_drafts(void)
{
    for (int index = 0; index < 30; index++) {
        const texts_plan plan = texts_plan_at_random(2 * index);
        texts *of = texts_make(&plan, cpu);
        int32_t progress[8] = {0};
        uint64_t random = (uint64_t)index;
        cycle *req = cycle_make(of, progress, &random);
        int32_t r = index % plan.requests;
        char what[40];
        snprintf(what, sizeof what, "plan %d, request %d", 2 * index, (int)r);
        if (r < req->live_rows) {
            spoil(req, r, index % 3);
            check_cycle(req, progress, what);
        }
        cycle_free(req);
        texts_free(of);
    }
}

/* Rules that compare probabilities, in a graph, emit the CPU's tokens. */
static void check_rules(int first, int count)
{
    for (int index = first; index < first + count; index++) {
        const texts_plan plan = texts_plan_at_random(index);
        texts *of = texts_make(&plan, cpu);
        int32_t progress[8] = {0};
        uint64_t random = (uint64_t)index;
        cycle *req = cycle_make(of, progress, &random);
        /* The block rule verifies from logits only. */
        const int block = index / 2 % 2 && plan.hidden_size == 0;
        cycle_set_rule(req, block ? GUMBEL_RULE_BLOCK : GUMBEL_RULE_REJECTION, &random);
        verified_arrays *wanted = verified_make(plan.requests, req->max_nodes, plan.requests + 3);
        verified_arrays *found = verified_make(plan.requests, req->max_nodes, plan.requests + 3);
        verified_arrays *on_gpu = gpu_verified_make(found);
        gpu_cycle *generated = gpu_cycle_make(req);
        CHECK(cycle_verify(cpu, req, wanted) == GUMBEL_OK, "plan %d", index);
        gpu_cycle_prepare(generated, on_gpu);
        gpu_graph graph = gpu_graph_begin();
        gpu_cycle_verify(graph.stream, generated, on_gpu);
        gpu_graph_end(&graph);
        gpu_graph_replay(&graph);
        gpu_verified_fetch(on_gpu, found);
        CHECK(verified_same(wanted, found, TOLERANCE), "plan %d", index);
        for (int32_t r = 0; r < plan.requests; r++)
            draws_compared += wanted->emitted[r];
        gpu_graph_free(&graph);
        gpu_cycle_free(generated);
        gpu_verified_free(on_gpu);
        verified_free(found);
        verified_free(wanted);
        cycle_free(req);
        texts_free(of);
    }
}

static void rules(void) { check_rules(0, 60); }

/* Rows of many splits, in a replayed graph, emit the CPU's tokens each time, also with
 * log-probabilities supplied by the drafter. */
static void check_requests(wide_drafts *req, int is_supplied, const char *what, int index)
{
    verified_arrays *wanted = verified_make(req->requests, req->max_nodes, req->requests);
    verified_arrays *found = verified_make(req->requests, req->max_nodes, req->requests);
    verified_arrays *on_gpu = gpu_verified_make(found);
    if (is_supplied)
        wide_supply_logprobs(req, cpu);
    gpu_wide *generated = gpu_wide_make(req, on_gpu);
    CHECK(wide_verify(cpu, req, wanted) == GUMBEL_OK, "%s %d", what, index);
    gpu_graph graph = gpu_graph_begin();
    gpu_wide_verify(graph.stream, generated, on_gpu);
    gpu_graph_end(&graph);
    for (int turn = 0; turn < 3; turn++) {
        gpu_graph_replay(&graph);
        gpu_verified_fetch(on_gpu, found);
        for (int64_t i = 0; i < found->nodes; i++)
            found->histogram[i] /= (uint64_t)turn + 1;
        CHECK(verified_same(wanted, found, TOLERANCE), "%s %d, turn %d", what, index, turn);
    }
    for (int32_t r = 0; r < req->requests; r++)
        draws_compared += wanted->emitted[r];
    gpu_graph_free(&graph);
    gpu_wide_free(generated);
    gpu_verified_free(on_gpu);
    verified_free(found);
    verified_free(wanted);
    wide_free(req);
}

static void check_wide(int first, int count, int64_t max_vocab)
{
    for (int index = first; index < first + count; index++)
        check_requests(wide_make(index, max_vocab), index / 2 % 2, "wide rows", index);
}

/* The drawn token may be anywhere in a warp's list, or after it. */
static void crowded(void)
{
    for (int index = 0; index < 30; index++)
        check_requests(wide_make_crowded(index), 1, "crowded rows", index);
}

static void wide(void)
{
    check_wide(0, 200, 5000);
    check_wide(200, 60, 160000);
}

static void nightly_wide(void) { check_wide(260, 2000, 30000); }

/* For compute-sanitizer, whose racecheck takes half a second a row. */
static void small(void)
{
    check_texts(0, 3, 8);
    check_rules(0, 4);
    check_wide(0, 8, 5000);
}

static void few(void)
{
    check_texts(1, 1, 2);
    check_rules(2, 1);
    check_wide(3, 2, 3000);
}

/* A graph captured once is replayed with tokens of the text, then with none. */
static void graphs(void)
{
    for (int index = 0; index < 20; index++) {
        texts_plan plan = texts_plan_at_random(2 * index);
        plan.ends_early = 0;
        texts *of = texts_make(&plan, cpu);
        int32_t progress[8] = {0}, again[8] = {0};
        uint64_t random = (uint64_t)index;
        cycle *req = cycle_make(of, progress, &random);
        verified_arrays *found = verified_make(plan.requests, req->max_nodes, plan.requests + 3);
        verified_arrays *on_gpu = gpu_verified_make(found);
        gpu_cycle *generated = gpu_cycle_make(req);
        gpu_cycle_prepare(generated, on_gpu);
        gpu_graph graph = gpu_graph_begin();
        gpu_cycle_verify(graph.stream, generated, on_gpu);
        gpu_graph_end(&graph);
        gpu_graph_replay(&graph);
        gpu_verified_fetch(on_gpu, found);
        CHECK(cycle_agrees(req, again, found, TOLERANCE), "plan %d", 2 * index);
        int32_t *none = malloc((size_t)req->rows * sizeof *none);
        memset(none, 0xff, (size_t)req->rows * sizeof *none);
        gpu_put((void *)(uintptr_t)generated->req.draft.tokens, none,
                (size_t)req->rows * sizeof *none);
        gpu_graph_replay(&graph);
        gpu_verified_fetch(on_gpu, found);
        for (int32_t r = 0; r < plan.requests; r++)
            CHECK(found->emitted[r] == (req->emitted[r] > 0), "plan %d, request %d emitted %d",
                  2 * index, (int)r, (int)found->emitted[r]);
        free(none);
        gpu_graph_free(&graph);
        gpu_cycle_free(generated);
        gpu_verified_free(on_gpu);
        verified_free(found);
        cycle_free(req);
        texts_free(of);
    }
}

#define PUT(name, to, count)                                                                       \
    gpu_put((void *)(uintptr_t)(to), req->name, (size_t)(count) * sizeof *req->name)

/* Write other drafts of the same shape, with other noise, to a graph's inputs. */
static void change(wide_drafts *req, const gpu_wide *generated, uint64_t *random)
{
    const wide_drafts *there = &generated->req;
    for (int32_t r = 0; r < req->requests; r++) {
        const int32_t rows = req->offsets[r + 1] - req->offsets[r];
        req->nodes[r] = (int32_t)random_below(random, (uint32_t)rows + 1);
        req->seed[r] = random_bits(random);
        req->position[r] = random_bits(random);
    }
    for (int64_t b = 1; b < req->rows; b++)
        if (random_below(random, 3) == 0)
            req->tokens[b] = req->tokens[random_below(random, (uint32_t)req->rows)];
    PUT(nodes, there->draft.nodes, req->requests);
    PUT(seed, there->sampling.seed.data, req->requests);
    PUT(position, there->sampling.position.data, req->requests);
    PUT(tokens, there->draft.tokens, req->rows);
}
#undef PUT

/* A graph of a rule that compares probabilities, replayed with drafts of other lengths, tokens,
 * seeds and positions, emits the CPU's tokens. */
static void replays(void)
{
    for (int index = 0; index < 24; index++) {
        wide_drafts *req = wide_make(index, 4000);
        verified_arrays *found = verified_make(req->requests, req->max_nodes, req->requests);
        verified_arrays *on_gpu = gpu_verified_make(found);
        gpu_wide *generated = gpu_wide_make(req, on_gpu);
        uint64_t random = (uint64_t)index, before[8] = {0};
        gpu_graph graph = gpu_graph_begin();
        gpu_wide_verify(graph.stream, generated, on_gpu);
        gpu_graph_end(&graph);
        for (int turn = 0; turn < 4; turn++) {
            verified_arrays *wanted = verified_make(req->requests, req->max_nodes, req->requests);
            if (turn > 0)
                change(req, generated, &random);
            CHECK(wide_verify(cpu, req, wanted) == GUMBEL_OK, "replay %d", index);
            gpu_graph_replay(&graph);
            gpu_verified_fetch(on_gpu, found);
            for (int64_t i = 0; i < found->nodes; i++) { /* the graph adds to this array */
                const uint64_t sum = found->histogram[i];
                found->histogram[i] -= before[i];
                before[i] = sum;
            }
            CHECK(verified_same(wanted, found, TOLERANCE), "replay %d, turn %d", index, turn);
            for (int32_t r = 0; r < req->requests; r++)
                draws_compared += wanted->emitted[r];
            verified_free(wanted);
        }
        gpu_graph_free(&graph);
        gpu_wide_free(generated);
        gpu_verified_free(on_gpu);
        verified_free(found);
        wide_free(req);
    }
}

/* Rows of a head that the Hopper kernel serves, compared with a plain draw. */
static void rows_of_a_draw(void)
{
    enum { R = 5, M = 4, N = R * M };
    const problem_plan plan = {.batch = N,
                               .vocab = 4096,
                               .hidden_size = 256,
                               .hidden_dtype = GUMBEL_BFLOAT16,
                               .temperature = 0.8f,
                               .first_sample = 9,
                               .seed = 91};
    problem *host = problem_make(&plan), *generated = gpu_problem(host);
    gumbel_sampling each = generated->sampling, of_requests = generated->sampling;
    int32_t tokens[N], results[R * M + R];
    uint64_t seeds[N], positions[N];
    uint32_t counters[N];
    float temperatures[N];
    for (int b = 0; b < N; b++) {
        int r = b / M;
        tokens[b] = b * 37 % 4096;
        seeds[b] = host->seed[r];
        counters[b] = host->first_sample[r];
        temperatures[b] = host->temperature[r];
        positions[b] = host->position[r] + (uint64_t)(b % M);
    }
    each.seed.data = gpu_copy(seeds, sizeof seeds);
    each.temperature.data = gpu_copy(temperatures, sizeof temperatures);
    each.position.data = gpu_copy(positions, sizeof positions);
    each.first_sample.data = gpu_copy(counters, sizeof counters);
    outcome *plain = outcome_make(N, 1), *found = outcome_make(N, 1);
    gpu_draw(&generated->head, NULL, &each, OUTCOME_ALL, plain);
    int32_t *on_gpu = gpu_copy(results, sizeof results);
    gumbel_output rows = {.struct_size = sizeof rows,
                          .tokens = gpu_make(N * 4),
                          .scores = gpu_make(N * 4),
                          .lse = gpu_make(N * 4),
                          .logprobs = gpu_make(N * 4),
                          .status = gpu_make(N * 4)};
    const gumbel_draft draft = {.struct_size = sizeof draft,
                                .requests = R,
                                .max_nodes = M,
                                .tokens = gpu_copy(tokens, sizeof tokens)};
    const gumbel_verified verified = {
        .struct_size = sizeof verified, .tokens = on_gpu, .emitted = on_gpu + R * M, .rows = &rows};
    gumbel_error error = {"", ""};
    size_t bytes = 0;
    CHECK(gumbel_verify_workspace_size(gpu, &generated->head, NULL, &of_requests, &draft, &verified,
                                       &bytes, &error) == GUMBEL_OK,
          "%s", error.message);
    void *workspace = gpu_hostile(bytes);
    CHECK(gumbel_verify(gpu, NULL, &generated->head, &of_requests, &draft, &verified, workspace,
                        bytes, &error) == GUMBEL_OK,
          "%s", error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(found->tokens, rows.tokens, N * 4);
    gpu_fetch(found->scores, rows.scores, N * 4);
    gpu_fetch(found->lse, rows.lse, N * 4);
    gpu_fetch(found->logprobs, rows.logprobs, N * 4);
    gpu_fetch(found->status, rows.status, N * 4);
    CHECK(outcome_same(plain, 0, found, OUTCOME_TOKENS | OUTCOME_SCORES | OUTCOME_MASS,
                       "rows of a head"),
          "%s", "rows of a head");
    draws_compared += N;
    const void *ours[] = {
        each.seed.data, each.temperature.data, each.position.data, each.first_sample.data,
        on_gpu,         rows.tokens,           rows.scores,        rows.lse,
        rows.logprobs,  rows.status,           draft.tokens,       workspace};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        gpu_free((void *)(uintptr_t)ours[i]);
    outcome_free(plain);
    outcome_free(found);
    gpu_problem_free(generated);
    problem_free(host);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"draft_texts", texts_of_the_target},
        {"draft_small", small},
        {"draft_few", few},
        {"draft_impossible", impossible_drafts},
        {"draft_graphs", graphs},
        {"draft_rules", rules},
        {"draft_replays", replays},
        {"draft_rows_of_a_draw", rows_of_a_draw},
        {"draft_wide", wide},
        {"draft_crowded", crowded},
        {"nightly_texts", nightly_texts},
        {"nightly_wide", nightly_wide},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
