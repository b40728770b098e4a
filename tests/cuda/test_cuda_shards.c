/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncated rows on a GPU of unusual kinds, compared with the CPU: shards that begin and end
 * anywhere in a block of 64, shards of padding, and rows masked with the smallest float.
 */
#include "cuda_requests.h"

#include <math.h>
#include <stdlib.h>

static void compare_processed(const request *req, const gpu_request *on_gpu, const char *what)
{
    size_t count = (size_t)(req->plan.batch * req->plan.vocab);
    float *host = make_zeroed(count, sizeof *host), *device = make_zeroed(count, sizeof *device);
    CHECK(request_process(cpu, &req->logits, &req->sampling, host) == GUMBEL_OK, "%s", what);
    gpu_request_process(on_gpu, device);
    for (size_t i = 0; i < count; i++)
        if (!CHECK(host[i] == device[i] || (isnan(host[i]) && isnan(device[i])),
                   "%s: processed[%zu] is %a on the GPU, %a on the CPU", what, i, (double)device[i],
                   (double)host[i]))
            break;
    free(host);
    free(device);
}

static void compare_plan(const request_plan *plan)
{
    request *req = request_make(plan, cpu);
    gpu_request *on_gpu = gpu_request_make(req);
    outcome *host = request_outcome(req), *device = request_outcome(req);
    const char *what = request_describe(plan);
    CHECK(request_draw(cpu, req, host) == GUMBEL_OK, "%s", what);
    gpu_request_draw(on_gpu, 0, device);
    compare_request(host, device, what);
    compare_processed(req, on_gpu, what);
    outcome_free(host);
    outcome_free(device);
    gpu_request_free(on_gpu);
    request_free(req);
}

/* Every residue of the first token, V and end, in some pairs. */
static void truncated_shards(void)
{
    uint64_t random = 21;
    for (int i = 0; i < 1024; i++) {
        int first = i % 64, vocab = (i / 64 * 5 + first * 7) % 64;
        request_plan plan = request_plan_on_shard(first, vocab, (first + vocab * 3) % 64, &random);
        plan.hidden_size = 0;
        compare_plan(&plan);
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
        compare_plan(&plan);
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
