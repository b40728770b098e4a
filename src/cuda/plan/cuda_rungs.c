/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs of the CUDA backend, best first: the tables that decide which kernels serve a call.
 * docs/kernels.md is generated from these tables and from measurements.
 */
#include "core/row_program.h"
#include "cuda/plan/cuda_plan.h"

/* ------------------------------------------------------------------------------- products ---- */

/* Capabilities of a draw between the tiles of a product. */
#define CAPABILITIES_OF_TILES                                                                      \
    (GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_SOFT_CAP |             \
     GUMBEL_CAPABILITY_SCALE | GUMBEL_CAPABILITY_BIAS | GUMBEL_CAPABILITY_SUMMARIES |              \
     GUMBEL_CAPABILITY_PRODUCT)

/* Capabilities of a draw that reads its logits once. */
#define CAPABILITIES_OF_A_DRAW                                                                     \
    (GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_SOFT_CAP | GUMBEL_CAPABILITY_SCALE |            \
     GUMBEL_CAPABILITY_SUMMARIES)

static const char *hopper_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    if (cuda->base.capability != CUDA_SM90_CAPABILITY)
        return "the GPU is not of capability 9.0";
    if (p->weight.dtype != p->hidden.dtype || p->weight.dtype == GUMBEL_FLOAT32)
        return "weights and hidden states are not both bfloat16 or both float16";
    if (p->vocab % 16 != 0 || p->hidden_size % 8 != 0)
        return "V is not a multiple of 16, or D not of 8";
    if (p->first_token % 4 != 0)
        return "first_token is not a multiple of 4";
    if (!cuda_sm90_can_copy(&p->weight) || !cuda_sm90_can_copy(&p->hidden))
        return "rows of weights or hidden states are not aligned to 16 bytes";
    if (p->sampling.num_samples > CUDA_SM90_STATES / cuda_sm90_widths[0])
        return "there are too many samples";
    return NULL;
}

/* Why a call does not allow few tokens; NULL if it does. From a quarter of a head on, the full pass
 * can be faster: a product of gathered weights serves eight rows at once. */
static const char *refuse_many_allowed(const gumbel_problem *p)
{
    if (!(p->features & GUMBEL_FEATURE_MASK))
        return "no mask, and no lists of allowed tokens";
    if (p->transforms.max_allowed <= 0)
        return "max_allowed is not set";
    return p->transforms.max_allowed <= p->vocab / 4 / p->batch ? NULL
                                                                : "B * max_allowed exceeds V / 4";
}

/* Index of the product that stores all logits with the same bits. */
#define HOPPER 5

static const char *allowed_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    const char *refusal = refuse_many_allowed(p);
    if (refusal)
        return refusal;
    if (p->features & GUMBEL_FEATURE_RAW)
        return "raw log-probabilities require all logits";
    if (cuda->rungs.excluded >> HOPPER & 1)
        return "hopper is excluded, whose logits it computes";
    return hopper_refuses(cuda, p);
}

/* Whether lists alone allow tokens. */
static int has_lists_alone(const gumbel_problem *caller)
{
    return (caller->features & GUMBEL_FEATURE_ALLOWED) && !(caller->features & GUMBEL_FEATURE_MASK);
}

/* Lists that are short enough to be read without removing ids that rows share. */
static int allowed_reads_lists(const gumbel_problem *caller)
{
    return has_lists_alone(caller) &&
           caller->batch * caller->transforms.max_allowed <= CUDA_ALLOWED_LISTED_MAX;
}

/* Lists that are short enough to be read by each CTA of a group of rows. */
static int allowed_fused_reads_lists(const gumbel_problem *caller)
{
    const int64_t rows = caller->batch < CUDA_SCREEN_GROUP ? caller->batch : CUDA_SCREEN_GROUP;
    return has_lists_alone(caller) &&
           caller->transforms.max_allowed <= CUDA_ALLOWED_READ_MAX / rows;
}

/* Why no GPU draws a call with a screen; NULL: the product decides. */
static const char *refuse_screen_call(const cuda_device *cuda, const gumbel_problem *p)
{
    if (!p->screen)
        return "the head has no screen";
    if (p->batch > CUDA_SCREEN_ROWS_MAX / p->sampling.num_samples)
        return "there are more than 64 draws (rows times samples)";
    if (!(cuda->rungs.preferred & CUDA_SCREEN_RUNGS) &&
        !cuda_screen_is_faster(p->vocab, p->hidden_size))
        return "a head of fewer than 2^28 weights is faster by the full pass";
    if (p->first_token % GUMBEL_BLOCK != 0)
        return "first_token is not a multiple of 64";
    if (p->hidden_size > GUMBEL_SCREEN_COLUMNS_MAX)
        return "D is 2^16 or more";
    return NULL;
}

static const char *screen_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    const char *refusal = refuse_screen_call(cuda, p);
    if (refusal)
        return refusal;
    if (!allowed_refuses(cuda, p))
        return "few tokens are allowed, and only their weights are multiplied";
    if (cuda->rungs.excluded >> HOPPER & 1)
        return "hopper is excluded, whose logits it computes";
    return hopper_refuses(cuda, p);
}

static const char *cluster_refuses(const cuda_device *cuda, const gumbel_problem *p,
                                   uint32_t offered)
{
    (void)offered;
    if (!cuda->truncated_cluster)
        return "the GPU has no clusters";
    if (cuda_cluster_bytes(p) > cuda_cluster_max_bytes(cuda->shared_bytes))
        return "an eighth of a row exceeds the shared memory of a CTA";
    return NULL;
}

static const char *screen_truncated_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    gumbel_problem rows = *p;
    rows.sampling.num_samples = 1; /* all samples use one column of the screen */
    const char *refusal = screen_refuses(cuda, &rows);
    if (refusal)
        return refusal;
    const int is_preferred = (cuda->rungs.preferred & CUDA_SCREEN_RUNGS) != 0;
    if (!is_preferred && p->hidden_size > CUDA_SCREEN_TRUNCATED_HIDDEN_MAX)
        return "truncated rows with a D above 8192 were not measured";
    if (p->features & GUMBEL_FEATURE_PENALTIES && p->scale != 1.0f)
        return "penalties are not supported with a scale other than 1";
    return cluster_refuses(cuda, p, 0);
}

static const char *statistics_refuse(const cuda_device *cuda, const gumbel_problem *p)
{
    if (p->num_top > CUDA_STATISTICS_TOP_MAX)
        return "num_top is over 2";
    return hopper_refuses(cuda, p);
}

static uint32_t hopper_offers(const gumbel_problem *p)
{
    uint32_t draws = cuda_sm90_is_plain(p) && CUDA_SM90_HAS_BOTH(p->batch) ? CUDA_OUTPUT_DRAWS : 0;
    return CUDA_OUTPUT_BLOCK_MAXIMA | CUDA_OUTPUT_SUBTILES | draws;
}

static const char *tensor_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    int64_t weight_size = p->weight.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    int64_t hidden_size = p->hidden.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    if (!cuda->fused_sm80[CUDA_BF16][0])
        return "the GPU is not of capability 8.0 or later";
    if (cuda_sm80_is_mixed(p) && hidden_size != 2 * weight_size)
        return "dtypes of weights and hidden states differ, and are not 16-bit with float32";
    if (p->hidden_size >= INT64_C(1) << 28)
        return "D is 2^28 or more";
    if (!cuda_sm80_can_copy(&p->weight, weight_size) ||
        !cuda_sm80_can_copy(&p->hidden, hidden_size))
        return "rows of weights or hidden states are not aligned to 16 bytes";
    if (p->sampling.num_samples > CUDA_SM80_STATES / cuda_sm80_widths[0])
        return "there are too many samples";
    return NULL;
}

/* Index of the product whose logits have the bits of screen-tensor's. */
#define TENSOR 7

/* Candidates have the logits of `tensor`: it refuses calls whose full pass another product draws.
 */
static const char *screen_tensor_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    const char *refusal = refuse_screen_call(cuda, p);
    if (refusal)
        return refusal;
    if (p->screen_format != GUMBEL_SCREEN_BYTES)
        return "a screen of nibbles is read on GPUs of capability 9.0 alone";
    if (!(cuda->rungs.excluded >> HOPPER & 1) && !hopper_refuses(cuda, p))
        return "hopper draws the full pass, and its logits have other bits";
    if (cuda->rungs.excluded >> TENSOR & 1)
        return "tensor is excluded, whose logits it computes";
    if (!(cuda->rungs.preferred & CUDA_SCREEN_RUNGS) &&
        cuda_screen_draws(p) > CUDA_SCREEN_SM80_DRAWS)
        return "more than 32 draws are faster by the full pass";
    if (p->weight.dtype != p->hidden.dtype || p->weight.dtype == GUMBEL_FLOAT32)
        return "weights and hidden states are not both bfloat16 or both float16";
    if (p->hidden_size % 8 != 0)
        return "D is not a multiple of 8";
    const int width = cuda_screen_widths[cuda_screen_width_for(cuda_screen_draws(p))];
    if (cuda_screen_sm80_stages(width, cuda->shared_bytes) < 2)
        return "two stages exceed the shared memory of a CTA";
    return tensor_refuses(cuda, p);
}

const cuda_product cuda_products[CUDA_PRODUCTS] = {
    {
        .rung = {.name = "screen",
                 .method = "a quantized copy finds candidates; only their weights are multiplied",
                 .kernels = "screen_score.cu, screen_draw.cu, fused_fallback_sm90.cu",
                 .supports = GUMBEL_FEATURE_MASK | GUMBEL_CAPABILITY_SAMPLES},
        .refuses = screen_refuses,
        .carve = cuda_carve_screen,
        .run = cuda_run_screen,
    },
    {
        .rung = {.name = "screen-truncated",
                 .method = "a quantized copy finds the tokens that top_k <= 100 or min_p may keep",
                 .kernels = "screen_score.cu, screen_draw.cu, screen_rows.cu, "
                            "fused_fallback_sm90.cu, truncated_cluster.cu",
                 .supports = GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_RANKS |
                             GUMBEL_FEATURE_KEPT | GUMBEL_FEATURE_KEPT_IDS | GUMBEL_FEATURE_TOP |
                             (GUMBEL_CAPABILITIES_OF_TRUNCATION & ~GUMBEL_CAPABILITY_JOINT) |
                             GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_NOISE |
                             GUMBEL_CAPABILITY_SAMPLES,
                 .requires_any = GUMBEL_CAPABILITY_TOP_K | GUMBEL_CAPABILITY_MIN_P},
        .refuses = screen_truncated_refuses,
        .carve = cuda_carve_screen_truncated,
        .run = cuda_run_screen_truncated,
    },
    {
        .rung = {.name = "screen-tensor",
                 .method = "as screen, by mma.sync and cp.async, from capability 8.0 on",
                 .kernels = "screen_score_sm80.cu, screen_draw_sm80.cu, fused_fallback_sm80.cu",
                 .supports = GUMBEL_FEATURE_MASK | GUMBEL_CAPABILITY_SAMPLES},
        .refuses = screen_tensor_refuses,
        .carve = cuda_carve_screen_sm80,
        .run = cuda_run_screen_sm80,
    },
    {
        .rung = {.name = "allowed-fused",
                 .method = "weights of tokens that masks allow are multiplied, and drawn from, in "
                           "one launch",
                 .kernels = "allowed_fused.cu",
                 .supports = GUMBEL_FEATURE_MASK | GUMBEL_CAPABILITY_MASS |
                             GUMBEL_CAPABILITY_NOISE | GUMBEL_CAPABILITY_BIAS |
                             CAPABILITIES_OF_A_DRAW,
                 .requires_any = GUMBEL_FEATURE_MASK},
        .refuses = allowed_refuses,
        .run = cuda_run_allowed_fused,
        .reads_lists = allowed_fused_reads_lists,
    },
    {
        .rung = {.name = "allowed",
                 .method = "only weights of tokens that masks allow are multiplied",
                 .kernels = "allowed_product.cu",
                 .supports = GUMBEL_CAPABILITY_BIAS | GUMBEL_CAPABILITY_PRODUCT},
        .refuses = allowed_refuses,
        .run = cuda_run_allowed_product,
        .reads_lists = allowed_reads_lists,
    },
    [HOPPER] =
        {
            .rung = {.name = "hopper",
                     .method = "wgmma, TMA copies into a ring, the draw between two tiles",
                     .kernels = "fused_sm90.cu",
                     .supports = CAPABILITIES_OF_TILES},
            .refuses = hopper_refuses,
            .offers = hopper_offers,
            .run = cuda_run_sm90,
        },
    {
        .rung = {.name = "hopper-statistics",
                 .method = "as hopper, with entropies, two likeliest tokens, banned tokens",
                 .kernels = "fused_sm90.cu, finish.cu",
                 .supports = GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_TOP | GUMBEL_FEATURE_BANNED |
                             GUMBEL_CAPABILITY_LISTS | GUMBEL_CAPABILITY_MASS,
                 .requires_any =
                     GUMBEL_FEATURE_ENTROPY | GUMBEL_FEATURE_TOP | GUMBEL_FEATURE_BANNED},
        .refuses = statistics_refuse,
        .carve = cuda_carve_statistics,
        .run = cuda_run_sm90,
    },
    [TENSOR] =
        {
            .rung = {.name = "tensor",
                     .method = "mma.sync and cp.async, from capability 8.0 on",
                     .kernels = "fused_sm80.cu, fused_wide_sm80.cu, finish.cu",
                     .supports = CAPABILITIES_OF_TILES},
            .refuses = tensor_refuses,
            .run = cuda_run_sm80,
        },
    {
        .rung = {.name = "naive",
                 .method = "16 threads a token, for all dtypes and strides",
                 .kernels = "naive.cu, finish.cu",
                 .supports = CAPABILITIES_OF_TILES},
        .run = cuda_run_naive,
    },
};

/* ----------------------------------------------------------------------------------- rows ---- */

/* Capabilities of kernels that serve every call on rows without a program. */
#define CAPABILITIES_OF_ROWS                                                                       \
    (GUMBEL_CAPABILITY_END - 1 - GUMBEL_CAPABILITY_PRODUCT - GUMBEL_FEATURE_PROGRAM)

static const char *draw_allowed_refuses(const cuda_device *cuda, const gumbel_problem *p,
                                        uint32_t offered)
{
    (void)cuda, (void)offered;
    return refuse_many_allowed(p);
}

static const char *pivots_refuse(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    (void)offered;
    return cuda_count_pivot_splits(p) <= cuda->multiprocessors
               ? NULL
               : "a row has more splits than the GPU has multiprocessors";
}

static const char *blocks_refuse(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    const char *refusal = cluster_refuses(cuda, p, offered);
    if (refusal)
        return refusal;
    if (cuda_blocks_bytes(cuda_blocks_of(p)) > CUDA_BLOCKS_BYTES_MAX)
        return "the block maxima of a row exceed the shared memory of a CTA";
    if (!(offered & CUDA_OUTPUT_BLOCK_MAXIMA) && p->batch < CUDA_BLOCKS_ROWS_MIN)
        return "fewer than 17 rows, and no product that stores block maxima";
    return NULL;
}

static const char *bounded_refuses(const cuda_device *cuda, const gumbel_problem *p,
                                   uint32_t offered)
{
    const char *refusal = blocks_refuse(cuda, p, offered);
    if (refusal)
        return refusal;
    if (!(offered & CUDA_OUTPUT_SUBTILES))
        return "no product that stores only logits above a bound";
    if (p->weight.rows == 0 ||
        !cuda_bounds_are_faster(p->batch, cuda_blocks_of(p) / cuda->multiprocessors))
        return "not 5 to 128 rows with three tiles for each multiprocessor";
    return NULL;
}

/* Whether the call has parameters for a rule, which rows may still turn off. */
static int has_parameters(const gumbel_problem *p, uint8_t rule)
{
    const gumbel_truncation *t = &p->truncation;
    const gumbel_programs *q = &p->programs;
    const void *const parameters[] = {[GUMBEL_PROGRAM_TOP_K] = t->top_k.data,
                                      [GUMBEL_PROGRAM_MIN_P] = t->min_p.data,
                                      [GUMBEL_PROGRAM_TOP_P] = t->top_p.data,
                                      [GUMBEL_PROGRAM_TYPICAL_P] = q->typical_p.data,
                                      [GUMBEL_PROGRAM_TOP_N_SIGMA] = q->top_n_sigma.data,
                                      [GUMBEL_PROGRAM_EPSILON] = q->epsilon.data,
                                      [GUMBEL_PROGRAM_ETA] = q->eta.data,
                                      [GUMBEL_PROGRAM_TOP_A] = q->top_a.data,
                                      [GUMBEL_PROGRAM_P_LESS] = q->rules, /* always on */
                                      [GUMBEL_PROGRAM_SURPRISE] = q->surprise.data,
                                      [GUMBEL_PROGRAM_XTC] = q->xtc_probability.data,
                                      [GUMBEL_PROGRAM_SMOOTHING] = q->smoothing_factor.data,
                                      [GUMBEL_PROGRAM_ADAPTIVE_P] = q->adaptive_target.data,
                                      [GUMBEL_PROGRAM_TEMPERATURE] = q->temperature_range.data};
    return parameters[rule] != NULL;
}

/* Whether a program begins with TOP_K or MIN_P, at most after a TEMPERATURE that is not dynamic. */
static int begins_with_largest(const gumbel_problem *p, const uint8_t *rules)
{
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && rules[i] != GUMBEL_PROGRAM_END; i++)
        if (has_parameters(p, rules[i]))
            return rules[i] == GUMBEL_PROGRAM_TOP_K || rules[i] == GUMBEL_PROGRAM_MIN_P;
    return 0;
}

static const char *program_blocks_refuse(const cuda_device *cuda, const gumbel_problem *p,
                                         uint32_t offered)
{
    const char *refusal = blocks_refuse(cuda, p, offered);
    if (refusal)
        return refusal;
    for (int32_t i = 0; i < p->programs.count; i++)
        if (begins_with_largest(p, p->programs.rules + i * GUMBEL_PROGRAM_LENGTH))
            return NULL;
    return "no program begins with top_k or min_p";
}

static const char *grid_refuses(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    const int64_t bytes = cuda_grid_bytes(p);
    (void)offered;
    if (!cuda->truncated_grid)
        return "the GPU has no cooperative launches";
    if (bytes > cuda_cluster_max_bytes(cuda->shared_bytes))
        return "a sixteenth of a row exceeds the shared memory of a CTA";
    return cuda_grid_rows(bytes, cuda->multiprocessors, cuda->shared_bytes) > 0
               ? NULL
               : "the GPU runs fewer than 16 CTAs at the same time";
}

/* Indices of the rungs that serve most requests on GPUs without clusters. */
#define TWO_PASS 12
#define GRID     13

/* Whether a rung of rows is in a set of rungs. */
static int has_rows(uint32_t rungs, int index) { return rungs >> (CUDA_PRODUCTS + index) & 1; }

/* Candidates serve rows with a top_k of at most 256 or a min_p; one CTA serves all others, which
 * takes a hundred times as long. A plan does not know the parameters of rows. */
static const char *two_pass_refuses(const cuda_device *cuda, const gumbel_problem *p,
                                    uint32_t offered)
{
    const uint64_t required = gumbel_required_capabilities(p);
    const uint64_t others = GUMBEL_CAPABILITY_TOP_K | GUMBEL_CAPABILITY_JOINT;
    if (CUDA_TWO_PASS_BYTES > cuda->shared_bytes - CUDA_RESERVED_BYTES)
        return "candidates exceed the shared memory of a CTA";
    if (required & GUMBEL_CAPABILITY_MIN_P && !(required & others))
        return NULL;
    if (has_rows(cuda->rungs.preferred, TWO_PASS) || has_rows(cuda->rungs.excluded, GRID))
        return NULL;
    return grid_refuses(cuda, p, offered) ? NULL
                                          : "grid is faster, except for a min_p without a top_k";
}

/* Whether a program has at most one rule besides TEMPERATURE, and floats can decide by the rule. */
static int has_single_rule(const gumbel_problem *p, const uint8_t *rules)
{
    int count = 0;
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && rules[i] != GUMBEL_PROGRAM_END; i++) {
        if (!has_parameters(p, rules[i]))
            continue;
        const int decides = rules[i] == GUMBEL_PROGRAM_TYPICAL_P ||
                            rules[i] == GUMBEL_PROGRAM_TOP_P ||
                            gumbel_threshold_facts((gumbel_program_rule)rules[i]) >= 0;
        count += decides ? 1 : 2;
    }
    return count <= 1;
}

static const char *program_pivots_refuse(const cuda_device *cuda, const gumbel_problem *p,
                                         uint32_t offered)
{
    const char *refusal = cluster_refuses(cuda, p, offered);
    if (!refusal)
        refusal = pivots_refuse(cuda, p, offered);
    if (refusal)
        return refusal;
    if (!(offered & CUDA_OUTPUT_DRAWS) && p->batch < CUDA_PROGRAM_PIVOT_ROWS_MIN)
        return "fewer than 8 rows, and no product that draws";
    if (p->programs.min_keep.data)
        return "min_keep is set";
    for (int32_t i = 0; i < p->programs.count; i++)
        if (!has_single_rule(p, p->programs.rules + i * GUMBEL_PROGRAM_LENGTH))
            return "a program has two rules besides the temperature, or one that changes values";
    return NULL;
}

const cuda_rows cuda_row_rungs[CUDA_ROW_RUNGS] = {
    {
        .rung = {.name = "nothing",
                 .method = "all tokens are padding: outputs report empty rows",
                 .kernels = "finish.cu",
                 .supports = GUMBEL_CAPABILITY_EMPTY | GUMBEL_CAPABILITY_MASS |
                             GUMBEL_FEATURE_ENTROPY | GUMBEL_CAPABILITY_NOISE |
                             GUMBEL_CAPABILITY_PRODUCT | CAPABILITIES_OF_A_DRAW,
                 .requires_any = GUMBEL_CAPABILITY_EMPTY},
        .run = cuda_run_empty,
        .ignores_logits = 1,
    },
    {
        .rung = {.name = "draw",
                 .method = "a draw from logits, read once",
                 .kernels = "logits.cu",
                 .supports = GUMBEL_FEATURE_ENTROPY | GUMBEL_CAPABILITY_MASS |
                             GUMBEL_CAPABILITY_NOISE | CAPABILITIES_OF_A_DRAW},
        .run = cuda_run_draw,
    },
    {
        .rung = {.name = "draw-allowed",
                 .method = "a draw that reads only the logits of allowed tokens",
                 .kernels = "draw_allowed.cu",
                 .supports = GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES |
                             GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_NOISE |
                             CAPABILITIES_OF_A_DRAW,
                 .requires_any = GUMBEL_FEATURE_MASK},
        .refuses = draw_allowed_refuses,
        .run = cuda_run_draw_allowed,
    },
    {
        .rung = {.name = "draw-edits",
                 .method = "a draw that applies masks and penalties to the tokens it scores",
                 .kernels = "logits.cu",
                 .supports =
                     GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES | CAPABILITIES_OF_A_DRAW},
        .run = cuda_run_draw_edits,
    },
    {
        .rung = {.name = "edit",
                 .method = "logits are edited, then drawn from",
                 .kernels = "edit_logits.cu, logits.cu",
                 .supports = GUMBEL_FEATURE_TRANSFORMS | GUMBEL_CAPABILITY_LISTS |
                             GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_NOISE |
                             CAPABILITIES_OF_A_DRAW},
        .carve = cuda_carve_edit,
        .run = cuda_run_edit,
    },
    {
        .rung = {.name = "pivots",
                 .method =
                     "rows are drawn before they are truncated, by CTAs that hold a split each",
                 .kernels = "logits.cu, truncated_pivots.cu",
                 .supports = GUMBEL_FEATURE_TRUNCATION | GUMBEL_CAPABILITY_TOP_P},
        .uses = CUDA_OUTPUT_DRAWS,
        .refuses = pivots_refuse,
        .carve = cuda_carve_pivots,
        .run = cuda_run_pivots,
    },
    {
        .rung = {.name = "bounded",
                 .method = "one CTA a row, from few blocks; only logits above a bound are stored",
                 .kernels = "truncated_blocks.cu, truncated_cluster.cu",
                 .supports = GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_RANKS |
                             GUMBEL_FEATURE_KEPT | GUMBEL_FEATURE_KEPT_IDS | GUMBEL_FEATURE_TOP |
                             GUMBEL_FEATURE_LOGITS |
                             (GUMBEL_CAPABILITIES_OF_TRUNCATION & ~GUMBEL_CAPABILITY_JOINT) |
                             GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_NOISE |
                             GUMBEL_CAPABILITY_SAMPLES,
                 .requires_any = GUMBEL_CAPABILITY_TOP_K | GUMBEL_CAPABILITY_MIN_P},
        .uses = CUDA_OUTPUT_BLOCK_MAXIMA | CUDA_OUTPUT_SUBTILES,
        .refuses = bounded_refuses,
        .carve = cuda_carve_bounded,
        .run = cuda_run_bounded,
        .finds_top64 = 1,
    },
    {
        .rung = {.name = "blocks",
                 .method = "one CTA a row, from few blocks of its tokens",
                 .kernels = "truncated_blocks.cu, truncated_cluster.cu",
                 .supports = GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_RANKS |
                             GUMBEL_FEATURE_KEPT | GUMBEL_FEATURE_KEPT_IDS | GUMBEL_FEATURE_TOP |
                             GUMBEL_FEATURE_LOGITS |
                             (GUMBEL_CAPABILITIES_OF_TRUNCATION & ~GUMBEL_CAPABILITY_JOINT) |
                             GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_NOISE |
                             GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_SOFT_CAP,
                 .requires_any = GUMBEL_CAPABILITY_TOP_K | GUMBEL_CAPABILITY_MIN_P},
        .uses = CUDA_OUTPUT_BLOCK_MAXIMA,
        .refuses = blocks_refuse,
        .carve = cuda_carve_blocks,
        .run = cuda_run_blocks,
        .run_few_rows = cuda_run_cluster,
        .finds_top64 = 1,
    },
    {
        .rung = {.name = "cluster",
                 .method = "one cluster a row, in the shared memory of its eight CTAs",
                 .kernels = "truncated_cluster.cu",
                 .supports = CAPABILITIES_OF_ROWS},
        .refuses = cluster_refuses,
        .run = cuda_run_cluster,
    },
    {
        .rung = {.name = "program-blocks",
                 .method = "one CTA a row runs its program on tokens from few blocks",
                 .kernels = "program_blocks.cu, program_cluster.cu",
                 .supports = GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_RANKS |
                             GUMBEL_FEATURE_KEPT | GUMBEL_FEATURE_KEPT_IDS | GUMBEL_FEATURE_TOP |
                             GUMBEL_FEATURE_LOGITS | GUMBEL_FEATURE_PROGRAM |
                             GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_NOISE |
                             GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_SOFT_CAP,
                 .requires_any = GUMBEL_FEATURE_PROGRAM},
        .uses = CUDA_OUTPUT_BLOCK_MAXIMA,
        .refuses = program_blocks_refuse,
        .carve = cuda_carve_blocks,
        .run = cuda_run_program_blocks,
        .run_few_rows = cuda_run_program,
    },
    {
        .rung = {.name = "program-pivots",
                 .method = "rows are drawn before their only rule, by CTAs that hold a split each",
                 .kernels = "logits.cu, program_pivots.cu, program_cluster.cu",
                 .supports = GUMBEL_FEATURE_PROGRAM,
                 .requires_any = GUMBEL_FEATURE_PROGRAM},
        .uses = CUDA_OUTPUT_DRAWS,
        .refuses = program_pivots_refuse,
        .carve = cuda_carve_program_pivots,
        .run = cuda_run_program_pivots,
        .run_few_rows = cuda_run_program,
    },
    {
        .rung = {.name = "program",
                 .method = "one cluster a row runs the rules of its program, then draws",
                 .kernels = "program_cluster.cu",
                 .supports = GUMBEL_CAPABILITY_END - 1 - GUMBEL_CAPABILITY_PRODUCT,
                 .requires_any = GUMBEL_FEATURE_PROGRAM},
        .refuses = cluster_refuses,
        .run = cuda_run_program,
    },
    [TWO_PASS] =
        {
            .rung = {.name = "two-pass",
                     .method = "several CTAs a row filter candidates; the last one draws",
                     .kernels = "truncated_two_pass.cu",
                     .supports = CAPABILITIES_OF_ROWS - GUMBEL_CAPABILITY_SUMMARIES -
                                 GUMBEL_CAPABILITY_ROWS - GUMBEL_FEATURE_GIVEN -
                                 GUMBEL_FEATURE_BEST - GUMBEL_FEATURE_ENTROPY},
            .refuses = two_pass_refuses,
            .carve = cuda_carve_two_pass,
            .run = cuda_run_two_pass,
        },
    [GRID] =
        {
            .rung = {.name = "grid",
                     .method = "16 CTAs a row, in their shared memory; a cooperative launch",
                     .kernels = "truncated_grid.cu",
                     .supports = CAPABILITIES_OF_ROWS},
            .refuses = grid_refuses,
            .carve = cuda_carve_grid,
            .run = cuda_run_grid,
        },
    {
        .rung = {.name = "program-grid",
                 .method = "16 CTAs a row run the rules of its program; a cooperative launch",
                 .kernels = "program_grid.cu",
                 .supports = GUMBEL_CAPABILITY_END - 1 - GUMBEL_CAPABILITY_PRODUCT,
                 .requires_any = GUMBEL_FEATURE_PROGRAM},
        .refuses = grid_refuses,
        .carve = cuda_carve_grid,
        .run = cuda_run_program_grid,
    },
    {
        .rung = {.name = "alone",
                 .method = "one CTA a row, for every call",
                 .kernels = "truncated_naive.cu",
                 .supports = CAPABILITIES_OF_ROWS},
        .run = cuda_run_alone,
    },
};
