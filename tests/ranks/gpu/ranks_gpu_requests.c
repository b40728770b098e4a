/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that a group of processes draws, and drafts that it verifies, have the results of one
 * GPU with the whole vocabulary.
 */
#include "rank_process.h"

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

void draw_requests(void)
{
    uint64_t random = 9;
    int supported = 0, count = 20;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random((int)random_below(&random, 1000), i % 2);
        if (plan.vocab < 2 * RANKS_MAX)
            plan.vocab = 2 * RANKS_MAX;
        plan.kept_capacity = i % 3 ? 0 : 1 + (int32_t)random_below(&random, 100);
        plan.entropy = i % 4 == 1;
        supported += draw_request(&plan, i % 2, &random);
        print_progress("requests", i, count);
    }
    CHECK(3 * supported >= count, "%d of %d requests were supported", supported, count);
}

/* Requests with common values of top_k and top_p and all kinds of rows, some of them fallback
 * rows. */
void draw_common_requests(void)
{
    uint64_t random = 10;
    for (int i = 0, count = 8; i < count; i++) {
        const int fused = i < 4;
        const request_plan plan = {.batch = i % 2 ? 40 : 3,
                                   .vocab = 5000,
                                   .hidden_size = fused ? 16 : 0,
                                   .samples = 1,
                                   .kept_capacity = i % 4 == 3 ? 60 : 0,
                                   .entropy = i % 4 == 3,
                                   .logprobs_of = i % 4 < 2 ? GUMBEL_RAW : GUMBEL_PROCESSED,
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

void verify_drafts(void)
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
