/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of the Hopper kernel, which know what the case of the call, cuda_sm90_case_of(),
 * fixes of them, so that the code of what it rules out is not compiled: of 64 columns 64 KB are
 * left of 191. All that a first tile runs is fetched there for the first time, through a
 * second-level cache that weights keep busy (findings/cuda_fused.md).
 */
#ifndef GUMBEL_CUDA_CASE_SM90_CUH
#define GUMBEL_CUDA_CASE_SM90_CUH

#include "core/row.h"
#include "cuda/common/cuda_params.h"
#include "cuda/policy/cuda_policy.h"

namespace
{

template <cuda_sm90_case kind> struct sm90_call : cuda_params {
    static constexpr bool any = kind == CUDA_SM90_ANY;
    static constexpr bool stores = kind == CUDA_SM90_STORED; /* and nothing else */
    static constexpr bool stores_too = kind == CUDA_SM90_BOTH;

    /* Draws of a launch of n columns, at most. */
    template <int n> static constexpr int states = any ? CUDA_SM90_STATES : n;

    /* Whether logits are dropped as the product leaves them. */
    __device__ __forceinline__ bool drops() const { return any && multiply_only; }
    __device__ __forceinline__ bool draws() const { return !stores && !drops(); }
    /* Whether the kernel of n columns stores the logits alone that bounds leave. */
    template <int n> __device__ __forceinline__ bool by_bounds() const
    {
        return stores && CUDA_SM90_HAS_BOUNDS(n) && stored_subtiles;
    }
    /* Whether its last CTA ends the call (ending_sm90.cuh). */
    __device__ __forceinline__ bool ends_call() const
    {
        return CUDA_SM90_WRITES_OUTPUT(kind, partials);
    }
    /* Whether what is left to the launch behind is little: a few draws to merge, or rows that it
     * serves from their peaks. */
    __device__ __forceinline__ bool leaves_little() const
    {
        return stores ? block_maxima != NULL
                      : !stores_too && problem.batch * samples() <= CUDA_SM90_DRAWS_OVERLAPPED;
    }
    __device__ __forceinline__ bool with_mass() const
    {
        return kind == CUDA_SM90_PLAIN_MASS || (any && problem.with_mass);
    }
    __device__ __forceinline__ int samples() const
    {
        return any ? problem.sampling.num_samples : 1;
    }
    /* Columns that are used; which row of the batch, and which of its samples, each draws, beside
     * those that samples() tells. */
    __device__ __forceinline__ int columns() const { return (int)problem.batch; }
    __device__ __forceinline__ int row_of(int column) const { return column; }
    __device__ __forceinline__ int sample_of(int) const { return 0; }
    /* Whether a token may be drawn there. */
    __device__ __forceinline__ bool allows(int, uint32_t) const { return true; }
    __device__ __forceinline__ bool has_bias() const
    {
        return (any || stores || stores_too) && problem.bias.data;
    }
    /* Whether soft-caps and negative scales are applied to the sums themselves. */
    __device__ __forceinline__ bool prepares() const
    {
        return any && (problem.soft_cap != 0.0f || problem.scale < 0.0f);
    }
    /* Of a prepared logit, to z before the temperature. */
    __device__ __forceinline__ float scale() const { return prepares() ? 1.0f : problem.scale; }
};

/* A plain call whose samples have columns of their own, row by row, and whose rows may have masks.
 */
struct sm90_spread_call : sm90_call<CUDA_SM90_PLAIN> {
    __device__ __forceinline__ int columns() const
    {
        return (int)problem.batch * problem.sampling.num_samples;
    }
    __device__ __forceinline__ int row_of(int column) const
    {
        return column / problem.sampling.num_samples;
    }
    __device__ __forceinline__ int sample_of(int column) const
    {
        return column % problem.sampling.num_samples;
    }
    __device__ __forceinline__ bool allows(int column, uint32_t token) const
    {
        return !(problem.request & GUMBEL_REQUEST_MASK) ||
               gumbel_problem_mask(&problem, row_of(column))[token / 32] >> (token % 32) & 1;
    }
};

} // namespace

#endif
