/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17: arguments of the calls between two draws. Defaults and shapes are those of
 * programs.h, recent.h and watermark.h, which document every field.
 */
#ifndef GUMBEL_CXX_PARAMETERS_STEPS_HPP
#define GUMBEL_CXX_PARAMETERS_STEPS_HPP

#include <gumbel/cxx/parameters.hpp>
#ifdef GUMBEL_UNSTABLE
#include <gumbel/recent.h>
#include <gumbel/watermark.h>
#include <array>
#endif

namespace gumbel
{

/* Changes of row parameters after a draw. */
struct rule_updates {
    std::int64_t batch = 0;
    span<const std::int32_t> tokens; /* [B], at token_stride elements */
    std::int64_t token_stride = 0;   /* 0: 1 */
    span<const float> logprobs;      /* as tokens; absent without surprise or adaptive_target */
    gumbel::slots slots;
    const std::int32_t *live_rows = nullptr; /* [1] */
    span<float> surprise;                    /* [B or slots], at surprise_stride elements */
    std::int64_t surprise_stride = 0;
    row<float> surprise_target;
    row<float> surprise_rate;
    span<float> top_p; /* [B or slots], at top_p_stride elements */
    std::int64_t top_p_stride = 0;
    row<float> top_p_first;
    row<float> top_p_decay;
    row<float> top_p_min;
    row<std::int32_t> top_p_reset;
    span<float> adaptive_target; /* [B or slots], at adaptive_target_stride elements */
    std::int64_t adaptive_target_stride = 0;
    span<float> adaptive_sum; /* [B or slots], at adaptive_sum_stride elements */
    std::int64_t adaptive_sum_stride = 0;
    span<float> adaptive_weight; /* [B or slots], at adaptive_weight_stride elements */
    std::int64_t adaptive_weight_stride = 0;
    row<float> adaptive_goal;
    row<float> adaptive_decay;
};

#ifdef GUMBEL_UNSTABLE

/* The last tokens of rows. */
struct recent {
    std::int64_t capacity = 0;
    span<std::int32_t> tokens;                /* [B or slots, capacity] */
    span<std::uint64_t> count;                /* [B or slots] */
    const gumbel::history *history = nullptr; /* counts the last `window` tokens */
    row<std::int32_t> window;
};

/* Sequences of tokens: sequence k is ids[offsets[k]] .. ids[offsets[k + 1] - 1]. */
struct sequences {
    span<const std::int64_t> offsets; /* [count + 1] or absent */
    span<const std::int32_t> ids;
    span<const std::int64_t> of_row; /* [B + 1]; absent: all rows have all */
};

struct list_rules {
    row<float> dry_multiplier;
    row<float> dry_base;
    row<std::int32_t> dry_allowed_length;
    row<std::int32_t> dry_last_n;
    sequences dry_breakers; /* sorted by the first id */
    row<std::int32_t> ngram_size;
    row<std::int32_t> ngram_window;
    token_lists ngram_keep;
    sequences bad_words;
    row<std::uint64_t> position;
    row<std::uint64_t> min_position;
    token_lists stop_tokens;
};

/* Where make_lists() writes. */
struct row_lists {
    std::int64_t capacity = 0;
    span<std::int64_t> offsets;  /* [B + 1] */
    span<std::int32_t> banned;   /* [B, capacity], or absent if the rules are DRY alone */
    span<std::int32_t> late_ids; /* [B, capacity], or absent without dry_multiplier */
    span<float> late_values;     /* [B, capacity], with late_ids */
    span<std::int32_t> status;   /* [B], each a row_status */
};

/* Watermarks of rows, or of requests. */
struct watermark {
    span<const std::uint64_t> key; /* [B or slots, 2], at key_stride elements */
    std::int64_t key_stride = 0;   /* 0: 2; GUMBEL_SAME: one key for all */
    row<std::int32_t> context;
    row<std::uint64_t> text_start;
    row<std::uint64_t> seed;
    row<std::uint64_t> position;
    gumbel::slots slots;
    const std::int32_t *live_rows = nullptr; /* [1] */
    span<const std::int32_t> drafts;         /* [B] rows of num_drafts tokens, at draft_stride */
    std::int64_t draft_stride = 0;
    std::int32_t num_drafts = 0;
};

/* Where watermark_rows() and watermark_nodes() write. */
struct watermark_draws {
    span<std::uint64_t> seed;       /* [B or slots] */
    span<std::uint64_t> position;   /* [B or slots], or [n] for nodes */
    span<std::int32_t> watermarked; /* [B], or [n] for nodes; or absent */
};

/* The watermark that detect_watermark() searches for. */
struct detector {
    std::array<std::uint64_t, 2> key{};
    std::int32_t context = 0; /* 0: GUMBEL_CONTEXT_DEFAULT */
    std::uint32_t sample = 0;
    std::uint32_t domain = 0;
    std::int64_t first = 0;
};

struct detection {
    std::int64_t scored = 0;
    double statistic = 0;
    double p_value = 1;
    double log10_p = 0;
};

#endif

} // namespace gumbel

#endif /* GUMBEL_CXX_PARAMETERS_STEPS_HPP */
