/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: ranks_gpu RANKS [TEST ...]
 *
 * Tests groups of processes, one GPU each, that exchange through NCCL or peer memory. Draws,
 * verified drafts and replayed graphs must equal those of one GPU with the whole vocabulary. If one
 * rank passes different parameters, hangs or is killed, the others must return an error.
 * script/test-ranks runs the program. Exit code 77: no NCCL, or too few GPUs.
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

enum { RANKS_MAX = 8, TIMEOUT_MS = 6000, IDS_MAX = 256 };

/* Memory of all processes: the NCCL ids that rank 0 has generated, one per communicator. */
typedef struct shared_ids {
    char ids[IDS_MAX][GUMBEL_NCCL_ID_BYTES];
    _Atomic int count; /* ids generated */
} shared_ids;

static shared_ids *nccl_ids;
static int32_t rank, ranks;
static int failed_communicators;       /* also the index of the id in use */
static gumbel_peer_memory peer_memory; /* whether ranks exchange through peer memory */

/* Returns the transport of the next group. Groups share a communicator until one of them fails. */
static gumbel_transport connect_transport(void)
{
    static gumbel_transport transport;
    static int connected = -1; /* index of the transport's communicator */
    gumbel_error error = {"", ""};
    if (connected == failed_communicators)
        return transport;
    int index = connected = failed_communicators;
    if (index == IDS_MAX)
        die("too many groups");
    if (rank == 0) {
        if (gumbel_nccl_id(nccl_ids->ids[index], &error) != GUMBEL_OK)
            die("%s: %s", error.field, error.message);
        nccl_ids->count = index + 1;
    }
    while (nccl_ids->count <= index)
        usleep(1000);
    if (gumbel_nccl_transport(NULL, nccl_ids->ids[index], rank, ranks, 0, &transport, &error) !=
        GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    transport.destroy = NULL; /* closing a group must not destroy it */
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
                                          .timeout_ms = TIMEOUT_MS,
                                          .peer_memory = peer_memory};
    if (gumbel_group_open(&transport, gpu, &options, &group, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    return group;
}

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

static void draw_plain(void)
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

static void replay_graphs(void)
{
    replay_graph_of_top_k(0);    /* plain */
    replay_graph_of_top_k(50);   /* determined by the ranks' top-64 candidates */
    replay_graph_of_top_k(3000); /* more than the candidates can determine: gathers whole rows */
}

/* Fallback rows: ranks store all their logits instead of only those that may win. */
static void draw_fallback_rows(void)
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
static void draw_with_different_parameters(void)
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

/* Compares a request drawn by the group and by one GPU. Returns 0 if the group does not support the
 * request, which must hold on all ranks or on none. */
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
    int supported = status == GUMBEL_OK;
    if (supported) {
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
    return supported;
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
    int supported = 0, count = 20;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random((int)random_below(&random, 1000), i % 2);
        if (plan.vocab < 2 * RANKS_MAX)
            plan.vocab = 2 * RANKS_MAX;
        supported += draw_request(&plan, i % 2, &random);
        print_progress("requests", i, count);
    }
    CHECK(3 * supported >= count, "%d of %d requests were supported", supported, count);
}

/* Requests with common values of top_k and top_p and all kinds of rows, some of them fallback
 * rows. */
static void draw_common_requests(void)
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
        print_progress("common requests", i, count);
    }
}

/* Compares a verification of drafts by the group with one on this GPU. */
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

/* The last rank makes no second call; the others must return an error within twice TIMEOUT_MS. */
static void draw_with_absent_rank(void)
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
static void draw_with_killed_rank(void)
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

#define DEFINE_TESTS(name, setting)                                                                \
    static void name##_plain(void) { peer_memory = setting, draw_plain(); }                        \
    static void name##_requests(void) { peer_memory = setting, draw_requests(); }                  \
    static void name##_common(void) { peer_memory = setting, draw_common_requests(); }             \
    static void name##_drafts(void) { peer_memory = setting, verify_drafts(); }                    \
    static void name##_graph(void) { peer_memory = setting, replay_graphs(); }                     \
    static void name##_fallback(void) { peer_memory = setting, draw_fallback_rows(); }             \
    static void name##_mismatch(void) { peer_memory = setting, draw_with_different_parameters(); } \
    static void name##_hang(void) { peer_memory = setting, draw_with_absent_rank(); }              \
    static void name##_kill(void) { peer_memory = setting, draw_with_killed_rank(); }
DEFINE_TESTS(nccl, GUMBEL_PEERS_OFF)
DEFINE_TESTS(peers, GUMBEL_PEERS_REQUIRE)

static int run_rank(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"nccl_plain", nccl_plain},
        {"nccl_requests", nccl_requests},
        {"nccl_common", nccl_common},
        {"nccl_drafts", nccl_drafts},
        {"nccl_graph", nccl_graph},
        {"nccl_fallback", nccl_fallback},
        {"nccl_mismatch", nccl_mismatch},
        {"nccl_hang", nccl_hang},
        {"peers_plain", peers_plain},
        {"peers_requests", peers_requests},
        {"peers_common", peers_common},
        {"peers_drafts", peers_drafts},
        {"peers_graph", peers_graph},
        {"peers_fallback", peers_fallback},
        {"peers_mismatch", peers_mismatch},
        {"peers_hang", peers_hang},
        {NULL, NULL},
    };
    static const cuda_test fatal[] = {
        {"nccl_kill", nccl_kill}, {"peers_kill", peers_kill}, {NULL, NULL}};
    char device[16], id[GUMBEL_NCCL_ID_BYTES];
    gumbel_error error = {"", ""};
    snprintf(device, sizeof device, "%d", (int)rank);
    setenv("CUDA_VISIBLE_DEVICES", device, 1);
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
    nccl_ids =
        mmap(NULL, sizeof *nccl_ids, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (nccl_ids == MAP_FAILED)
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
