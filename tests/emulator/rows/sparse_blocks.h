/* SPDX-License-Identifier: Apache-2.0
 *
 * Block maxima of logits, and logits of a product that stores only some subtiles.
 */
#ifndef TESTS_EMULATOR_SPARSE_BLOCKS_H
#define TESTS_EMULATOR_SPARSE_BLOCKS_H

#include "cuda/policy/cuda_policy.h"
#include "cuda/common/cuda_truncated_params.h"
#include "problems.h"

extern "C" {
#include "core/row.h"
#include "maths/truncation.h"
}

#include <string.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

inline float logit_of(const gumbel_tensor &t, int64_t index)
{
    if (t.dtype == GUMBEL_FLOAT16) {
        uint16_t bits = ((const uint16_t *)t.data)[index];
        if ((bits & 0x7c00) == 0x7c00)
            return bits & 0x3ff ? NAN : bits & 0x8000 ? -INFINITY : INFINITY;
    }
    return dtype_load(t.data, t.dtype, index);
}

/* Whether row b's history has seen a token. */
inline bool is_seen(const gumbel_problem &q, int64_t b, int64_t token)
{
    const gumbel_history &h = q.history;
    if (!(q.features & GUMBEL_FEATURE_PENALTIES) || token >= h.vocab_size)
        return false;
    int64_t at = b * gumbel_mask_words_of(h.vocab_size) + token / 32;
    return (h.prompt[at] | h.output[at]) >> token % 32 & 1;
}

/* The largest valid logit of each block of each row, or of each of its `parts`; with `masked`, of
 * allowed tokens; with `unseen`, of tokens that the history has not seen. NaN if one is NaN. */
inline std::vector<float> find_block_maxima(const gumbel_problem &q, int64_t blocks, bool masked,
                                            bool unseen = false, int64_t parts = 1)
{
    masked = masked && (q.features & GUMBEL_FEATURE_MASK);
    std::vector<float> maxima((size_t)(q.batch * blocks * parts), -INFINITY);
    for (int64_t b = 0; b < q.batch; b++)
        for (int64_t token = q.first_token; token < q.end_token; token++) {
            int64_t place = token - CUDA_MAXIMA_ORIGIN(q.first_token);
            int64_t part = place / (CUDA_MAXIMA_BLOCK / parts);
            float &maximum = maxima[(size_t)(b * blocks * parts + part)];
            if (masked && !(gumbel_problem_mask(&q, b)[token / 32] >> token % 32 & 1))
                continue;
            if (unseen && is_seen(q, b, token))
                continue;
            float logit = logit_of(q.logits, b * q.logits.stride + token - q.first_token);
            if (!(logit <= maximum) && !std::isnan(maximum))
                maximum = logit;
        }
    return maxima;
}

/* Logits of a product that stores only some subtiles. */
struct sparse_blocks {
    std::vector<uint8_t> stored_subtiles;   /* [blocks][32] */
    std::vector<float> unseen_block_maxima; /* [B, blocks]: maxima of tokens that the history has
                                             * not seen */
    std::vector<unsigned char> logits;      /* rows of `stride` elements, aligned in quads */
    int64_t stride;
    std::vector<uint64_t> thresholds; /* [B][CUDA_THRESHOLD_WORDS], as the product leaves them */
};

/* Whether a product may leave out subtiles for such a request, as in the CUDA backend; clusters
 * fill them in place, which takes float32. */
inline bool bounds_apply(const gumbel_problem &q)
{
    return q.soft_cap == 0.0f && q.logits.dtype == GUMBEL_FLOAT32;
}

/* A row's truncation, as far as bounds use it; off for a row that cannot be drawn. */
struct row_truncation {
    int32_t top_k;
    float min_p;
    bool whole; /* a top_p of the whole row */
};

inline row_truncation cuts_of(const gumbel_problem &q, int64_t b)
{
    const gumbel_rules rules = gumbel_problem_rules(&q, b, 0);
    return {(int32_t)rules.top_k, rules.min_p, rules.joint && rules.top_p < 1.0f};
}

/* Whether a product has a bound for row b: a usual temperature, and no penalty that raises tokens.
 */
inline bool has_bound(const gumbel_problem &q, int64_t b)
{
    gumbel_penalties raised = gumbel_problem_penalties(&q, b);
    gumbel_row row = gumbel_problem_row(&q, b);
    const float factor = q.scale * row.inverse_temperature;
    const row_truncation cuts = cuts_of(q, b);
    return (cuts.top_k > 0 || cuts.min_p > 0.0f) && cuts.top_k <= CUDA_TRUNCATED_TOP_MAX &&
           !cuts.whole && !row.greedy && factor > 0x1p-50f && factor < 0x1p50f &&
           raised.repetition >= 1 && raised.frequency >= 0 && raised.presence >= 0;
}

/* How far below the largest logit of row b min_p truncates, plus a margin, as row_bound_of(). */
inline float distance_of_min_p(const gumbel_problem &q, int64_t b)
{
    const bool before = gumbel_problem_rules(&q, b, 0).before;
    const float unit = q.scale * (before ? 1.0f : gumbel_problem_row(&q, b).inverse_temperature);
    return -1.001f * gumbel_min_p_bound(0.0f, gumbel_log_min_p(cuts_of(q, b).min_p)) / unit;
}

/* The logit that a token of row b must reach to matter, from the block maxima in `raising`; -inf if
 * all may. */
inline float bound_of_row(const cuda_truncated_params &p, const std::vector<float> &raising,
                          int64_t b)
{
    const row_truncation cuts = cuts_of(p.problem, b);
    int64_t rank = std::max(cuts.top_k, p.output.num_top);
    if (rank > p.blocks || !has_bound(p.problem, b))
        return -INFINITY;
    std::vector<float> sorted;
    for (int64_t i = b * p.blocks; i < (b + 1) * p.blocks; i++)
        sorted.push_back(std::isnan(raising[(size_t)i]) ? INFINITY : raising[(size_t)i]);
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    float bound = rank > 0 ? sorted[(size_t)rank - 1] : INFINITY;
    if (cuts.top_k == 0)
        bound = std::min(bound, sorted[0] - distance_of_min_p(p.problem, b));
    /* as bound_below() */
    return std::min(bound, 0x1p60f) - std::max(std::fabs(bound) * 0x1p-18f, 0x1p-38f);
}

/* A bound as the product stores it, rounded down, with any launch's tag; or none. */
inline uint64_t pack_row_bound(float *bound)
{
    uint32_t bits;
    if (!(*bound > -INFINITY))
        return 0;
    memcpy(&bits, bound, sizeof bits);
    uint32_t key = (bits >> 31 ? ~bits : bits | 0x80000000u) & ~0xffu;
    bits = key >> 31 ? key & 0x7fffffffu : ~key;
    memcpy(bound, &bits, sizeof bits);
    return UINT64_C(0x5eed) << 24 | key >> 8;
}

/* Spoils the valid tokens of row b in [from, to) with NaN, or a value larger than all others, since
 * no kernel may read them. */
inline void spoil_logits(sparse_blocks *sparse, const gumbel_problem &q, int64_t b, int64_t from,
                         int64_t to, bool large)
{
    size_t size = dtype_size(q.logits.dtype);
    from = std::max(from, q.first_token);
    to = std::min(to, q.end_token);
    if (from < to)
        memset(&sparse->logits[(size_t)(b * sparse->stride + from - q.first_token) * size],
               large ? 0x7f : 0xff, (size_t)(to - from) * size);
}

/* Sets the logits of masked tokens to -inf. */
inline void drop_masked_logits(sparse_blocks *sparse, const gumbel_problem &q)
{
    const float lost = -INFINITY;
    const uint16_t lost_half = q.logits.dtype == GUMBEL_FLOAT16 ? 0xfc00 : 0xff80;
    const size_t size = dtype_size(q.logits.dtype);
    for (int64_t b = 0; b < q.batch && (q.features & GUMBEL_FEATURE_MASK); b++)
        for (int64_t token = q.first_token; token < q.end_token; token++)
            if (!(gumbel_problem_mask(&q, b)[token / 32] >> token % 32 & 1))
                memcpy(&sparse->logits[(size_t)(b * sparse->stride + token - q.first_token) * size],
                       size == sizeof lost ? (const void *)&lost : &lost_half, size);
}

/* Copies the logits as the product stores them. */
inline void copy_logits(sparse_blocks *sparse, const gumbel_tensor &t)
{
    const size_t size = dtype_size(t.dtype), row = (size_t)t.cols * size;
    sparse->stride = (t.cols + 3) / 4 * 4;
    sparse->logits.resize((size_t)(t.rows * sparse->stride) * size);
    for (int64_t b = 0; b < t.rows; b++)
        memcpy(&sparse->logits[(size_t)(b * sparse->stride) * size],
               (const unsigned char *)t.data + (size_t)(b * t.stride) * size, row);
}

/* Leaves out subtiles that cannot matter, and spoils their logits. As the product does, keeps
 * subtiles with a NaN or +inf, and keeps all if the bound comes late. */
inline sparse_blocks drop_unneeded_subtiles(const cuda_truncated_params &p, uint64_t *random)
{
    constexpr int64_t parts = CUDA_SUBTILES, size = CUDA_SUBTILE;
    const gumbel_problem &q = p.problem;
    sparse_blocks sparse = {};
    std::vector<float> maxima = find_block_maxima(q, p.blocks, true, false, parts);
    sparse.unseen_block_maxima = find_block_maxima(q, p.blocks, true, true);
    sparse.stored_subtiles.resize((size_t)(p.blocks * 32));
    sparse.thresholds.assign((size_t)(q.batch * CUDA_THRESHOLD_WORDS), 0);
    sparse.thresholds[1] = 7; /* number of CTAs of the product that have started */
    const int64_t origin = CUDA_MAXIMA_ORIGIN(q.first_token);
    copy_logits(&sparse, q.logits);
    drop_masked_logits(&sparse, q);
    for (int64_t b = 0; b < q.batch; b++) {
        float bound = bound_of_row(p, sparse.unseen_block_maxima, b);
        sparse.thresholds[(size_t)(b * CUDA_THRESHOLD_WORDS)] = pack_row_bound(&bound);
        bool odd = false; /* a random whole block */
        for (int64_t i = 0; i < p.blocks * parts; i++) {
            const int64_t from = origin + i * size;
            const float maximum = maxima[(size_t)(b * p.blocks * parts + i)];
            odd = i % parts == 0 ? one_in(random, 9) : odd;
            if (odd || !(maximum < bound))
                sparse.stored_subtiles[(size_t)(i / parts * 32 + b)] |= (uint8_t)(1 << i % parts);
            else
                spoil_logits(&sparse, q, b, from, from + size, one_in(random, 2));
        }
    }
    return sparse;
}

inline void hand_over(sparse_blocks *sparse, cuda_truncated_params *p)
{
    p->problem.logits.data = sparse->logits.data();
    p->problem.logits.stride = sparse->stride;
    p->stored_subtiles = sparse->stored_subtiles.data();
    p->unseen_block_maxima =
        p->problem.features & GUMBEL_FEATURE_PENALTIES ? sparse->unseen_block_maxima.data() : NULL;
    p->row_thresholds = sparse->thresholds.data();
}

#endif
