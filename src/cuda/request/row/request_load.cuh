/* SPDX-License-Identifier: Apache-2.0
 *
 * Four neighbouring logits of a row.
 */
#ifndef GUMBEL_CUDA_REQUEST_LOAD_CUH
#define GUMBEL_CUDA_REQUEST_LOAD_CUH

#include "cuda/common/logits_step.cuh"
#include "cuda/request/row/request_row.cuh"

namespace
{

/* Four logits; -inf for tokens that do not count. `origin` is where that of token 0 would be. */
template <gumbel_dtype dtype>
__device__ __forceinline__ four request_load_quad(const void *origin, int64_t token, int64_t first,
                                                  int64_t end)
{
    using element = typename quad<dtype>::element;
    const element *from = (const element *)origin + token;
    four v = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    if (token >= first && token + 4 <= end && (uintptr_t)from % sizeof(quad<dtype>) == 0)
        return ((const quad<dtype> *)from)->to_floats();
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (token + i >= first && token + i < end)
            v.v[i] = widen_element(from, dtype, i);
    return v;
}

/* Where the logit of token 0 of row b would be. */
__device__ __forceinline__ const void *request_origin(const gumbel_problem &q, int64_t b)
{
    int64_t size = q.logits.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    return (const char *)q.logits.data + (b * q.logits.stride - q.first_token) * size;
}

/* Row b's, from a token on that is divisible by 4; the row ends at `end`. */
__device__ __forceinline__ four request_load_four(const gumbel_problem &q, int64_t b, int64_t token,
                                                  int64_t end)
{
    const void *origin = request_origin(q, b);
    return q.logits.dtype == GUMBEL_FLOAT32
               ? request_load_quad<GUMBEL_FLOAT32>(origin, token, q.first_token, end)
           : q.logits.dtype == GUMBEL_BFLOAT16
               ? request_load_quad<GUMBEL_BFLOAT16>(origin, token, q.first_token, end)
               : request_load_quad<GUMBEL_FLOAT16>(origin, token, q.first_token, end);
}

/* scaled_logit(), which is rare, and so not among what is not. */
__device__ __noinline__ float request_scaled(const cuda_request_params &p, float l)
{
    return scaled_logit(p, l);
}

/* Scale and soft-cap of the four from `token` on that count. */
__device__ __noinline__ four request_scale_quad(const cuda_request_params &p, int64_t token,
                                                int64_t end, four l)
{
    const gumbel_problem &q = p.problem;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        float scaled = request_scaled(p, l.v[0]);
        bool counts = token + i >= q.first_token && token + i < end;
        l = {l.v[1], l.v[2], l.v[3], counts ? scaled : l.v[0]};
    }
    return l;
}

} // namespace

#endif
