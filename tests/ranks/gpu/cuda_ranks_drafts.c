/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts that ranks on one GPU verify have the results of one rank with the whole vocabulary.
 */
#define _GNU_SOURCE
#include "shared_call.h"

#include <stdio.h>

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
    gumbel_group *group = shared_call_open_group(&c->call, rank);
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
    shared_call_open(&c.call, ranks);
    CHECK(cycle_agrees(host, progress, expected, 1e-5f), "one GPU");
    thread_ranks_run(ranks, verify_one_rank, &c);
    CHECK(!c.call.wrong, "%d ranks", (int)ranks);
    for (int32_t r = 0; r < plan->requests; r++) {
        draws_compared += host->emitted[r];
        progress[r] += host->emitted[r];
        progress[r] = progress[r] + 10 > plan->length ? 0 : progress[r];
    }
    shared_call_close(&c.call);
    verified_free(expected);
    gpu_cycle_free(req);
}

void ranks_drafts(void)
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
