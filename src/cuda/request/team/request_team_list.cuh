/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of a row's tokens: those of each CTA in the leader's memory, and rows that a list and the
 * mass of all tokens are enough for.
 */
#ifndef GUMBEL_CUDA_REQUEST_TEAM_LIST_CUH
#define GUMBEL_CUDA_REQUEST_TEAM_LIST_CUH

#include "cuda/request/few/request_some.cuh"
#include "cuda/request/team/request_team_scan.cuh"

namespace
{

/* How many tokens the CTAs listed, which the first words of `slots` tell, or -1 where they do not
 * fit. */
__device__ __forceinline__ int fit_list(const team_slot *slots)
{
    int all = 0;
    bool fits = true;
#pragma unroll
    for (int rank = 0; rank < kRanks; rank++) {
        all += (int)slots[rank].words[0];
        fits &= slots[rank].words[0] <= kSomeOfShare;
    }
    return fits && all <= kSome ? all : -1;
}

/* Close the gaps of the leader's list, by its threads. */
__device__ __forceinline__ void pack_list(const team_slot *slots)
{
    cuda_candidate own[2] = {room().bench.list[threadIdx.x],
                             room().bench.list[threadIdx.x + kThreads]};
    int all = 0, place[2] = {-1, -1};
#pragma unroll
    for (int rank = 0; rank < kRanks; rank++) {
        int count = (int)slots[rank].words[0], at = threadIdx.x % kSomeOfShare;
        int first = threadIdx.x / kSomeOfShare;
        if (at < count && first == rank % (kRanks / 2))
            place[rank / (kRanks / 2)] = all + at;
        all += count;
    }
    __syncthreads();
    for (int i = 0; i < 2; i++)
        if (place[i] >= 0)
            room().bench.list[place[i]] = own[i];
    __syncthreads();
}

/* Bring the tokens that chosen(id, y) holds for into the leader's list, if no more than fit; how
 * many there are, or -1 where they do not fit. may(y) as in share_source. */
template <class May, class F>
__device__ __forceinline__ int gather(share_source source, May may, F chosen)
{
    cuda_candidate *to = team_at(room().bench.list, 0) + team_rank() * kSomeOfShare;
    __syncthreads();
    if (threadIdx.x == 0)
        room().count = 0;
    __syncthreads();
    source.each(may, [&](int32_t id, float y) {
        if (!chosen(id, y))
            return;
        uint32_t place = atomicAdd(&room().count, 1);
        if (place < kSomeOfShare)
            to[place] = {y, id};
    });
    __syncthreads();
    const team_slot *counts = team_exchange(team_count{room().count});
    int count = fit_list(counts);
    if (count >= 0 && team_leads())
        pack_list(counts);
    return count;
}

/* Which tokens of a row can matter. */
struct some_rule {
    float inverse_temperature, near, bound; /* z that the target reaches, and that min_p keeps */
    bool either;

    /* By z, of which neighbouring y may have the same: no tie at the end is left out. */
    __device__ __forceinline__ bool operator()(int32_t, float y) const
    {
        float z = y * inverse_temperature;
        bool by_target = z >= near, by_min_p = z >= bound;
        return either ? by_target || by_min_p : by_target && by_min_p;
    }
};

/* Bring all tokens that can matter into the leader's list; how many they are, or -1 where they do
 * not fit. `wanted` NULL: all that are alive. */
__device__ __noinline__ int gather_wanted(share_source source, team_facts facts,
                                          request_values values, const request_wanted *wanted)
{
    some_rule rule = {values.inverse_temperature, -INFINITY, -FLT_MAX, false};
    if (wanted && wanted->target > 0) {
        rule.near = values.z(gumbel_of_key(facts.reached));
        rule.either = wanted->both;
        if (facts.reached == 0)
            return -1;
    }
    if (wanted && wanted->log_min_p > -INFINITY) {
        float bound =
            gumbel_min_p_bound(values.of(gumbel_of_key(facts.highest)), wanted->log_min_p);
        rule.bound = values.before ? values.z(bound) : bound;
    }
    return gather(
        source, [&](float y) { return rule(0, y); }, rule);
}

/* serve_some() by the leader. Out of line: inline it took registers from all the rest, 2 to 5%. */
__device__ __noinline__ void serve_listed(int64_t b, int count, const gumbel_summary &seen,
                                          const gumbel_summary &raw, const gumbel_wide *mass)
{
    serve_some(b, count, seen, raw, mass);
}

/* Serve a row whose nucleus is of all its tokens from a list and the mass of all, if `wanted` may
 * leave few; whether it did. */
__device__ __noinline__ bool serve_weighed(share_source source, team_facts facts,
                                           request_wanted wanted, int64_t b,
                                           const gumbel_summary &seen, const gumbel_summary &raw)
{
    const request_row &row = room().row;
    request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    bool ok = gumbel_summary_status(&seen) == GUMBEL_ROW_OK && facts.alive > kSome;
    bool others = cuts_by_value(row.rules);
    if (!ok || (wanted.target > 0 && facts.reached == 0) || (!others && is_flat(values, facts)))
        return false;
    const float largest = values.of(gumbel_of_key(facts.highest));
    float near = wanted.bound(values.z(gumbel_of_key(facts.reached)), values, largest);
    scan_places places = {values.inverse_temperature, 1.0f, 0.0f, near, INFINITY};
    const float scale = values.scale();
    const team_slot *slots =
        scan_row<SCAN_LISTS>(source, scale, values.inverse_temperature, places, largest);
    team_listed found = join_slots<team_listed>(slots, kRanks);
    gumbel_wide mass = found.all.wide();
    int count = fit_list(slots);
    if (count < 0 || (!others && found.between.wide() < gumbel_nucleus(row.rules.top_p, mass)))
        return false;
    if (team_leads()) {
        pack_list(slots);
        serve_listed(b, count, seen, raw, &mass);
    }
    return true;
}

} // namespace

#endif
