/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: ranks_gpu RANKS [TEST ...]
 *
 * Tests groups of processes, one GPU each, that exchange by NCCL and by peer memory. A draw of the
 * group must equal the draw of one GPU from the whole vocabulary, also for verified drafts and
 * replayed graphs. If one rank passes different parameters, hangs or is killed, the others must
 * return an error. script/test-ranks runs the program. Exit code 77: no NCCL, or too few GPUs.
 */
#define _GNU_SOURCE
#include "gpu_shards.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 8, TIMEOUT = 6000, IDS = 256 };

/* Memory that all processes share: NCCL ids in the order in which rank 0 generates them. */
typedef struct board {
    char ids[IDS][GUMBEL_NCCL_ID_BYTES];
    _Atomic int generated;
} board;

static board *shared;
static int32_t rank, ranks;
static int communicators;     /* communicators that have failed; the index of the one in use */
static gumbel_peer_memory by; /* whether ranks exchange by peer memory */

/* Returns the transport of the next group. Groups share a transport until one of them fails. */
static gumbel_transport connect_transport(void)
{
    static gumbel_transport transport;
    static int generated_from = -1;
    gumbel_error error = {"", ""};
    if (generated_from == communicators)
        return transport;
    int which = generated_from = communicators;
    if (which == IDS)
        die("too many groups");
    if (rank == 0) {
        if (gumbel_nccl_id(shared->ids[which], &error) != GUMBEL_OK)
            die("%s: %s", error.field, error.message);
        shared->generated = which + 1;
    }
    while (shared->generated <= which)
        usleep(1000);
    if (gumbel_nccl_transport(NULL, shared->ids[which], rank, ranks, 0, &transport, &error) !=
        GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    transport.destroy = NULL; /* owned by no group */
    return transport;
}

static gumbel_group *open_group(int64_t first_token, int64_t rows)
{
    gumbel_error error = {"", ""};
    gumbel_group *group;
    gumbel_transport transport = connect_transport();
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = first_token,
                                          .rows = rows,
                                          .timeout_ms = TIMEOUT,
                                          .peer_memory = by};
    if (gumbel_group_open(&transport, gpu, &options, &group, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    return group;
}

/* A problem, this rank's shard of it, which consists of whole blocks, the outputs of the group, and
 * the expected outputs: those of a draw from the whole vocabulary. */
typedef struct scene {
    problem *host, *whole;
    gumbel_head head; /* of the shard */
    gumbel_group *group;
    gumbel_output out;
    outcome *expected, *found;
    void *workspace;
    size_t bytes;
    int bare; /* requests tokens and scores only, so that no rank sums masses */
} scene;

/* The top_k of all rows of the next scene. */
static int32_t top_k;
static gumbel_truncation truncation;

static scene begin_scene(const problem_plan *plan)
{
    scene s = {.host = problem_make(plan)};
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

static void end_scene(scene *s)
{
    gumbel_group_close(s->group);
    gpu_free((void *)(uintptr_t)truncation.top_k.data);
    void *generated[] = {s->out.tokens, s->out.logprobs, s->out.scores,
                         s->out.lse,    s->out.status,   s->workspace};
    for (int i = 0; i < 6; i++)
        gpu_free(generated[i]);
    outcome_free(s->expected);
    outcome_free(s->found);
    gpu_problem_free(s->whole);
    problem_free(s->host);
}

static gumbel_status draw_ranks(scene *s, CUstream stream, gumbel_error *error)
{
    gumbel_output out = s->out;
    if (s->bare)
        out.logprobs = out.lse = NULL;
    return gumbel_group_sample(s->group, stream, &s->head, &s->whole->sampling, &out, s->workspace,
                               s->bytes, error);
}

static void draw_and_wait(scene *s)
{
    gumbel_error error = {"", ""};
    CHECK(draw_ranks(s, NULL, &error) == GUMBEL_OK, "%s: %s", error.field, error.message);
    CHECK(gumbel_group_wait(s->group, NULL, &error) == GUMBEL_OK, "%s", error.message);
}

/* Compares the outputs of the ranks with the draw from the whole on this GPU. */
static void compare_scene(scene *s, const char *what)
{
    size_t rows = (size_t)s->found->batch, draws = rows * (size_t)s->found->samples;
    gpu_fetch(s->found->tokens, s->out.tokens, draws * 4);
    gpu_fetch(s->found->logprobs, s->out.logprobs, draws * 4);
    gpu_fetch(s->found->scores, s->out.scores, draws * 4);
    gpu_fetch(s->found->lse, s->out.lse, rows * 4);
    gpu_fetch(s->found->status, s->out.status, rows * 4);
    gpu_draw(&s->whole->head, NULL, &s->whole->sampling, OUTCOME_ALL, s->expected);
    draws_compared += (int64_t)draws;
    const uint32_t parts = OUTCOME_TOKENS | OUTCOME_SCORES | (s->bare ? 0 : OUTCOME_MASS);
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

static void draw_plain(void)
{
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        scene s = begin_scene(&plans[i]);
        for (int turn = 0; turn < 3; turn++) {
            s.bare = turn == 0; /* while no masses of an earlier draw are in memory */
            draw_and_wait(&s);
            compare_scene(&s, problem_describe(&plans[i]));
        }
        end_scene(&s);
    }
}

/* Captures a draw and replays it. With k = 0 the draw is plain; with k = 50 it uses the ranks'
 * top-64 candidates; with k = 3000, more than the candidates can determine, it gathers whole rows.
 */
static void replay_graph_of(int32_t k)
{
    static const problem_plan plan = {.batch = 20,
                                      .vocab = 32000,
                                      .hidden_size = 256,
                                      .hidden_dtype = GUMBEL_BFLOAT16,
                                      .seed = 6};
    top_k = k;
    scene s = begin_scene(&plan);
    gumbel_error error = {"", ""};
    draw_and_wait(&s);
    gpu_graph graph = gpu_graph_begin();
    CHECK(draw_ranks(&s, graph.stream, &error) == GUMBEL_OK, "%s: %s", error.field, error.message);
    gpu_graph_end(&graph);
    for (uint64_t step = 0; step < 5; step++) {
        uint64_t positions[32];
        for (uint64_t b = 0; b < 32; b++)
            positions[b] = 100 * step + b;
        gpu_put((void *)(uintptr_t)s.whole->sampling.position.data, positions,
                (size_t)s.found->batch * sizeof *positions);
        gpu_graph_replay(&graph);
        compare_scene(&s, "a graph");
    }
    gpu_graph_free(&graph);
    end_scene(&s);
    top_k = 0;
}

static void replay_graph(void)
{
    replay_graph_of(0);
    replay_graph_of(50);
    replay_graph_of(3000);
}

/* Tests fallback rows: a rank must store all their logits instead of only those that may win. */
static void leave_rows(void)
{
    static const problem_plan plan = {.batch = 20,
                                      .vocab = 64 * 2400,
                                      .hidden_size = 64,
                                      .hidden_dtype = GUMBEL_BFLOAT16,
                                      .seed = 7};
    int32_t each[20];
    top_k = 50;
    scene s = begin_scene(&plan);
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
        compare_scene(&s, "fallback rows");
        gpu_free(rows);
    }
    truncation.top_k = same;
    end_scene(&s);
    top_k = 0;
}

/* All ranks change a host parameter, but the last rank to another value: all return an error. */
static void differ(void)
{
    scene s = begin_scene(&plans[1]);
    gumbel_error error = {"", ""};
    draw_and_wait(&s);
    compare_scene(&s, "before a parameter differs");
    s.whole->sampling.domain = rank + 1 == ranks ? 3 : 4;
    gumbel_status status = draw_ranks(&s, NULL, &error);
    CHECK(status == GUMBEL_ERROR_GROUP, "different parameters are not an error");
    CHECK(strcmp(error.field, "sampling.domain") == 0, "%s: %s", error.field, error.message);
    end_scene(&s);
}

/* Draws a request and compares the outputs with a draw from the whole. Returns 0 if groups on GPUs
 * do not support the request, which must hold on all ranks or on none. */
static int draw_request(const request_plan *plan, int fused, uint64_t *random)
{
    request *host = request_make(plan, cpu);
    gpu_request *req = gpu_request_make(host);
    outcome *expected = request_outcome(host), *found = request_outcome(host);
    shard_split split = split_request(plan, ranks, random_below(random, 2) == 0, random);
    gumbel_group *group = open_group(split.first[rank], split.rows[rank]);
    gumbel_error error = {"", ""};
    gpu_shard s;
    gumbel_status status = gpu_shard_make(&s, group, req, &split, rank, fused, 0, expected, &error);
    int served = status == GUMBEL_OK;
    if (served) {
        gpu_request_draw(req, fused, expected);
        CHECK(gpu_shard_draw(&s, NULL, &error) == GUMBEL_OK, "%s: %s", error.field, error.message);
        CHECK(gumbel_group_wait(group, NULL, &error) == GUMBEL_OK, "%s", error.message);
        gpu_output_fetch(&s.out, found);
        CHECK(outcome_same(expected, 0, found, OUTCOME_ALL, request_describe(plan)), "rank %d",
              (int)rank);
        draws_compared += found->batch * found->samples;
    }
    gumbel_group_close(group);
    gpu_shard_free(&s);
    outcome_free(expected);
    outcome_free(found);
    gpu_request_free(req);
    request_free(host);
    return served;
}

/* Prints the progress of a long test, at most once in five seconds. */
static void print_progress(const char *what, int done, int count)
{
    static struct timespec printed;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (rank != 0 || now.tv_sec < printed.tv_sec + 5)
        return;
    if (printed.tv_sec)
        printf("%s: %d of %d\n", what, done, count);
    printed = now;
}

static void draw_requests(void)
{
    uint64_t random = 9;
    int served = 0, count = 20;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random((int)random_below(&random, 1000), i % 2);
        if (plan.vocab < 2 * RANKS_MAX)
            plan.vocab = 2 * RANKS_MAX;
        served += draw_request(&plan, i % 2, &random);
        print_progress("requests", i, count);
    }
    CHECK(3 * served >= count, "%d of %d requests were supported", served, count);
}

/* Draws requests with common values of top_k and top_p from all kinds of rows, so that some rows
 * become fallback rows. */
static void draw_usual(void)
{
    uint64_t random = 10;
    for (int i = 0, count = 8; i < count; i++) {
        const int fused = i < 4;
        const request_plan plan = {.batch = i % 2 ? 40 : 3,
                                   .vocab = 5000,
                                   .hidden_size = fused ? 16 : 0,
                                   .samples = 1,
                                   .transforms = i / 2 % 2,
                                   .truncation = 1,
                                   .usual = 1,
                                   .cuts = REQUEST_TOP_K | REQUEST_TOP_P,
                                   .seed = 70 + (uint64_t)i};
        CHECK(draw_request(&plan, fused, &random), "%s is not supported", request_describe(&plan));
        print_progress("usual requests", i, count);
    }
}

/* Verifies drafts on all ranks, and compares with a verification of the whole on this GPU. */
static void verify_cycle(const cycle *host, int32_t *progress, uint64_t *random)
{
    const texts_plan *plan = &host->of->plan;
    const request_plan whole = {.vocab = plan->vocab};
    gpu_cycle *req = gpu_cycle_make(host);
    verified_arrays *expected = gpu_cycle_outcome(req);
    verified_arrays *found = verified_make(plan->requests, host->max_nodes, plan->requests + 3);
    shard_split split = split_request(&whole, ranks, 0, random);
    gumbel_group *group = open_group(split.first[rank], split.rows[rank]);
    gumbel_error error = {"", ""};
    gpu_shard_cycle s;
    gpu_shard_cycle_make(&s, group, req, &split, rank, found);
    CHECK(gpu_shard_cycle_verify(&s, NULL, &error) == GUMBEL_OK, "%s: %s", error.field,
          error.message);
    CHECK(gumbel_group_wait(group, NULL, &error) == GUMBEL_OK, "%s", error.message);
    gpu_verified_fetch(s.into, found);
    CHECK(verified_same(expected, found, 0.0f), "rank %d", (int)rank);
    for (int32_t r = 0; r < plan->requests; r++) {
        draws_compared += host->emitted[r];
        progress[r] += host->emitted[r];
        progress[r] = progress[r] + 10 > plan->length ? 0 : progress[r];
    }
    gumbel_group_close(group);
    gpu_shard_cycle_free(&s);
    verified_free(found);
    verified_free(expected);
    gpu_cycle_free(req);
}

static void verify_drafts(void)
{
    const int count = 6;
    for (int index = 0; index < count; index++) {
        const texts_plan plan = texts_plan_at_random(index);
        texts *of = texts_make(&plan, cpu);
        int32_t progress[8] = {0};
        uint64_t random = (uint64_t)index;
        for (int turn = 0; turn < 3; turn++) {
            cycle *host = cycle_make(of, progress, &random);
            verify_cycle(host, progress, &random);
            cycle_free(host);
        }
        texts_free(of);
        print_progress("texts", index, count);
    }
}

/* The last rank makes no second call; the others must return an error within twice TIMEOUT. */
static void hang(void)
{
    scene s = begin_scene(&plans[1]);
    gumbel_error error = {"", ""};
    struct timespec start, now;
    draw_and_wait(&s);
    if (rank + 1 == ranks) {
        sleep(2 * TIMEOUT / 1000);
        communicators++;
        end_scene(&s);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &start);
    CHECK(draw_ranks(&s, NULL, &error) == GUMBEL_OK, "%s: %s", error.field, error.message);
    CHECK(gumbel_group_wait(s.group, NULL, &error) == GUMBEL_ERROR_GROUP, "a hang is not an error");
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(now.tv_sec - start.tv_sec <= 2 * TIMEOUT / 1000, "the error came too late");
    CHECK(draw_ranks(&s, NULL, &error) == GUMBEL_ERROR_GROUP, "a failed group draws");
    communicators++;
    end_scene(&s);
}

/* The last rank kills itself after its first call; the others must return errors. This test runs
 * only if it is named, because the group cannot be used afterwards. */
static void be_killed(void)
{
    scene s = begin_scene(&plans[1]);
    gumbel_error error = {"", ""};
    draw_and_wait(&s);
    if (rank + 1 == ranks)
        raise(SIGKILL);
    for (int turn = 0; turn < 3; turn++) {
        gumbel_status status = draw_ranks(&s, NULL, &error);
        CHECK(turn == 0 || status == GUMBEL_ERROR_GROUP, "a failed group draws");
        status = gumbel_group_wait(s.group, NULL, &error);
        CHECK(status == GUMBEL_ERROR_GROUP, "the death of a rank is not an error");
    }
    end_scene(&s);
}

#define WAYS(way, how)                                                                             \
    static void way##_plain(void) { by = how, draw_plain(); }                                      \
    static void way##_requests(void) { by = how, draw_requests(); }                                \
    static void way##_usual(void) { by = how, draw_usual(); }                                      \
    static void way##_drafts(void) { by = how, verify_drafts(); }                                  \
    static void way##_graph(void) { by = how, replay_graph(); }                                    \
    static void way##_left(void) { by = how, leave_rows(); }                                       \
    static void way##_differ(void) { by = how, differ(); }                                         \
    static void way##_hang(void) { by = how, hang(); }                                             \
    static void way##_kill(void) { by = how, be_killed(); }
WAYS(nccl, GUMBEL_PEERS_OFF)
WAYS(peers, GUMBEL_PEERS_REQUIRE)

static int run_rank(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"nccl_plain", nccl_plain},
        {"nccl_requests", nccl_requests},
        {"nccl_usual", nccl_usual},
        {"nccl_drafts", nccl_drafts},
        {"nccl_graph", nccl_graph},
        {"nccl_left", nccl_left},
        {"nccl_differ", nccl_differ},
        {"nccl_hang", nccl_hang},
        {"peers_plain", peers_plain},
        {"peers_requests", peers_requests},
        {"peers_usual", peers_usual},
        {"peers_drafts", peers_drafts},
        {"peers_graph", peers_graph},
        {"peers_left", peers_left},
        {"peers_differ", peers_differ},
        {"peers_hang", peers_hang},
        {NULL, NULL},
    };
    static const cuda_test fatal[] = {
        {"nccl_kill", nccl_kill}, {"peers_kill", peers_kill}, {NULL, NULL}};
    char which[16], id[GUMBEL_NCCL_ID_BYTES];
    gumbel_error error = {"", ""};
    snprintf(which, sizeof which, "%d", (int)rank);
    setenv("CUDA_VISIBLE_DEVICES", which, 1);
    if (gumbel_nccl_id(id, &error) != GUMBEL_OK) {
        printf("skipped: %s\n", error.message);
        return SKIPPED;
    }
    return cuda_run_tests(argc, argv, argc > 1 && strstr(argv[1], "_kill") ? fatal : tests);
}

int main(int argc, char **argv)
{
    int result = 0;
    ranks = argc > 1 ? atoi(argv[1]) : 2;
    if (ranks < 1 || ranks > RANKS_MAX)
        return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    fflush(stdout);
    for (rank = 0; rank < ranks; rank++)
        if (fork() == 0)
            _exit(run_rank(argc - 1, argv + 1));
    for (int status; wait(&status) > 0;) {
        int killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        int code = WIFEXITED(status)                                        ? WEXITSTATUS(status)
                   : killed && argc > 2 && strstr(argv[2], "_kill") != NULL ? 0
                                                                            : 1;
        result = code == 1 || result == 1 ? 1 : code > result ? code : result;
    }
    return result;
}
