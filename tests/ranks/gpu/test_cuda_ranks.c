/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks on one GPU: threads of one process, each with a stream, that exchange through peer memory
 * or through all-gathers queued on the streams. Draws and verified drafts equal those of one device
 * with the whole vocabulary. If a rank makes no call, the others return an error after the timeout.
 * ranks_gpu.c tests several GPUs.
 */
#define _GNU_SOURCE
#include "gpu_shards.h"
#include "queued_ranks.h"
#include "thread_ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS_MAX = 4, DRAWS = 3, TIMEOUT_MS = 100000, SHORT_TIMEOUT_MS = 500, LATE_US = 2000 };

/* Step of a rank's thread; a failure prints the steps of all ranks. */
typedef enum rank_step {
    STEP_OPEN_GROUP,
    STEP_WAIT_FOR_RANKS,
    STEP_QUEUE_DRAW,
    STEP_WAIT_FOR_GPU,
    STEP_DRAWN
} rank_step;

/* One call that all ranks make. */
typedef struct shared_call {
    thread_ranks *peer_ranks;  /* if ranks exchange through peer memory, else NULL */
    queued_ranks *queue_ranks; /* if ranks exchange through queued all-gathers, else NULL */
    pthread_barrier_t barrier;
    const gpu_request *req;
    const outcome *expected;
    const shard_split *split;
    int fused;          /* from hidden states, not from logits */
    int tokens_only;    /* requests only tokens, scores and statuses */
    int one_rank_fails; /* the last rank makes no second call, or its collectives fail */
    int64_t timeout_ms;
    _Atomic int wrong, supported;
    _Atomic int unsupported;            /* ranks whose group does not support the request */
    _Atomic int turns[RANKS_MAX];       /* the current draw of each rank */
    _Atomic rank_step steps[RANKS_MAX]; /* the current step of that draw */
} shared_call;

static void print_steps(const shared_call *c)
{
    static const char *const names[] = {[STEP_OPEN_GROUP] = "opens its group",
                                        [STEP_WAIT_FOR_RANKS] = "waits to begin",
                                        [STEP_QUEUE_DRAW] = "queues",
                                        [STEP_WAIT_FOR_GPU] = "waits for the GPU",
                                        [STEP_DRAWN] = "has drawn"};
    for (int32_t r = 0; r < c->split->ranks; r++)
        printf("    rank %d: draw %d, %s\n", (int)r, c->turns[r], names[c->steps[r]]);
}

/* Delays one rank, another one at each draw: the kernels of the other ranks start, and wait for
 * data that the late rank has not queued yet. */
static void delay_one_rank(const shared_call *c, int32_t rank, int turn)
{
    const struct timespec pause = {0, LATE_US * 1000L};
    if ((rank + turn) % c->split->ranks == 0)
        nanosleep(&pause, NULL);
}

static gumbel_group *open_group(shared_call *c, int32_t rank)
{
    gumbel_error error = {"", ""};
    gumbel_group *group = NULL;
    gumbel_transport transport = c->peer_ranks ? thread_ranks_transport(c->peer_ranks, rank)
                                               : queued_ranks_transport(c->queue_ranks, rank);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = c->split->first[rank],
                                          .rows = c->split->rows[rank],
                                          .timeout_ms = c->timeout_ms,
                                          .peer_memory = c->peer_ranks ? GUMBEL_PEERS_REQUIRE
                                                                       : GUMBEL_PEERS_OFF,
                                          .peer_bytes = 48 * 256};
    if (gumbel_group_open(&transport, gpu, &options, &group, &error) != GUMBEL_OK)
        die("rank %d: %s: %s", (int)rank, error.field, error.message);
    return group;
}

/* Draws, and waits for the result. */
static gumbel_status draw_once(shared_call *c, int32_t rank, const gpu_shard *s, CUstream stream,
                               gumbel_error *error)
{
    c->steps[rank] = STEP_QUEUE_DRAW;
    gumbel_status status = gpu_shard_draw(s, stream, error);
    c->steps[rank] = STEP_WAIT_FOR_GPU;
    if (status == GUMBEL_OK)
        status = gumbel_group_wait(s->group, stream, error);
    c->steps[rank] = STEP_DRAWN;
    return status;
}

static void draw_turns(shared_call *c, int32_t rank, const gpu_shard *s, CUstream stream)
{
    gumbel_error error = {"", ""};
    for (int turn = 0; turn < DRAWS; turn++) {
        c->turns[rank] = turn;
        delay_one_rank(c, rank, turn);
        if (draw_once(c, rank, s, stream, &error) == GUMBEL_OK)
            continue;
        printf("rank %d: %s: %s\n", (int)rank, error.field, error.message);
        print_steps(c);
        c->wrong = 1;
        return;
    }
}

static void compare_shard(shared_call *c, const gpu_shard *s, int32_t rank)
{
    outcome *found = request_outcome(&c->req->req);
    gpu_output_fetch(&s->out, found);
    const outcome_parts parts = c->tokens_only ? OUTCOME_TOKENS | OUTCOME_SCORES : OUTCOME_ALL;
    if (!outcome_same(c->expected, 0, found, parts, "ranks")) {
        printf("rank %d: %s\n", (int)rank, request_describe(&c->req->req.plan));
        c->wrong = 1;
    }
    outcome_free(found);
}

/* Whether a rank makes no second call. With queued all-gathers all ranks make it. */
static int skips_second_call(const shared_call *c, int32_t rank)
{
    return c->one_rank_fails && c->peer_ranks && rank + 1 == c->split->ranks;
}

/* Makes the second call, which must return an error, as the last rank makes none or fails. */
static void draw_with_failing_rank(shared_call *c, const gpu_shard *s, CUstream stream,
                                   int32_t rank)
{
    gumbel_error error = {"", ""};
    if (skips_second_call(c, rank))
        return;
    if (c->queue_ranks && rank + 1 == c->split->ranks)
        queued_ranks_fail_collectives(c->queue_ranks, rank);
    c->wrong |= draw_once(c, rank, s, stream, &error) != GUMBEL_ERROR_GROUP;
    c->wrong |= c->peer_ranks && strstr(error.message, "did not answer") == NULL;
    c->wrong |= gpu_shard_draw(s, stream, &error) != GUMBEL_ERROR_GROUP;
    GPU(cuStreamSynchronize, stream);
}

static void run_rank(void *argument, int32_t rank)
{
    shared_call *c = argument;
    gumbel_error error = {"", ""};
    gpu_shard s;
    CUstream stream;
    GPU(cuCtxSetCurrent, gpu_context());
    GPU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    gumbel_group *group = open_group(c, rank);
    gumbel_status status = gpu_shard_make(&s, group, c->req, c->split, rank, c->fused,
                                          c->tokens_only, c->expected, &error);
    c->steps[rank] = STEP_WAIT_FOR_RANKS;
    pthread_barrier_wait(&c->barrier);
    if (status == GUMBEL_OK) {
        draw_turns(c, rank, &s, stream);
        if (c->one_rank_fails)
            draw_with_failing_rank(c, &s, stream, rank);
        c->supported = 1;
    } else {
        c->unsupported++;
    }
    pthread_barrier_wait(&c->barrier);
    if (status == GUMBEL_OK && !c->one_rank_fails)
        compare_shard(c, &s, rank);
    if (status == GUMBEL_OK && c->one_rank_fails && !skips_second_call(c, rank)) {
        outcome *found = request_outcome(&c->req->req);
        gpu_output_fetch(&s.out, found);
        for (int64_t i = 0; i < found->batch * found->samples; i++)
            c->wrong |= found->tokens[i] != -1;
        outcome_free(found);
    }
    pthread_barrier_wait(&c->barrier);
    gumbel_group_close(group);
    gpu_shard_free(&s);
    GPU(cuStreamDestroy, stream);
}

static void open_exchange(shared_call *c, int32_t ranks, int queue_ranks)
{
    c->peer_ranks = queue_ranks ? NULL : thread_ranks_make(ranks);
    c->queue_ranks = queue_ranks ? queued_ranks_make(ranks) : NULL;
    pthread_barrier_init(&c->barrier, NULL, (unsigned)ranks);
}

static void close_exchange(shared_call *c)
{
    pthread_barrier_destroy(&c->barrier);
    if (c->peer_ranks)
        thread_ranks_free(c->peer_ranks);
    if (c->queue_ranks)
        queued_ranks_free(c->queue_ranks);
}

/* Options of the calls that follow: queued all-gathers; bfloat16 heads; tokens and scores only. */
static int use_queue, use_bfloat16, tokens_only;

static int collectives; /* host collectives so far */

/* Converts float32 to bfloat16 by truncation, in place. */
static void convert_to_bfloat16(gumbel_tensor *t)
{
    if (t->dtype != GUMBEL_FLOAT32)
        return;
    uint16_t *halves = (uint16_t *)(uintptr_t)t->data;
    int64_t stride = t->stride ? t->stride : t->cols;
    for (int64_t i = 0; i < (t->rows - 1) * stride + t->cols; i++)
        halves[i] = halves[2 * i + 1];
    t->dtype = GUMBEL_BFLOAT16;
}

/* Draws a request by `ranks` ranks; returns 0 if the group does not support it. */
static int draw_request(const request_plan *plan, int32_t ranks, int fused, int one_rank_fails,
                        uint64_t *random)
{
    request *host = request_make(plan, cpu);
    if (use_bfloat16) {
        convert_to_bfloat16(&host->head.hidden);
        convert_to_bfloat16(&host->head.weight);
    }
    gpu_request *req = gpu_request_make(host);
    outcome *expected = request_outcome(host);
    shard_split split =
        split_request(plan, ranks, random_below(random, 2) == 0 || use_bfloat16, random);
    shared_call c = {.req = req,
                     .expected = expected,
                     .split = &split,
                     .fused = fused,
                     .one_rank_fails = one_rank_fails,
                     .tokens_only = tokens_only,
                     .timeout_ms = one_rank_fails ? SHORT_TIMEOUT_MS : TIMEOUT_MS};
    open_exchange(&c, ranks, use_queue);
    gpu_request_draw(req, fused, expected);
    thread_ranks_run(ranks, run_rank, &c);
    CHECK(!c.wrong, "%d ranks: %s", (int)ranks, request_describe(plan));
    CHECK(c.unsupported == 0 || c.unsupported == ranks, "%d of %d ranks do not support: %s",
          c.unsupported, (int)ranks, request_describe(plan));
    draws_compared += c.supported ? expected->batch * expected->samples : 0;
    collectives += c.queue_ranks ? queued_ranks_count_collectives(c.queue_ranks) : 0;
    close_exchange(&c);
    outcome_free(expected);
    gpu_request_free(req);
    request_free(host);
    return c.supported;
}

static void draw_requests(int count, int32_t ranks_max, uint64_t seed)
{
    uint64_t random = seed;
    int supported = 0;
    for (int i = 0; i < count; i++) {
        int fused = i % 2;
        request_plan plan = request_plan_at_random((int)random_below(&random, 1000), fused);
        if (plan.vocab < 2 * RANKS_MAX)
            plan.vocab = 2 * RANKS_MAX;
        supported += draw_request(&plan, 1 + (int32_t)random_below(&random, (uint32_t)ranks_max),
                                  fused, 0, &random);
    }
    CHECK(3 * supported >= count, "%d of %d requests were supported", supported, count);
}

/* The CTAs of the early ranks occupy the GPU while they wait, and the late rank must first run
 * kernels with another shared-memory carveout. */
static void ranks_crowded(void)
{
    uint64_t random = 12;
    const request_plan plan = request_plan_at_random(999, 1);
    tokens_only = 1;
    for (int i = 0; i < 20; i++)
        CHECK(draw_request(&plan, RANKS_MAX, 1, 0, &random), "the group does not support it: %s",
              request_describe(&plan));
    tokens_only = 0;
}

static void ranks_small(void) { draw_requests(6, RANKS_MAX, 1); }

static void ranks_requests(void) { draw_requests(60, RANKS_MAX, 2); }

/* Requests without log-probabilities: without truncation too, no rank sums masses. */
static void ranks_tokens_only(void)
{
    tokens_only = 1;
    draw_requests(40, RANKS_MAX, 7);
    use_queue = 1;
    draw_requests(20, RANKS_MAX, 8);
    use_bfloat16 = 1;
    uint64_t random = 10;
    for (int i = 0; i < 6; i++) {
        const request_plan plan = {.batch = 1 + 25 * i,
                                   .vocab = 6400 + 640 * i,
                                   .hidden_size = 64,
                                   .samples = 1,
                                   .usual = 1,
                                   .seed = 51 + (uint64_t)i};
        use_queue = i % 2;
        CHECK(draw_request(&plan, 1 + i % 3, 1, 0, &random), "the group does not support it: %s",
              request_describe(&plan));
    }
    tokens_only = use_queue = use_bfloat16 = 0;
}

/* Common values of top_k, top_p and min_p. Batches of 8 rows or more use top-64 candidates. */
static void draw_common_requests(int count, int32_t ranks, int64_t vocab)
{
    uint64_t random = 3;
    for (int i = 0; i < count; i++) {
        request_plan plan = {.batch = i % 2 ? 20 : 3,
                             .vocab = vocab + vocab / 6 * i,
                             .hidden_size = i % 4 < 2 ? 16 : 0,
                             .samples = 1 + i % 3 / 2,
                             .transforms = i % 3 == 2,
                             .truncation = 1,
                             .order = (gumbel_order)(i % REQUEST_ORDERS),
                             .ties = i % 5 == 4 ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL,
                             .usual = 1,
                             .cuts = i < 8 ? REQUEST_TOP_K | REQUEST_TOP_P
                                           : REQUEST_TOP_K | REQUEST_TOP_P | REQUEST_MIN_P,
                             .seed = 7 + (uint64_t)i};
        draw_request(&plan, ranks ? ranks : 2 + i % 3, plan.hidden_size > 0, 0, &random);
    }
}

static void ranks_common(void) { draw_common_requests(12, 0, 6000); }

/* A single rank, for tools that run one kernel at a time: kernels of several ranks wait for each
 * other. */
static void ranks_alone(void)
{
    draw_requests(4, 1, 5);
    draw_common_requests(4, 1, 600);
}

/* Half as many requests with shorter rows, for tools that slow each kernel to seconds. */
static void ranks_few(void)
{
    draw_requests(2, 1, 5);
    draw_common_requests(2, 1, 300);
}

static void ranks_one_absent(void)
{
    uint64_t random = 4;
    for (int i = 0; i < 4; i++) {
        request_plan plan = {.batch = 5,
                             .vocab = 3000,
                             .samples = 1 + i / 2,
                             .truncation = i % 2,
                             .usual = 1,
                             .cuts = REQUEST_TOP_K,
                             .kind = 1,
                             .seed = 11 + (uint64_t)i};
        draw_request(&plan, 2 + i % 2, 0, 1, &random);
    }
}

/* Queued all-gathers, as of NCCL. Host collectives gather the fallback rows. */
static void ranks_queued(void)
{
    use_queue = 1;
    draw_requests(30, RANKS_MAX, 6);
    collectives = 0;
    draw_common_requests(12, 0, 6000);
    CHECK(collectives > 0, "no host collective was run");
    use_queue = 0;
}

/* bfloat16 heads, whose product kernels find the blocks of a row's largest logits: rows that 64
 * candidates a rank determine, and rows that keep more. */
static void ranks_bf16_heads(void)
{
    uint64_t random = 9;
    use_bfloat16 = 1;
    for (int i = 0; i < 8; i++) {
        const request_plan plan = {.batch = i % 2 ? 40 : 20,
                                   .vocab = 6400 + 640 * i,
                                   .hidden_size = 64,
                                   .samples = 1,
                                   .truncation = 1,
                                   .usual = 1,
                                   .cuts = i / 4 ? REQUEST_TOP_P : REQUEST_TOP_K | REQUEST_TOP_P,
                                   .seed = 31 + (uint64_t)i};
        use_queue = i / 2 % 2;
        CHECK(draw_request(&plan, 1 + i % 3, 1, 0, &random), "the group does not support it: %s",
              request_describe(&plan));
    }
    use_queue = use_bfloat16 = 0;
}

/* The host collective of one rank fails: all ranks return an error, and nothing is drawn. */
static void ranks_failed_collective(void)
{
    const request_plan plan = {.batch = 20,
                               .vocab = 3000,
                               .samples = 1,
                               .truncation = 1,
                               .usual = 1,
                               .cuts = REQUEST_TOP_K,
                               .kind = 1 + ROW_EQUAL,
                               .seed = 21};
    uint64_t random = 8;
    use_queue = 1;
    for (int32_t ranks = 1; ranks <= 3; ranks++)
        CHECK(draw_request(&plan, ranks, 0, 1, &random), "the group does not support it: %s",
              request_describe(&plan));
    use_queue = 0;
}

/* A verification of drafts by all ranks. */
typedef struct shared_cycle {
    shared_call call;
    const gpu_cycle *req;
    const verified_arrays *expected; /* from one GPU with the whole vocabulary */
} shared_cycle;

static void verify_one_rank(void *argument, int32_t rank)
{
    shared_cycle *c = argument;
    const cycle *req = &c->req->req;
    const int32_t requests = req->of->plan.requests;
    gumbel_error error = {"", ""};
    gpu_shard_cycle s;
    CUstream stream;
    GPU(cuCtxSetCurrent, gpu_context());
    GPU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    gumbel_group *group = open_group(&c->call, rank);
    verified_arrays *found = verified_make(requests, req->max_nodes, requests + 3);
    gpu_shard_cycle_make(&s, group, c->req, c->call.split, rank, found);
    pthread_barrier_wait(&c->call.barrier);
    gumbel_status status = gpu_shard_cycle_verify(&s, stream, &error);
    if (status == GUMBEL_OK)
        status = gumbel_group_wait(group, stream, &error);
    pthread_barrier_wait(&c->call.barrier);
    gpu_verified_fetch(s.into, found);
    if (status != GUMBEL_OK || !verified_same(c->expected, found, 0.0f)) {
        printf("rank %d: %s: %s\n", (int)rank, error.field, error.message);
        c->call.wrong = 1;
    }
    pthread_barrier_wait(&c->call.barrier);
    gumbel_group_close(group);
    gpu_shard_cycle_free(&s);
    verified_free(found);
    GPU(cuStreamDestroy, stream);
}

/* Verifies one cycle: one GPU agrees with the CPU, and the ranks equal one GPU bit for bit. */
static void verify_cycle(const cycle *host, int32_t *progress, int32_t ranks, uint64_t *random)
{
    const texts_plan *plan = &host->of->plan;
    gpu_cycle *req = gpu_cycle_make(host);
    verified_arrays *expected = gpu_cycle_outcome(req);
    const request_plan whole = {.vocab = plan->vocab};
    shard_split split = split_request(&whole, ranks, 0, random);
    shared_cycle c = {
        .call = {.split = &split, .timeout_ms = TIMEOUT_MS}, .req = req, .expected = expected};
    open_exchange(&c.call, ranks, use_queue);
    CHECK(cycle_agrees(host, progress, expected, 1e-5f), "one GPU");
    thread_ranks_run(ranks, verify_one_rank, &c);
    CHECK(!c.call.wrong, "%d ranks", (int)ranks);
    for (int32_t r = 0; r < plan->requests; r++) {
        draws_compared += host->emitted[r];
        progress[r] += host->emitted[r];
        progress[r] = progress[r] + 10 > plan->length ? 0 : progress[r];
    }
    close_exchange(&c.call);
    verified_free(expected);
    gpu_cycle_free(req);
}

static void ranks_drafts(void)
{
    for (int index = 0; index < 16; index++) {
        const texts_plan plan = texts_plan_at_random(index);
        texts *of = texts_make(&plan, cpu);
        int32_t progress[8] = {0};
        uint64_t random = (uint64_t)index;
        use_queue = index / 2 % 2;
        for (int turn = 0; turn < 4; turn++) {
            cycle *host = cycle_make(of, progress, &random);
            verify_cycle(host, progress, 1 + turn % RANKS_MAX, &random);
            cycle_free(host);
        }
        texts_free(of);
    }
    use_queue = 0;
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"ranks_small", ranks_small},
        {"ranks_alone", ranks_alone},
        {"ranks_requests", ranks_requests},
        {"ranks_tokens_only", ranks_tokens_only},
        {"ranks_crowded", ranks_crowded},
        {"ranks_common", ranks_common},
        {"ranks_few", ranks_few},
        {"ranks_one_absent", ranks_one_absent},
        {"ranks_queued", ranks_queued},
        {"ranks_failed_collective", ranks_failed_collective},
        {"ranks_drafts", ranks_drafts},
        {"ranks_bf16_heads", ranks_bf16_heads},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
