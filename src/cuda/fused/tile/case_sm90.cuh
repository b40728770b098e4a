/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of the Hopper kernel, as one type for each case of a call (cuda_sm90_case_of()). A
 * case fixes some parameters at compile time, so that unused code is not compiled: at 64 columns
 * this reduces the code from 191 KB to 64 KB. Less code is faster, because a CTA loads instructions
 * during its first tile, through an L2 that copies of weights keep busy (findings/cuda_fused.md).
 */
#ifndef GUMBEL_CUDA_CASE_SM90_CUH
#define GUMBEL_CUDA_CASE_SM90_CUH

#include "core/row.h"
#include "cuda/common/cuda_statistics_params.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

template <cuda_sm90_case kind> struct sm90_call : cuda_params {
    static constexpr bool any = kind == CUDA_SM90_ANY;
    static constexpr bool stores = kind == CUDA_SM90_STORED; /* stores logits, draws nothing */
    static constexpr bool also_stores = kind == CUDA_SM90_BOTH;
    static constexpr bool has_statistics = kind == CUDA_SM90_STATISTICS;

    /* The largest number of draws in a launch of n columns. */
    template <int n> static constexpr int states = any ? CUDA_SM90_STATES : n;

    /* Whether logits are dropped after the product, to measure it alone. */
    __device__ __forceinline__ bool drops_logits() const { return any && multiply_only; }
    __device__ __forceinline__ bool draws_tokens() const { return !stores && !drops_logits(); }
    /* Whether the kernel stores only logits above bounds. Paired CTAs never do. */
    __device__ __forceinline__ bool by_bounds() const { return stores && stored_subtiles; }
    /* Whether the last CTA writes the outputs (finish_sm90.cuh). */
    __device__ __forceinline__ bool ends_call() const
    {
        return CUDA_SM90_WRITES_OUTPUT(kind, partials);
    }
    /* Whether the next launch has little to do: merge a few draws, or serve rows from their maxima.
     */
    __device__ __forceinline__ bool leaves_little() const
    {
        return stores
                   ? block_maxima != NULL
                   : !also_stores && problem.batch * sample_count() <= CUDA_SM90_DRAWS_OVERLAPPED;
    }
    __device__ __forceinline__ bool with_mass() const
    {
        return kind == CUDA_SM90_PLAIN_MASS || has_statistics || (any && problem.with_mass);
    }
    /* Whether the two largest z of each row are found. */
    __device__ __forceinline__ bool finds_tops() const
    {
        return has_statistics && problem.num_top > 0;
    }
    __device__ __forceinline__ int sample_count() const
    {
        return any ? problem.sampling.num_samples : 1;
    }
    /* Whether the CTAs of a cluster share a tile, in the kernel of n columns. */
    template <int n> __device__ __forceinline__ bool is_paired() const
    {
        return CUDA_SM90_CLUSTER(n) > 1 && paired;
    }
    /* The index of this CTA among those that have the same rows, and their number. */
    template <int n> __device__ __forceinline__ int cta_index() const
    {
        return is_paired<n>() ? (int)blockIdx.x / CUDA_SM90_CLUSTER_MAX : (int)blockIdx.x;
    }
    template <int n> __device__ __forceinline__ int cta_count() const
    {
        return is_paired<n>() ? (int)gridDim.x / CUDA_SM90_CLUSTER_MAX : (int)gridDim.x;
    }
    /* The batch row of this CTA's column 0. */
    template <int n> __device__ __forceinline__ int first_row() const
    {
        return is_paired<n>() ? (int)blockIdx.x % CUDA_SM90_CLUSTER_MAX * n : 0;
    }
    /* The number of columns in use, and the batch row of a column. */
    template <int n> __device__ __forceinline__ int column_count() const
    {
        return min((int)problem.batch - first_row<n>(), n);
    }
    template <int n> __device__ __forceinline__ int row_of(int column) const
    {
        return first_row<n>() + column;
    }
    /* The index of a column's first draw among all draws of the batch, [B][sample_count()]. */
    template <int n> __device__ __forceinline__ int64_t draw_of(int column) const
    {
        return (int64_t)row_of<n>(column) * sample_count();
    }
    __device__ __forceinline__ int sample_of(int) const { return 0; }
    /* Whether a column may draw a token. */
    template <int n> __device__ __forceinline__ bool allows_token(int, uint32_t) const
    {
        return true;
    }
    __device__ __forceinline__ bool has_bias() const
    {
        return (any || stores || also_stores) && problem.bias.data;
    }
    /* Whether a soft-cap or negative scale is applied to the accumulators before the draw. */
    __device__ __forceinline__ bool prepares_logits() const
    {
        return any && (problem.soft_cap != 0.0f || problem.scale < 0.0f);
    }
    /* Factor from a prepared logit to z, before the temperature. */
    __device__ __forceinline__ float scale() const
    {
        return prepares_logits() ? 1.0f : problem.scale;
    }
};

/* Parameters of a call with statistics; the layout is that of cuda_statistics_params. */
struct sm90_statistics_call : sm90_call<CUDA_SM90_STATISTICS> {
    cuda_row_statistics *statistics; /* [splits][B] */
};
static_assert(sizeof(sm90_statistics_call) == sizeof(cuda_statistics_params),
              "the host passes cuda_statistics_params");

/* A plain call in which each sample has a column of its own, row by row, and rows may have masks.
 */
struct sm90_spread_call : sm90_call<CUDA_SM90_PLAIN> {
    template <int n> __device__ __forceinline__ int column_count() const
    {
        return (int)problem.batch * problem.sampling.num_samples;
    }
    template <int n> __device__ __forceinline__ int row_of(int column) const
    {
        return column / problem.sampling.num_samples;
    }
    template <int n> __device__ __forceinline__ int64_t draw_of(int column) const { return column; }
    __device__ __forceinline__ int sample_of(int column) const
    {
        return column % problem.sampling.num_samples;
    }
    template <int n> __device__ __forceinline__ bool allows_token(int column, uint32_t token) const
    {
        return !(problem.features & GUMBEL_FEATURE_MASK) ||
               gumbel_problem_mask(&problem, row_of<n>(column))[token / 32] >> (token % 32) & 1;
    }
};

} // namespace

#endif
