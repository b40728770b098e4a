/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: programs, ordered lists of sampling rules.
 *
 * gumbel_truncation alone has three rules in six orders. A program has any of the rules below, in
 * any order; a call has up to 16 programs, and each row selects one by its index. A row begins with
 * the logits y of all its tokens, after gumbel_transforms and before the temperature. Each rule of
 * its program, in turn, changes the values or removes tokens. The draw is among the tokens that
 * remain, with their last values as z. A rule reads only the tokens that earlier rules have kept,
 * with the values that these rules gave them. Greedy rows (T = 0) skip their program.
 *                                                                     [docs/maths.md, section 15]
 *
 * Example: top_n_sigma, then min_p, then the temperature, on the CPU.
 *
 *     const uint8_t rules[GUMBEL_PROGRAM_LENGTH] = {
 *         GUMBEL_PROGRAM_TOP_N_SIGMA, GUMBEL_PROGRAM_MIN_P, GUMBEL_PROGRAM_TEMPERATURE};
 *     gumbel_programs programs = {.struct_size = sizeof programs, .rules = rules, .count = 1};
 *     programs.top_n_sigma = (gumbel_row_f32){&sigma, GUMBEL_SAME};
 *     gumbel_truncation kept = {.struct_size = sizeof kept, .programs = &programs};
 *     kept.min_p = (gumbel_row_f32){&min_p, GUMBEL_SAME};
 *     how.truncation = &kept; // then gumbel_sample() or gumbel_sample_logits()
 *
 * The table uses these names, for the n tokens that remain when a rule begins, with values v:
 *   m          the largest value                p      the softmax of v
 *   entropy    - sum p ln p                     sigma  standard deviation of v over the n tokens
 * Sums are sums of integers, which do not depend on the order of summation, so every backend keeps
 * the same tokens. For the entropy, m - v is rounded to a multiple of 2^-16 and limited to 2^15;
 * for sigma, v is rounded so and limited to +-2^15.
 *
 *   rule         keeps tokens with, or sets                                  off    used by
 *   TEMPERATURE  v * (1 / T); see temperature_range                                 all engines
 *   MIN_P        v >= m + ln(min_p)                                          0      llama.cpp, vLLM
 *   TOP_K        v >= the k-th largest v                                     0      all engines
 *   TOP_P        mass of strictly larger v below top_p                       1      all engines
 *   TYPICAL_P    mass of tokens whose -ln p is closer to the entropy,        1      transformers
 *                below typical_p (arXiv 2202.00666)
 *   TOP_N_SIGMA  v >= m - top_n_sigma * sigma (arXiv 2411.07641)             0      llama.cpp
 *   EPSILON      p >= epsilon (arXiv 2210.15191)                             0      transformers
 *   ETA          p >= min(eta, sqrt(eta) * exp(-entropy))                    0      transformers
 *   TOP_A        p >= top_a * p(m)^2                                         0      koboldcpp
 *   P_LESS       p >= sum p^2 (arXiv 2509.23234)                                     llama.cpp
 *   SURPRISE     -log2 p <= surprise, mirostat 2's mu (arXiv 2007.14966)     +inf   llama.cpp
 *   XTC          below                                                       0      llama.cpp
 *   SMOOTHING    m - f k d^2 + f s d^3, where d = v - m, f is the factor,    0      koboldcpp
 *                k = (3 - curve) / 2, s = (curve - 1) / 2
 *   ADAPTIVE_P   5 - 10 d^2 / (1 + d), where d = |p - adaptive_target| / 0.3 -1     llama.cpp
 *
 * XTC (exclude top choices). Let x be the smallest v with p >= xtc_threshold. If two or more tokens
 * have such p, those with v > x are removed with probability P = xtc_probability, all or none. The
 * draw tosses no coin for that. With M the probability of these tokens at the end of the program,
 * ln((1 - P) / (1 + P M / (1 - M))) is added to their z. All tokens then have the probabilities
 * that they have on average over the coin, and log-probabilities are of this distribution. Only
 * TEMPERATURE may follow XTC. A row in which a token of xtc_keep would be removed skips the rule.
 *
 * ADAPTIVE_P prefers tokens whose probability is near a target that gumbel_update_rules() adapts
 * from draw to draw. No rule follows it, and a program that has XTC cannot have it. After it, all
 * tokens of little probability have about equal z, so MIN_P or TOP_K should come before it.
 *
 * Ties. Tokens with equal v are kept or removed together. With GUMBEL_TIES_EXACT, TOP_K and TOP_P
 * keep the lowest ids of the tokens at their cutoff, and of the tokens with v = x, XTC keeps only
 * the highest id. A token of the largest v always remains, except under TYPICAL_P and XTC. Tokens
 * with y = -inf are in no sum and no count.
 *
 * Outputs. A removed token has z = -inf: it is in no list of top tokens, and has no rank.
 *
 * Equal orders. A gumbel_order draws the call if all its rows have one program, whose rules that
 * are set are TEMPERATURE, MIN_P, TOP_K and TOP_P in the sequence of that order, min_keep and
 * temperature_range are not set, and no ranks, top tokens or given tokens are requested. The tokens
 * are the same.
 *
 * Devices. CPU devices support all programs, and so do CUDA devices if a sixteenth of a row fits in
 * the shared memory of a CTA, and the GPU runs 16 such CTAs at the same time: up to 794624 tokens
 * if a multiprocessor has 228 KiB, as on capability 9.0, up to 532480 with 164 KiB (8.0), 270336
 * with 100 KiB (8.6, 8.9), and 122880 with 64 KiB (7.5). Other CUDA calls return
 * GUMBEL_ERROR_UNSUPPORTED, unless a gumbel_order draws them. Over ranks, every rank
 * gathers the logits of whole rows and draws from them on its device.
 */
#ifndef GUMBEL_PROGRAMS_H
#define GUMBEL_PROGRAMS_H

#include "gumbel/gumbel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GUMBEL_PROGRAM_LENGTH 16 /* entries of a program, GUMBEL_PROGRAM_END included */
#define GUMBEL_PROGRAMS_MAX   16 /* programs of a call */

/* The rules. Values never change. */
typedef enum gumbel_program_rule {
    GUMBEL_PROGRAM_END = 0, /* ends a shorter program */
    GUMBEL_PROGRAM_TEMPERATURE = 1,
    GUMBEL_PROGRAM_MIN_P = 2,
    GUMBEL_PROGRAM_TOP_K = 3,
    GUMBEL_PROGRAM_TOP_P = 4,
    GUMBEL_PROGRAM_TYPICAL_P = 5,
    GUMBEL_PROGRAM_TOP_N_SIGMA = 6,
    GUMBEL_PROGRAM_EPSILON = 7,
    GUMBEL_PROGRAM_ETA = 8,
    GUMBEL_PROGRAM_TOP_A = 9,
    GUMBEL_PROGRAM_P_LESS = 10,
    GUMBEL_PROGRAM_SURPRISE = 11,
    GUMBEL_PROGRAM_XTC = 12,
    GUMBEL_PROGRAM_SMOOTHING = 13,
    GUMBEL_PROGRAM_ADAPTIVE_P = 14,
} gumbel_program_rule;

/* The programs of a call, and the row parameters of the rules that gumbel_truncation lacks. A rule
 * whose parameter is off removes nothing and changes nothing. Every program must list TEMPERATURE,
 * and no rule twice.
 *  rules        [count, GUMBEL_PROGRAM_LENGTH] gumbel_program_rule, GUMBEL_PROGRAM_END after the
 *               last. In host memory on every device; read only while the call runs on the host
 *  program      the index of the row's program
 *  min_keep     minimum number of tokens that each rule except TOP_K leaves: a threshold falls to
 *               the min_keep-th largest v (TYPICAL_P: the min_keep-th closest), and XTC is skipped
 *  temperature_range
 *               r > 0: the temperature depends on the entropy and is
 *               lo + (hi - lo) * (entropy / ln n)^temperature_exponent, lo = max(0, T - r),
 *               hi = T + r; T itself if n = 1. TEMPERATURE must then come before XTC
 * since 0.3; unstable until 1.0 */
typedef struct gumbel_programs {
    size_t struct_size;
    const uint8_t *rules;
    int32_t count;                       /* 1..GUMBEL_PROGRAMS_MAX */
    int32_t reserved;                    /* 0 */
    gumbel_row_i32 program;              /* in [0, count); the default is 0 */
    gumbel_row_i32 min_keep;             /* >= 1; the default is 1 */
    gumbel_row_f32 temperature_range;    /* finite, >= 0; the default is 0, off */
    gumbel_row_f32 temperature_exponent; /* finite, >= 0; the default is 1 */
    gumbel_row_f32 typical_p;            /* in (0, 1]; the default is 1, off */
    gumbel_row_f32 top_n_sigma;          /* finite, >= 0; the default is 0, off */
    gumbel_row_f32 epsilon;              /* in [0, 1); the default is 0, off */
    gumbel_row_f32 eta;                  /* in [0, 1); the default is 0, off */
    gumbel_row_f32 top_a;                /* in [0, 1]; the default is 0, off */
    gumbel_row_f32 surprise;             /* bits, >= 0; the default is +inf, off */
    gumbel_row_f32 xtc_probability;      /* in [0, 1]; the default is 0, off */
    gumbel_row_f32 xtc_threshold;        /* in (0, 1], off above 0.5; the default is 0.1 */
    gumbel_token_lists xtc_keep;         /* without values */
    gumbel_row_f32 smoothing_factor;     /* finite, >= 0; the default is 0, off */
    gumbel_row_f32 smoothing_curve;      /* in [1, 3]; the default is 1 */
    gumbel_row_f32 adaptive_target;      /* in [-1, 1]; off below 0; the default is -1 */
} gumbel_programs;

/* Row parameters that change from step to step. On CUDA all pointers are device pointers. The
 * values are read and written in place, at [b * stride], or at a slot's index; `stride` 0 means 1.
 *  surprise   mu of mirostat 2: the call subtracts surprise_rate * (s - surprise_target), where s
 *             is -log2 of the token's probability, from `logprobs`; the result is at least 0. Start
 *             at 2 * surprise_target. Draw with the same array as gumbel_programs.surprise
 *  top_p      top_p_first if the token is top_p_reset, else the larger one of top_p * top_p_decay
 *             and top_p_min. Draw with the same array as gumbel_truncation.top_p
 *  adaptive_target
 *             the next target of ADAPTIVE_P: 2 * adaptive_goal - adaptive_sum / adaptive_weight,
 *             clamped to [0, 1], after adaptive_sum becomes p + adaptive_decay * adaptive_sum and
 *             adaptive_weight becomes 1 + adaptive_decay * adaptive_weight; -1 if adaptive_goal is
 *             below 0. p is the token's probability before ADAPTIVE_P, from `logprobs`, of which
 *             NaN and numbers above 0 count as 0. The draw's own log-probabilities are of the
 *             distribution after it, so score the drawn tokens first: gumbel_sample_logits() with
 *             them as gumbel_sampling.given, and the programs of the draw without
 *             `adaptive_target`, which turns the rule off. Its log-probabilities are the `logprobs`
 *             here. Start at adaptive_target = adaptive_goal, adaptive_sum = adaptive_goal / (1 -
 *             adaptive_decay), adaptive_weight = 1 / (1 - adaptive_decay). Draw with the same array
 *             as gumbel_programs.adaptive_target
 * since 0.3; unstable until 1.0 */
typedef struct gumbel_rule_updates {
    size_t struct_size;
    int64_t batch;            /* B >= 0 */
    const int32_t *tokens;    /* [B] at token_stride: the tokens just drawn; a row whose token is
                               * below 0 keeps its values */
    int64_t token_stride;     /* elements between rows; 0 means 1 */
    const float *logprobs;    /* [B] at token_stride: their GUMBEL_PROCESSED log-probabilities; read
                               * with `surprise` or `adaptive_target`, which exclude each other */
    gumbel_slots slots;       /* as in gumbel_sampling; no two rows may have the same slot */
    const int32_t *live_rows; /* as in gumbel_sampling; other rows keep their values */
    float *surprise;          /* [B or slots], or NULL */
    int64_t surprise_stride;
    gumbel_row_f32 surprise_target; /* bits, finite, >= 0; required with `surprise` */
    gumbel_row_f32 surprise_rate;   /* finite, >= 0; the default is 0.1 */
    float *top_p;                   /* [B or slots], or NULL */
    int64_t top_p_stride;
    gumbel_row_f32 top_p_first; /* in (0, 1]; the default is 1 */
    gumbel_row_f32 top_p_decay; /* in (0, 1]; the default is 1 */
    gumbel_row_f32 top_p_min;   /* in (0, 1]; the default is 2^-149 */
    gumbel_row_i32 top_p_reset; /* a token; the default is -1, none */
    float *adaptive_target;     /* [B or slots], or NULL; written only */
    int64_t adaptive_target_stride;
    float *adaptive_sum; /* [B or slots]; required with `adaptive_target` */
    int64_t adaptive_sum_stride;
    float *adaptive_weight; /* [B or slots]; required with `adaptive_target` */
    int64_t adaptive_weight_stride;
    gumbel_row_f32 adaptive_goal;  /* in [-1, 1]; required with `adaptive_target` */
    gumbel_row_f32 adaptive_decay; /* in [0, 0.99]; the default is 0.9 */
} gumbel_rule_updates;

/* gumbel_update_rules(): update row parameters after a draw, by one kernel on CUDA.
 *  graphs     may be captured after the draw; replays read and write the arrays anew
 *  stream     CUDA: the work is queued; the call neither waits nor allocates. CPU: the work is done
 *             on return. Equal values give equal bits on every device
 *  threads    re-entrant if the updated arrays differ
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE. On CUDA the host
 *             does not read values: a value out of range counts as the default.        since 0.3 */
GUMBEL_CALL gumbel_update_rules(gumbel_device *device, void *stream,
                                const gumbel_rule_updates *updates, gumbel_error *error);

#ifdef __cplusplus
}
#endif

#endif
