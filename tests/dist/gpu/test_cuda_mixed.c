/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks on a GPU whose messages lie in host memory, some beside ranks on the CPU: threads of one
 * process. From logits every request draws the bits that the CPU draws from the whole; behind a
 * head all ranks draw the same.
 */
#include "gpu_shards.h"
#include "thread_ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { RANKS_MOST = 4, TIMEOUT = 100000 };

/* One call that all ranks make. */
typedef struct shared_call {
    thread_ranks *place;
    const request *req;
    const gpu_request *there;
    const shard_cut *cut;
    uint32_t on_gpu; /* bits of ranks */
    int fused;
    outcome *found[RANKS_MOST];
    _Atomic int wrong;
} shared_call;

static gumbel_status draw_on_gpu(shared_call *c, gumbel_group *group, int32_t rank, outcome *into,
                                 gumbel_error *error)
{
    gpu_shard s;
    CUstream stream;
    GPU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    gumbel_status status =
        gpu_shard_make(&s, group, c->there, c->cut, rank, c->fused, 0, into, error);
    for (int turn = 0; turn < 2 && status == GUMBEL_OK; turn++)
        status = gpu_shard_draw(&s, stream, error);
    if (status == GUMBEL_OK)
        status = gumbel_group_wait(group, stream, error);
    gpu_output_fetch(&s.out, into);
    gpu_shard_free(&s);
    GPU(cuStreamDestroy, stream);
    return status;
}

static gumbel_status draw_on_cpu(shared_call *c, gumbel_group *group, int32_t rank, outcome *into,
                                 gumbel_error *error)
{
    gumbel_status status = GUMBEL_OK;
    shard_outcome generated = {.drawn = into};
    for (int turn = 0; turn < 2 && status == GUMBEL_OK; turn++)
        status = shards_draw(group, c->req, c->cut, rank, c->fused, &generated, error);
    return status;
}

static void one_rank(void *argument, int32_t rank)
{
    shared_call *c = argument;
    gumbel_error error = {"", ""};
    gumbel_group *group = NULL;
    int on_gpu = c->on_gpu >> rank & 1;
    gumbel_transport transport = thread_ranks_transport(c->place, rank);
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = c->cut->first[rank],
                                          .rows = c->cut->rows[rank],
                                          .timeout_ms = TIMEOUT};
    GPU(cuCtxSetCurrent, gpu_context());
    c->found[rank] = request_outcome(c->req);
    gumbel_status status =
        gumbel_group_open(&transport, on_gpu ? gpu : cpu, &options, &group, &error);
    if (status == GUMBEL_OK)
        status = (on_gpu ? draw_on_gpu : draw_on_cpu)(c, group, rank, c->found[rank], &error);
    if (status != GUMBEL_OK) {
        printf("rank %d: %s: %s\n", (int)rank, error.field, error.message);
        c->wrong = 1;
    }
    gumbel_group_close(group);
}

static void draw_request(const request_plan *plan, int32_t ranks, uint32_t on_gpu, int fused,
                         uint64_t *random)
{
    request *host = request_make(plan, cpu);
    gpu_request *there = gpu_request_make(host);
    outcome *expected = request_outcome(host);
    shard_cut cut = shards_cut_tokens(plan, ranks, random_below(random, 2) == 0, random);
    shared_call c = {.place = thread_ranks_make(ranks),
                     .req = host,
                     .there = there,
                     .cut = &cut,
                     .on_gpu = on_gpu,
                     .fused = fused};
    gumbel_status status = (fused ? request_draw_fused : request_draw)(cpu, host, expected);
    CHECK(status == GUMBEL_OK, "the CPU: %s", request_describe(plan));
    thread_ranks_run(ranks, one_rank, &c);
    CHECK(!c.wrong, "%d ranks, on the GPU %x: %s", (int)ranks, on_gpu, request_describe(plan));
    for (int32_t r = 0; r < ranks && !c.wrong; r++)
        CHECK(outcome_same(fused ? c.found[0] : expected, 0, c.found[r], OUTCOME_ALL, "ranks"),
              "rank %d of %d, on the GPU %x: %s", (int)r, (int)ranks, on_gpu,
              request_describe(plan));
    draws_compared += expected->batch * expected->samples;
    for (int32_t r = 0; r < ranks; r++)
        outcome_free(c.found[r]);
    thread_ranks_free(c.place);
    outcome_free(expected);
    gpu_request_free(there);
    request_free(host);
}

static void draw_requests(int count, int fused, int plain, uint64_t seed)
{
    uint64_t random = seed;
    for (int i = 0; i < count; i++) {
        int32_t ranks = 1 + (int32_t)random_below(&random, RANKS_MOST);
        request_plan plan = request_plan_at_random((int)random_below(&random, 1000), fused);
        plan.vocab = plan.vocab < 2 * RANKS_MOST ? 2 * RANKS_MOST : plan.vocab;
        if (plain) {
            plan.truncation = plan.transforms = 0;
            plan.num_top = 0;
        }
        /* All ranks, or some: one at least is on the GPU. */
        uint32_t on_gpu = i % 3 ? 1 + random_below(&random, (1u << ranks) - 1) : ~0u;
        draw_request(&plan, ranks, on_gpu, fused, &random);
    }
}

static void mixed_plain(void) { draw_requests(40, 0, 1, 1); }

static void mixed_requests(void) { draw_requests(80, 0, 0, 2); }

static void mixed_heads(void) { draw_requests(40, 1, 0, 3); }

/* A large vocabulary, as engines have it. */
static void mixed_large(void)
{
    uint64_t random = 4;
    for (int i = 0; i < 4; i++) {
        request_plan plan = {.batch = 5,
                             .vocab = 151936,
                             .samples = 1,
                             .truncation = i % 2,
                             .usual = 1,
                             .cuts = REQUEST_TOP_K | REQUEST_TOP_P,
                             .num_top = 5,
                             .seed = 21 + (uint64_t)i};
        draw_request(&plan, 2, 1 + (uint32_t)i / 2, 0, &random);
    }
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"mixed_plain", mixed_plain},
        {"mixed_requests", mixed_requests},
        {"mixed_heads", mixed_heads},
        {"mixed_large", mixed_large},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
