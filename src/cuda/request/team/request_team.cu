/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   a request from logits (docs/maths.md, sections 8 and 9) in one launch, whatever is asked,
 *        for GPUs with clusters: a row lies in the shared memory of eight CTAs.
 * COST   reads B V elements once: 76 KB a CTA where V = 151936, with two CTAs a multiprocessor.
 *        Where at most kShortlist tokens can matter, as for a top_k of up to some 250, a min_p or a
 *        greedy row, there are two or three passes over a share and as many exchanges, and one CTA
 *        ends the row alone. A larger top_k, a top_p alone, or a joint one is drawn before it is
 *        cut, for a token and nothing else, in two passes (request_team_pivot.cuh): 14 to 16
 *        us for a row that keeps 1000 tokens or 30,000. A nucleus of few tokens ends from a list of
 *        them and the mass of all. Else there are five to ten passes.
 * MAP    a cluster takes a row, each of its CTAs an eighth; a thread takes quads of neighbours.
 *        Rows that CTAs of the launch before (request_blocks.cu) serve from few of their blocks are
 *        skipped, and those that these leave are begun while others are still tried.
 * SMEM   the share's y, and 33 KB beside it (request_shared.cuh).
 * SYNC   of rows that are tried, a word each tells whether they are left: this launch does not wait
 *        for the one that tries them, unless that takes 1 ms, but ends after it. Barriers of the
 *        cluster (request_team.cuh says who may write when); the last one is behind all that
 *        reads another CTA's memory.
 * NUMERICS  those of the naive kernel, bit for bit: cuts and masses are sums of integers.
 */
#include "cuda/request/team/request_team_draw.cuh"
#include "cuda/request/team/request_team_pivot.cuh"

namespace
{

/* Nanoseconds between two looks at what became of a row, and how many there are: for 1 ms, a
 * hundred times what a row takes. */
constexpr int kNap = 200, kLooks = 5000;

/* Serve a row from some of its tokens, if those that matter fit into a CTA; whether they do.
 * `wanted` NULL: all matter. */
__device__ __forceinline__ bool serve_from_list(share_source source, const team_facts &facts,
                                                const request_wanted *wanted, int64_t b,
                                                const gumbel_summary &seen,
                                                const gumbel_summary &raw)
{
    const request_row &row = shared().row;
    request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    int count = 0;
    if (gumbel_summary_status(&seen) == GUMBEL_ROW_OK) {
        bool few = facts.alive <= kShortlist;
        if (!few && !wanted)
            return false;
        count = gather_wanted(source, facts, values, few ? nullptr : wanted);
    }
    if (count >= 0 && team_leads())
        serve_listed(b, count, seen, raw, nullptr);
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
    part_reader reader = {p, shared().row, shared().stage, b, min(begin + p.chunk, q.end_token)};
    request_wanted wanted;
    team_arrive();
    if (threadIdx.x / 32 == kWarps - 1)
        fetch_parameters(q, b);
    fetch_share(reader, source);
    fetch_words(reader, source);
    if (threadIdx.x == kThreads - 1) {
        shared().row = request_row_of(q, b);
        shared().turn = 0;
        reset_offers();
    }
    ptx_copy_async_wait<0>();
    __syncthreads();
    gumbel_summary seen, raw = {};
    /* Processed rows, and those of given tokens, need what others can pass over. */
    const bool all = p.processed || q.sampling.given.data;
    const bool of_raw = q.request & GUMBEL_REQUEST_RAW, pivots = !all && can_pivot(p, shared().row);
    if (of_raw || pivots)
        team_wait();
    if (of_raw)
        raw = sum_raw(source);
    edit_share(reader, source);
    if (pivots && serve_by_pivots(p, source, b))
        return;
    float peak;
    team_facts facts = look_at_share(source, shared().row.draw.inverse_temperature, peak);
    bool screened = !all && can_screen(p, shared().row, shared().row.draw.greedy, wanted);
    bool few = !all && !screened && can_pivot_few(p, shared().row);
    bool weighed = !all && !screened && can_weigh(p, shared().row, wanted);
    if ((screened || few || weighed) && wanted.target > 0)
        facts.reached = reached_by_peaks(facts, peak, (wanted.target + kRanks - 1) / kRanks);
    if (!of_raw && !pivots)
        team_wait();
    __syncthreads();
    facts = team_over(facts);
    gumbel_summary_empty(&seen);
    seen.flags = facts.flags | shared().row.flags;
    seen.best_id = facts.alive > 0 ? 0 : -1;
    bool served =
        !all && ((few && serve_few_by_pivots(p, source, facts, b, seen)) ||
                 (weighed && serve_weighed(source, facts, wanted, b, seen, raw)) ||
                 serve_from_list(source, facts, screened ? &wanted : nullptr, b, seen, raw));
    if (!served)
        serve_team(p, source, facts, b, seen, raw);
}

/* Look which of 32 rows from `first` on, `every` rows apart, the team is to serve, and bring that
 * into shared memory, by a warp; waits for those that are still tried, and after a while for the
 * end of the launch that tries them. */
__device__ __forceinline__ void look_for_rows(const cuda_request_params &p, int64_t first,
                                              int64_t every)
{
    const int64_t b = first + threadIdx.x % 32 * every;
    int32_t known = b < p.problem.batch ? CUDA_ROW_FALLBACK : CUDA_ROW_SERVED;
    if (p.row_states && known == CUDA_ROW_FALLBACK) {
        known = ptx_load_acquire(&p.row_states[b]);
        for (int looks = 1; known == CUDA_ROW_PENDING && looks < kLooks; looks++) {
            __nanosleep(kNap);
            known = ptx_load_acquire(&p.row_states[b]);
        }
        if (known == CUDA_ROW_PENDING || known == CUDA_ROW_FALLBACK_AFTER) {
            ptx_wait_for_launch();
            known = ptx_load_acquire(&p.row_states[b]);
        }
    }
    if (known != CUDA_ROW_SERVED && ends_unused(p, b, team_leads()))
        known = CUDA_ROW_SERVED;
    uint32_t left = __ballot_sync(~0u, known != CUDA_ROW_SERVED);
    if (threadIdx.x == 0)
        shared().left = left;
}

} // namespace

extern "C" __global__ void __cluster_dims__(kRanks, 1, 1) __launch_bounds__(kThreads, 2)
    gumbel_request_team(const __grid_constant__ cuda_request_params p)
{
    const int64_t batch = p.problem.batch, teams = gridDim.x / kRanks;
    const cuda_request_params &call = bring_call(p);
    /* Rows whose states are known need nothing else of the launch before. */
    const bool has_states = p.row_states;
    ptx_allow_launch();
    if (!has_states)
        ptx_wait_for_launch();
#pragma unroll 1
    for (int64_t first = blockIdx.x / kRanks; first < batch; first += 32 * teams) {
        if (threadIdx.x < 32)
            look_for_rows(p, first, teams);
        __syncthreads(); /* the call is there, too */
#pragma unroll 1
        for (uint32_t left = shared().left; left; left &= left - 1) {
            serve_by_team(call, first + (__ffs(left) - 1) * teams);
            __syncthreads(); /* before the share is fetched anew */
        }
        __syncthreads(); /* before the next look */
    }
    if (has_states && blockIdx.x == 0)
        ptx_wait_for_launch(); /* launches end in order, for those behind them */
}
