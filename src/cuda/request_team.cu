/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   a request from logits (docs/maths.md, sections 8 and 9) in one launch, whatever is asked,
 *        for GPUs with clusters: a row lies in the shared memory of eight CTAs.
 * COST   reads B V elements once: 76 KB a CTA where V = 151936, with two CTAs a multiprocessor.
 *        Where at most kSome tokens can matter, as for a top_k of up to some 250, a min_p or a
 *        greedy row, there are two or three passes over a share and as many exchanges, and one CTA
 *        ends the row alone. A larger top_k or a top_p alone, for one draw and nothing else, takes
 *        three passes and three barriers (cuda/request_team_guess.cuh): 36 and 21 us for a row that
 *        keeps 30,000 and 1000 tokens. Else there are five to ten passes.
 * MAP    a cluster takes a row, each of its CTAs an eighth; a thread takes quads of neighbours.
 *        Rows that were served from few of their blocks before are skipped.
 * SMEM   the share's y, and a room (cuda/request_team.cuh) of 35 KB.
 * SYNC   barriers of the cluster (cuda/request_team.cuh says who may write when); the last one is
 *        behind all that reads another CTA's memory.
 * NUMERICS  those of the naive kernel, bit for bit: cuts and masses are sums of integers.
 */
#include "cuda/request_team_draw.cuh"
#include "cuda/request_team_guess.cuh"

namespace
{

/* Serve a row from some of its tokens, if those that matter fit into a CTA; whether they do.
 * `wanted` NULL: all matter. */
__device__ __forceinline__ bool serve_from_list(share_source source, const team_facts &facts,
                                                const request_wanted *wanted, int64_t b,
                                                const gumbel_summary &seen,
                                                const gumbel_summary &raw)
{
    const request_row &row = room().row;
    request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    int count = 0;
    if (gumbel_summary_status(&seen) == GUMBEL_ROW_OK) {
        bool few = facts.alive <= kSome;
        if (!few && !wanted)
            return false;
        count = gather_wanted(source, facts, values, few ? nullptr : wanted);
    }
    if (count >= 0 && team_leads())
        serve_some(b, count, seen, raw, nullptr);
    return count >= 0;
}

/* The first barrier of a row, in two halves, between which its share arrives: after the wait all
 * CTAs run, and are done with the row before, so that others may write into their boxes. */
__device__ __forceinline__ void team_arrive()
{
    (void)cooperative_groups::this_cluster().barrier_arrive();
}
__device__ __forceinline__ void team_wait() { cooperative_groups::this_cluster().barrier_wait(); }

/* Serve row b by the whole team. */
__device__ __forceinline__ void serve_by_team(const cuda_request_params &p, int64_t b)
{
    const gumbel_problem &q = p.problem;
    int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + team_rank() * p.chunk;
    share_source source = {begin, (int)p.chunk};
    part_reader reader = {p, room().row, room().stage, b, min(begin + p.chunk, q.end_token)};
    request_wanted wanted;
    team_arrive();
    if (threadIdx.x / 32 == kWarps - 1)
        fetch_parameters(q, b);
    fetch_share(reader, source);
    fetch_words(reader, source);
    if (threadIdx.x == kThreads - 1) {
        room().row = request_row_of(q, b);
        room().turn = 0;
    }
    ptx_copy_async_wait<0>();
    __syncthreads();
    gumbel_summary seen, raw = {};
    const bool of_raw = q.request & GUMBEL_REQUEST_RAW;
    if (of_raw) {
        team_wait();
        raw = sum_raw(source);
    }
    float peak;
    team_facts facts = edit_share(reader, source, peak);
    bool screened = !p.processed && can_screen(p, room().row, wanted);
    bool guessed = !screened && can_guess(p, room().row);
    bool weighed = !p.processed && !screened && !guessed && can_weigh(p, room().row, wanted);
    if ((screened || weighed) && wanted.target > 0)
        facts.reached = reached_by_peaks(facts, peak, (wanted.target + kRanks - 1) / kRanks);
    if (!of_raw)
        team_wait();
    __syncthreads();
    facts = team_over(facts);
    gumbel_summary_empty(&seen);
    seen.flags = facts.flags | (room().row.valid ? 0 : GUMBEL_FLAG_TEMPERATURE);
    seen.best_id = facts.alive > 0 ? 0 : -1;
    bool served = !p.processed &&
                  ((weighed && serve_weighed(source, facts, wanted, b, seen, raw)) ||
                   serve_from_list(source, facts, screened ? &wanted : nullptr, b, seen, raw) ||
                   (guessed && serve_guessed(p, source, facts, b, seen)));
    if (!served)
        serve_team(p, source, facts, b, seen, raw);
}

} // namespace

extern "C" __global__ void __cluster_dims__(kRanks, 1, 1) __launch_bounds__(kThreads, 2)
    gumbel_request_team(const __grid_constant__ cuda_request_params p)
{
    const int64_t batch = p.problem.batch, teams = gridDim.x / kRanks;
    const cuda_request_params &call = bring_call(p);
    const int lane = threadIdx.x % 32;
    ptx_wait_for_launch();
    __syncthreads();
#pragma unroll 1
    for (int64_t first = blockIdx.x / kRanks; first < batch; first += 32 * teams) {
        int64_t own = first + lane * teams;
        bool wanted = own < batch && (!p.left || __ldcg(&p.left[own]));
#pragma unroll 1
        for (uint32_t left = __ballot_sync(~0u, wanted); left; left &= left - 1) {
            serve_by_team(call, first + (__ffs(left) - 1) * teams);
            __syncthreads(); /* before the share is fetched anew */
        }
    }
}
