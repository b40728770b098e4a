/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shared_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DRAWS = 3, SHORT_TIMEOUT_MS = 500, LATE_US = 2000 };

int use_queue, use_bfloat16, tokens_only, collectives;

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

gumbel_group *shared_call_open_group(shared_call *c, int32_t rank)
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
    gumbel_group *group = shared_call_open_group(c, rank);
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

void shared_call_open(shared_call *c, int32_t ranks)
{
    c->peer_ranks = use_queue ? NULL : thread_ranks_make(ranks);
    c->queue_ranks = use_queue ? queued_ranks_make(ranks) : NULL;
    pthread_barrier_init(&c->barrier, NULL, (unsigned)ranks);
}

void shared_call_close(shared_call *c)
{
    pthread_barrier_destroy(&c->barrier);
    if (c->peer_ranks)
        thread_ranks_free(c->peer_ranks);
    if (c->queue_ranks)
        queued_ranks_free(c->queue_ranks);
}

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

int draw_shared_request(const request_plan *plan, int32_t ranks, int fused, int one_rank_fails,
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
    shared_call_open(&c, ranks);
    gpu_request_draw(req, fused, expected);
    thread_ranks_run(ranks, run_rank, &c);
    CHECK(!c.wrong, "%d ranks: %s", (int)ranks, request_describe(plan));
    CHECK(c.unsupported == 0 || c.unsupported == ranks, "%d of %d ranks do not support: %s",
          c.unsupported, (int)ranks, request_describe(plan));
    draws_compared += c.supported ? expected->batch * expected->samples : 0;
    collectives += c.queue_ranks ? queued_ranks_count_collectives(c.queue_ranks) : 0;
    shared_call_close(&c);
    outcome_free(expected);
    gpu_request_free(req);
    request_free(host);
    return c.supported;
}
