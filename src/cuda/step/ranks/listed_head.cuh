/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of a row that is split over ranks, by a CTA: the order of the first tokens that ranks
 * list of it, and where the rules cut.
 */
#ifndef GUMBEL_CUDA_LISTED_HEAD_CUH
#define GUMBEL_CUDA_LISTED_HEAD_CUH

#include "core/row.h"
#include "maths/row_head.h"
#include "cuda/step/ranks/exchange.cuh"

namespace
{

constexpr int kRowThreads = CUDA_CANDIDATE_THREADS;
constexpr int kMost = CUDA_LISTED * GUMBEL_PEERS_RANKS;

struct __align__(16) two_keys { uint64_t of[2]; };

/* What a CTA knows of its row. */
struct row_head {
    two_keys keys[kMost / 2]; /* of all that is listed: the larger ones come before */
    float y[kMost];
    gumbel_entry at[kMost];        /* in order */
    float end[GUMBEL_PEERS_RANKS]; /* what a rank has not listed is not above this */
    gumbel_summary warps[kRowThreads / 32];
    uint32_t flags;
    int count, kept, complete;
};

__shared__ row_head head;

/* ---------------------------------------------------------------------------- what is said ---- */

/* Of one place in a rank's list. */
struct said_words {
    uint32_t status, id, y;
};

/* A rank's words in memory: [B] status, [B, CUDA_LISTED] ids, [B, CUDA_LISTED] y. */
__device__ said_words words_at(const uint32_t *words, int64_t batch, int64_t b, int place)
{
    const uint32_t *ids = words + batch + b * CUDA_LISTED;
    return {words[b], ids[place], ids[batch * CUDA_LISTED + place]};
}

/* Those of all ranks, gathered. */
struct gathered_lists {
    const cuda_candidate_params &p;

    __device__ said_words at(int32_t r, int64_t b, int place)
    {
        return words_at(p.received + r * p.stride, p.problem.batch, b, place);
    }

    __device__ bool failed() const { return false; }
};

/* Those of others as they come into this rank's mailbox, a row's one behind the other: status, ids,
 * y. */
struct heard_lists {
    const cuda_candidate_params &p;
    exchange &e;

    /* Say row b, by all threads. */
    __device__ void say(int64_t b)
    {
        static_assert(kRowThreads == 2 * CUDA_LISTED, "a thread says an id or a value");
        const int thread = threadIdx.x, place = thread % CUDA_LISTED;
        const said_words own = words_at(p.received, p.problem.batch, b, place);
        e.say(b * GUMBEL_RANK_WORDS + 1 + thread, thread < CUDA_LISTED ? own.id : own.y);
        if (thread == 0)
            e.say(b * GUMBEL_RANK_WORDS, own.status);
    }

    __device__ said_words at(int32_t r, int64_t b, int place)
    {
        if (r == e.p.rank)
            return words_at(p.received, p.problem.batch, b, place);
        const int64_t first = b * GUMBEL_RANK_WORDS;
        const int64_t which[3] = {first, first + 1 + place, first + 1 + CUDA_LISTED + place};
        uint32_t words[3];
        e.hear(r, which, words);
        return {words[0], words[1], words[2]};
    }

    __device__ bool failed() const { return e.failed; }
};

__device__ uint32_t flags_of(int32_t status)
{
    return status == GUMBEL_ROW_NAN                                ? GUMBEL_FLAG_NAN
           : status == GUMBEL_ROW_INFINITE                         ? GUMBEL_FLAG_INFINITE
           : status == GUMBEL_ROW_OK || status == GUMBEL_ROW_EMPTY ? 0
                                                                   : GUMBEL_FLAG_NAN;
}

/* ----------------------------------------------------------------------------------- order ---- */

/* Tokens as numbers that are larger for those that come before; 0 is before none. */
__device__ uint64_t key_of(float value, int32_t id)
{
    return id >= 0 && !isnan(value) ? (uint64_t)gumbel_key(value) << 32 | ~(uint32_t)id : 0;
}

__device__ int32_t id_of(uint64_t key) { return (int32_t) ~(uint32_t)key; }

/* Bring what ranks list of row b, of which `flags` are known. */
template <class lists>
__device__ void bring_tokens(lists from, int64_t b, int32_t ranks, uint32_t flags, float by_value,
                             float by_z)
{
    if (threadIdx.x == 0) {
        head.flags = flags;
        head.count = 0;
        head.complete = 1;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ranks * CUDA_LISTED; i += kRowThreads) {
        const int32_t r = i / CUDA_LISTED, place = i % CUDA_LISTED;
        const said_words said = from.at(r, b, place);
        const int32_t id = (int32_t)said.id;
        const float y = id < 0 ? -INFINITY : __uint_as_float(said.y);
        head.keys[i / 2].of[i % 2] = key_of(y * by_value, id);
        head.y[i] = y;
        uint32_t found = place == 0 ? flags_of((int32_t)said.status) : 0;
        if (id >= 0 && (y * by_value == INFINITY || y * by_z == INFINITY))
            found |= GUMBEL_FLAG_INFINITE;
        if (found)
            atomicOr(&head.flags, found);
        if (place == CUDA_LISTED - 1) {
            head.end[r] = y * by_value;
            if (id >= 0)
                head.complete = 0; /* by any number of threads */
        }
    }
    if (from.failed()) /* this thread may have missed what the others have */
        atomicOr(&head.flags, (uint32_t)GUMBEL_FLAG_NAN);
    __syncthreads();
}

/* Their order; what may not be above all that ranks do not list is left out. */
__device__ void order_tokens(int32_t ranks, float by_value, float by_z)
{
    const int count = ranks * CUDA_LISTED;
    for (int i = threadIdx.x; i < count; i += kRowThreads) {
        const uint64_t own = head.keys[i / 2].of[i % 2];
        const float value = head.y[i] * by_value;
        bool known = own > 0 && value > -INFINITY;
        /* Lists are by y: of equal values one with a lower id may be missing. */
        for (int32_t r = 0; r < ranks; r++)
            known &= value > head.end[r];
        int before = 0;
#pragma unroll 8
        for (int j = 0; j < count / 2; j++) {
            const two_keys other = head.keys[j];
            before += (other.of[0] > own) + (other.of[1] > own);
        }
        if (known)
            head.at[before] = {value, head.y[i] * by_z, id_of(own), i, 0};
        const uint32_t all = __ballot_sync(~0u, known);
        if (threadIdx.x % 32 == 0 && all)
            atomicAdd(&head.count, __popc(all));
    }
    __syncthreads();
}

/* ------------------------------------------------------------------------------------- cut ---- */

/* gumbel_entries_above() and gumbel_entries_from(), by a warp. */
__device__ int values_above(float bound)
{
    uint32_t own = 0;
    for (int i = threadIdx.x % 32; i < head.count; i += 32)
        own += head.at[i].value > bound;
    return (int)__reduce_add_sync(~0u, own);
}

__device__ int values_from(float bound)
{
    uint32_t own = 0;
    for (int i = threadIdx.x % 32; i < head.count; i += 32)
        own += head.at[i].value >= bound;
    return (int)__reduce_add_sync(~0u, own);
}

/* gumbel_entries_kept(), by a warp. */
__device__ int count_kept(gumbel_cut cut)
{
    const int above = values_above(cut.bound), from = values_from(cut.bound);
    if (cut.tied != GUMBEL_TIES_STAY && above + cut.tied <= from)
        return (int)(above + cut.tied);
    return head.complete || from < head.count ? from : -1;
}

__device__ gumbel_wide shuffle_wide(gumbel_wide own, int lane)
{
    const unsigned long long low = __shfl_sync(~0u, (unsigned long long)own, lane);
    const unsigned long long high = __shfl_sync(~0u, (unsigned long long)(own >> 64), lane);
    return (gumbel_wide)high << 64 | low;
}

/* The stricter of `cut` and top_p, which looks at the first `weighed` tokens, by a warp: a lane
 * takes neighbouring ones, and finds whether the nucleus ends with one of them. Of equals as many
 * stay as come before that, and itself. */
__device__ gumbel_cut end_nucleus(const gumbel_rules &rules, int weighed, gumbel_cut cut)
{
    const int lane = threadIdx.x % 32, each = (head.count + 31) / 32;
    const int begin = min(lane * each, weighed), end = min(begin + each, weighed);
    gumbel_wide own = 0;
    for (int i = begin; i < end; i++)
        own += head.at[i].mass;
    gumbel_wide through = own; /* the mass up to this lane's last token */
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        const gumbel_wide below = shuffle_wide(through, lane >= lanes ? lane - lanes : lane);
        through += lane >= lanes ? below : 0;
    }
    const gumbel_wide needed = gumbel_nucleus(rules.top_p, shuffle_wide(through, 31));
    const bool ends = through - own < needed && needed <= through;
    int last = begin;
    if (ends)
        for (gumbel_wide sum = through - own; (sum += head.at[last].mass) < needed;)
            last++;
    const uint32_t found = __ballot_sync(~0u, ends);
    last = __shfl_sync(~0u, last, __ffs(found) - 1); /* the mass that is needed is there */
    const float value = head.at[last].value;
    return gumbel_stricter(
        cut, {value, rules.exact ? last + 1 - values_above(value) : GUMBEL_TIES_STAY});
}

/* gumbel_entries_cut() of rules that need no other mass, by a warp. */
__device__ int cut_by_warp(const gumbel_rules &rules)
{
    const float largest = head.at[0].value;
    gumbel_cut behind = gumbel_cut_first(&rules, largest);
    if (rules.top_k > 0 && values_from(behind.bound) >= rules.top_k) {
        const float value = head.at[rules.top_k - 1].value;
        behind = gumbel_cut_top_k(&rules, value, values_above(value));
    }
    gumbel_cut cut = gumbel_cut_others(&rules, behind, largest);
    if (rules.top_p < 1.0f) {
        const int weighed = count_kept(behind);
        if (weighed < 0)
            return -1;
        cut = end_nucleus(rules, weighed, cut);
    }
    return count_kept(cut);
}

/* How many tokens the rules keep; -1 where they are not told. */
__device__ int cut_head(const gumbel_rules &rules)
{
    float bound;
    const float largest = head.at[0].value;
    if (!gumbel_rules_cut(&rules) || gumbel_rules_need_mass(&rules, largest, &bound))
        return -1;
    for (int i = threadIdx.x; i < head.count && rules.top_p < 1.0f; i += kRowThreads)
        head.at[i].mass = gumbel_token_mass(gumbel_exp(head.at[i].value - largest));
    __syncthreads();
    if (threadIdx.x < 32) {
        const int kept = cut_by_warp(rules);
        if (threadIdx.x == 0)
            head.kept = kept;
    }
    __syncthreads();
    return head.kept;
}

} // namespace

#endif
