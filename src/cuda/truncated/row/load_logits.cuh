/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads four neighbouring logits of a row.
 */
#ifndef GUMBEL_CUDA_LOAD_LOGITS_CUH
#define GUMBEL_CUDA_LOAD_LOGITS_CUH

#include "cuda/common/logits_step.cuh"
#include "cuda/truncated/row/truncated_row.cuh"

namespace
{

/* Four logits; -inf for invalid tokens. `origin` is the address of token 0, which need not exist.
 */
template <gumbel_dtype dtype>
__device__ __forceinline__ four load_logit_quad(const void *origin, int64_t token, int64_t first,
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

/* Address of the logit of token 0 of row b, which need not exist. */
__device__ __forceinline__ const void *get_row_origin(const gumbel_problem &q, int64_t b)
{
    int64_t size = q.logits.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    return (const char *)q.logits.data + (b * q.logits.stride - q.first_token) * size;
}

/* Four logits of row b from `token`, a multiple of 4, on; the row ends at `end`. */
__device__ __forceinline__ four load_four_logits(const gumbel_problem &q, int64_t b, int64_t token,
                                                 int64_t end)
{
    const void *origin = get_row_origin(q, b);
    return q.logits.dtype == GUMBEL_FLOAT32
               ? load_logit_quad<GUMBEL_FLOAT32>(origin, token, q.first_token, end)
           : q.logits.dtype == GUMBEL_BFLOAT16
               ? load_logit_quad<GUMBEL_BFLOAT16>(origin, token, q.first_token, end)
               : load_logit_quad<GUMBEL_FLOAT16>(origin, token, q.first_token, end);
}

/* scale_logit(), out of line as few rows need it. */
__device__ __noinline__ float scale_logit_noinline(const cuda_truncated_params &p, float l)
{
    return scale_logit(p, l);
}

/* Applies scale and soft-cap to the valid tokens of the four from `token` on. */
__device__ __noinline__ four scale_logit_quad(const cuda_truncated_params &p, int64_t token,
                                              int64_t end, four l)
{
    const gumbel_problem &q = p.problem;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        float scaled = scale_logit_noinline(p, l.v[0]);
        bool counts = token + i >= q.first_token && token + i < end;
        l = {l.v[1], l.v[2], l.v[3], counts ? scaled : l.v[0]};
    }
    return l;
}

} // namespace

#endif
