/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts, masses and draws of a row by one CTA.
 */
#ifndef GUMBEL_CUDA_ROW_DRAW_CUH
#define GUMBEL_CUDA_ROW_DRAW_CUH

#include "cuda/common/block_mass.cuh"
#include "cuda/truncated/row/kept_set.cuh"
#include "cuda/truncated/row/row_source.cuh"

namespace
{

/* One of the most likely tokens. */
struct top_token {
    float z;
    int32_t id;
    bool kept;
};

/* Candidates in shared memory. */
struct list_source {
    static constexpr bool is_row = false;
    const cuda_candidate *list;
    int count;

    template <class F> __device__ __forceinline__ void each(F f) const
    {
        for (int i = threadIdx.x; i < count; i += kThreads)
            f(list[i].id, list[i].y);
    }
};

/* Shared memory of a CTA that serves a whole row. */
struct truncated_shared {
    truncated_row row;
    truncated_scratch scratch;
    gumbel_summary masses[kWarps];
    draw_winner best[kWarps];
    top_token top[GUMBEL_TOP_MAX];
    uint32_t top_count;
    float thread_maxima[kThreads]; /* largest y that each thread has read */
};

/* A row before truncation. */
struct source_facts {
    uint32_t flags;
    int32_t alive; /* tokens with z > -inf */
    float largest; /* largest value */
};

template <class Source>
__device__ inline source_facts scan_source(const Source &source, logit_values values,
                                           truncated_shared &shared)
{
    truncated_scratch &x = shared.scratch;
    uint32_t flags = 0, largest = 0, alive = 0;
    float thread_max = -INFINITY;
    source.each([&](int32_t, float y) {
        float z = values.to_z(y), v = values.to_value(y);
        flags |= flags_of_z(z);
        if (!isnan(v)) {
            alive++;
            thread_max = fmaxf(thread_max, y);
            largest = max(largest, gumbel_key_of_value(v));
        }
    });
    shared.thread_maxima[threadIdx.x] = thread_max;
    flags = reduce_cta(flags, x, [](uint32_t a, uint32_t b) { return a | b; });
    alive = (uint32_t)sum_of_cta(alive, x);
    return {flags, (int32_t)alive, gumbel_value_of_key(largest_of_cta(largest, x))};
}

/* ---------------------------------------------------------------------------------- mass ---- */

/* Adds a block of 64 in the order of eq. 8, by a warp; lane 0 keeps the mass. */
__device__ __forceinline__ void add_block(gumbel_summary &mass, float low, float high)
{
    const float largest = find_block_largest(low, high);
    if (largest == -INFINITY)
        return;
    const float sum = sum_block(low, high, largest);
    if (threadIdx.x % 32 == 0) {
        mass.max_z = fmaxf(mass.max_z, largest);
        gumbel_mass_add_block(&mass, largest, sum);
    }
}

/* Sums the masses that the warps add by add(mass); for all threads. */
template <class F> __device__ __forceinline__ gumbel_summary sum_masses(truncated_shared &x, F add)
{
    int warp = threadIdx.x / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        gumbel_summary_empty(&x.masses[warp]);
    __syncwarp();
    add(x.masses[warp]);
    __syncthreads();
    gumbel_summary all = x.masses[0];
    for (int w = 1; w < kWarps; w++)
        gumbel_summary_merge(&all, &x.masses[w]);
    return all;
}

/* Mass of z over the kept set, from a whole row. */
__device__ inline gumbel_summary sum_kept(const row_source &source, truncated_shared &x,
                                          logit_values values, kept_set survivors)
{
    int lane = threadIdx.x % 32;
    return sum_masses(x, [&](gumbel_summary &mass) {
        source.each_block([&](int64_t block, float low, float high) {
            int32_t id = (int32_t)(block + lane);
            add_block(mass,
                      survivors.has_token(id, values.to_value(low)) ? values.to_z(low) : -INFINITY,
                      survivors.has_token(id + 32, values.to_value(high)) ? values.to_z(high)
                                                                          : -INFINITY);
        });
    });
}

/* Mass of z over the kept set, from candidates, which are few and unordered. The warp of the first
 * candidate of a block collects the block. */
__device__ inline gumbel_summary sum_kept(const list_source &source, truncated_shared &x,
                                          logit_values values, kept_set survivors)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    return sum_masses(x, [&](gumbel_summary &mass) {
        for (int own = warp; own < source.count; own += kWarps) {
            int block = source.list[own].id / GUMBEL_BLOCK;
            float z[2] = {-INFINITY, -INFINITY};
            bool first = true;
            for (int at = 0; first && at < source.count; at += 32) {
                cuda_candidate c =
                    at + lane < source.count ? source.list[at + lane] : cuda_candidate{0, -1};
                bool beside = c.id >= 0 && c.id / GUMBEL_BLOCK == block;
                uint32_t found = __ballot_sync(~0u, beside);
                first = !found || at + __ffs(found) - 1 >= own;
                float kept = beside && survivors.has_token(c.id, values.to_value(c.y))
                                 ? values.to_z(c.y)
                                 : -INFINITY;
                for (; first && found; found &= found - 1) {
                    int owner = __ffs(found) - 1, id = __shfl_sync(~0u, c.id, owner);
                    float other = __shfl_sync(~0u, kept, owner);
                    if (id % 32 == lane)
                        z[id / 32 % 2] = other;
                }
            }
            if (first)
                add_block(mass, z[0], z[1]);
        }
    });
}

/* Mass of the raw logits of all valid tokens; flags report NaN and +inf. */
__device__ inline gumbel_summary sum_raw(const gumbel_problem &q, int64_t b, truncated_shared &x)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t flags = 0;
    gumbel_summary sum = sum_masses(x, [&](gumbel_summary &mass) {
        int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
        for (int64_t at = begin + warp * GUMBEL_BLOCK; at < q.end_token;
             at += kWarps * GUMBEL_BLOCK) {
            float l[2];
            for (int i = 0; i < 2; i++) {
                int64_t token = at + lane + 32 * i;
                bool counts = token >= q.first_token && token < q.end_token;
                l[i] = counts ? raw_logit(q, b, token) : -INFINITY;
                flags |= isnan(l[i])        ? GUMBEL_FLAG_NAN
                         : l[i] == INFINITY ? GUMBEL_FLAG_INFINITE
                                            : 0;
            }
            add_block(mass, l[0], l[1]);
        }
    });
    sum.flags = reduce_cta(flags, x.scratch, [](uint32_t a, uint32_t b) { return a | b; });
    return sum;
}

/* ---------------------------------------------------------------------------------- draw ---- */

/* The best winner of the CTA, for all threads. */
__device__ inline draw_winner best_of_cta(draw_winner best, truncated_shared &x)
{
    __syncthreads();
    best = draw_winner_of_warp(best);
    if (threadIdx.x % 32 == 0)
        x.best[threadIdx.x / 32] = best;
    __syncthreads();
    for (int w = 0; w < kWarps; w++)
        draw_winner_offer(best, x.best[w].score, x.best[w].z, x.best[w].id);
    return best;
}

/* Draws sample `at` of the call from the kept set; for all threads. */
template <class Source>
__device__ inline draw_winner draw_kept(const gumbel_problem &q, const Source &source,
                                        truncated_shared &x, logit_values values,
                                        kept_set survivors, int64_t at)
{
    gumbel_stream stream = x.row.draw.stream;
    const bool greedy = x.row.draw.greedy;
    const float *noise = q.sampling.noise;
    draw_winner best = draw_winner_none();
    stream.sample += (uint32_t)(at % q.sampling.num_samples);
    if (noise)
        noise += at * q.sampling.noise_stride - q.first_token;
    source.each([&](int32_t id, float y) {
        if (!survivors.has_token(id, values.to_value(y)))
            return;
        float z = values.to_z(y), g = 0.0f;
        if (!greedy)
            g = noise ? noise[id] : gumbel_noise_of_token(stream, (uint32_t)id);
        draw_winner_offer(best, greedy ? z : z + g, z, id);
    });
    return best_of_cta(best, x);
}

/* Counts the tokens for which f(id, y) holds; for all threads. */
template <class Source, class F>
__device__ __forceinline__ int32_t count_tokens(const Source &source, truncated_scratch &x, F f)
{
    uint32_t own = 0;
    source.each([&](int32_t id, float y) { own += f(id, y) ? 1 : 0; });
    return (int32_t)sum_of_cta(own, x);
}

} // namespace

#endif
