/* SPDX-License-Identifier: Apache-2.0
 *
 * A group of processes draws from fixed problems, with and without top_k, and in replayed graphs.
 * The results equal those of one GPU with the whole vocabulary. If one rank passes different
 * parameters, makes no call or is killed, the others return an error.
 */
#define _GNU_SOURCE
#include "rank_process.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A draw of the group from this rank's shard, which consists of whole blocks, and the draw of one
 * GPU from the whole vocabulary, whose outputs are expected. */
typedef struct group_draw {
    problem *host, *whole;
    gumbel_head head; /* the shard */
    gumbel_group *group;
    gumbel_output out;
    outcome *expected, *found;
    void *workspace;
    size_t bytes;
    int tokens_only; /* requests only tokens and scores, so that no rank sums masses */
} group_draw;

/* top_k of all rows of the next draw; 0: no truncation. */
static int32_t top_k;
static gumbel_truncation truncation;

static group_draw make_group_draw(const problem_plan *plan)
{
    group_draw s = {.host = problem_make(plan)};
    gumbel_error error = {"", ""};
    int64_t blocks = plan->vocab / 64, first = blocks * rank / ranks * 64;
    int64_t end = rank + 1 == ranks ? plan->vocab : blocks * (rank + 1) / ranks * 64;
    size_t rows = (size_t)plan->batch, draws = rows * (size_t)(plan->samples ? plan->samples : 1);
    s.whole = gpu_problem(s.host);
    truncation = (gumbel_truncation){.struct_size = sizeof truncation,
                                     .top_k = {gpu_copy(&top_k, sizeof top_k), GUMBEL_SAME}};
    if (top_k > 0)
        s.whole->sampling.truncation = &truncation;
    s.head = problem_shard(&s.whole->head, first, end - first);
    s.group = open_group(s.head.first_token, s.head.weight.rows);
    s.expected = outcome_make(plan->batch, plan->samples ? plan->samples : 1);
    s.found = outcome_make(plan->batch, plan->samples ? plan->samples : 1);
    s.out = (gumbel_output){.struct_size = sizeof s.out,
                            .tokens = gpu_make(draws * 4),
                            .logprobs = gpu_make(draws * 4),
                            .scores = gpu_make(draws * 4),
                            .lse = gpu_make(rows * 4),
                            .status = gpu_make(rows * 4)};
    if (gumbel_group_workspace_size(s.group, &s.head, NULL, &s.whole->sampling, &s.out, &s.bytes,
                                    &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    s.workspace = gpu_hostile(s.bytes);
    return s;
}

static void free_group_draw(group_draw *s)
{
    gumbel_group_close(s->group);
    gpu_free((void *)(uintptr_t)truncation.top_k.data);
    void *buffers[] = {s->out.tokens, s->out.logprobs, s->out.scores,
                       s->out.lse,    s->out.status,   s->workspace};
    for (int i = 0; i < 6; i++)
        gpu_free(buffers[i]);
    outcome_free(s->expected);
    outcome_free(s->found);
    gpu_problem_free(s->whole);
    problem_free(s->host);
}

static gumbel_status queue_group_draw(group_draw *s, CUstream stream, gumbel_error *error)
{
    gumbel_output out = s->out;
    if (s->tokens_only)
        out.logprobs = out.lse = NULL;
    return gumbel_group_sample(s->group, stream, &s->head, &s->whole->sampling, &out, s->workspace,
                               s->bytes, error);
}

static void draw_and_wait(group_draw *s)
{
    gumbel_error error = {"", ""};
    CHECK(queue_group_draw(s, NULL, &error) == GUMBEL_OK, "%s: %s", error.field, error.message);
    CHECK(gumbel_group_wait(s->group, NULL, &error) == GUMBEL_OK, "%s", error.message);
}

/* Draws from the whole vocabulary on this GPU and compares. */
static void compare_group_draw(group_draw *s, const char *what)
{
    size_t rows = (size_t)s->found->batch, draws = rows * (size_t)s->found->samples;
    gpu_fetch(s->found->tokens, s->out.tokens, draws * 4);
    gpu_fetch(s->found->logprobs, s->out.logprobs, draws * 4);
    gpu_fetch(s->found->scores, s->out.scores, draws * 4);
    gpu_fetch(s->found->lse, s->out.lse, rows * 4);
    gpu_fetch(s->found->status, s->out.status, rows * 4);
    gpu_draw(&s->whole->head, NULL, &s->whole->sampling, OUTCOME_ALL, s->expected);
    draws_compared += (int64_t)draws;
    const uint32_t parts = OUTCOME_TOKENS | OUTCOME_SCORES | (s->tokens_only ? 0 : OUTCOME_MASS);
    CHECK(outcome_same(s->expected, 0, s->found, parts, what), "%s: rank %d", what, (int)rank);
}

static const problem_plan plans[] = {
    {.batch = 1, .vocab = 151936, .hidden_size = 1024, .seed = 1},
    {.batch = 7, .vocab = 32000, .hidden_size = 256, .samples = 3, .seed = 2},
    {.batch = 64, .vocab = 50257, .hidden_size = 512, .temperature = -1, .seed = 3},
    {.batch = 256, .vocab = 128256, .hidden_size = 256, .seed = 4, .soft_cap = 20},
    {.batch = 16, .vocab = 8192, .hidden_size = 128, .vocab_size = 5000, .seed = 5},
    {.batch = 64, .vocab = 64000, .hidden_size = 256, .hidden_dtype = GUMBEL_BFLOAT16, .seed = 9},
};

void draw_plain(void)
{
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        group_draw s = make_group_draw(&plans[i]);
        for (int turn = 0; turn < 3; turn++) {
            s.tokens_only =
                turn == 0; /* first, while the workspace holds no masses of another draw */
            draw_and_wait(&s);
            compare_group_draw(&s, problem_describe(&plans[i]));
        }
        free_group_draw(&s);
    }
}

/* Captures a draw and replays it. */
static void replay_graph_of_top_k(int32_t k)
{
    static const problem_plan plan = {.batch = 20,
                                      .vocab = 32000,
                                      .hidden_size = 256,
                                      .hidden_dtype = GUMBEL_BFLOAT16,
                                      .seed = 6};
    top_k = k;
    group_draw s = make_group_draw(&plan);
    gumbel_error error = {"", ""};
    draw_and_wait(&s);
    gpu_graph graph = gpu_graph_begin();
    CHECK(queue_group_draw(&s, graph.stream, &error) == GUMBEL_OK, "%s: %s", error.field,
          error.message);
    gpu_graph_end(&graph);
    for (uint64_t step = 0; step < 5; step++) {
        uint64_t positions[32];
        for (uint64_t b = 0; b < 32; b++)
            positions[b] = 100 * step + b;
        gpu_put((void *)(uintptr_t)s.whole->sampling.position.data, positions,
                (size_t)s.found->batch * sizeof *positions);
        gpu_graph_replay(&graph);
        compare_group_draw(&s, "a graph");
    }
    gpu_graph_free(&graph);
    free_group_draw(&s);
    top_k = 0;
}

void replay_graphs(void)
{
    replay_graph_of_top_k(0);    /* plain */
    replay_graph_of_top_k(50);   /* determined by the ranks' top-64 candidates */
    replay_graph_of_top_k(3000); /* more than the candidates can determine: gathers whole rows */
}

/* Fallback rows: ranks store all their logits instead of only those that may win. */
void draw_fallback_rows(void)
{
    static const problem_plan plan = {.batch = 20,
                                      .vocab = 64 * 2400,
                                      .hidden_size = 64,
                                      .hidden_dtype = GUMBEL_BFLOAT16,
                                      .seed = 7};
    int32_t each[20];
    top_k = 50;
    group_draw s = make_group_draw(&plan);
    const gumbel_row_i32 same = truncation.top_k;
    char *hidden = (char *)(uintptr_t)s.whole->head.hidden.data;
    /* Turns: no fallback row; a row without truncation; a row of equal logits; both. */
    for (int turn = 0; turn < 4; turn++) {
        for (int b = 0; b < 20; b++)
            each[b] = b == 3 && turn % 2 ? 0 : 50;
        int32_t *rows = gpu_copy(each, sizeof each);
        truncation.top_k = (gumbel_row_i32){rows, 0};
        if (turn == 2)
            gpu_put(hidden + 7 * 64 * 2, (uint64_t[16]){0}, 64 * 2);
        draw_and_wait(&s);
        compare_group_draw(&s, "fallback rows");
        gpu_free(rows);
    }
    truncation.top_k = same;
    free_group_draw(&s);
    top_k = 0;
}

/* The last rank passes another domain than the others: all ranks return an error. */
void draw_with_different_parameters(void)
{
    group_draw s = make_group_draw(&plans[1]);
    gumbel_error error = {"", ""};
    draw_and_wait(&s);
    compare_group_draw(&s, "before a parameter differs");
    s.whole->sampling.domain = rank + 1 == ranks ? 3 : 4;
    gumbel_status status = queue_group_draw(&s, NULL, &error);
    CHECK(status == GUMBEL_ERROR_GROUP, "different parameters are not an error");
    CHECK(strcmp(error.field, "sampling.domain") == 0, "%s: %s", error.field, error.message);
    free_group_draw(&s);
}

/* The last rank makes no second call; the others must return an error within twice TIMEOUT_MS. */
void draw_with_absent_rank(void)
{
    group_draw s = make_group_draw(&plans[1]);
    gumbel_error error = {"", ""};
    struct timespec start, now;
    draw_and_wait(&s);
    if (rank + 1 == ranks) {
        sleep(2 * TIMEOUT_MS / 1000);
        failed_communicators++;
        free_group_draw(&s);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &start);
    CHECK(queue_group_draw(&s, NULL, &error) == GUMBEL_OK, "%s: %s", error.field, error.message);
    CHECK(gumbel_group_wait(s.group, NULL, &error) == GUMBEL_ERROR_GROUP,
          "the absence of a rank is not an error");
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(now.tv_sec - start.tv_sec <= 2 * TIMEOUT_MS / 1000, "the error came too late");
    CHECK(queue_group_draw(&s, NULL, &error) == GUMBEL_ERROR_GROUP, "a failed group draws");
    failed_communicators++;
    free_group_draw(&s);
}

/* The last rank kills itself after its first call; the others must return errors. Runs only if
 * named, because the killed process cannot run further tests. */
void draw_with_killed_rank(void)
{
    group_draw s = make_group_draw(&plans[1]);
    gumbel_error error = {"", ""};
    draw_and_wait(&s);
    if (rank + 1 == ranks)
        raise(SIGKILL);
    for (int turn = 0; turn < 3; turn++) {
        gumbel_status status = queue_group_draw(&s, NULL, &error);
        CHECK(turn == 0 || status == GUMBEL_ERROR_GROUP, "a failed group draws");
        status = gumbel_group_wait(s.group, NULL, &error);
        CHECK(status == GUMBEL_ERROR_GROUP, "the death of a rank is not an error");
    }
    free_group_draw(&s);
}
