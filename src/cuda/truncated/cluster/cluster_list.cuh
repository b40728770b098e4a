/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of a row's tokens, gathered in the leader's memory, and rows that are served from such a
 * list and the mass of all tokens.
 */
#ifndef GUMBEL_CUDA_CLUSTER_LIST_CUH
#define GUMBEL_CUDA_CLUSTER_LIST_CUH

#include "cuda/truncated/few/shortlist.cuh"
#include "cuda/truncated/cluster/cluster_truncation.cuh"

namespace
{

/* The total of the CTAs' list lengths, the first words of `slots`; -1 if the tokens do not fit. */
__device__ __forceinline__ int count_fitting(const exchange_slot *slots)
{
    int all = 0;
    bool fits = true;
#pragma unroll
    for (int rank = 0; rank < kClusterCtas; rank++) {
        all += (int)slots[rank].words[0];
        fits &= slots[rank].words[0] <= kShortlistOfSlice;
    }
    return fits && all <= kShortlist ? all : -1;
}

/* Packs the lists of all slices into the leader's, by its threads. */
__device__ __forceinline__ void pack_list(const exchange_slot *slots)
{
    constexpr int slices = kThreads / kShortlistOfSlice; /* of which threads hold one place each */
    cuda_candidate own[kPlacesOfThread];
    int all = 0, place[kPlacesOfThread];
#pragma unroll
    for (int i = 0; i < kPlacesOfThread; i++) {
        own[i] = lists_of_slices()[threadIdx.x + i * kThreads];
        place[i] = -1;
    }
#pragma unroll
    for (int rank = 0; rank < kClusterCtas; rank++) {
        int count = (int)slots[rank].words[0], at = threadIdx.x % kShortlistOfSlice;
        int first = threadIdx.x / kShortlistOfSlice;
        if (at < count && first == rank % slices)
            place[rank / slices] = all + at;
        all += count;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPlacesOfThread; i++)
        if (place[i] >= 0)
            shared_state().scratch.list[place[i]] = own[i];
    __syncthreads();
}

/* Gathers the tokens for which chosen(id, y) holds in the leader's list; returns their number, or
 * -1 if they do not fit. may(y) as in slice_source. */
template <class May, class F>
__device__ __forceinline__ int gather_tokens(slice_source source, May may, F chosen)
{
    cuda_candidate *to = &place_in_list(0);
    __syncthreads();
    if (threadIdx.x == 0)
        shared_state().count = 0;
    __syncthreads();
    source.each(may, [&](int32_t id, float y) {
        if (!chosen(id, y))
            return;
        uint32_t place = atomicAdd(&shared_state().count, 1);
        if (place < kShortlistOfSlice)
            to[place] = {y, id};
    });
    __syncthreads();
    const exchange_slot *counts =
        exchange_in_cluster<EXCHANGE_MEMORY>(joined_count{shared_state().count});
    int count = count_fitting(counts);
    if (count >= 0 && leads_cluster())
        pack_list(counts);
    return count;
}

/* Selects the tokens that can matter. */
struct shortlist_rule {
    float inverse_temperature, near, bound; /* `near`: z that the target reaches; `bound`: z that
                                             * min_p keeps */
    bool either;

    /* Compares z, since neighbouring y can have equal z: ties at the end are all included. */
    __device__ __forceinline__ bool operator()(int32_t, float y) const
    {
        float z = y * inverse_temperature;
        bool by_target = z >= near, by_min_p = z >= bound;
        return either ? by_target || by_min_p : by_target && by_min_p;
    }
};

/* Gathers all tokens that can matter in the leader's list; returns their number, or -1 if they do
 * not fit. `required` NULL: all alive tokens. */
__device__ __noinline__ int gather_required(slice_source source, row_facts facts,
                                            logit_values values, const required_tokens *required)
{
    shortlist_rule rule = {values.inverse_temperature, -INFINITY, -FLT_MAX, false};
    if (required && required->target > 0) {
        rule.near = values.to_z(gumbel_value_of_key(facts.reached_key));
        rule.either = required->either;
        if (facts.reached_key == 0)
            return -1;
    }
    if (required && required->log_min_p > -INFINITY) {
        float bound = gumbel_min_p_bound(values.to_value(gumbel_value_of_key(facts.highest)),
                                         required->log_min_p);
        rule.bound = values.before ? values.to_z(bound) : bound;
    }
    return gather_tokens(
        source, [&](float y) { return rule(0, y); }, rule);
}

/* serve_shortlist() of the leader. Not inlined: it would take registers from the other paths, which
 * costs 2 to 5%. */
__device__ __noinline__ void serve_listed(int64_t b, int count, const gumbel_summary &seen,
                                          const gumbel_summary &raw, const gumbel_wide *mass)
{
    serve_shortlist(b, count, seen, raw, mass);
}

/* ---------------------------------------------------------------------------------- masses ---- */

/* gumbel_token_mass(gumbel_exp(x)) by shifts: 24 significant bits and their position. */
__device__ __forceinline__ uint64_t mass_by_shifts(float x)
{
    uint32_t bits = gumbel_bits_of(gumbel_exp(fmaxf(x, -GUMBEL_MASS_REACH)));
    uint64_t digits = (uint64_t)(bits << 8 | 0x80000000u) << 32;
    return ptx_shift_right(digits, 129 - (bits >> 23));
}

/* A sum of masses in three words with carries, which takes half the instructions of two 64-bit
 * halves. */
struct mass_sum {
    uint32_t words[3];

    __device__ __forceinline__ void add(uint64_t mass)
    {
        ptx_add_96(words, (uint32_t)mass, (uint32_t)(mass >> 32));
    }
    __device__ __forceinline__ gumbel_wide value() const
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

/* Sums of list_and_sum(). */
struct list_sums {
    uint32_t listed; /* first, as in joined_count */
    mass_sum all, of_listed;

    static __device__ __forceinline__ list_sums empty() { return {0, {{0, 0, 0}}, {{0, 0, 0}}}; }
    __device__ __forceinline__ void join_warp()
    {
        listed = __reduce_add_sync(~0u, listed);
        all.join_warp();
        of_listed.join_warp();
    }
};

/* Lists the tokens of the row with z >= near, and sums the masses of all tokens and of the listed
 * ones; returns the sums of each CTA. Values are y * scale, and `largest` is the row's. 33
 * instructions a token. */
__device__ __noinline__ const exchange_slot *list_and_sum(slice_source source, logit_values values,
                                                          float near, float largest)
{
    constexpr int side = 2; /* quads in parallel */
    const float scale = values.scale();
    list_sums own = list_sums::empty();
    __syncthreads();
    if (threadIdx.x == 0)
        shared_state().count = 0;
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
                own.all.add(mass_by_shifts(y[j] * scale - largest));
                hits |= (uint32_t)(values.to_z(y[j]) >= near) << (4 * i + j);
            }
        }
#pragma unroll 1
        for (; hits; hits &= hits - 1) {
            const int i = __ffs(hits) - 1, place = at + i / 4 * 4 * kThreads + i % 4;
            const float y = slice_logits()[place];
            own.of_listed.add(mass_by_shifts(y * scale - largest));
            const uint32_t listed = atomicAdd(&shared_state().count, 1);
            if (listed < kShortlistOfSlice)
                place_in_list(listed) = {y, (int32_t)source.begin + place};
        }
    }
    __syncthreads();
    if (threadIdx.x == 0)
        own.listed = shared_state().count;
    return publish_in_cluster<EXCHANGE_MEMORY>(own);
}

/* Serves a row, whose nucleus refers to all its tokens, from a list and the mass of all tokens.
 * Returns false if the required tokens do not fit or do not hold the nucleus. */
__device__ __noinline__ bool serve_by_mass(slice_source source, row_facts facts,
                                           required_tokens required, int64_t b,
                                           const gumbel_summary &seen, const gumbel_summary &raw)
{
    const truncated_row &row = shared_state().row;
    logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    bool ok = gumbel_summary_status(&seen) == GUMBEL_ROW_OK && facts.alive > kShortlist;
    bool others = truncates_by_value(row.rules);
    if (!ok || (required.target > 0 && facts.reached_key == 0) ||
        (!others && is_flat(values, facts)))
        return false;
    const float largest = values.to_value(gumbel_value_of_key(facts.highest));
    float near =
        required.lower_bound(values.to_z(gumbel_value_of_key(facts.reached_key)), values, largest);
    const exchange_slot *slots = list_and_sum(source, values, near, largest);
    list_sums found = join_slots<list_sums>(slots, kClusterCtas);
    gumbel_wide mass = found.all.value();
    int count = count_fitting(slots);
    if (count < 0 ||
        (!others && found.of_listed.value() < gumbel_nucleus_mass(row.rules.top_p, mass)))
        return false;
    if (leads_cluster()) {
        pack_list(slots);
        serve_listed(b, count, seen, raw, &mass);
    }
    return true;
}

} // namespace

#endif
