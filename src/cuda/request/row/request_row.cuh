/* SPDX-License-Identifier: Apache-2.0
 *
 * A row of a request on a GPU: what it asks for, and its y, token by token, as a CTA can make them
 * again from the logits at any time.
 *
 * Masks and histories are looked up where a token is. Lists are not sorted: a CTA whose row has any
 * takes a piece of the vocabulary at a time, looks through the lists for what lies in it, and keeps
 * the edited y in shared memory. So a list costs its length for every piece, no memory is needed
 * beyond a piece, and lists may have any length.
 */
#ifndef GUMBEL_CUDA_REQUEST_ROW_CUH
#define GUMBEL_CUDA_REQUEST_ROW_CUH

#include "maths/summary.h"
#include "maths/truncation.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/common/cuda_request.h"
#include "cuda/common/edits.cuh"
#include "cuda/common/widen.cuh"

namespace
{

constexpr int kThreads = CUDA_REQUEST_THREADS, kWarps = kThreads / 32;
constexpr int kPiece = CUDA_REQUEST_TILE;
/* Blocks of 64 whose logits a warp asks for at once. */
constexpr int kAhead = CUDA_REQUEST_AHEAD;
static_assert(kPiece % (kWarps * kAhead * GUMBEL_BLOCK) == 0, "a piece has work for every warp");

/* The word that counts the CTAs of row b that have ended (cta_counter.cuh). */
__device__ __forceinline__ unsigned long long *request_counter(const cuda_request_params &p,
                                                               int64_t b)
{
    return (unsigned long long *)&p.counters[CUDA_THRESHOLD_WORDS * b];
}

/* A bit for each strip of a block of row b that the product has stored. */
__device__ __forceinline__ uint32_t load_stored(const cuda_request_params &p, int64_t b,
                                                int64_t block)
{
    const int64_t rows = 32 * gumbel_words_of(p.problem.batch);
    return p.stored_subtiles ? __ldcg(&p.stored_subtiles[block * rows + b])
                             : CUDA_REQUEST_ALL_SUBTILES;
}

struct request_row {
    gumbel_row draw;
    gumbel_rules rules;
    float log_min_p; /* -inf: off */
    row_edits edits;
    bool lists;     /* edits come from lists, too */
    uint32_t flags; /* why it cannot be drawn (gumbel_problem_row_flags()); 0: it can */
};

/* These where nothing is cut, as in a greedy row. */
__device__ __forceinline__ gumbel_rules without_cuts(gumbel_rules r)
{
    r.min_p = 0.0f;
    r.top_k = 0;
    r.top_p = 1.0f;
    return r;
}

__device__ __forceinline__ void set_rules(request_row &row, const gumbel_rules &rules)
{
    row.rules = rules;
    row.log_min_p = gumbel_log_min_p(rules.min_p);
}

/* Have row b's parameters fetched, a lane each, so that threads that read them one after the other
 * wait for memory once. By a whole warp. */
__device__ __forceinline__ void fetch_parameters(const gumbel_problem &q, int64_t b)
{
    const gumbel_sampling &s = q.sampling;
    const gumbel_truncation &t = q.truncation;
    const gumbel_transforms &e = q.transforms;
    const int lane = threadIdx.x % 32;
    const int64_t slot = gumbel_problem_slot(&q, b);
    const void *data = nullptr;
    int64_t stride = 0;
    auto give = [&](int to, const auto &rows) {
        data = lane == to ? rows.data : data;
        stride = lane == to ? rows.stride * (int64_t)sizeof *rows.data : stride;
    };
    give(0, s.temperature);
    give(1, s.seed);
    give(2, s.position);
    give(3, t.min_p);
    give(4, t.top_k);
    give(5, t.top_p);
    give(6, e.repetition);
    give(7, e.frequency);
    give(8, e.presence);
    if (data)
        ptx_prefetch_line((const char *)data + slot * stride);
}

/* Whether top_k or min_p cut: what stays is then known from the largest tokens alone. */
__device__ __forceinline__ bool cuts_by_value(const gumbel_rules &r)
{
    return r.top_k > 0 || r.min_p > 0.0f;
}

/* What of row b is for the draw. */
__device__ __forceinline__ void set_draw(request_row &row, const gumbel_problem &q, int64_t b)
{
    const uint32_t flags = gumbel_problem_row_flags(&q, b);
    row.draw = gumbel_problem_row(&q, b);
    row.flags = flags;
}

/* What edits row b. */
__device__ __forceinline__ void set_edits(request_row &row, const gumbel_problem &q, int64_t b)
{
    row.edits = load_row_edits(q, b);
    row.lists = (q.request & (GUMBEL_REQUEST_BANNED | GUMBEL_REQUEST_BIAS)) ||
                (row.edits.act && (!q.history.prompt || q.with_path));
}

__device__ inline request_row request_row_of(const gumbel_problem &q, int64_t b)
{
    request_row row;
    set_draw(row, q, b);
    set_rules(row, gumbel_problem_rules(&q, b, row.draw.greedy));
    set_edits(row, q, b);
    return row;
}

/* Whether row b is greedy, where nothing else of it is wanted. */
__device__ __forceinline__ bool is_greedy(const gumbel_problem &q, int64_t b)
{
    return gumbel_temperature_at(&q, gumbel_problem_slot(&q, b)) == 0.0f;
}

/* ------------------------------------------------------------------------------- lookups ---- */

__device__ __forceinline__ float raw_logit(const gumbel_problem &q, int64_t b, int64_t token)
{
    return widen_element(q.logits.data, q.logits.dtype,
                         b * q.logits.stride + token - q.first_token);
}

/* y of a logit before any edit: scale and soft-cap. */
__device__ __forceinline__ float scaled_logit(const cuda_request_params &p, float l)
{
    const gumbel_problem &q = p.problem;
    return gumbel_transform(l, q.scale, q.soft_cap, p.inverse_cap, 1.0f);
}

/* y of a token whose edits come from no list. */
__device__ __forceinline__ float plain_y(const cuda_request_params &p, const request_row &row,
                                         int64_t token, float l)
{
    const gumbel_problem &q = p.problem;
    if (is_masked(row.edits, token))
        return -INFINITY;
    float y = scaled_logit(p, l);
    return row.edits.act ? penalise_by_history(q, row.edits, token, 0, y) : y;
}

/* --------------------------------------------------------------------------------- lists ---- */

/* What lists say of a piece of the vocabulary, in shared memory. */
struct request_stage {
    uint32_t counts[kPiece];      /* of the output */
    uint32_t banned[kPiece / 32]; /* banned */
    uint32_t prompt[kPiece / 32]; /* in the prompt */
    uint32_t found[kWarps];       /* entries of a list that warps found in the piece */
    int32_t places[kThreads];     /* these, in the list's order: places in the piece */
    float values[kThreads];
};

/* A piece with its y. */
struct request_piece {
    request_stage stage;
    float y[kPiece];
};

static_assert(sizeof(request_piece) <= CUDA_REQUEST_STAGE_BYTES, "the launcher reserves that much");

/* f(place) for the entries of row b's list that lie in the piece from `begin` on, by any thread. */
template <class F>
__device__ __forceinline__ void each_listed(const gumbel_token_lists &lists, int64_t b,
                                            int64_t begin, F f)
{
    if (!lists.offsets)
        return;
    for (int64_t i = lists.offsets[b] + threadIdx.x; i < lists.offsets[b + 1]; i += kThreads) {
        int64_t place = lists.ids[i] - begin;
        if (place >= 0 && place < kPiece)
            f((int)place);
    }
}

/* Add the biases of tokens [begin, end) in the list's order: entries found are put in order, and
 * the first of equal ones adds them all. */
__device__ __noinline__ void add_biases(const gumbel_token_lists &lists, int64_t b, int64_t begin,
                                        int64_t end, request_stage &stage, float *y)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int64_t base = lists.offsets[b]; base < lists.offsets[b + 1]; base += kThreads) {
        int64_t i = base + threadIdx.x;
        int64_t place = i < lists.offsets[b + 1] ? lists.ids[i] - begin : -1;
        bool inside = place >= 0 && place < end - begin;
        uint32_t found = __ballot_sync(~0u, inside);
        if (lane == 0)
            stage.found[warp] = __popc(found);
        if (!__syncthreads_or(inside))
            continue;
        int at = __popc(found & ((1u << lane) - 1)), all = 0;
        for (int w = 0; w < kWarps; w++) {
            at += w < warp ? stage.found[w] : 0;
            all += stage.found[w];
        }
        if (inside) {
            stage.places[at] = (int32_t)place;
            stage.values[at] = lists.values[i];
        }
        __syncthreads();
        bool first = inside;
        for (int k = 0; first && k < at; k++)
            first = stage.places[k] != place;
        for (int k = at; first && k < all; k++)
            if (stage.places[k] == place)
                y[place] += stage.values[k];
        __syncthreads();
    }
}

/* Sort what row b's lists say of a piece into the stage's bits and counts, by all threads. */
__device__ __noinline__ void sort_lists(const gumbel_problem &q, const request_row &row, int64_t b,
                                        int64_t begin, request_stage &stage)
{
    const gumbel_transforms &t = q.transforms;
    const int64_t list = gumbel_problem_list(&q, b);
    auto count = [&](int place) { atomicAdd(&stage.counts[place], 1); };
    __syncthreads();
    for (int i = threadIdx.x; i < kPiece; i += kThreads)
        stage.counts[i] = 0;
    for (int i = threadIdx.x; i < kPiece / 32; i += kThreads)
        stage.banned[i] = stage.prompt[i] = 0;
    __syncthreads();
    if (q.request & GUMBEL_REQUEST_BANNED)
        each_listed(t.banned, list, begin,
                    [&](int place) { atomicOr(&stage.banned[place >> 5], 1u << (place & 31)); });
    if (row.edits.act && !q.history.prompt) {
        each_listed(t.prompt_tokens, list, begin,
                    [&](int place) { atomicOr(&stage.prompt[place >> 5], 1u << (place & 31)); });
        each_listed(t.output_tokens, list, begin, count);
    }
    if (row.edits.act && q.with_path)
        each_listed(q.path, b, begin, count);
    __syncthreads();
}

/* Fill y with that of the tokens that count in [begin, end), kPiece of them at most, by all
 * threads. Their logits are read from memory unless they were `fetched` into y. */
__device__ __noinline__ void stage_piece(const cuda_request_params &p, const request_row &row,
                                         int64_t b, int64_t begin, int64_t end,
                                         request_stage &stage, float *y, bool fetched)
{
    const gumbel_problem &q = p.problem;
    const int64_t from = max(begin, q.first_token), to = min(end, q.end_token);
    sort_lists(q, row, b, begin, stage);
    for (int64_t token = from + threadIdx.x; token < to; token += kThreads) {
        float l = fetched ? y[token - begin] : raw_logit(q, b, token);
        y[token - begin] = scaled_logit(p, l);
    }
    __syncthreads();
    if (q.request & GUMBEL_REQUEST_BIAS)
        add_biases(q.transforms.bias, gumbel_problem_list(&q, b), begin, to, stage, y);
    for (int64_t token = from + threadIdx.x; token < to; token += kThreads) {
        int place = (int)(token - begin);
        uint32_t listed = min(stage.counts[place], (uint32_t)GUMBEL_COUNT_MOST);
        float &own = y[place];
        if (is_masked(row.edits, token) || read_bit(stage.banned, place))
            own = -INFINITY;
        else if (row.edits.act && q.history.prompt)
            own = penalise_by_history(q, row.edits, token, listed, own);
        else if (listed > 0 || read_bit(stage.prompt, place))
            own = gumbel_penalise(own, &row.edits.penalties, listed);
    }
    __syncthreads();
}

/* ------------------------------------------------------------------------------- the row ---- */

/* All tokens of a row that count, as often as asked. */
struct row_source {
    static constexpr bool is_row = true;
    const cuda_request_params &p;
    const request_row &row;
    request_piece &staged;
    int64_t b;

    /* f(block, low, high) for each block of 64 tokens, by a whole warp: y of its tokens lane and
     * lane + 32, -inf for those that do not count. */
    template <class F> __device__ __forceinline__ void each_block(F f) const
    {
        const gumbel_problem &q = p.problem;
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
        for (int64_t piece = begin; piece < q.end_token; piece += kPiece) {
            if (row.lists)
                stage_piece(p, row, b, piece, piece + kPiece, staged.stage, staged.y, false);
            int64_t end = min(piece + kPiece, q.end_token);
            for (int64_t base = piece + warp * kAhead * GUMBEL_BLOCK; base < end;
                 base += kWarps * kAhead * GUMBEL_BLOCK) {
                float y[2 * kAhead];
#pragma unroll
                for (int i = 0; i < 2 * kAhead; i++) {
                    int64_t token = base + 32 * i + lane;
                    bool counts = token >= q.first_token && token < end;
                    y[i] = !counts     ? -INFINITY
                           : row.lists ? staged.y[token - piece]
                                       : raw_logit(q, b, token);
                }
#pragma unroll
                for (int i = 0; i < 2 * kAhead; i++) {
                    int64_t token = base + 32 * i + lane;
                    if (!row.lists && token >= q.first_token && token < end)
                        y[i] = plain_y(p, row, token, y[i]);
                }
                for (int64_t block = base; block < min(base + kAhead * GUMBEL_BLOCK, end);
                     block += GUMBEL_BLOCK) {
                    f(block, y[0], y[1]);
#pragma unroll
                    for (int i = 2; i < 2 * kAhead; i++)
                        y[i - 2] = y[i];
                }
            }
        }
    }

    /* f(token, y) for each token that counts, by any lane. */
    template <class F> __device__ __forceinline__ void each(F f) const
    {
        const gumbel_problem &q = p.problem;
        int lane = threadIdx.x % 32;
        each_block([&](int64_t block, float low, float high) {
#pragma unroll 1
            for (int half = 0; half < 2; half++) {
                int64_t token = block + 32 * half + lane;
                if (token >= q.first_token && token < q.end_token)
                    f((int32_t)token, half ? high : low);
            }
        });
    }
};

} // namespace

#endif
