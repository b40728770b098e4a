/* SPDX-License-Identifier: Apache-2.0
 *
 * z of a model's row, from logits or from processed rows; and the draft's ln q of a token, computed
 * from its head.
 */
#ifndef GUMBEL_CUDA_MODEL_ROW_CUH
#define GUMBEL_CUDA_MODEL_ROW_CUH

#include "cuda/common/logits_step.cuh"
#include "drafts/rule_params.h"

namespace
{

/* Out of line: the fifty instructions of a soft-cap would evict the usual path. */
__device__ __noinline__ float capped_z(float logit, float scale, float soft_cap, float inverse_cap,
                                       float inverse_temperature)
{
    return gumbel_transform_logit(logit, scale, soft_cap, inverse_cap, inverse_temperature);
}

struct model_row {
    const unsigned char *from; /* address of token 0, which need not exist */
    gumbel_dtype dtype;
    int first, end; /* valid tokens; others have z = -inf */
    bool quads;     /* aligned quads can be loaded at once */
    bool plain;
    float scale, soft_cap, inverse_cap, inverse_temperature;

    static __device__ __forceinline__ model_row from_params(const gumbel_rule_params &p, bool draft,
                                                            int64_t b)
    {
        const gumbel_problem &q = draft ? p.proposal.draft : p.proposal.target;
        const gumbel_logit_rows &rows = draft ? p.proposal.draft_logits : p.proposal.target_logits;
        const int size = rows.logits.dtype == GUMBEL_FLOAT32 ? 4 : 2;
        model_row row;
        row.from = (const unsigned char *)rows.logits.data +
                   (b * rows.logits.stride - q.first_token) * size;
        row.dtype = rows.logits.dtype;
        row.first = (int)q.first_token;
        row.end = (int)q.end_token;
        row.quads = (uintptr_t)row.from % (4 * size) == 0;
        row.scale = rows.processed ? 1.0f : q.scale;
        row.soft_cap = rows.processed ? 0.0f : q.soft_cap;
        row.inverse_cap = p.inverse_caps[draft];
        row.inverse_temperature =
            rows.processed ? 1.0f : gumbel_problem_row(&q, b).inverse_temperature;
        row.plain = row.soft_cap == 0.0f;
        return row;
    }

    /* z of a token. */
    __device__ __forceinline__ float z_of_token(int token) const
    {
        if (token < first || token >= end)
            return -INFINITY;
        return gumbel_transform_logit(widen_element(from, dtype, token), scale, soft_cap,
                                      inverse_cap, inverse_temperature);
    }

    template <gumbel_dtype type, int stride>
    __device__ __forceinline__ void load_of(int token, four (&z)[kQuads]) const
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            const int at = token + stride * k;
            if (quads && at >= first && at + 4 <= end) {
                z[k] = ((const quad<type> *)((const typename quad<type>::element *)from + at))
                           ->to_floats();
                continue;
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[k].v[i] =
                    at + i >= first && at + i < end ? widen_element(from, type, at + i) : -INFINITY;
        }
    }

    /* z of four quads, `stride` tokens apart, from `token`, a multiple of 4, on. */
    template <int stride> __device__ __forceinline__ void load(int token, four (&z)[kQuads]) const
    {
        if (dtype == GUMBEL_FLOAT32)
            load_of<GUMBEL_FLOAT32, stride>(token, z);
        else if (dtype == GUMBEL_BFLOAT16)
            load_of<GUMBEL_BFLOAT16, stride>(token, z);
        else
            load_of<GUMBEL_FLOAT16, stride>(token, z);
        if (plain)
#pragma unroll
            for (int i = 0; i < 4 * kQuads; i++)
                z[i / 4].v[i % 4] = z[i / 4].v[i % 4] * scale * inverse_temperature;
        else
#pragma unroll
            for (int i = 0; i < 4 * kQuads; i++)
                z[i / 4].v[i % 4] =
                    capped_z(z[i / 4].v[i % 4], scale, soft_cap, inverse_cap, inverse_temperature);
        if (!(scale > 0.0f))
#pragma unroll
            for (int i = 0; i < 4 * kQuads; i++) {
                const int at = token + stride * (i / 4) + i % 4;
                z[i / 4].v[i % 4] = at >= first && at < end ? z[i / 4].v[i % 4] : -INFINITY;
            }
    }
};

/* Summary flags of a step's z: NaN and +inf. */
__device__ __forceinline__ uint32_t flags_of_step(const four (&z)[kQuads])
{
    uint32_t flags = 0;
    if (!(largest_of_step(z) < INFINITY))
#pragma unroll
        for (int i = 0; i < 4 * kQuads; i++) {
            const float own = z[i / 4].v[i % 4];
            flags |= isnan(own) ? GUMBEL_FLAG_NAN : own == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
        }
    return flags;
}

/* ---------------------------------------------------------------- q from the draft's head ---- */

/* A lane's partial sum of the dot product of two rows of one type: four neighbours of 128, in an
 * order that does not depend on alignment. All loads of a row of 1024 are in flight at once. */
template <gumbel_dtype type>
__device__ __forceinline__ float dot_of_rows(const gumbel_tensor &a, int64_t from_a,
                                             const gumbel_tensor &b, int64_t from_b)
{
    using element = typename quad<type>::element;
    const element *x = (const element *)a.data + from_a, *y = (const element *)b.data + from_b;
    float sum = 0.0f;
    int64_t k = 4 * (threadIdx.x % 32);
    if (((uintptr_t)x | (uintptr_t)y) % sizeof(quad<type>) == 0)
#pragma unroll 8
        for (; k + 4 <= a.cols; k += 128) {
            const four u = ((const quad<type> *)(x + k))->to_floats();
            const four w = ((const quad<type> *)(y + k))->to_floats();
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum = fmaf(u.v[i], w.v[i], sum);
        }
    for (; k < a.cols; k += 128)
        for (int64_t i = k; i < k + 4 && i < a.cols; i++)
            sum = fmaf(widen_element(x, type, i), widen_element(y, type, i), sum);
    return sum;
}

/* A lane's partial sum of the draft's logit of a token, without bias. */
__device__ __forceinline__ float dot_of_lane(const gumbel_problem &q, int64_t b, int token)
{
    const int64_t hidden = b * q.hidden.stride;
    const int64_t weight = (token - q.first_token) * q.weight.stride;
    float sum = 0.0f;
    if (q.hidden.dtype == GUMBEL_BFLOAT16 && q.weight.dtype == GUMBEL_BFLOAT16)
        return dot_of_rows<GUMBEL_BFLOAT16>(q.hidden, hidden, q.weight, weight);
    if (q.hidden.dtype == GUMBEL_FLOAT16 && q.weight.dtype == GUMBEL_FLOAT16)
        return dot_of_rows<GUMBEL_FLOAT16>(q.hidden, hidden, q.weight, weight);
    for (int64_t k = threadIdx.x % 32; k < q.hidden_size; k += 32)
        sum = fmaf(widen_element(q.hidden.data, q.hidden.dtype, hidden + k),
                   widen_element(q.weight.data, q.weight.dtype, weight + k), sum);
    return sum;
}

/* z of a token from its dot product. */
__device__ __forceinline__ float z_of_dot(const gumbel_rule_params &p, int64_t b, int token,
                                          float sum)
{
    const gumbel_problem &q = p.proposal.draft;
    if (q.bias.data)
        sum += widen_element(q.bias.data, q.bias.dtype, token - q.first_token);
    return gumbel_transform_logit(sum, q.scale, q.soft_cap, p.inverse_caps[1],
                                  gumbel_problem_row(&q, b).inverse_temperature);
}

/* ln q of a token of row b, computed by a warp, for all its lanes. */
__device__ __noinline__ float draft_logprob(const gumbel_rule_params &p, int64_t b, int token)
{
    float sum = dot_of_lane(p.proposal.draft, b, token);
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        sum += __shfl_xor_sync(~0u, sum, half);
    return gumbel_logprob_of(z_of_dot(p, b, token, sum), p.proposal.draft_lse[b]);
}

} // namespace

#endif
