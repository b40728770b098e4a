/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs of the CUDA backend, best first: all that decides which kernels serve a call.
 * docs/kernels.md is made from these tables and from what was measured.
 */
#include "cuda/plan/cuda_plan.h"

/* ------------------------------------------------------------------------------ products ---- */

/* What a draw that goes through the tiles of a product serves. */
#define NEEDS_OF_TILES                                                                             \
    (GUMBEL_NEED_MASS | GUMBEL_NEED_SAMPLES | GUMBEL_NEED_SOFT_CAP | GUMBEL_NEED_SCALE |           \
     GUMBEL_NEED_BIAS | GUMBEL_NEED_PART | GUMBEL_NEED_PRODUCT)

static const char *hopper_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    if (cuda->capability != CUDA_SM90_CAPABILITY)
        return "the GPU is not of capability 9.0";
    if (p->weight.dtype != p->hidden.dtype || p->weight.dtype == GUMBEL_FLOAT32)
        return "weights and hidden states are not both bfloat16 or both float16";
    if (p->vocab % 16 != 0 || p->hidden_size % 8 != 0)
        return "V is no multiple of 16, or D none of 8";
    if (p->first_token % 4 != 0)
        return "first_token is no multiple of 4";
    if (!cuda_sm90_can_copy(&p->weight) || !cuda_sm90_can_copy(&p->hidden))
        return "rows of weights or hidden states are not aligned to 16 bytes";
    if (p->sampling.num_samples > CUDA_SM90_STATES / cuda_sm90_widths[0])
        return "there are too many samples";
    return NULL;
}

static const char *screen_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    if (!p->screen)
        return "the head has no screen";
    if (p->batch > CUDA_SCREEN_ROWS_MAX / p->sampling.num_samples)
        return "there are more than 64 rows and samples of them";
    if (!(cuda->rungs.preferred & CUDA_SCREEN_RUNGS) &&
        !cuda_screen_is_faster(p->vocab, p->hidden_size))
        return "the head has fewer than 2^28 weights";
    if (p->first_token % GUMBEL_BLOCK != 0)
        return "first_token is no multiple of 64";
    if (p->hidden_size > GUMBEL_SCREEN_COLUMNS_MOST)
        return "D is 2^16 or more";
    return hopper_refuses(cuda, p);
}

/* What serves rows from all of their logits, by clusters. */
static const char *team_refuses(const cuda_device *cuda, const gumbel_problem *p, uint32_t handed)
{
    (void)handed;
    if (!cuda->request_team)
        return "the GPU has no clusters";
    if (cuda_team_bytes(p) > cuda_cluster_max_bytes(cuda->shared_bytes))
        return "an eighth of a row is more than a CTA's shared memory holds";
    return NULL;
}

static const char *screen_cut_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    gumbel_problem rows = *p;
    rows.sampling.num_samples = 1; /* samples are none of the screen's draws */
    const char *screen = screen_refuses(cuda, &rows);
    if (screen)
        return screen;
    if (!(cuda->rungs.preferred & CUDA_SCREEN_RUNGS) &&
        !cuda_screen_truncated_is_faster(p->batch, p->hidden_size))
        return "more than 32 rows, or a D above 4096, are faster by the full pass";
    return team_refuses(cuda, p, 0);
}

static uint32_t hopper_hands(const gumbel_problem *p)
{
    uint32_t draws = cuda_sm90_is_plain(p) && CUDA_SM90_HAS_BOTH(p->batch) ? CUDA_HANDS_DRAWS : 0;
    return CUDA_HANDS_PEAKS | CUDA_HANDS_STRIPS | draws;
}

static const char *tensor_refuses(const cuda_device *cuda, const gumbel_problem *p)
{
    int64_t weight_size = p->weight.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    int64_t hidden_size = p->hidden.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    (void)cuda;
    if (cuda_sm80_is_mixed(p) && hidden_size != 2 * weight_size)
        return "weights and hidden states are of two dtypes, and not 16-bit weights with float32";
    if (p->hidden_size >= INT64_C(1) << 28)
        return "D is 2^28 or more";
    if (!cuda_sm80_can_copy(&p->weight, weight_size) ||
        !cuda_sm80_can_copy(&p->hidden, hidden_size))
        return "rows of weights or hidden states are not aligned to 16 bytes";
    if (p->sampling.num_samples > CUDA_SM80_STATES / cuda_sm80_widths[0])
        return "there are too many samples";
    return NULL;
}

const cuda_product cuda_products[CUDA_PRODUCTS] = {
    {
        .rung = {.name = "screen",
                 .what = "a copy of a byte a weight tells what can win, which alone is multiplied",
                 .kernels = "screen_score.cu, screen_draw.cu, fused_again_sm90.cu",
                 .serves = GUMBEL_REQUEST_MASK | GUMBEL_NEED_SAMPLES},
        .refuses = screen_refuses,
        .carve = cuda_carve_screen,
        .run = cuda_run_screen,
    },
    {
        .rung = {.name = "screen-cut",
                 .what = "such a copy tells the first tokens of rows that are cut to 64 at most",
                 .kernels = "screen_score.cu, screen_draw.cu, screen_rows.cu, "
                            "fused_again_sm90.cu, request_team.cu",
                 .serves = GUMBEL_REQUEST_MASK | GUMBEL_REQUEST_RANKS | GUMBEL_REQUEST_KEPT |
                           GUMBEL_REQUEST_TOP | (GUMBEL_NEEDS_OF_CUTS & ~GUMBEL_NEED_JOINT) |
                           GUMBEL_NEED_MASS | GUMBEL_NEED_NOISE | GUMBEL_NEED_SAMPLES,
                 .wants = GUMBEL_NEED_TOP_K},
        .refuses = screen_cut_refuses,
        .carve = cuda_carve_screen_cut,
        .run = cuda_run_screen_cut,
    },
    {
        .rung = {.name = "hopper",
                 .what = "wgmma, bulk copies into a ring, the draw between two tiles",
                 .kernels = "fused_sm90.cu",
                 .serves = NEEDS_OF_TILES},
        .refuses = hopper_refuses,
        .hands = hopper_hands,
        .run = cuda_run_sm90,
    },
    {
        .rung = {.name = "tensor",
                 .what = "mma.sync and cp.async, on every GPU",
                 .kernels = "fused_sm80.cu, finish.cu",
                 .serves = NEEDS_OF_TILES},
        .refuses = tensor_refuses,
        .run = cuda_run_sm80,
    },
    {
        .rung = {.name = "naive",
                 .what = "a warp a token, for any dtypes and strides",
                 .kernels = "naive.cu, finish.cu",
                 .serves = NEEDS_OF_TILES},
        .run = cuda_run_naive,
    },
};

/* ---------------------------------------------------------------------------------- rows ---- */

/* What a draw from logits serves that reads them once. */
#define NEEDS_OF_A_DRAW                                                                            \
    (GUMBEL_NEED_SAMPLES | GUMBEL_NEED_SOFT_CAP | GUMBEL_NEED_SCALE | GUMBEL_NEED_PART)

static const char *pivots_refuse(const cuda_device *cuda, const gumbel_problem *p, uint32_t handed)
{
    (void)handed;
    return cuda_pivot_parts(p) <= cuda->multiprocessors
               ? NULL
               : "a row has more parts than the GPU has multiprocessors";
}

static const char *blocks_refuse(const cuda_device *cuda, const gumbel_problem *p, uint32_t handed)
{
    const char *team = team_refuses(cuda, p, handed);
    if (team)
        return team;
    if (cuda_request_blocks_bytes(cuda_blocks_of(p)) > CUDA_REQUEST_BLOCKS_BYTES)
        return "the peaks of a row are more than a CTA's shared memory holds";
    if (!(handed & CUDA_HANDS_PEAKS) && p->batch < CUDA_REQUEST_BLOCKS_ROWS_MIN)
        return "fewer than 17 rows, and no product that leaves the peaks of blocks";
    return NULL;
}

static const char *bounded_refuses(const cuda_device *cuda, const gumbel_problem *p,
                                   uint32_t handed)
{
    const char *blocks = blocks_refuse(cuda, p, handed);
    if (blocks)
        return blocks;
    if (!(handed & CUDA_HANDS_STRIPS))
        return "there is no product that stores by bounds";
    if (p->weight.rows == 0 ||
        !cuda_bounds_are_faster(p->batch, cuda_blocks_of(p) / cuda->multiprocessors))
        return "not 5 to 128 rows with three tiles for each multiprocessor";
    return NULL;
}

const cuda_rows cuda_row_rungs[CUDA_ROW_RUNGS] = {
    {
        .rung = {.name = "nothing",
                 .what = "no token counts: outputs say so",
                 .kernels = "finish.cu",
                 .serves = GUMBEL_NEED_EMPTY | GUMBEL_NEED_MASS | GUMBEL_NEED_NOISE |
                           GUMBEL_NEED_PRODUCT | NEEDS_OF_A_DRAW,
                 .wants = GUMBEL_NEED_EMPTY},
        .run = cuda_run_nothing,
    },
    {
        .rung = {.name = "draw",
                 .what = "the draw from logits, read once",
                 .kernels = "logits.cu",
                 .serves = GUMBEL_NEED_MASS | GUMBEL_NEED_NOISE | NEEDS_OF_A_DRAW},
        .run = cuda_run_logits,
    },
    {
        .rung = {.name = "draw-edits",
                 .what = "that draw, which edits what it scores by masks and histories",
                 .kernels = "logits.cu",
                 .serves = GUMBEL_REQUEST_MASK | GUMBEL_REQUEST_PENALTIES | NEEDS_OF_A_DRAW},
        .run = cuda_run_logits,
    },
    {
        .rung = {.name = "edit",
                 .what = "logits are edited, then drawn from",
                 .kernels = "request_edit.cu, logits.cu",
                 .serves = GUMBEL_REQUEST_TRANSFORMS | GUMBEL_NEED_LISTS | GUMBEL_NEED_MASS |
                           GUMBEL_NEED_NOISE | NEEDS_OF_A_DRAW},
        .carve = cuda_carve_edited,
        .run = cuda_run_edited,
    },
    {
        .rung = {.name = "pivots",
                 .what = "rows are drawn from before they are cut, by CTAs that hold a part each",
                 .kernels = "logits.cu, request_pivots.cu",
                 .serves = GUMBEL_REQUEST_TRUNCATION | GUMBEL_NEED_TOP_P},
        .takes = CUDA_HANDS_DRAWS,
        .refuses = pivots_refuse,
        .carve = cuda_carve_pivots,
        .run = cuda_run_pivots,
    },
    {
        .rung = {.name = "bounded",
                 .what = "rows by a CTA each, from few blocks, which alone the product has stored",
                 .kernels = "request_blocks.cu, request_team.cu",
                 .serves = GUMBEL_REQUEST_MASK | GUMBEL_REQUEST_PENALTIES | GUMBEL_REQUEST_RANKS |
                           GUMBEL_REQUEST_KEPT | GUMBEL_REQUEST_TOP | GUMBEL_REQUEST_LOGITS |
                           (GUMBEL_NEEDS_OF_CUTS & ~GUMBEL_NEED_JOINT) | GUMBEL_NEED_MASS |
                           GUMBEL_NEED_NOISE | GUMBEL_NEED_SAMPLES,
                 .wants = GUMBEL_NEED_TOP_K | GUMBEL_NEED_MIN_P},
        .takes = CUDA_HANDS_PEAKS | CUDA_HANDS_STRIPS,
        .refuses = bounded_refuses,
        .carve = cuda_carve_bounded,
        .run = cuda_run_blocks,
    },
    {
        .rung = {.name = "blocks",
                 .what = "rows by a CTA each, from few blocks of their tokens",
                 .kernels = "request_blocks.cu, request_team.cu",
                 .serves = GUMBEL_REQUEST_MASK | GUMBEL_REQUEST_PENALTIES | GUMBEL_REQUEST_RANKS |
                           GUMBEL_REQUEST_KEPT | GUMBEL_REQUEST_TOP | GUMBEL_REQUEST_LOGITS |
                           (GUMBEL_NEEDS_OF_CUTS & ~GUMBEL_NEED_JOINT) | GUMBEL_NEED_MASS |
                           GUMBEL_NEED_NOISE | GUMBEL_NEED_SAMPLES | GUMBEL_NEED_SOFT_CAP,
                 .wants = GUMBEL_NEED_TOP_K | GUMBEL_NEED_MIN_P},
        .takes = CUDA_HANDS_PEAKS,
        .refuses = blocks_refuse,
        .carve = cuda_carve_blocks,
        .run = cuda_run_blocks,
    },
    {
        .rung = {.name = "team",
                 .what = "rows by a cluster each, in the shared memory of its eight CTAs",
                 .kernels = "request_team.cu",
                 .serves = GUMBEL_NEED_END - 1 - GUMBEL_NEED_PRODUCT},
        .refuses = team_refuses,
        .run = cuda_run_team,
    },
    {
        .rung = {.name = "screened",
                 .what = "rows screened for candidates by CTAs that count themselves",
                 .kernels = "request.cu",
                 .serves = GUMBEL_NEED_END - 1 - GUMBEL_NEED_PRODUCT - GUMBEL_NEED_PART -
                           GUMBEL_NEED_ROWS - GUMBEL_REQUEST_GIVEN - GUMBEL_REQUEST_BEST},
        .carve = cuda_carve_screened,
        .run = cuda_run_screened,
    },
    {
        .rung = {.name = "alone",
                 .what = "rows by a CTA each, whatever is asked",
                 .kernels = "request_naive.cu",
                 .serves = GUMBEL_NEED_END - 1 - GUMBEL_NEED_PRODUCT},
        .run = cuda_run_alone,
    },
};
