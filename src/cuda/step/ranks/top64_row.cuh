/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws a row that is split over ranks, by one CTA: sorts the candidates of all ranks, truncates,
 * draws, and writes the outputs. A row that the candidates do not determine becomes a fallback row.
 *
 * A rank selects its 64 candidates by y, and may omit a token whose value equals that of its last
 * candidate, even one with a lower id. Therefore only tokens above the last candidate of every rank
 * are known to be the leading tokens of the row.
 */
#ifndef GUMBEL_CUDA_LISTED_ROW_CUH
#define GUMBEL_CUDA_LISTED_ROW_CUH

#include "cuda/step/ranks/exchange.cuh"
#include "cuda/step/ranks/top64_sample.cuh"
#include "cuda/step/ranks/top64_params.h"

namespace
{

constexpr int kMax = CUDA_TOP64 * GUMBEL_PEERS_RANKS;

/* A CTA's candidates, in shared memory after the data of truncated_blocks.cuh. */
struct __align__(16) top64_row
{
    uint64_t keys[kMax]; /* larger keys come first; keys without a token come last */
    float y[kMax];
    float end[GUMBEL_PEERS_RANKS]; /* upper bound of the values of a rank's other tokens */
    uint32_t flags;
    int complete, not_selected;
    float lse;
};
static_assert(sizeof(top64_row) <= CUDA_TOP64_BYTES, "bytes that the launcher reserves");

__device__ __forceinline__ top64_row &candidates_of_cta()
{
    return *(top64_row *)(memory_of_cta() + CUDA_TOP64_OFFSET((int)shared_state().call.blocks));
}

/* Loads the parameters of row b and initialises its candidates, by three warps. The caller must
 * synchronise before it reads them. */
__device__ __forceinline__ void begin_top64_row(const gumbel_problem &q, int64_t b)
{
    truncated_row &row = shared_state().row;
    if (threadIdx.x == 0)
        set_draw(row, q, b);
    if (threadIdx.x == 32) {
        const bool greedy = is_greedy(q, b);
        const gumbel_rules rules = gumbel_problem_rules(&q, b, 0);
        set_rules(row, greedy ? without_truncation(rules) : rules);
    }
    if (threadIdx.x == 64) {
        candidates_of_cta().flags = 0;
        candidates_of_cta().complete = 1;
        candidates_of_cta().not_selected = 0;
    }
}

/* Marks the fallback flag of row b as unknown until it is published; by one thread, before the next
 * launch may start. */
__device__ __forceinline__ void mark_fallback_unknown(const cuda_top64_params &p, int64_t b)
{
    *(volatile int32_t *)&p.fallback[b] = CUDA_FALLBACK_UNKNOWN;
    if (b == 0)
        p.fallback[p.rows.problem.batch] = 0; /* the counter of CTAs of the next launch */
    __threadfence();
}

/* ------------------------------------------------------------------------------ candidates ---- */

/* One candidate of a rank, and the row's status. */
struct top64_words {
    uint32_t status, id, y;
};

/* A rank's words in memory: [B] status, [B, CUDA_TOP64] ids, [B, CUDA_TOP64] y. */
__device__ __forceinline__ top64_words words_at(const uint32_t *words, int64_t batch, int64_t b,
                                                int place)
{
    const uint32_t *ids = words + batch + b * CUDA_TOP64;
    return {words[b], ids[place], ids[batch * CUDA_TOP64 + place]};
}

/* Candidates of all ranks, gathered in memory. */
struct gathered_top64 {
    const cuda_top64_params &p;

    __device__ top64_words load_candidate(int32_t r, int64_t b, int place)
    {
        return words_at(p.received + r * p.stride, p.rows.problem.batch, b, place);
    }

    __device__ bool has_failed() const { return false; }
};

/* Candidates that arrive in this rank's peer buffer, row by row: status, ids, y. `own` is the
 * candidate of this rank at the thread's index. */
struct received_top64 {
    exchange &e;
    top64_words own;

    /* Sends row b, by all threads. */
    __device__ void send_row(int64_t b)
    {
        const int thread = threadIdx.x;
        const int64_t first = b * GUMBEL_RANK_WORDS;
        if (thread < 2 * CUDA_TOP64)
            e.send_word(first + 1 + thread, thread < CUDA_TOP64 ? own.id : own.y);
        if (thread == 2 * CUDA_TOP64)
            e.send_word(first, own.status);
    }

    __device__ top64_words load_candidate(int32_t r, int64_t b, int place)
    {
        static_assert(kThreads % CUDA_TOP64 == 0, "a thread has one place");
        if (r == e.p.rank)
            return own;
        const int64_t first = b * GUMBEL_RANK_WORDS;
        const int64_t which[3] = {first, first + 1 + place, first + 1 + CUDA_TOP64 + place};
        uint32_t words[3];
        e.receive_words(r, which, words);
        return {words[0], words[1], words[2]};
    }

    __device__ bool has_failed() const { return e.failed; }
};

__device__ __forceinline__ uint32_t flags_of_status(int32_t status)
{
    return status == GUMBEL_ROW_INFINITE ? GUMBEL_FLAG_INFINITE
           : status == GUMBEL_ROW_OK || status == GUMBEL_ROW_EMPTY ||
                   status == CUDA_ROW_NOT_SELECTED
               ? 0
               : GUMBEL_FLAG_NAN;
}

/* --------------------------------------------------------------------------------- sorting ---- */

/* The key of a token: larger keys come first. */
__device__ __forceinline__ uint64_t key_of(float value, int32_t id)
{
    return (uint64_t)gumbel_key_of_value(value) << 32 | ~(uint32_t)id;
}

/* Loads the candidates of row b, by all threads. Ends with a barrier. */
template <class ranks_top64>
__device__ __forceinline__ void load_top64(ranks_top64 &from, int64_t b, int32_t ranks,
                                           logit_values values)
{
    top64_row &row = candidates_of_cta();
#pragma unroll 1
    for (int i = threadIdx.x; i < ranks * CUDA_TOP64; i += kThreads) {
        const int32_t r = i / CUDA_TOP64, place = i % CUDA_TOP64;
        const top64_words words = from.load_candidate(r, b, place);
        const int32_t id = (int32_t)words.id;
        const float y = id < 0 ? -INFINITY : __uint_as_float(words.y);
        const float value = y * values.scale();
        row.keys[i] = values.to_z(y) > -INFINITY ? key_of(value, id) : (uint32_t)i;
        row.y[i] = y;
        uint32_t found = place == 0 ? flags_of_status((int32_t)words.status) : 0;
        if (value == INFINITY || values.to_z(y) == INFINITY)
            found |= GUMBEL_FLAG_INFINITE;
        if (found)
            atomicOr(&row.flags, found);
        if (place == 0 && words.status == CUDA_ROW_NOT_SELECTED)
            row.not_selected = 1; /* any number of threads writes it */
        if (place == CUDA_TOP64 - 1) {
            row.end[r] = value;
            if (id >= 0)
                row.complete = 0;
        }
    }
    if (from.has_failed()) /* this thread may lack words that other threads have */
        atomicOr(&row.flags, (uint32_t)GUMBEL_FLAG_NAN);
    __syncthreads();
}

/* Sorts the candidates into the row's short list, and stores their blocks; a few lanes rank each
 * token. Returns, to all threads, how many are leading tokens of the row. Ends with a barrier. */
__device__ __forceinline__ int order_top64(int32_t ranks, logit_values values)
{
    const top64_row &row = candidates_of_cta();
    const int all = ranks * CUDA_TOP64;
    const shortlist_lanes lanes(all);
    float end = -INFINITY;
#pragma unroll 1
    for (int32_t r = 0; r < ranks; r++)
        end = fmaxf(end, row.end[r]);
    int known = 0;
#pragma unroll 1
    for (int base = 0; base < all; base += kThreads >> lanes.log) {
        const int at = min(base + lanes.token_index(), all - 1);
        const bool counts = lanes.lane_index() == 0 && base + lanes.token_index() < all;
        const uint64_t own = row.keys[at];
        int place = 0;
#pragma unroll 8
        for (int i = 2 * lanes.lane_index(); i < all; i += 2 << lanes.log) {
            const ulonglong2 two = *(const ulonglong2 *)&row.keys[i];
            place += two.x > own;
            place += two.y > own;
        }
        place = lanes.reduce_lanes(place, [](int a, int b) { return a + b; });
        const uint32_t key = (uint32_t)(own >> 32);
        if (counts && place < kShortlist) {
            shared_state().scratch.list[place] = {row.y[at], (int32_t) ~(uint32_t)own};
            shortlist_memory().order[place] = {key, place};
            blocks_in_order()[place] = ~(uint32_t)own / GUMBEL_BLOCK;
        }
        known += __syncthreads_count(counts && key > 0 && row.y[at] * values.scale() > end);
    }
    return min(known, kShortlist);
}

/* ------------------------------------------------------------------------------ truncation ---- */

/* Size of the kept set among `count` leading tokens, which are all tokens if `complete`; -1 if they
 * do not determine it. By a warp. */
__device__ __forceinline__ int truncate_top64(int count, bool complete, bool with_lse)
{
    const truncated_row &row = shared_state().row;
    const gumbel_rules &r = row.rules;
    if (count == 0)
        return complete ? 0 : -1;
    if (row.draw.greedy)
        return with_lse ? -1 : count;
    const bool of_all =
        r.top_p < 1.0f && (r.joint || r.top_k == 0); /* top_p of all tokens requires their mass */
    if (!gumbel_rules_truncate(&r) || of_all)
        return -1;
    bool determined = complete;
    if (!determined && r.top_k > 0 && r.top_k <= count)
        determined = r.exact || extend_by_ties((int)r.top_k, count) < count;
    if (!determined && r.min_p > 0.0f &&
        !r.last) /* else top_p applies to more tokens than min_p keeps */
        determined = count_above_min_p(count, gumbel_value_of_key(shortlist_memory().order[0].key),
                                       row.log_min_p) < count;
    return determined ? truncate_shortlist(r, count, nullptr) : -1;
}

/* --------------------------------------------------------------------------------- the row ---- */

/* Fills the subtiles of row b that the product did not store with -inf: their logits are below
 * every logit that can win. */
__device__ __noinline__ void fill_row(int64_t b)
{
    const cuda_truncated_params &p = shared_state().call;
    const gumbel_problem &q = p.problem;
    const int64_t origin = CUDA_MAXIMA_ORIGIN(q.first_token);
    float *row = (float *)q.logits.data + b * q.logits.stride - q.first_token;
    if (!p.stored_subtiles)
        return;
    for (int64_t token = q.first_token + threadIdx.x; token < q.end_token; token += kThreads) {
        const int64_t subtile = (token - origin) / CUDA_SUBTILE;
        const uint32_t stored = load_stored(p, b, subtile / CUDA_SUBTILES);
        if (!(stored >> subtile % CUDA_SUBTILES & 1))
            row[token] = -INFINITY;
    }
}

/* Draws row b from the candidates of all ranks, and publishes its fallback flag; for all
 * threads. */
template <class ranks_top64>
__device__ __forceinline__ void draw_row(const cuda_top64_params &p, ranks_top64 &from, int64_t b)
{
    const gumbel_output &out = shared_state().call.output;
    const int samples = shared_state().call.problem.sampling.num_samples;
    const truncated_row &row = shared_state().row;
    const logit_values values = {row.draw.inverse_temperature, row.rules.before != 0};
    load_top64(from, b, p.ranks, values);
    ptx_allow_launch(); /* this CTA no longer waits for other ranks */
    const bool complete = candidates_of_cta().complete && p.ranks * CUDA_TOP64 <= kShortlist;
    int count = order_top64(p.ranks, values);
    const bool with_lse = (uintptr_t)out.lse | (uintptr_t)out.logprobs;
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = candidates_of_cta().flags | row.flags;
    seen.best_id = count > 0 ? 0 : -1;
    row_result r = {seen, NAN, 0, gumbel_summary_status(&seen)};
    count = seen.flags ? 0 : count;
    if (threadIdx.x < 32) {
        const int kept = seen.flags ? 0
                         : candidates_of_cta().not_selected
                             ? -1
                             : truncate_top64(count, complete, with_lse || out.kept);
        if (threadIdx.x == 0) {
            shortlist_memory().kept = kept;
            *(volatile int32_t *)&p.fallback[b] = kept < 0;
        }
    } else if (with_lse) {
        link_same_blocks(count);
    }
    score_shortlist(count, b * samples, 0);
    __syncthreads();
    r.kept = shortlist_memory().kept;
    if (r.kept < 0) {
        fill_row(b);
        return;
    }
    draw_samples(values, b, count, r, with_lse && r.status == GUMBEL_ROW_OK,
                 candidates_of_cta().lse);
}

} // namespace

#endif
