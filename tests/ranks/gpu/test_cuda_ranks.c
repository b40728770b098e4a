/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks on one GPU: threads of one process, each with a stream, that exchange through peer memory
 * or through all-gathers queued on the streams. Draws and verified drafts equal those of one device
 * with the whole vocabulary. If a rank makes no call, the others return an error after the timeout.
 * ranks_gpu.c tests several GPUs.
 */
#define _GNU_SOURCE
#include "shared_call.h"

#include <stdio.h>

static void draw_requests(int count, int32_t ranks_max, uint64_t seed)
{
    uint64_t random = seed;
    int supported = 0;
    for (int i = 0; i < count; i++) {
        int fused = i % 2;
        request_plan plan = request_plan_at_random((int)random_below(&random, 1000), fused);
        if (plan.vocab < 2 * RANKS_MAX)
            plan.vocab = 2 * RANKS_MAX;
        supported += draw_shared_request(
            &plan, 1 + (int32_t)random_below(&random, (uint32_t)ranks_max), fused, 0, &random);
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
        CHECK(draw_shared_request(&plan, RANKS_MAX, 1, 0, &random),
              "the group does not support it: %s", request_describe(&plan));
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
        CHECK(draw_shared_request(&plan, 1 + i % 3, 1, 0, &random),
              "the group does not support it: %s", request_describe(&plan));
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
        draw_shared_request(&plan, ranks ? ranks : 2 + i % 3, plan.hidden_size > 0, 0, &random);
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
        draw_shared_request(&plan, 2 + i % 2, 0, 1, &random);
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
        CHECK(draw_shared_request(&plan, 1 + i % 3, 1, 0, &random),
              "the group does not support it: %s", request_describe(&plan));
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
        CHECK(draw_shared_request(&plan, ranks, 0, 1, &random), "the group does not support it: %s",
              request_describe(&plan));
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
