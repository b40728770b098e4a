/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of the kernels that serve a row by a cluster: which rows are to be served, loading a row,
 * and finishing one from a list.
 */
#ifndef GUMBEL_CUDA_CLUSTER_SERVE_CUH
#define GUMBEL_CUDA_CLUSTER_SERVE_CUH

#include "cuda/truncated/cluster/cluster_offers.cuh"
#include "cuda/truncated/cluster/cluster_passes.cuh"

namespace
{

/* Nanoseconds between two polls of a row's state, and the number of polls: 1 ms in total, a hundred
 * times the duration of a row. */
constexpr int kBackoffNs = 200, kPollsMax = 5000;

/* Serves a row from a list if the tokens that matter fit in a CTA; returns whether they do.
 * `required` NULL: all tokens matter. */
__device__ __forceinline__ bool serve_from_list(slice_source source, const row_facts &facts,
                                                const required_tokens *required, int64_t b,
                                                const gumbel_summary &seen,
                                                const gumbel_summary &raw)
{
    const truncated_row &row = shared_state().row;
    logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    int count = 0;
    if (gumbel_summary_status(&seen) == GUMBEL_ROW_OK) {
        bool few = facts.alive <= kShortlist;
        if (!few && !required)
            return false;
        count = gather_required(source, facts, values, few ? nullptr : required);
    }
    if (count >= 0 && leads_cluster())
        serve_listed(b, count, seen, raw, nullptr);
    return count >= 0;
}

/* This CTA's slice of a row. */
__device__ __forceinline__ slice_source find_slice(const cuda_truncated_params &p)
{
    const int64_t first = p.problem.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    return {first + cluster_rank() * p.split_size, (int)p.split_size};
}

/* A key that at least `target` tokens of the row reach: an equal number in each slice. 0 if a slice
 * has too few. The last slices of a grid have no tokens in rows of few. */
__device__ __forceinline__ uint32_t find_key_of_slices(const cuda_truncated_params &p,
                                                       const row_facts &facts, float thread_max,
                                                       uint32_t target)
{
    int slices = kClusterCtas;
    (void)p;
#ifdef CUDA_ROWS_BY_GRID
    const gumbel_problem &q = p.problem;
    const int64_t range = q.end_token - q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
    slices = (int)min((int64_t)slices, (range + p.split_size - 1) / p.split_size);
    if (cluster_rank() >= slices)
        return ~0u;
#endif
    return find_reached_key(facts, thread_max, (target + slices - 1) / slices);
}

__device__ __forceinline__ row_reader make_reader(const cuda_truncated_params &p,
                                                  const slice_source &source, int64_t b)
{
    return {p, shared_state().row, shared_state().stage, b,
            min(source.begin + p.split_size, p.problem.end_token)};
}

/* Loads the row's parameters and this CTA's slice of its logits, and arrives at the cluster's first
 * barrier. Calls also() beside the copies. */
template <class F>
__device__ __forceinline__ void load_row(const cuda_truncated_params &p, const row_reader &reader,
                                         const slice_source &source, F also)
{
    const gumbel_problem &q = p.problem;
    arrive_at_cluster();
    if (threadIdx.x / 32 == kWarps - 1)
        prefetch_parameters(q, reader.b);
    fetch_slice(reader, source);
    fetch_words(reader, source);
    if (threadIdx.x == kThreads - 1) {
        shared_state().row = load_truncated_row(q, reader.b);
        reset_turn();
        reset_offers();
    }
    also();
    ptx_copy_async_wait<0>();
    __syncthreads();
}

/* Polls the states of 32 rows from `first` on, `every` rows apart, and stores the bit mask of rows
 * to serve in shared memory; by a warp. Waits until no row is pending, and after the last poll for
 * the end of the launch that tries these rows. */
__device__ __forceinline__ void poll_rows(const cuda_truncated_params &p, int64_t first,
                                          int64_t every)
{
    const int64_t b = first + threadIdx.x % 32 * every;
    int32_t known = b < p.problem.batch ? CUDA_ROW_FALLBACK : CUDA_ROW_SERVED;
    if (p.row_states && known == CUDA_ROW_FALLBACK) {
        known = ptx_load_acquire(&p.row_states[b]);
        for (int polls = 1; known == CUDA_ROW_PENDING && polls < kPollsMax; polls++) {
            __nanosleep(kBackoffNs);
            known = ptx_load_acquire(&p.row_states[b]);
        }
        if (known == CUDA_ROW_PENDING || known == CUDA_ROW_FALLBACK_AFTER) {
            ptx_wait_for_launch();
            known = ptx_load_acquire(&p.row_states[b]);
        }
    }
    if (known != CUDA_ROW_SERVED && end_unused_row(p, b, leads_cluster()))
        known = CUDA_ROW_SERVED;
    uint32_t pending = __ballot_sync(~0u, known != CUDA_ROW_SERVED);
    if (threadIdx.x == 0)
        shared_state().unresolved = pending;
}

/* Calls serve(b) for the rows that a cluster of the launch has to serve, by all its threads.
 * load_call() has been called. */
template <class F>
__device__ __forceinline__ void serve_rows(const cuda_truncated_params &p, F serve)
{
    const int64_t batch = p.problem.batch, clusters = gridDim.x / kClusterCtas;
    /* The state words are all that this launch reads of the launch before. */
    const bool has_states = p.row_states;
    ptx_allow_launch();
    if (!has_states)
        ptx_wait_for_launch();
#pragma unroll 1
    for (int64_t first = blockIdx.x / kClusterCtas; first < batch; first += 32 * clusters) {
        if (threadIdx.x < 32)
            poll_rows(p, first, clusters);
        __syncthreads(); /* also waits for load_call() */
#pragma unroll 1
        for (uint32_t pending = shared_state().unresolved; pending; pending &= pending - 1) {
            serve(first + (__ffs(pending) - 1) * clusters);
            __syncthreads(); /* before the slice is overwritten */
        }
        __syncthreads(); /* before `unresolved` is overwritten */
    }
    if (has_states && blockIdx.x == 0)
        ptx_wait_for_launch(); /* keeps launches ending in order */
}

} // namespace

#endif
