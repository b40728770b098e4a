/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   rows of a request that are split over ranks, by the first CUDA_LISTED tokens of each
 *        rank's part: cut, drawn from, and written. A row that these do not tell is left.
 *        Where ranks have mailboxes, they tell each other these tokens in the same launch. Behind
 *        it, rows that were left and drawn from whole are put in their places.
 * COST   a row of R ranks reads 520 R bytes; the order of 64 R tokens by counting, 32 R looks of
 *        each, a walk over those that are kept, and a noise of each; by mailboxes 1032 bytes a row
 *        and pair of ranks over the link, and one latency of it.
 * MAP    a CTA a row, a thread every 128th token; a warp cuts.
 * SMEM   37 KiB.
 * SYNC   barriers of the CTA. With mailboxes as in exchange.cu: a CTA says its row before it looks
 *        for others', there are GUMBEL_PEERS_TOLD at most, which run at once, and waits are counted
 *        in time.
 */
#include "cuda/common/merge.cuh"
#include "cuda/step/ranks/listed_head.cuh"
#include "cuda/step/ranks/told_params.h"

namespace
{

/* The sum of exp(z - largest) of a block's kept tokens, as (8) of docs/maths.md adds a block. */
__device__ float sum_block(int32_t block, int kept, float largest)
{
    float halves[2][16];
#pragma unroll
    for (int j = 0; j < 16; j++)
        halves[0][j] = halves[1][j] = 0.0f;
    for (int i = 0; i < kept; i++) { /* each half of a lane has two terms at most: any order */
        const gumbel_entry &e = head.at[i];
        if (e.id / GUMBEL_BLOCK != block || !(e.z > -INFINITY))
            continue;
        halves[e.id % GUMBEL_BLOCK / 32][e.id % 16] += gumbel_exp(e.z - largest);
    }
#pragma unroll
    for (int j = 0; j < 16; j++)
        halves[0][j] += halves[1][j];
#pragma unroll
    for (int half = 8; half > 0; half /= 2)
#pragma unroll
        for (int j = 0; j < half; j++)
            halves[0][j] += halves[0][j + half];
    return halves[0][0];
}

/* Warps that have any of `kept` tokens. */
__device__ int warps_of(int kept) { return min((kept + 31) / 32, kRowThreads / 32); }

/* The mass of what is kept, by all threads; in warps[0]. */
__device__ void weigh_kept(int kept)
{
    gumbel_summary own;
    gumbel_summary_empty(&own);
    for (int i = threadIdx.x; i < kept; i += kRowThreads) {
        const gumbel_entry e = head.at[i];
        const int32_t block = e.id / GUMBEL_BLOCK;
        float largest = e.z;
        bool first = e.z > -INFINITY; /* of its block's */
        bool alone = true;
#pragma unroll 4
        for (int j = 0; j < kept; j++)
            if (head.at[j].id / GUMBEL_BLOCK == block && j != i) {
                first &= j > i;
                alone = false;
                largest = fmaxf(largest, head.at[j].z);
            }
        if (!first)
            continue;
        own.max_z = fmaxf(own.max_z, largest);
        gumbel_mass_add_block(&own, largest,
                              alone ? gumbel_exp(0.0f) : sum_block(block, kept, largest));
    }
    merge_masses_of_lanes<32>(&own);
    if (threadIdx.x % 32 == 0)
        head.warps[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < warps_of(kept); w++)
            gumbel_summary_merge(&head.warps[0], &head.warps[w]);
    __syncthreads();
}

/* Sample s of the row, merged over the CTA; in thread 0. */
__device__ gumbel_summary draw_kept(gumbel_stream stream, int kept)
{
    __shared__ gumbel_summary best[kRowThreads / 32];
    gumbel_summary own;
    gumbel_summary_empty(&own);
    for (int i = threadIdx.x; i < kept; i += kRowThreads) {
        const gumbel_entry e = head.at[i];
        if (e.z > -INFINITY)
            gumbel_summary_offer(&own, e.z + gumbel_of_token(stream, (uint32_t)e.id), e.z, e.id);
    }
    merge_winners_of_warp(&own);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        best[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < warps_of(kept); w++)
            if (best[w].best_id >= 0)
                gumbel_summary_offer(&own, best[w].best_score, best[w].best_z, best[w].best_id);
    return own;
}

/* A sample's rank: how many tokens have a larger z. Values and z rise together. */
__device__ int32_t rank_of(float z)
{
    int32_t above = 0;
    while (above < head.count && head.at[above].z > z)
        above++;
    return above + 1;
}

__device__ void write_flagged(const cuda_candidate_params &p, int64_t b, uint32_t flags)
{
    const int32_t samples = p.problem.sampling.num_samples;
    gumbel_summary none;
    gumbel_summary_empty(&none);
    none.flags = flags;
    for (int s = threadIdx.x; s < samples; s += kRowThreads) {
        write_merged(p.output, b * samples + s, samples, none, none);
        if (p.output.ranks)
            p.output.ranks[b * samples + s] = -1;
    }
    if (p.output.kept && threadIdx.x == 0)
        p.output.kept[b] = 0;
}

__device__ void write_kept(const cuda_candidate_params &p, int64_t b, const gumbel_row &row,
                           int kept)
{
    const int32_t samples = p.problem.sampling.num_samples;
    weigh_kept(kept);
    for (int32_t s = 0; s < samples; s++) {
        gumbel_stream stream = row.stream;
        stream.sample += (uint32_t)s;
        gumbel_summary own = draw_kept(stream, kept), first = head.warps[0];
        if (threadIdx.x != 0)
            continue;
        first.best_id = own.best_id; /* all samples have a token, or none has */
        write_merged(p.output, b * samples + s, samples, own, first);
        if (p.output.ranks)
            p.output.ranks[b * samples + s] = own.best_id < 0 ? -1 : rank_of(own.best_z);
    }
    if (threadIdx.x == 0 && p.output.kept) {
        int32_t drawable = 0;
        for (int i = 0; i < kept; i++)
            drawable += head.at[i].z > -INFINITY;
        p.output.kept[b] = drawable;
    }
}

/* A greedy row whose mass nobody asks for: its first token. */
__device__ bool write_greedy(const cuda_candidate_params &p, int64_t b, const gumbel_row &row)
{
    const gumbel_output &out = p.output;
    const int32_t samples = p.problem.sampling.num_samples;
    if (!row.greedy || out.lse || out.logprobs || out.kept)
        return false;
    gumbel_summary first;
    gumbel_summary_empty(&first);
    gumbel_summary_offer(&first, head.at[0].z, head.at[0].z, head.at[0].id);
    for (int s = threadIdx.x; s < samples; s += kRowThreads) {
        write_merged(out, b * samples + s, samples, first, first);
        if (out.ranks)
            out.ranks[b * samples + s] = 1;
    }
    return true;
}

/* Draw row b from what ranks list of it, and say whether it is left. */
template <class lists>
__device__ void draw_row(const cuda_candidate_params &p, lists from, int64_t b)
{
    const gumbel_row row = gumbel_problem_row(&p.problem, b);
    const gumbel_rules rules = gumbel_problem_rules(&p.problem, b, row.greedy);
    const float by_z = row.inverse_temperature;
    const float by_value = rules.before && gumbel_rules_cut(&rules) ? 1.0f : by_z;
    bring_tokens(from, b, p.ranks, gumbel_problem_row_flags(&p.problem, b), by_value, by_z);
    ptx_allow_launch(); /* nothing of others is waited for any more */
    order_tokens(p.ranks, by_value, by_z);
    int kept = 0;
    const uint32_t flags = head.flags;
    const bool listed = !flags && head.count > 0;
    const bool greedy = listed && write_greedy(p, b, row);
    if (listed && !greedy)
        kept = cut_head(rules);
    else if (!flags && !greedy && !head.complete)
        kept = -1;
    if (threadIdx.x == 0)
        p.left[b] = kept < 0;
    if (threadIdx.x == 0 && b == 0)
        p.left[p.problem.batch] = 0; /* what counts the CTAs of the next launch */
    if (greedy)
        return;
    if (flags || (kept == 0 && head.count == 0))
        write_flagged(p, b, flags);
    else if (kept >= 0)
        write_kept(p, b, row, kept);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kRowThreads)
    gumbel_draw_candidates(const __grid_constant__ cuda_candidate_params p)
{
    ptx_wait_for_launch();
    draw_row(p, gathered_lists{p}, blockIdx.x);
}

extern "C" __global__ void __launch_bounds__(kRowThreads)
    gumbel_tell_candidates(const __grid_constant__ cuda_told_params p)
{
    ptx_wait_for_launch();
    exchange e(p.exchange);
    heard_lists lists{p.draw, e};
    if (!e.failed)
        lists.say(blockIdx.x);
    draw_row(p.draw, lists, blockIdx.x);
    e.end();
}

/* Whether the first tokens of ranks are thought to tell a row that asks for this. */
__device__ bool are_told(const gumbel_rules &rules, bool greedy, bool with_mass)
{
    float bound;
    if (greedy)
        return !with_mass;
    return (rules.min_p > 0.0f || (rules.top_k > 0 && rules.top_k <= CUDA_LISTED)) &&
           !gumbel_rules_need_mass(&rules, 0.0f, &bound);
}

/* Before the product, a thread a row: of those that lists do not tell, it stores all. */
extern "C" __global__ void __launch_bounds__(kRowThreads)
    gumbel_bound_rows(const __grid_constant__ cuda_bound_params p)
{
    const int64_t b = (int64_t)blockIdx.x * kRowThreads + threadIdx.x;
    ptx_wait_for_launch();
    ptx_allow_launch();
    if (b >= p.problem.batch)
        return;
    const bool greedy = gumbel_problem_row(&p.problem, b).greedy;
    const gumbel_rules rules = gumbel_problem_rules(&p.problem, b, greedy);
    p.bounded[b] = are_told(rules, greedy, p.with_mass) ? CUDA_LISTED : 0;
}

/* A CTA puts a row in its place; those behind *p.count have none. */
extern "C" __global__ void __launch_bounds__(kRowThreads)
    gumbel_spread_rows(const __grid_constant__ cuda_spread_params p)
{
    ptx_wait_for_launch();
    ptx_allow_launch();
    if ((int32_t)blockIdx.x >= *p.count)
        return;
    const int64_t to = p.list[blockIdx.x];
    for (int i = 0; i < CUDA_SPREAD_MOST; i++)
        for (int64_t w = threadIdx.x; w < p.of[i].width; w += kRowThreads)
            p.of[i].to[to * p.of[i].width + w] = p.of[i].from[blockIdx.x * p.of[i].width + w];
}

/* What is asked of each row where its first tokens are listed. */
extern "C" __device__ const int32_t gumbel_listed_tokens = CUDA_LISTED;
