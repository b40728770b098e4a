/* SPDX-License-Identifier: Apache-2.0
 *
 * A CTA's results of a call that another launch finishes: a summary of each draw, and the
 * statistics of each row. Paired CTAs write one result for each consumer. All consumer threads call
 * these functions, after the last draw.
 */
#ifndef GUMBEL_CUDA_SUMMARIES_SM90_CUH
#define GUMBEL_CUDA_SUMMARIES_SM90_CUH

#include "cuda/common/merge.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Writes the summary of each draw from one set of masses; only summaries of set 0 hold best tokens.
 * For each draw, mass_groups neighbouring lanes load one mass each and merge them; the first of
 * these lanes writes the summary. */
template <int n, class call>
__device__ __forceinline__ void write_summaries_of_set(const call &p, const shared_sm90<n> &shared,
                                                       int set, int split)
{
    constexpr int groups = shared_sm90<n>::mass_groups;
    const int samples = p.sample_count(), group = threadIdx.x % groups;
    const int draws = p.template column_count<n>() * samples;
    gumbel_summary *to = p.summaries + split * p.problem.batch * samples + p.template draw_of<n>(0);
    for (int base = 0; base < draws; base += SM90_DRAW_THREADS / groups) {
        const int i = base + threadIdx.x / groups, column = i < draws ? i / samples : 0;
        gumbel_summary s;
        gumbel_summary_empty(&s);
        if (p.with_mass()) {
            const float2 m = shared.masses[(set * groups + group) * n + column];
            s.max_z = m.x;
            if (m.y > 0.0f) /* 0 or NaN if z is too large for exp(z - m.x) to be exact */
                gumbel_mass_add_block(&s, m.x, m.y);
            merge_masses_of_lanes<groups>(&s);
        }
        if (i >= draws || group != 0)
            continue;
        if (set == 0) {
            const int own = i % samples * n + column;
            s.best_score = shared.best[own].score;
            s.best_z = shared.best[own].z;
            s.best_id = shared.best[own].id;
            s.flags = shared.flags[own];
        }
        to[i] = s;
    }
}

/* Sums doubles over `count` neighbouring lanes. */
template <int count> __device__ __forceinline__ double sum_of_lanes(double x)
{
    for (int lanes = count / 2; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

/* Writes the statistics of each row from one set of masses; only statistics of set 0 hold the two
 * largest z. mass_groups neighbouring lanes merge the masses of a row. */
template <int n>
__device__ __forceinline__ void write_statistics_of_set(const sm90_statistics_call &p,
                                                        const shared_sm90<n> &shared, int set,
                                                        int split)
{
    constexpr int groups = shared_sm90<n>::mass_groups;
    const int group = threadIdx.x % groups, rows = p.template column_count<n>();
    cuda_row_statistics *to = p.statistics + split * p.problem.batch + p.template first_row<n>();
    for (int base = 0; base < rows; base += SM90_DRAW_THREADS / groups) {
        const int i = base + threadIdx.x / groups;
        const int at = (set * groups + group) * n + (i < rows ? i : 0);
        const float2 mass = shared.masses[at];
        float reference = mass.x;
        for (int lanes = groups / 2; lanes > 0; lanes /= 2)
            reference = fmaxf(reference, __shfl_xor_sync(~0u, reference, lanes));
        double sum = 0.0, weighted = 0.0;
        if (mass.y > 0.0f) {
            const double below = (double)mass.x - reference, factor = exp(below);
            sum = mass.y * factor;
            weighted = (shared.weights[at] * (double)LN2 + mass.y * below) * factor;
        }
        sum = sum_of_lanes<groups>(sum);
        weighted = sum_of_lanes<groups>(weighted);
        if (group != 0 || i >= rows)
            continue;
        const sm90_tops none = {{-INFINITY, -INFINITY}, {-1, -1}};
        const sm90_tops tops = set == 0 ? shared.tops[i] : none;
        to[i] = {sum, weighted, reference, {tops.z[0], tops.z[1]}, {tops.id[0], tops.id[1]}, {}};
    }
}

/* Writes the results of one set of masses to element `split` of the launch's results. */
template <int n, class call>
__device__ __forceinline__ void write_results_of_set(const call &p, const shared_sm90<n> &shared,
                                                     int set, int split)
{
    write_summaries_of_set(p, shared, set, split);
    if constexpr (call::has_statistics)
        write_statistics_of_set(p, shared, set, split);
}

template <int n, class call>
__device__ __forceinline__ void write_results(const call &p, const shared_sm90<n> &shared)
{
    const int cta = p.template cta_index<n>();
    write_results_of_set(p, shared, 0, cta);
    if (p.template is_paired<n>())
        write_results_of_set(p, shared, 1, cta + p.template cta_count<n>());
}

} // namespace

#endif
