/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncated rows on a GPU of unusual kinds, compared with the CPU: shards that begin and end
 * anywhere in a block of 64, shards of padding, and rows masked with the smallest float.
 */
#include "cuda_requests.h"

/* Every residue of the first token, V and end, in some pairs. */
static void truncated_shards(void)
{
    uint64_t random = 21;
    for (int i = 0; i < 1024; i++) {
        int first = i % 64, vocab = (i / 64 * 5 + first * 7) % 64;
        request_plan plan = request_plan_on_shard(first, vocab, (first + vocab * 3) % 64, &random);
        plan.hidden_size = 0;
        compare_requests(request_make(&plan, cpu), 0);
    }
}

/* Ties at a truncation threshold of -FLT_MAX, of few tokens and of many. */
static void truncated_masked_shards(void)
{
    for (int i = 0; i < 48; i++) {
        request_plan plan = {.batch = i % 4 ? 4 : 34,
                             .vocab = i % 3 ? 8 + 977 * i : 70000 + i,
                             .samples = 1,
                             .num_top = i % 2 ? 20 : 0,
                             .order = (gumbel_order)(i / 2 % REQUEST_ORDERS),
                             .ties = (gumbel_ties)(i % 2),
                             .truncation = 1,
                             .kind = 1 + ROW_MASKED,
                             .seed = 1200 + (uint64_t)i};
        compare_requests(request_make(&plan, cpu), 0);
    }
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"truncated_shards", truncated_shards},
        {"truncated_masked_shards", truncated_masked_shards},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}
