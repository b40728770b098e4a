/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of a row's tokens: those of each CTA in the leader's memory, and rows that a list and the
 * mass of all tokens are enough for.
 */
#ifndef GUMBEL_CUDA_REQUEST_TEAM_LIST_CUH
#define GUMBEL_CUDA_REQUEST_TEAM_LIST_CUH

#include "cuda/request/few/request_shortlist.cuh"
#include "cuda/request/team/request_team_cut.cuh"

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
        fits &= slots[rank].words[0] <= kShortlistOfShare;
    }
    return fits && all <= kShortlist ? all : -1;
}

/* Close the gaps of the leader's list, by its threads. */
__device__ __forceinline__ void pack_list(const team_slot *slots)
{
    cuda_candidate own[2] = {shared().bench.list[threadIdx.x],
                             shared().bench.list[threadIdx.x + kThreads]};
    int all = 0, place[2] = {-1, -1};
#pragma unroll
    for (int rank = 0; rank < kRanks; rank++) {
        int count = (int)slots[rank].words[0], at = threadIdx.x % kShortlistOfShare;
        int first = threadIdx.x / kShortlistOfShare;
        if (at < count && first == rank % (kRanks / 2))
            place[rank / (kRanks / 2)] = all + at;
        all += count;
    }
    __syncthreads();
    for (int i = 0; i < 2; i++)
        if (place[i] >= 0)
            shared().bench.list[place[i]] = own[i];
    __syncthreads();
}

/* Bring the tokens that chosen(id, y) holds for into the leader's list, if no more than fit; how
 * many there are, or -1 where they do not fit. may(y) as in share_source. */
template <class May, class F>
__device__ __forceinline__ int gather(share_source source, May may, F chosen)
{
    cuda_candidate *to = team_at(shared().bench.list, 0) + team_rank() * kShortlistOfShare;
    __syncthreads();
    if (threadIdx.x == 0)
        shared().count = 0;
    __syncthreads();
    source.each(may, [&](int32_t id, float y) {
        if (!chosen(id, y))
            return;
        uint32_t place = atomicAdd(&shared().count, 1);
        if (place < kShortlistOfShare)
            to[place] = {y, id};
    });
    __syncthreads();
    const team_slot *counts = team_exchange(team_count{shared().count});
    int count = fit_list(counts);
    if (count >= 0 && team_leads())
        pack_list(counts);
    return count;
}

/* Which tokens of a row can matter. */
struct shortlist_rule {
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
    shortlist_rule rule = {values.inverse_temperature, -INFINITY, -FLT_MAX, false};
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

/* serve_shortlist() by the leader. Out of line: inline it took registers from all else, for 2 to
 * 5%. */
__device__ __noinline__ void serve_listed(int64_t b, int count, const gumbel_summary &seen,
                                          const gumbel_summary &raw, const gumbel_wide *mass)
{
    serve_shortlist(b, count, seen, raw, mass);
}

/* ---------------------------------------------------------------------------------- masses ---- */

/* gumbel_token_mass(gumbel_exp(x)), by shifts: digits of 24 bits, and where they begin. */
__device__ __forceinline__ uint64_t mass_at(float x)
{
    uint32_t bits = gumbel_bits_of(gumbel_exp(fmaxf(x, -GUMBEL_MASS_REACH)));
    uint64_t digits = (uint64_t)(bits << 8 | 0x80000000u) << 32;
    return ptx_shift_right(digits, 129 - (bits >> 23));
}

/* A sum of masses: three words with carries, at half the instructions of two halves. */
struct mass_sum {
    uint32_t words[3];

    __device__ __forceinline__ void add(uint64_t mass)
    {
        ptx_add_96(words, (uint32_t)mass, (uint32_t)(mass >> 32));
    }
    __device__ __forceinline__ gumbel_wide wide() const
    {
        return ((gumbel_wide)words[2] << 64) + ((uint64_t)words[1] << 32) + words[0];
    }
    __device__ __forceinline__ void join_warp()
    {
        gumbel_wide sum = 0;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            uint64_t low = __reduce_add_sync(~0u, words[i] & 0xffff);
            uint64_t high = __reduce_add_sync(~0u, words[i] >> 16);
            sum += (gumbel_wide)(low + (high << 16)) << 32 * i;
        }
#pragma unroll
        for (int i = 0; i < 3; i++)
            words[i] = (uint32_t)(sum >> 32 * i);
    }
};

/* What a pass that lists and weighs found. */
struct team_listed {
    uint32_t listed; /* first, as in team_count */
    mass_sum all, of_listed;

    static __device__ __forceinline__ team_listed none() { return {0, {{0, 0, 0}}, {{0, 0, 0}}}; }
    __device__ __forceinline__ void join_warp()
    {
        listed = __reduce_add_sync(~0u, listed);
        all.join_warp();
        of_listed.join_warp();
    }
};

/* List the tokens of the row whose z reaches `near`; each CTA's part of what the team found. Values
 * are y * scale, and `largest` is that of the row. A token takes 33 instructions. */
__device__ __noinline__ const team_slot *weigh_row(share_source source, request_values values,
                                                   float near, float largest)
{
    constexpr int side = 2; /* quads side by side */
    const float scale = values.scale();
    team_listed own = team_listed::none();
    __syncthreads();
    if (threadIdx.x == 0)
        shared().count = 0;
    __syncthreads();
#pragma unroll 1
    for (int at = 4 * threadIdx.x; at < source.size; at += side * 4 * kThreads) {
        uint32_t hits = 0;
#pragma unroll
        for (int i = 0; i < side; i++) {
            const float4 raw = load_quad(source, at + i * 4 * kThreads);
            const float y[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                own.all.add(mass_at(y[j] * scale - largest));
                hits |= (uint32_t)(values.z(y[j]) >= near) << (4 * i + j);
            }
        }
#pragma unroll 1
        for (; hits; hits &= hits - 1) {
            const int i = __ffs(hits) - 1, place = at + i / 4 * 4 * kThreads + i % 4;
            const float y = share()[place];
            own.of_listed.add(mass_at(y * scale - largest));
            const uint32_t listed = atomicAdd(&shared().count, 1);
            if (listed < kShortlistOfShare)
                team_at(shared().bench.list, 0)[team_rank() * kShortlistOfShare + listed] = {
                    y, (int32_t)source.begin + place};
        }
    }
    __syncthreads();
    if (threadIdx.x == 0)
        own.listed = shared().count;
    return team_tell(own);
}

/* Serve a row whose nucleus is of all its tokens from a list and the mass of all, if `wanted` may
 * leave few; whether it did. */
__device__ __noinline__ bool serve_weighed(share_source source, team_facts facts,
                                           request_wanted wanted, int64_t b,
                                           const gumbel_summary &seen, const gumbel_summary &raw)
{
    const request_row &row = shared().row;
    request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    bool ok = gumbel_summary_status(&seen) == GUMBEL_ROW_OK && facts.alive > kShortlist;
    bool others = cuts_by_value(row.rules);
    if (!ok || (wanted.target > 0 && facts.reached == 0) || (!others && is_flat(values, facts)))
        return false;
    const float largest = values.of(gumbel_of_key(facts.highest));
    float near = wanted.bound(values.z(gumbel_of_key(facts.reached)), values, largest);
    const team_slot *slots = weigh_row(source, values, near, largest);
    team_listed found = join_slots<team_listed>(slots, kRanks);
    gumbel_wide mass = found.all.wide();
    int count = fit_list(slots);
    if (count < 0 || (!others && found.of_listed.wide() < gumbel_nucleus(row.rules.top_p, mass)))
        return false;
    if (team_leads()) {
        pack_list(slots);
        serve_listed(b, count, seen, raw, &mass);
    }
    return true;
}

} // namespace

#endif
