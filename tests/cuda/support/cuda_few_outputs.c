/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_few_outputs.h"

void compare_some(request *req, int fused, outcome_parts parts)
{
    const request_plan *plan = &req->plan;
    gpu_request *on_gpu = gpu_request_make(req);
    outcome *host = request_outcome(req), *device = request_outcome(req);
    const char *what = request_describe(plan);
    CHECK((fused ? request_draw_fused : request_draw)(cpu, req, host) == GUMBEL_OK, "%s", what);
    device->output = (gumbel_output){.struct_size = sizeof device->output,
                                     .tokens = device->tokens,
                                     .status = device->status,
                                     .scores = device->scores,
                                     .lse = parts & OUTCOME_MASS ? device->lse : NULL,
                                     .logprobs = parts & OUTCOME_MASS ? device->logprobs : NULL,
                                     .kept = plan->seed % 2 ? device->kept : NULL};
    gpu_request_draw(on_gpu, fused, device);
    draws_compared += plan->batch * host->samples;
    CHECK(outcome_same(host, 0, device, parts, what),
          "%s: differs if requested without other outputs", what);
    for (int64_t b = 0; b < plan->batch && plan->seed % 2; b++)
        CHECK(host->kept[b] == device->kept[b], "%s: kept[%d] is %d, %d on the CPU", what, (int)b,
              (int)device->kept[b], (int)host->kept[b]);
    outcome_free(host);
    outcome_free(device);
    gpu_request_free(on_gpu);
    request_free(req);
}

void compare_tokens(request *req, int fused)
{
    compare_some(req, fused, OUTCOME_TOKENS | OUTCOME_SCORES);
}

gumbel_tensor make_exact(request *req, gumbel_dtype dtype, int64_t rows, int64_t cols,
                         uint64_t seed)
{
    void *data = request_allocate(req, (size_t)(rows * cols), dtype_size(dtype));
    for (int64_t i = 0; i < rows * cols; i++)
        dtype_store(data, dtype, i, 0.25f * ((float)random_below(&seed, 9) - 4));
    return tensor_of(data, dtype, rows, cols, 0);
}

void make_exact_head(request *req, gumbel_dtype dtype, int64_t size)
{
    const request_plan *plan = &req->plan;
    req->plan.hidden_size = size;
    req->head = (gumbel_head){.struct_size = sizeof req->head,
                              .hidden = make_exact(req, dtype, plan->batch, size, plan->seed),
                              .weight = make_exact(req, dtype, plan->vocab, size, 2 * plan->seed),
                              .first_token = plan->first_token};
}
