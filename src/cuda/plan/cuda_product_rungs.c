/* SPDX-License-Identifier: Apache-2.0
 *
 * The rungs that multiply hidden states with a head, the fastest first, and why each refuses calls.
 */
#include "cuda/plan/cuda_refusals.h"

/* Capabilities of a draw between the tiles of a product. */
#define CAPABILITIES_OF_TILES                                                                      \
    (GUMBEL_CAPABILITY_MASS | GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_SOFT_CAP |             \
     GUMBEL_CAPABILITY_SCALE | GUMBEL_CAPABILITY_BIAS | GUMBEL_CAPABILITY_SUMMARIES |              \
     GUMBEL_CAPABILITY_PRODUCT)

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

const char *cuda_refuse_many_allowed(const gumbel_problem *p)
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
    const char *refusal = cuda_refuse_many_allowed(p);
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
    return cuda_cluster_refuses(cuda, p, 0);
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
