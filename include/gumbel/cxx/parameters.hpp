/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel for C++17: arguments and outputs of calls, as plain structs. Defaults and shapes are
 * those of gumbel.h, which documents every field. Calls check the size of each view.
 */
#ifndef GUMBEL_CXX_PARAMETERS_HPP
#define GUMBEL_CXX_PARAMETERS_HPP

#include <gumbel/cxx/views.hpp>
#include <gumbel/drafts.h>
#include <gumbel/programs.h>
#ifdef GUMBEL_UNSTABLE
#include <gumbel/screen.h>
#endif

#include <array>

namespace gumbel
{

/* ------------------------------------------------------------------------------ devices ---- */

enum class isa : int {
    automatic = GUMBEL_ISA_AUTO,
    reference = GUMBEL_ISA_REFERENCE,
    avx2 = GUMBEL_ISA_AVX2,
    avx512 = GUMBEL_ISA_AVX512,
    neon = GUMBEL_ISA_NEON,
};

struct device_options {
    const char *device = nullptr; /* nullptr or "cpu"; or "cuda:N" */
    gumbel::isa isa = isa::automatic;
    std::int32_t threads = 0;
    std::int32_t tile = 0;
    gumbel_parallel_for parallel_for = nullptr;
    void *parallel_context = nullptr;
    const char *rungs = nullptr;
};

using device_info = gumbel_device_info;

/* ------------------------------------------------------------------------------- inputs ---- */

struct head {
    tensor hidden; /* [B, D] */
    tensor weight; /* [V, D] */
    tensor bias;   /* [1, V] or absent */
    float scale = 1;
    float soft_cap = 0;
    std::int64_t first_token = 0;
    std::int64_t vocab_size = 0; /* 0: first_token + V */
    gumbel_screen screen{};      /* screen of `weight` (screen.h) */
};

struct logits {
    tensor values; /* [B, V] */
    float scale = 1;
    float soft_cap = 0;
    std::int64_t first_token = 0;
    std::int64_t vocab_size = 0;
};

/* --------------------------------------------------------------------------- parameters ---- */

struct slots {
    span<const std::int32_t> of_row; /* [B] or absent */
    std::int64_t count = 0;
};

struct token_lists {
    span<const std::int64_t> offsets; /* [B + 1] or absent */
    span<const std::int32_t> ids;
    span<const float> values; /* one for each id; only a bias has values */
};

/* Token counts [B or slots, vocab_size], of 16 or 32 bits. */
struct token_counts {
    constexpr token_counts() noexcept = default;
    constexpr token_counts(span<std::uint16_t> of) noexcept
        : data(of.data()), size(of.size()), bits(16)
    {
    }
    constexpr token_counts(span<std::int32_t> of) noexcept
        : data(of.data()), size(of.size()), bits(32)
    {
    }

    void *data = nullptr;
    std::size_t size = 0;
    std::int32_t bits = 16;
};

struct history {
    std::int64_t vocab_size = 0;
    span<std::uint32_t> prompt; /* [B or slots, ceil(vocab_size / 32)] */
    span<std::uint32_t> output; /* [B or slots, ceil(vocab_size / 32)] */
    token_counts counts;
};

struct transforms {
    span<const std::int32_t> mask; /* [B or slots, words], at mask_stride words */
    std::int64_t mask_stride = 0;  /* 0: ceil((first_token + V) / 32); GUMBEL_SAME: one for all */
    token_lists allowed;
    token_lists banned;
    token_lists bias;
    row<float> repetition;
    row<float> frequency;
    row<float> presence;
    const gumbel::history *history = nullptr;
    token_lists prompt_tokens;
    token_lists output_tokens;
    token_lists late_bias;                /* added after the penalties */
    span<const std::int32_t> list_status; /* [B] of make_lists() or absent */
    std::int64_t max_allowed = 0;         /* most tokens that a row allows; 0: unknown. Unstable */
};

enum class order : int {
    min_p_top_k_top_p = GUMBEL_ORDER_MIN_P_TOP_K_TOP_P,
    joint = GUMBEL_ORDER_JOINT,
    before_temperature = GUMBEL_ORDER_BEFORE_TEMPERATURE,
    top_k_top_p_min_p = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P,
    top_k_top_p_min_p_temperature = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
    joint_temperature = GUMBEL_ORDER_JOINT_TEMPERATURE,
};

enum class ties : int { all = GUMBEL_TIES_ALL, exact = GUMBEL_TIES_EXACT };

/* A rule of a program (programs.h). */
enum class program_rule : std::uint8_t {
    end = GUMBEL_PROGRAM_END,
    temperature = GUMBEL_PROGRAM_TEMPERATURE,
    min_p = GUMBEL_PROGRAM_MIN_P,
    top_k = GUMBEL_PROGRAM_TOP_K,
    top_p = GUMBEL_PROGRAM_TOP_P,
    typical_p = GUMBEL_PROGRAM_TYPICAL_P,
    top_n_sigma = GUMBEL_PROGRAM_TOP_N_SIGMA,
    epsilon = GUMBEL_PROGRAM_EPSILON,
    eta = GUMBEL_PROGRAM_ETA,
    top_a = GUMBEL_PROGRAM_TOP_A,
    p_less = GUMBEL_PROGRAM_P_LESS,
    surprise = GUMBEL_PROGRAM_SURPRISE,
    xtc = GUMBEL_PROGRAM_XTC,
    smoothing = GUMBEL_PROGRAM_SMOOTHING,
    adaptive_p = GUMBEL_PROGRAM_ADAPTIVE_P,
};

/* An ordered list of rules; the rest is program_rule::end. */
using program = std::array<program_rule, GUMBEL_PROGRAM_LENGTH>;

struct programs {
    span<const gumbel::program> rules; /* in host memory on every device */
    row<std::int32_t> program;         /* which of them a row has; default 0 */
    row<std::int32_t> min_keep;
    row<float> temperature_range;
    row<float> temperature_exponent;
    row<float> typical_p;
    row<float> top_n_sigma;
    row<float> epsilon;
    row<float> eta;
    row<float> top_a;
    row<float> surprise;
    row<float> xtc_probability;
    row<float> xtc_threshold;
    token_lists xtc_keep;
    row<float> smoothing_factor;
    row<float> smoothing_curve;
    row<float> adaptive_target;
};

struct truncation {
    row<float> min_p;
    row<std::int32_t> top_k;
    row<float> top_p;
    gumbel::order order = order::min_p_top_k_top_p;
    gumbel::ties ties = ties::all;
    const gumbel::programs *programs = nullptr; /* in place of `order` */
};

/* Values of the field `domain` of sampling. */
inline constexpr std::uint32_t target_domain = GUMBEL_DOMAIN_TARGET;
inline constexpr std::uint32_t draft_domain = GUMBEL_DOMAIN_DRAFT;
inline constexpr std::uint32_t accept_domain = GUMBEL_DOMAIN_ACCEPT;
inline constexpr std::uint32_t residual_domain = GUMBEL_DOMAIN_RESIDUAL;
inline constexpr std::uint32_t group_domain = GUMBEL_DOMAIN_GROUP;
inline constexpr std::uint32_t stream_domain = GUMBEL_DOMAIN_STREAM;

struct sampling {
    row<float> temperature; /* default 1 */
    row<std::uint64_t> seed;
    row<std::uint64_t> position;
    row<std::uint32_t> first_sample;
    std::int32_t num_samples = 1;
    const gumbel::transforms *transforms = nullptr;
    const gumbel::truncation *truncation = nullptr;
    gumbel::slots slots;
    const std::int32_t *live_rows = nullptr; /* [1] */
    span<const std::int32_t> given;          /* [B, S], at given_stride elements a row */
    std::int64_t given_stride = 0;
    span<const float> noise; /* [B, S, V], at noise_stride elements a draw */
    std::int64_t noise_stride = 0;
    std::uint32_t domain = target_domain;
    span<const std::int32_t> token_ids; /* [V] ids of the rows of a head over a subset of the
                                         * vocabulary. Unstable */
};

/* Limits of the calls that share one workspace. */
struct limits {
    std::int64_t batch = 0;
    std::int64_t vocab_size = 0;
    std::int64_t hidden_size = 0;
    std::int32_t num_samples = 1;
    bool requests = false;
    bool screens = false;
    std::int32_t max_nodes = 0;
    bool token_ids = false; /* some calls have token_ids. Unstable */
};

/* ------------------------------------------------------------------------------ results ---- */

enum class distribution : int { processed = GUMBEL_PROCESSED, raw = GUMBEL_RAW };

enum class row_status : std::int32_t {
    ok = GUMBEL_ROW_OK,
    nan = GUMBEL_ROW_NAN,
    infinite = GUMBEL_ROW_INFINITE,
    empty = GUMBEL_ROW_EMPTY,
    temperature = GUMBEL_ROW_TEMPERATURE,
    slot = GUMBEL_ROW_SLOT,
    unused = GUMBEL_ROW_UNUSED,
    draft = GUMBEL_ROW_DRAFT,
    lists = GUMBEL_ROW_LISTS,
};

struct output {
    span<std::int32_t> tokens;  /* [B, S] */
    span<float> logprobs;       /* [B, S]; this and all below may be absent */
    span<float> scores;         /* [B, S] */
    span<float> lse;            /* [B] */
    span<std::int32_t> status;  /* [B], each a row_status */
    span<std::int32_t> ranks;   /* [B, S] */
    span<std::int32_t> kept;    /* [B] */
    span<std::int32_t> top_ids; /* [B, num_top] */
    span<float> top_logprobs;   /* [B, num_top] */
    std::int32_t num_top = 0;
    distribution logprobs_of = distribution::processed;
    span<float> top_logits;      /* [B, num_top] */
    span<std::int32_t> best_ids; /* [B, num_best] */
    span<float> best_scores;     /* [B, num_best] */
    std::int32_t num_best = 0;
    std::int32_t kept_capacity = 0;
    span<std::int32_t> kept_ids; /* [B, kept_capacity]; requires `kept` */
    span<float> kept_logprobs;   /* [B, kept_capacity] */
    span<float> entropy;         /* [B] in nats, of logprobs_of */
};

using summary = gumbel_summary;

struct step {
    std::int64_t batch = 0;
    std::int32_t num_samples = 1;
    span<const std::int32_t> tokens; /* [B, S] */
    span<std::uint64_t> position;    /* [B or slots], at position_stride elements */
    std::int64_t position_stride = 0;
    span<std::int32_t> ring; /* [ring_length, B or slots, S] or absent */
    std::int64_t ring_length = 0;
    gumbel::slots slots;
    const std::int32_t *live_rows = nullptr;
};

/* ------------------------------------------------------------------------------- drafts ---- */

enum class rule : int {
    coupled = GUMBEL_RULE_COUPLED,
#ifdef GUMBEL_UNSTABLE
    rejection = GUMBEL_RULE_REJECTION,
    block = GUMBEL_RULE_BLOCK,
#endif
};

/* R requests, at most M nodes each, n rows. */
struct draft {
    std::int64_t requests = 0;
    std::int32_t max_nodes = 0;
    gumbel::rule rule = rule::coupled;
    span<const std::int32_t> tokens;  /* [n] */
    span<const std::int32_t> offsets; /* [R + 1] or absent */
    span<const std::int32_t> nodes;   /* [R] or absent */
    span<const std::int32_t> parents; /* [n] or absent */
    span<const std::int32_t> limit;   /* [R] or absent */
    token_lists stop;                 /* R lists */
    const gumbel::head *head = nullptr;
    const gumbel::logits *logits = nullptr;
    const gumbel::sampling *sampling = nullptr;
    span<const float> lse;                   /* [n] or absent */
    span<const float> logprobs;              /* [n] or absent */
    span<const std::uint64_t> node_position; /* [n] or absent */
};

enum class finish_reason : std::int32_t {
    none = GUMBEL_FINISHED_NOT,
    stop = GUMBEL_FINISHED_STOP,
    limit = GUMBEL_FINISHED_LIMIT,
};

struct verified {
    span<std::int32_t> tokens;     /* [R, M] */
    span<std::int32_t> emitted;    /* [R] */
    span<std::int32_t> accepted;   /* [R]; this and all below may be absent */
    span<std::int32_t> path;       /* [R, M] */
    span<std::int32_t> last_row;   /* [R] */
    span<std::uint64_t> position;  /* [R or slots] */
    span<std::int32_t> finished;   /* [R], each a finish_reason */
    span<std::int32_t> status;     /* [R], each a row_status */
    span<float> logprobs;          /* [R, M] */
    span<float> scores;            /* [R, M] */
    span<std::uint64_t> histogram; /* [M] */
    const output *rows = nullptr;  /* of n rows */
};

} // namespace gumbel

#endif /* GUMBEL_CXX_PARAMETERS_HPP */
