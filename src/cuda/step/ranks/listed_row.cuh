/* SPDX-License-Identifier: Apache-2.0
 *
 * A row that is split over ranks, by a CTA: what ranks list of it put in order, cut, drawn from,
 * and written. A row that lists do not tell is left.
 *
 * Lists are by y: of equal values one with a lower id may be missing behind a list's end. So tokens
 * above the ends of all lists are known, and they are a head of the row.
 */
#ifndef GUMBEL_CUDA_LISTED_ROW_CUH
#define GUMBEL_CUDA_LISTED_ROW_CUH

#include "cuda/step/ranks/exchange.cuh"
#include "cuda/step/ranks/listed_end.cuh"
#include "cuda/step/ranks/listed_params.h"

namespace
{

constexpr int kMost = CUDA_TOP64 * GUMBEL_PEERS_RANKS;

/* What a CTA knows of its row's lists, behind what serves it from few blocks. */
struct __align__(16) listed_row
{
    uint64_t keys[kMost]; /* larger ones come before; those of no token come last */
    float y[kMost];
    float end[GUMBEL_PEERS_RANKS]; /* what a rank has not listed is not above this value */
    uint32_t flags;
    int complete, unlisted;
    float lse;
};
static_assert(sizeof(listed_row) <= CUDA_TOP64_BYTES, "the launcher reserves that");

__device__ __forceinline__ listed_row &listed()
{
    return *(listed_row *)(memory_of_cta() + CUDA_TOP64_OFFSET((int)shared().call.blocks));
}

/* Describe row b and begin with its lists, by three warps side by side; before a barrier. */
__device__ __forceinline__ void start_listed(const gumbel_problem &q, int64_t b)
{
    request_row &row = shared().row;
    if (threadIdx.x == 0)
        set_draw(row, q, b);
    if (threadIdx.x == 32) {
        const bool greedy = is_greedy(q, b);
        const gumbel_rules rules = gumbel_problem_rules(&q, b, 0);
        set_rules(row, greedy ? without_cuts(rules) : rules);
    }
    if (threadIdx.x == 64) {
        listed().flags = 0;
        listed().complete = 1;
        listed().unlisted = 0;
    }
}

/* Rows that are left are told while others are still drawn from: until then a row is in doubt. By a
 * thread, before the next launch may start. */
__device__ __forceinline__ void doubt_row(const cuda_listed_params &p, int64_t b)
{
    *(volatile int32_t *)&p.left[b] = CUDA_LEFT_IN_DOUBT;
    if (b == 0)
        p.left[p.request.problem.batch] = 0; /* what counts the CTAs of the next launch */
    __threadfence();
}

/* ---------------------------------------------------------------------------- what is said ---- */

/* Of one place in a rank's list. */
struct said_words {
    uint32_t status, id, y;
};

/* A rank's words in memory: [B] status, [B, CUDA_TOP64] ids, [B, CUDA_TOP64] y. */
__device__ __forceinline__ said_words words_at(const uint32_t *words, int64_t batch, int64_t b,
                                               int place)
{
    const uint32_t *ids = words + batch + b * CUDA_TOP64;
    return {words[b], ids[place], ids[batch * CUDA_TOP64 + place]};
}

/* Those of all ranks, gathered. */
struct gathered_lists {
    const cuda_listed_params &p;

    __device__ said_words at(int32_t r, int64_t b, int place)
    {
        return words_at(p.received + r * p.stride, p.request.problem.batch, b, place);
    }

    __device__ bool failed() const { return false; }
};

/* Those of others as they come into this rank's mailbox, a row's one behind the other: status, ids,
 * y. Of its own list this thread has the place that is its number's. */
struct heard_lists {
    exchange &e;
    said_words own;

    /* Say row b, by all threads. */
    __device__ void say(int64_t b)
    {
        const int thread = threadIdx.x;
        const int64_t first = b * GUMBEL_RANK_WORDS;
        if (thread < 2 * CUDA_TOP64)
            e.say(first + 1 + thread, thread < CUDA_TOP64 ? own.id : own.y);
        if (thread == 2 * CUDA_TOP64)
            e.say(first, own.status);
    }

    __device__ said_words at(int32_t r, int64_t b, int place)
    {
        static_assert(kThreads % CUDA_TOP64 == 0, "a thread's places are one");
        if (r == e.p.rank)
            return own;
        const int64_t first = b * GUMBEL_RANK_WORDS;
        const int64_t which[3] = {first, first + 1 + place, first + 1 + CUDA_TOP64 + place};
        uint32_t words[3];
        e.hear(r, which, words);
        return {words[0], words[1], words[2]};
    }

    __device__ bool failed() const { return e.failed; }
};

__device__ __forceinline__ uint32_t flags_of_status(int32_t status)
{
    return status == GUMBEL_ROW_INFINITE ? GUMBEL_FLAG_INFINITE
           : status == GUMBEL_ROW_OK || status == GUMBEL_ROW_EMPTY || status == CUDA_ROW_UNLISTED
               ? 0
               : GUMBEL_FLAG_NAN;
}

/* ----------------------------------------------------------------------------------- order ---- */

/* Tokens as numbers that are larger for those that come before; others are below all of them. */
__device__ __forceinline__ uint64_t key_of(float value, int32_t id)
{
    return (uint64_t)gumbel_key(value) << 32 | ~(uint32_t)id;
}

/* Bring what ranks list of row b, by all threads. Ends with a barrier. */
template <class lists>
__device__ __forceinline__ void bring_tokens(lists &from, int64_t b, int32_t ranks,
                                             request_values values)
{
    listed_row &row = listed();
#pragma unroll 1
    for (int i = threadIdx.x; i < ranks * CUDA_TOP64; i += kThreads) {
        const int32_t r = i / CUDA_TOP64, place = i % CUDA_TOP64;
        const said_words said = from.at(r, b, place);
        const int32_t id = (int32_t)said.id;
        const float y = id < 0 ? -INFINITY : __uint_as_float(said.y);
        const float value = y * values.scale();
        row.keys[i] = values.z(y) > -INFINITY ? key_of(value, id) : (uint32_t)i;
        row.y[i] = y;
        uint32_t found = place == 0 ? flags_of_status((int32_t)said.status) : 0;
        if (value == INFINITY || values.z(y) == INFINITY)
            found |= GUMBEL_FLAG_INFINITE;
        if (found)
            atomicOr(&row.flags, found);
        if (place == 0 && said.status == CUDA_ROW_UNLISTED)
            row.unlisted = 1; /* by any number of threads */
        if (place == CUDA_TOP64 - 1) {
            row.end[r] = value;
            if (id >= 0)
                row.complete = 0;
        }
    }
    if (from.failed()) /* this thread may have missed what the others have */
        atomicOr(&row.flags, (uint32_t)GUMBEL_FLAG_NAN);
    __syncthreads();
}

/* Put them in order, a few lanes a token: the first ones of the row's list are in their places, and
 * so are their blocks. How many of these are known. For all threads; ends with a barrier. */
__device__ __forceinline__ int order_tokens(int32_t ranks, request_values values)
{
    const listed_row &row = listed();
    const int all = ranks * CUDA_TOP64;
    const shortlist_lanes lanes(all);
    float end = -INFINITY;
#pragma unroll 1
    for (int32_t r = 0; r < ranks; r++)
        end = fmaxf(end, row.end[r]);
    int known = 0;
#pragma unroll 1
    for (int base = 0; base < all; base += kThreads >> lanes.log) {
        const int at = min(base + lanes.token(), all - 1);
        const bool counts = lanes.part() == 0 && base + lanes.token() < all;
        const uint64_t own = row.keys[at];
        int place = 0;
#pragma unroll 8
        for (int i = 2 * lanes.part(); i < all; i += 2 << lanes.log) {
            const ulonglong2 two = *(const ulonglong2 *)&row.keys[i];
            place += two.x > own;
            place += two.y > own;
        }
        place = lanes.over(place, [](int a, int b) { return a + b; });
        const uint32_t key = (uint32_t)(own >> 32);
        if (counts && place < kShortlist) {
            shared().bench.list[place] = {row.y[at], (int32_t) ~(uint32_t)own};
            shortlist().order[place] = {key, place};
            blocks_in_order()[place] = ~(uint32_t)own / GUMBEL_BLOCK;
        }
        known += __syncthreads_count(counts && key > 0 && row.y[at] * values.scale() > end);
    }
    return min(known, kShortlist);
}

/* ------------------------------------------------------------------------------------- cut ---- */

/* How many of the first tokens in order the rules keep, of which `count` are known, and if
 * `complete` nothing lies behind them; -1 where that is not told. By a warp. */
__device__ __forceinline__ int cut_listed(int count, bool complete, bool weighs)
{
    const request_row &row = shared().row;
    const gumbel_rules &r = row.rules;
    if (count == 0)
        return complete ? 0 : -1;
    if (row.draw.greedy)
        return weighs ? -1 : count;
    const bool of_all = r.top_p < 1.0f && (r.joint || r.top_k == 0); /* a mass is */
    if (!gumbel_rules_cut(&r) || of_all)
        return -1;
    bool told = complete;
    if (!told && r.top_k > 0 && r.top_k <= count)
        told = r.exact || with_ties((int)r.top_k, count) < count;
    if (!told && r.min_p > 0.0f && !r.last) /* else a nucleus is of more than min_p leaves */
        told = kept_by_min_p(count, gumbel_of_key(shortlist().order[0].key), row.log_min_p) < count;
    return told ? cut_shortlist(r, count, nullptr) : -1;
}

/* --------------------------------------------------------------------------------- the row ---- */

/* Make a row whole of which a product has stored some strips: what it has left out cannot matter,
 * and lies below all that can. */
__device__ __noinline__ void fill_row(int64_t b)
{
    const cuda_request_params &p = shared().call;
    const gumbel_problem &q = p.problem;
    const int64_t origin = CUDA_REQUEST_ORIGIN(q.first_token);
    float *row = (float *)q.logits.data + b * q.logits.stride - q.first_token;
    if (!p.stored_subtiles)
        return;
    for (int64_t token = q.first_token + threadIdx.x; token < q.end_token; token += kThreads) {
        const int64_t strip = (token - origin) / CUDA_REQUEST_SUBTILE;
        const uint32_t stored = load_stored(p, b, strip / CUDA_REQUEST_SUBTILES);
        if (!(stored >> strip % CUDA_REQUEST_SUBTILES & 1))
            row[token] = -INFINITY;
    }
}

/* Draw row b, which is described, from what ranks list of it, and say whether it is left; for all
 * threads. */
template <class lists>
__device__ __forceinline__ void draw_listed(const cuda_listed_params &p, lists &from, int64_t b)
{
    const gumbel_output &out = shared().call.output;
    const int samples = shared().call.problem.sampling.num_samples;
    const request_row &row = shared().row;
    const request_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    bring_tokens(from, b, p.ranks, values);
    ptx_allow_launch(); /* nothing of others is waited for any more */
    const bool complete = listed().complete && p.ranks * CUDA_TOP64 <= kShortlist;
    int count = order_tokens(p.ranks, values);
    const bool weighs = (uintptr_t)out.lse | (uintptr_t)out.logprobs;
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = listed().flags | row.flags;
    seen.best_id = count > 0 ? 0 : -1;
    request_result r = {seen, NAN, 0, gumbel_summary_status(&seen)};
    count = seen.flags ? 0 : count;
    if (threadIdx.x < 32) {
        const int kept = seen.flags          ? 0
                         : listed().unlisted ? -1
                                             : cut_listed(count, complete, weighs || out.kept);
        if (threadIdx.x == 0) {
            shortlist().kept = kept;
            *(volatile int32_t *)&p.left[b] = kept < 0;
        }
    } else if (weighs) {
        link_blocks(count);
    }
    score_shortlist(count, b * samples, 0);
    __syncthreads();
    r.kept = shortlist().kept;
    if (r.kept < 0) {
        fill_row(b);
        return;
    }
    end_listed(values, b, count, r, weighs && r.status == GUMBEL_ROW_OK, listed().lse);
}

} // namespace

#endif
