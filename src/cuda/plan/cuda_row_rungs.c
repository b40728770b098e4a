/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs that serve rows of logits, the fastest first, and why each refuses a call.
 */
#include "core/row_program.h"
#include "cuda/plan/cuda_refusals.h"

/* Capabilities of kernels that serve every call on rows without a program. */
#define CAPABILITIES_OF_ROWS                                                                       \
    (GUMBEL_CAPABILITY_END - 1 - GUMBEL_CAPABILITY_PRODUCT - GUMBEL_FEATURE_PROGRAM)

const char *cuda_cluster_refuses(const cuda_device *cuda, const gumbel_problem *p, uint32_t offered)
{
    (void)offered;
    if (!cuda->truncated_cluster)
        return "the GPU has no clusters";
    if (cuda_cluster_bytes(p) > cuda_cluster_max_bytes(cuda->shared_bytes))
        return "an eighth of a row exceeds the shared memory of a CTA";
    return NULL;
}

static const char *draw_allowed_refuses(const cuda_device *cuda, const gumbel_problem *p,
                                        uint32_t offered)
{
    (void)cuda, (void)offered;
    return cuda_refuse_many_allowed(p);
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
    const char *refusal = cuda_cluster_refuses(cuda, p, offered);
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
    const char *refusal = cuda_cluster_refuses(cuda, p, offered);
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
        .refuses = cuda_cluster_refuses,
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
        .refuses = cuda_cluster_refuses,
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
