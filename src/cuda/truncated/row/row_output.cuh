/* SPDX-License-Identifier: Apache-2.0
 *
 * Outputs of a row: draws, ranks, the most likely tokens, given tokens.
 */
#ifndef GUMBEL_CUDA_ROW_OUTPUT_CUH
#define GUMBEL_CUDA_ROW_OUTPUT_CUH

#include "cuda/truncated/row/row_draw.cuh"
#include "maths/rounding.h"

#include <stddef.h>

namespace
{

/* -------------------------------------------------------------------- most likely tokens ---- */

/* Writes the n most likely tokens to x.top, in order, and returns their number. `survivors` is the
 * row's kept set. */
template <class Source>
__device__ inline int list_top(const Source &source, truncated_shared &x, logit_values values,
                               float largest, kept_set survivors, int n)
{
    logit_values by_z = {values.inverse_temperature, false};
    float largest_z = values.before ? values.to_z(largest) : largest;
    kept_set_finder<Source> finder = {source, x.scratch, by_z, largest_z, {x.thread_maxima}};
    descent_result last = finder.find_nth((uint64_t)n, -FLT_MAX);
    kept_set first = {-FLT_MAX, INT32_MAX};
    if (last.reached) {
        gumbel_cutoff by_value = {gumbel_value_of_key(last.key), n - (int64_t)last.above};
        first = {by_value.bound, finder.find_last_tie(by_value)};
    }
    if (threadIdx.x == 0)
        x.top_count = 0;
    __syncthreads();
    source.each([&](int32_t id, float y) {
        float z = by_z.to_value(y);
        if (first.has_token(id, z))
            x.top[atomicAdd(&x.top_count, 1)] = {z, id,
                                                 survivors.has_token(id, values.to_value(y))};
    });
    __syncthreads();
    int count = (int)x.top_count, place = 0;
    top_token own = {};
    if ((int)threadIdx.x < count) {
        own = x.top[threadIdx.x];
        for (int i = 0; i < count; i++)
            place += x.top[i].z > own.z || (x.top[i].z == own.z && x.top[i].id < own.id);
    }
    __syncthreads();
    if ((int)threadIdx.x < count)
        x.top[place] = own;
    __syncthreads();
    return count;
}

/* -------------------------------------------------------------------------------- outputs ---- */

/* Outputs of a row other than its tokens. */
struct row_result {
    gumbel_summary mass; /* of the kept set; empty unless requested */
    float lse;           /* of the requested distribution; NaN unless requested */
    int32_t kept;
    gumbel_row_status status;
};

/* Writes draw `at` as a summary. */
__device__ __noinline__ void write_partial(const cuda_truncated_params &p, const row_result &r,
                                           int64_t at, draw_winner best)
{
    gumbel_summary s = r.mass;
    s.best_score = best.score;
    s.best_z = best.z;
    s.best_id = best.id;
    p.partials[at] = s;
}

/* z or logit from which the log-probability of a drawn token is computed; -inf for a given token
 * that is invalid or not in the kept set. */
__device__ __forceinline__ float value_for_logprob(const cuda_truncated_params &p, int64_t b,
                                                   draw_winner best)
{
    const gumbel_problem &q = p.problem;
    if (p.output.logprobs_of != GUMBEL_RAW)
        return best.score > -INFINITY ? best.z : -INFINITY;
    return best.id >= q.first_token && best.id < q.end_token ? raw_logit(q, b, best.id) : -INFINITY;
}

/* Writes draw `at` of row b, by a warp, to the outputs or as a summary. Outputs of four bytes have
 * adjacent pointers in gumbel_output, one per lane. */
__device__ inline void write_draw(const cuda_truncated_params &p, const row_result &r, int64_t b,
                                  int64_t at, draw_winner best, int32_t rank)
{
    enum { TOKEN, LOGPROB, SCORE, LSE, STATUS, RANK, KEPT, FIELDS };
    static_assert(offsetof(gumbel_output, kept) - offsetof(gumbel_output, tokens) ==
                      KEPT * sizeof(void *),
                  "side by side");
    const gumbel_output &out = p.output;
    const bool ok = r.status == GUMBEL_ROW_OK, drawn = ok && best.id >= 0;
    const int lane = threadIdx.x % 32;
    if (p.partials) {
        if (lane == 0)
            write_partial(p, r, at, best);
        return;
    }
    if (lane >= FIELDS)
        return;
    float logprob = NAN;
    if (drawn && lane == LOGPROB && out.logprobs)
        logprob = gumbel_logprob(value_for_logprob(p, b, best), r.lse);
    const bool of_row = lane == LSE || lane == STATUS || lane == KEPT;
    const bool is_real = lane == LOGPROB || lane == SCORE || lane == LSE;
    const float real = lane == LOGPROB ? logprob : lane == SCORE ? best.score : r.lse;
    const int32_t whole = lane == TOKEN    ? best.id
                          : lane == STATUS ? (int32_t)r.status
                          : lane == RANK   ? rank
                                           : r.kept;
    int32_t *to;
    memcpy(&to, (const char *)&out.tokens + lane * sizeof to, sizeof to);
    if (to)
        to[of_row ? b : at] = is_real ? __float_as_int((lane == LSE ? ok : drawn) ? real : NAN)
                              : (drawn || of_row) ? whole
                                                  : -1;
}

/* Writes the list `top` of `count` tokens, by all threads. */
__device__ inline void write_top(const cuda_truncated_params &p, const top_token *top,
                                 const row_result &r, int64_t b, int count)
{
    const gumbel_output &out = p.output;
    bool ok = r.status == GUMBEL_ROW_OK, raw = out.logprobs_of == GUMBEL_RAW;
    int i = (int)threadIdx.x;
    if (i >= out.num_top)
        return;
    int64_t at = b * out.num_top + i;
    top_token own = i < count ? top[i] : top_token{-INFINITY, -1, false};
    if (out.top_ids)
        out.top_ids[at] = own.id;
    if (!out.top_logprobs)
        return;
    float from = raw && own.id >= 0 ? raw_logit(p.problem, b, own.id) : own.z;
    bool shown = own.kept || (raw && own.id >= 0);
    out.top_logprobs[at] = !ok ? NAN : shown ? gumbel_logprob(from, r.lse) : -INFINITY;
}

/* Writes a token at `place` in the list of those that truncation keeps. */
__device__ __forceinline__ void write_kept_token(const cuda_truncated_params &p,
                                                 const row_result &r, int64_t b, int place,
                                                 int32_t id, float z)
{
    const gumbel_output &out = p.output;
    const int64_t at = b * out.kept_capacity + place;
    out.kept_ids[at] = id;
    if (out.kept_logprobs)
        out.kept_logprobs[at] =
            gumbel_logprob(out.logprobs_of == GUMBEL_RAW ? raw_logit(p.problem, b, id) : z, r.lse);
}

/* Writes z of column i of processed row b. */
__device__ __forceinline__ void store_processed(const cuda_truncated_params &p, int64_t b,
                                                int64_t i, float z)
{
    gumbel_store_element(p.processed, p.processed_dtype, b * p.processed_stride + i, z);
}

/* Writes the processed row, by all threads: z of the kept set, -inf elsewhere. The output may be
 * the logits themselves: each thread reads a logit before it overwrites it. */
__device__ inline void write_processed(const cuda_truncated_params &p, const row_source &source,
                                       logit_values values, kept_set survivors,
                                       gumbel_row_status status, int64_t b)
{
    const gumbel_problem &q = p.problem;
    bool ok = status == GUMBEL_ROW_OK || status == GUMBEL_ROW_EMPTY;
    source.each([&](int32_t id, float y) {
        float z = survivors.has_token(id, values.to_value(y)) ? values.to_z(y) : -INFINITY;
        store_processed(p, b, id - q.first_token, ok ? z : NAN);
    });
    for (int64_t i = max(q.end_token - q.first_token, (int64_t)0) + threadIdx.x; i < q.vocab;
         i += kThreads)
        store_processed(p, b, i, ok ? -INFINITY : NAN);
}

/* Writes the outputs of an unused row, by one thread. */
__device__ __noinline__ void write_unused(const cuda_truncated_params &p, int64_t b)
{
    const gumbel_output &out = p.output;
    const int samples = p.problem.sampling.num_samples;
    row_result r = {{}, NAN, 0, GUMBEL_ROW_UNUSED};
    gumbel_summary_empty(&r.mass);
    r.mass.flags = GUMBEL_FLAG_UNUSED;
    for (int64_t at = b * samples; at < (b + 1) * samples; at++) {
        if (p.partials) {
            p.partials[at] = r.mass;
            continue;
        }
        out.tokens[at] = -1;
        if (out.logprobs)
            out.logprobs[at] = NAN;
        if (out.scores)
            out.scores[at] = NAN;
        if (out.ranks)
            out.ranks[at] = -1;
    }
    if (out.lse)
        out.lse[b] = NAN;
    if (out.status)
        out.status[b] = GUMBEL_ROW_UNUSED;
    if (out.kept)
        out.kept[b] = 0;
    if (out.entropy)
        out.entropy[b] = NAN;
    for (int64_t at = b * out.num_top; at < (b + 1) * out.num_top; at++) {
        if (out.top_ids)
            out.top_ids[at] = -1;
        if (out.top_logprobs)
            out.top_logprobs[at] = NAN;
    }
}

/* Returns whether row b is unused; if so, the thread with `writes` set has written its outputs.
 * Processed rows are never skipped: they are written as rows without a token. */
__device__ __forceinline__ bool end_unused_row(const cuda_truncated_params &p, int64_t b,
                                               bool writes)
{
    if (p.processed || gumbel_problem_row_is_live(&p.problem, b))
        return false;
    if (writes)
        write_unused(p, b);
    return true;
}

/* ---------------------------------------------------------------------------- given tokens ---- */

/* The token given for draw `at` of row b; negative for padding. */
__device__ __forceinline__ int32_t given_token(const gumbel_problem &q, int64_t b, int64_t at)
{
    const gumbel_row_i32 &given = q.sampling.given;
    return given.data[(q.first_row + b) * given.stride + at % q.sampling.num_samples];
}

/* A given token as a winner, for reduction over threads: its score is 1 if it is kept. */
__device__ __forceinline__ draw_winner given_found(int32_t id, float z, bool kept)
{
    return {kept ? 1.0f : 0.0f, z, id};
}

/* The result for a given token after the reduction, in the form of a draw's winner. */
__device__ __forceinline__ draw_winner given_winner(draw_winner found, int32_t id)
{
    const float z = found.id >= 0 ? found.z : -INFINITY;
    return {found.score > 0.0f ? z : -INFINITY, z, id};
}

/* Evaluates the token given for draw `at` in `source`; for all threads. */
template <class Source>
__device__ inline draw_winner score_given(const gumbel_problem &q, const Source &source,
                                          truncated_shared &x, logit_values values,
                                          kept_set survivors, int64_t b, int64_t at)
{
    const int32_t id = given_token(q, b, at);
    draw_winner found = draw_winner_none();
    source.each([&](int32_t token, float y) {
        if (token == id)
            found = given_found(id, values.to_z(y), survivors.has_token(id, values.to_value(y)));
    });
    return given_winner(best_of_cta(found, x), id);
}

} // namespace

#endif
