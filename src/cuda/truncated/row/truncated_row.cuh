/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of a row, and y of a token or of a staged tile, computed from the logits.
 *
 * Masks and histories are read per token. Lists are unsorted: a CTA whose row has lists stages a
 * tile of the vocabulary at a time, searches the lists for tokens of the tile, and keeps the edited
 * y in shared memory. A list is read once per tile, may have any length and needs no workspace.
 */
#ifndef GUMBEL_CUDA_TRUNCATED_ROW_CUH
#define GUMBEL_CUDA_TRUNCATED_ROW_CUH

#include "maths/summary.h"
#include "maths/truncation.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/common/cuda_truncated_params.h"
#include "cuda/common/edits.cuh"
#include "cuda/common/widen.cuh"

namespace
{

constexpr int kThreads = CUDA_TRUNCATED_THREADS, kWarps = kThreads / 32;
constexpr int kTruncatedTile = CUDA_TRUNCATED_TILE;

/* The counter of ended CTAs of row b (cta_counter.cuh). */
__device__ __forceinline__ unsigned long long *get_split_counter(const cuda_truncated_params &p,
                                                                 int64_t b)
{
    return (unsigned long long *)&p.counters[CUDA_THRESHOLD_WORDS * b];
}

/* Bit mask of the subtiles of a block of row b that the product has stored. */
__device__ __forceinline__ uint32_t load_stored(const cuda_truncated_params &p, int64_t b,
                                                int64_t block)
{
    const int64_t rows = 32 * gumbel_mask_words_of(p.problem.batch);
    return p.stored_subtiles ? __ldcg(&p.stored_subtiles[block * rows + b]) : CUDA_ALL_SUBTILES;
}

struct truncated_row {
    gumbel_row draw;
    gumbel_rules rules;
    float log_min_p; /* -inf: no min_p */
    row_edits edits;
    bool lists;     /* lists edit the row */
    uint32_t flags; /* why the row cannot be drawn (gumbel_problem_row_flags()); 0: drawable */
};

/* The rules without truncation, as for a greedy row. */
__device__ __forceinline__ gumbel_rules without_truncation(gumbel_rules r)
{
    r.min_p = 0.0f;
    r.top_k = 0;
    r.top_p = 1.0f;
    return r;
}

__device__ __forceinline__ void set_rules(truncated_row &row, const gumbel_rules &rules)
{
    row.rules = rules;
    row.log_min_p = gumbel_log_min_p(rules.min_p);
}

/* Prefetches row b's parameters, one per lane of a whole warp, so that threads that read them one
 * after the other wait for memory once. */
__device__ __forceinline__ void prefetch_parameters(const gumbel_problem &q, int64_t b)
{
    const gumbel_sampling &s = q.sampling;
    const gumbel_truncation &t = q.truncation;
    const gumbel_transforms &e = q.transforms;
    const int lane = threadIdx.x % 32;
    const int64_t slot = gumbel_problem_slot(&q, b);
    const void *data = nullptr;
    int64_t stride = 0;
    auto assign = [&](int to, const auto &rows) {
        data = lane == to ? rows.data : data;
        stride = lane == to ? rows.stride * (int64_t)sizeof *rows.data : stride;
    };
    assign(0, s.temperature);
    assign(1, s.seed);
    assign(2, s.position);
    assign(3, t.min_p);
    assign(4, t.top_k);
    assign(5, t.top_p);
    assign(6, e.repetition);
    assign(7, e.frequency);
    assign(8, e.presence);
    if (data)
        ptx_prefetch_line((const char *)data + slot * stride);
}

/* Whether top_k or min_p truncate: then the largest tokens alone determine the kept set. */
__device__ __forceinline__ bool truncates_by_value(const gumbel_rules &r)
{
    return r.top_k > 0 || r.min_p > 0.0f;
}

/* Sets the parameters of the draw of row b. */
__device__ __forceinline__ void set_draw(truncated_row &row, const gumbel_problem &q, int64_t b)
{
    const uint32_t flags = gumbel_problem_row_flags(&q, b);
    row.draw = gumbel_problem_row(&q, b);
    row.flags = flags;
}

/* Sets the edits of row b. */
__device__ __forceinline__ void set_edits(truncated_row &row, const gumbel_problem &q, int64_t b)
{
    row.edits = load_row_edits(q, b);
    row.lists =
        (q.features & (GUMBEL_FEATURE_BANNED | GUMBEL_FEATURE_BIAS | GUMBEL_FEATURE_LATE_BIAS)) ||
        (row.edits.act && (!q.history.prompt || q.with_path));
}

__device__ inline truncated_row load_truncated_row(const gumbel_problem &q, int64_t b)
{
    truncated_row row;
    set_draw(row, q, b);
    set_rules(row, gumbel_problem_rules(&q, b, row.draw.greedy));
    set_edits(row, q, b);
    return row;
}

/* Whether row b is greedy; reads the temperature alone. */
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

/* y of a logit before edits: scale and soft-cap. */
__device__ __forceinline__ float scale_logit(const cuda_truncated_params &p, float l)
{
    const gumbel_problem &q = p.problem;
    return gumbel_transform_logit(l, q.scale, q.soft_cap, p.inverse_cap, 1.0f);
}

/* Summary flags of a z that keeps its row from being drawn. */
__device__ __forceinline__ uint32_t flags_of_z(float z)
{
    return isnan(z) ? GUMBEL_FLAG_NAN : z == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
}

/* y of a token of a row without lists. */
__device__ __forceinline__ float plain_y(const cuda_truncated_params &p, const truncated_row &row,
                                         int64_t token, float l)
{
    const gumbel_problem &q = p.problem;
    if (is_masked(row.edits, token))
        return -INFINITY;
    float y = scale_logit(p, l);
    return row.edits.act ? penalise_by_history(q, row.edits, token, 0, y) : y;
}

/* --------------------------------------------------------------------------------- lists ---- */

/* List entries of one tile of the vocabulary, in shared memory. */
struct list_stage {
    uint32_t counts[kTruncatedTile]; /* occurrences in the output */
    uint32_t banned[kTruncatedTile / 32];
    uint32_t prompt[kTruncatedTile / 32];
    uint32_t found[kWarps];   /* entries of the tile that each warp has found */
    int32_t places[kThreads]; /* their offsets in the tile, in the order of the list */
    float values[kThreads];
};

/* A tile and its y. */
struct staged_tile {
    list_stage stage;
    float y[kTruncatedTile];
};

static_assert(sizeof(staged_tile) <= CUDA_EDIT_BYTES, "the launcher reserves that much");

/* Calls f(offset) for the entries of row b's list in the tile that begins at `begin`, by any
 * thread. */
template <class F>
__device__ __forceinline__ void each_listed(const gumbel_token_lists &lists, int64_t b,
                                            int64_t begin, F f)
{
    if (!lists.offsets)
        return;
    for (int64_t i = lists.offsets[b] + threadIdx.x; i < lists.offsets[b + 1]; i += kThreads) {
        int64_t place = lists.ids[i] - begin;
        if (place >= 0 && place < kTruncatedTile)
            f((int)place);
    }
}

/* Adds the biases of tokens [begin, end) in the order of the list: the first entry of a token adds
 * all its biases. */
__device__ __noinline__ void add_biases(const gumbel_token_lists &lists, int64_t b, int64_t begin,
                                        int64_t end, list_stage &stage, float *y)
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

/* Converts row b's lists to the bits and counts of a staged tile, by all threads. */
__device__ __noinline__ void sort_lists(const gumbel_problem &q, const truncated_row &row,
                                        int64_t b, int64_t begin, list_stage &stage)
{
    const gumbel_transforms &t = q.transforms;
    const int64_t list = gumbel_problem_list_of_row(&q, b);
    auto count = [&](int place) { atomicAdd(&stage.counts[place], 1); };
    __syncthreads();
    for (int i = threadIdx.x; i < kTruncatedTile; i += kThreads)
        stage.counts[i] = 0;
    for (int i = threadIdx.x; i < kTruncatedTile / 32; i += kThreads)
        stage.banned[i] = stage.prompt[i] = 0;
    __syncthreads();
    if (q.features & GUMBEL_FEATURE_BANNED)
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

/* Writes y of the valid tokens in [begin, end), at most one tile, by all threads. With `fetched`, y
 * already holds the logits; otherwise they are loaded. */
__device__ __noinline__ void stage_tile(const cuda_truncated_params &p, const truncated_row &row,
                                        int64_t b, int64_t begin, int64_t end, list_stage &stage,
                                        float *y, bool fetched)
{
    const gumbel_problem &q = p.problem;
    const int64_t from = max(begin, q.first_token), to = min(end, q.end_token);
    const int64_t list = gumbel_problem_list_of_row(&q, b);
    sort_lists(q, row, b, begin, stage);
    for (int64_t token = from + threadIdx.x; token < to; token += kThreads) {
        float l = fetched ? y[token - begin] : raw_logit(q, b, token);
        y[token - begin] = scale_logit(p, l);
    }
    __syncthreads();
    if (q.features & GUMBEL_FEATURE_BIAS)
        add_biases(q.transforms.bias, list, begin, to, stage, y);
    for (int64_t token = from + threadIdx.x; token < to; token += kThreads) {
        int place = (int)(token - begin);
        uint32_t listed = min(stage.counts[place], (uint32_t)GUMBEL_COUNT_MAX);
        float &own = y[place];
        if (is_masked(row.edits, token) || read_bit(stage.banned, place))
            own = -INFINITY;
        else if (row.edits.act && q.history.prompt)
            own = penalise_by_history(q, row.edits, token, listed, own);
        else if (listed > 0 || read_bit(stage.prompt, place))
            own = gumbel_apply_penalties(own, &row.edits.penalties, listed);
    }
    __syncthreads();
    if (q.features & GUMBEL_FEATURE_LATE_BIAS)
        add_biases(q.transforms.late_bias, list, begin, to, stage, y);
}

} // namespace

#endif
