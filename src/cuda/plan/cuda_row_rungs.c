/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs that serve rows of logits, the fastest first.
 */
#include "cuda/plan/cuda_refusals.h"

/* Capabilities of kernels that serve every call on rows without a program. */
#define CAPABILITIES_OF_ROWS                                                                       \
    (GUMBEL_CAPABILITY_END - 1 - GUMBEL_CAPABILITY_PRODUCT - GUMBEL_FEATURE_PROGRAM)

/* Capabilities of kernels that serve rows from few of their blocks, besides truncation; and the
 * orders of truncation that they serve. */
#define CAPABILITIES_OF_BLOCKS                                                                     \
    (GUMBEL_FEATURE_MASK | GUMBEL_FEATURE_PENALTIES | GUMBEL_FEATURE_RANKS | GUMBEL_FEATURE_KEPT | \
     GUMBEL_FEATURE_KEPT_IDS | GUMBEL_FEATURE_TOP | GUMBEL_FEATURE_LOGITS |                        \
     GUMBEL_FEATURE_ENTROPY | GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_NOISE |                   \
     GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_SOFT_CAP)
#define CAPABILITIES_OF_ORDERS (GUMBEL_CAPABILITIES_OF_TRUNCATION & ~GUMBEL_CAPABILITY_JOINT)

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
        .refuses = cuda_draw_allowed_refuses,
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
        .refuses = cuda_pivots_refuse,
        .carve = cuda_carve_pivots,
        .run = cuda_run_pivots,
    },
    {
        .rung = {.name = "bounded",
                 .method = "one CTA a row, from few blocks; only logits above a bound are stored",
                 .kernels = "truncated_blocks.cu, truncated_cluster.cu",
                 .supports = (CAPABILITIES_OF_BLOCKS | CAPABILITIES_OF_ORDERS) &
                             ~GUMBEL_CAPABILITY_SOFT_CAP,
                 .requires_any = GUMBEL_CAPABILITY_TOP_K | GUMBEL_CAPABILITY_MIN_P},
        .uses = CUDA_OUTPUT_BLOCK_MAXIMA | CUDA_OUTPUT_SUBTILES,
        .refuses = cuda_bounded_refuses,
        .carve = cuda_carve_bounded,
        .run = cuda_run_bounded,
        .finds_top64 = 1,
    },
    {
        .rung = {.name = "blocks",
                 .method = "one CTA a row, from few blocks of its tokens",
                 .kernels = "truncated_blocks.cu, truncated_cluster.cu",
                 .supports = CAPABILITIES_OF_BLOCKS | CAPABILITIES_OF_ORDERS,
                 .requires_any = GUMBEL_CAPABILITY_TOP_K | GUMBEL_CAPABILITY_MIN_P},
        .uses = CUDA_OUTPUT_BLOCK_MAXIMA,
        .refuses = cuda_blocks_refuse,
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
                 .supports = CAPABILITIES_OF_BLOCKS | GUMBEL_FEATURE_PROGRAM,
                 .requires_any = GUMBEL_FEATURE_PROGRAM},
        .uses = CUDA_OUTPUT_BLOCK_MAXIMA,
        .refuses = cuda_program_blocks_refuse,
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
        .refuses = cuda_program_pivots_refuse,
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
    {
        .rung = {.name = "blocks-grid",
                 .method = "as blocks; a cooperative launch draws the fallback rows",
                 .kernels = "truncated_blocks.cu, truncated_grid.cu",
                 .supports = CAPABILITIES_OF_BLOCKS | CAPABILITIES_OF_ORDERS,
                 .requires_any = GUMBEL_CAPABILITY_TOP_K | GUMBEL_CAPABILITY_MIN_P},
        .uses = CUDA_OUTPUT_BLOCK_MAXIMA,
        .refuses = cuda_blocks_grid_refuse,
        .carve = cuda_carve_blocks_grid,
        .run = cuda_run_blocks_grid,
        .run_few_rows = cuda_run_grid,
    },
    {
        .rung = {.name = "grid",
                 .method = "16 CTAs a row, in their shared memory; a cooperative launch",
                 .kernels = "truncated_grid.cu",
                 .supports = CAPABILITIES_OF_ROWS},
        .refuses = cuda_grid_refuses,
        .carve = cuda_carve_grid,
        .run = cuda_run_grid,
    },
    {
        .rung = {.name = "program-blocks-grid",
                 .method = "as program-blocks; a cooperative launch draws the fallback rows",
                 .kernels = "program_blocks.cu, program_grid.cu",
                 .supports = CAPABILITIES_OF_BLOCKS | GUMBEL_FEATURE_PROGRAM,
                 .requires_any = GUMBEL_FEATURE_PROGRAM},
        .uses = CUDA_OUTPUT_BLOCK_MAXIMA,
        .refuses = cuda_program_blocks_grid_refuse,
        .carve = cuda_carve_blocks_grid,
        .run = cuda_run_program_blocks_grid,
        .run_few_rows = cuda_run_program_grid,
    },
    {
        .rung = {.name = "program-pivots-grid",
                 .method = "as program-pivots; a cooperative launch draws the fallback rows",
                 .kernels = "logits.cu, program_pivots.cu, program_grid.cu",
                 .supports = GUMBEL_FEATURE_PROGRAM,
                 .requires_any = GUMBEL_FEATURE_PROGRAM},
        .uses = CUDA_OUTPUT_DRAWS,
        .refuses = cuda_program_pivots_grid_refuse,
        .carve = cuda_carve_pivots_grid,
        .run = cuda_run_program_pivots_grid,
        .run_few_rows = cuda_run_program_grid,
    },
    {
        .rung = {.name = "program-grid",
                 .method = "16 CTAs a row run the rules of its program; a cooperative launch",
                 .kernels = "program_grid.cu",
                 .supports = GUMBEL_CAPABILITY_END - 1 - GUMBEL_CAPABILITY_PRODUCT,
                 .requires_any = GUMBEL_FEATURE_PROGRAM},
        .refuses = cuda_grid_refuses,
        .carve = cuda_carve_grid,
        .run = cuda_run_program_grid,
    },
    {
        .rung = {.name = "two-pass",
                 .method = "several CTAs a row filter candidates; the last one draws",
                 .kernels = "truncated_two_pass.cu",
                 .supports = CAPABILITIES_OF_ROWS - GUMBEL_CAPABILITY_SUMMARIES -
                             GUMBEL_CAPABILITY_ROWS - GUMBEL_FEATURE_GIVEN - GUMBEL_FEATURE_BEST -
                             GUMBEL_FEATURE_ENTROPY},
        .refuses = cuda_two_pass_refuses,
        .carve = cuda_carve_two_pass,
        .run = cuda_run_two_pass,
    },
    {
        .rung = {.name = "alone",
                 .method = "one CTA a row, for every call",
                 .kernels = "truncated_naive.cu",
                 .supports = CAPABILITIES_OF_ROWS},
        .run = cuda_run_alone,
    },
};
