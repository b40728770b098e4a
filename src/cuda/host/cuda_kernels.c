/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads every kernel that a GPU can run when its device is opened.
 */
#include "core/fail.h"
#include "cuda/host/cuda_device.h"
#include "cuda/host/cuda_images.h"
#include "cuda/open/cuda_open.h"
#include "gumbel/recent.h"

#include <stddef.h>
#include <stdio.h>

static const unsigned char *const images[] = {
    [CUDA_MODULE_ADVANCE] = cuda_image_advance,
    [CUDA_MODULE_ALLOW] = cuda_image_allow,
    [CUDA_MODULE_ALLOWED_FUSED] = cuda_image_allowed_fused,
    [CUDA_MODULE_ALLOWED_PRODUCT] = cuda_image_allowed_product,
    [CUDA_MODULE_BEST] = cuda_image_best,
    [CUDA_MODULE_ENTROPY] = cuda_image_entropy,
    [CUDA_MODULE_ENTROPY_CLUSTER] = cuda_image_entropy_cluster,
    [CUDA_MODULE_TOP64_DRAW] = cuda_image_top64_draw,
    [CUDA_MODULE_DRAFTS] = cuda_image_drafts,
    [CUDA_MODULE_DRAW_ALLOWED] = cuda_image_draw_allowed,
    [CUDA_MODULE_TOP64_SELECT] = cuda_image_top64_select,
    [CUDA_MODULE_GROUP_TOKENS] = cuda_image_group_tokens,
    [CUDA_MODULE_EXCHANGE] = cuda_image_exchange,
    [CUDA_MODULE_RULE_DRAFTS] = cuda_image_rule_drafts,
    [CUDA_MODULE_FINISH] = cuda_image_finish,
    [CUDA_MODULE_GATHER] = cuda_image_gather,
    [CUDA_MODULE_HISTORY] = cuda_image_history,
    [CUDA_MODULE_MAKE_LISTS] = cuda_image_make_lists,
    [CUDA_MODULE_WATERMARK] = cuda_image_watermark,
    [CUDA_MODULE_NAIVE] = cuda_image_naive,
    [CUDA_MODULE_NOISE] = cuda_image_noise,
    [CUDA_MODULE_TOKEN_IDS] = cuda_image_token_ids,
    [CUDA_MODULE_LOGITS] = cuda_image_logits,
    [CUDA_MODULE_TRUNCATED_TWO_PASS] = cuda_image_truncated_two_pass,
    [CUDA_MODULE_EDIT_LOGITS] = cuda_image_edit_logits,
    [CUDA_MODULE_TRUNCATED_NAIVE] = cuda_image_truncated_naive,
    [CUDA_MODULE_TRUNCATED_BLOCKS] = cuda_image_truncated_blocks,
    [CUDA_MODULE_TRUNCATED_PIVOTS] = cuda_image_truncated_pivots,
    [CUDA_MODULE_TRUNCATED_GRID] = cuda_image_truncated_grid,
    [CUDA_MODULE_PROGRAM_BLOCKS] = cuda_image_program_blocks,
    [CUDA_MODULE_PROGRAM_GRID] = cuda_image_program_grid,
    [CUDA_MODULE_PROGRAM_PIVOTS] = cuda_image_program_pivots,
    [CUDA_MODULE_SOFTMAX] = cuda_image_softmax,
    [CUDA_MODULE_TRUNCATED_CLUSTER] = cuda_image_truncated_cluster,
    [CUDA_MODULE_PROGRAM_CLUSTER] = cuda_image_program_cluster,
    [CUDA_MODULE_FUSED_SM80] = cuda_image_fused_sm80,
    [CUDA_MODULE_FUSED_WIDE_SM80] = cuda_image_fused_wide_sm80,
    [CUDA_MODULE_FUSED_FALLBACK_SM80] = cuda_image_fused_fallback_sm80,
    [CUDA_MODULE_SCREEN_DRAW_SM80] = cuda_image_screen_draw_sm80,
    [CUDA_MODULE_SCREEN_SCORE_SM80] = cuda_image_screen_score_sm80,
    [CUDA_MODULE_FUSED_SM90] = cuda_image_fused_sm90,
    [CUDA_MODULE_FUSED_HALF_SM90] = cuda_image_fused_half_sm90,
    [CUDA_MODULE_FUSED_FALLBACK] = cuda_image_fused_fallback_sm90,
    [CUDA_MODULE_SCREEN_DRAW] = cuda_image_screen_draw,
    [CUDA_MODULE_SCREEN_MAKE] = cuda_image_screen_make,
    [CUDA_MODULE_SCREEN_ROWS] = cuda_image_screen_rows,
    [CUDA_MODULE_SCREEN_SCORE] = cuda_image_screen_score,
    [CUDA_MODULE_TRUNCATED_BOUNDED] = cuda_image_truncated_bounded,
};

/* A kernel without variants. */
typedef struct single_kernel {
    cuda_module module;
    const char *name;
    size_t at;        /* of its CUfunction in cuda_device */
    int shared_bytes; /* maximum dynamic shared memory; 0: CUDA_DEFAULT_SHARED_BYTES */
} single_kernel;

#define AT(field) offsetof(cuda_device, field)
static const single_kernel single_kernels[] = {
    {CUDA_MODULE_ADVANCE, "gumbel_advance_rows", AT(advance), 0},
    {CUDA_MODULE_ADVANCE, "gumbel_update_row_parameters", AT(update_rules), 0},
    {CUDA_MODULE_ALLOW, "gumbel_allow_tokens", AT(allow), 0},
    {CUDA_MODULE_BEST, "gumbel_list_best", AT(best), 0},
    {CUDA_MODULE_ENTROPY, "gumbel_row_entropy", AT(entropy), 0},
    {CUDA_MODULE_ENTROPY_CLUSTER, "gumbel_row_entropy_by_cluster", AT(entropy_cluster), 0},
    {CUDA_MODULE_TOP64_DRAW, "gumbel_draw_top64", AT(draw_top64), CUDA_TOP64_BYTES_MAX},
    {CUDA_MODULE_TOP64_DRAW, "gumbel_exchange_top64", AT(exchange_top64), CUDA_TOP64_BYTES_MAX},
    {CUDA_MODULE_TOP64_DRAW, "gumbel_scatter_outputs", AT(scatter_outputs), 0},
    {CUDA_MODULE_DRAFTS, "gumbel_expand_drafts", AT(expand_drafts), 0},
    {CUDA_MODULE_DRAFTS, "gumbel_accept_drafts", AT(accept_drafts), 0},
    {CUDA_MODULE_DRAW_ALLOWED, "gumbel_draw_allowed", AT(draw_allowed), 0},
    {CUDA_MODULE_GROUP_TOKENS, "gumbel_draw_group_tokens", AT(draw_group_tokens), 0},
    {CUDA_MODULE_GROUP_TOKENS, "gumbel_update_stream_draws", AT(update_stream_draws), 0},
    {CUDA_MODULE_EXCHANGE, "gumbel_exchange_rows", AT(exchange_rows), 0},
    {CUDA_MODULE_EXCHANGE, "gumbel_exchange_summaries", AT(exchange_summaries), 0},
    {CUDA_MODULE_EXCHANGE, "gumbel_request_rows", AT(request_rows), 0},
    {CUDA_MODULE_EXCHANGE, "gumbel_scatter_rows", AT(scatter_rows), 0},
    {CUDA_MODULE_FINISH, "gumbel_finish_any", AT(finish_any), 0},
    {CUDA_MODULE_FINISH, "gumbel_finish_rows", AT(finish), 0},
    {CUDA_MODULE_FINISH, "gumbel_finish_statistics", AT(finish_statistics), 0},
    {CUDA_MODULE_GATHER, "gumbel_gather_logits", AT(gather), 0},
    {CUDA_MODULE_HISTORY, "gumbel_start_history", AT(history_start), 0},
    {CUDA_MODULE_HISTORY, "gumbel_update_history", AT(history_update), 0},
    {CUDA_MODULE_HISTORY, "gumbel_start_recent", AT(recent_start), 0},
    {CUDA_MODULE_HISTORY, "gumbel_append_recent", AT(recent_append), 0},
    {CUDA_MODULE_MAKE_LISTS, "gumbel_make_row_lists", AT(make_lists), CUDA_LISTS_BYTES_MAX},
    {CUDA_MODULE_WATERMARK, "gumbel_watermark_draws_of_rows", AT(watermark), 0},
    {CUDA_MODULE_NAIVE, "gumbel_draw_naive", AT(naive), 0},
    {CUDA_MODULE_NOISE, "gumbel_make_noise", AT(noise), 0},
    {CUDA_MODULE_TOKEN_IDS, "gumbel_make_table_noise", AT(table_noise), 0},
    {CUDA_MODULE_TOKEN_IDS, "gumbel_replace_rows_by_ids", AT(map_token_ids), 0},
    {CUDA_MODULE_TRUNCATED_TWO_PASS, "gumbel_truncated_two_pass", AT(truncated_two_pass),
     CUDA_TWO_PASS_BYTES},
    {CUDA_MODULE_EDIT_LOGITS, "gumbel_edit_logits", AT(edit_logits), 0},
    {CUDA_MODULE_TRUNCATED_NAIVE, "gumbel_truncated_naive", AT(truncated_naive), CUDA_EDIT_BYTES},
    {CUDA_MODULE_TRUNCATED_PIVOTS, "gumbel_truncated_pivots", AT(truncated_pivots), 0},
    {CUDA_MODULE_SCREEN_MAKE, "gumbel_begin_screen", AT(screen_begin), 0},
    {CUDA_MODULE_SCREEN_MAKE, "gumbel_store_dither", AT(screen_dither), 0},
    {CUDA_MODULE_SCREEN_MAKE, "gumbel_measure_columns", AT(screen_measure), 0},
    {CUDA_MODULE_SCREEN_MAKE, "gumbel_choose_scales", AT(screen_scale), 0},
    {CUDA_MODULE_SCREEN_MAKE, "gumbel_make_screen", AT(screen_make), 0},
    {CUDA_MODULE_SCREEN_MAKE, "gumbel_seal_screen", AT(screen_seal), 0},
    {CUDA_MODULE_SCREEN_MAKE, "gumbel_verify_screen", AT(screen_verify), 0},
    {CUDA_MODULE_SCREEN_ROWS, "gumbel_screen_truncate", AT(screen_truncate), 0},
    {CUDA_MODULE_RULE_DRAFTS, "gumbel_expand_rule_drafts", AT(expand_rule_drafts), 0},
    {CUDA_MODULE_RULE_DRAFTS, "gumbel_sum_draft_masses", AT(sum_draft_masses), 0},
    {CUDA_MODULE_RULE_DRAFTS, "gumbel_sum_draft_residuals", AT(sum_draft_blocks), 0},
    {CUDA_MODULE_RULE_DRAFTS, "gumbel_draw_residuals", AT(accept_rule_drafts), 0},
    {CUDA_MODULE_TOP64_SELECT, "gumbel_select_top64", AT(select_top64), CUDA_TOP64_BYTES_MAX},
    {CUDA_MODULE_TOP64_SELECT, "gumbel_select_exchange_top64", AT(select_exchange_top64),
     CUDA_TOP64_BYTES_MAX},
    {CUDA_MODULE_TRUNCATED_BLOCKS, "gumbel_truncated_blocks", AT(truncated_blocks),
     CUDA_BLOCKS_BYTES_MAX},
    {CUDA_MODULE_TRUNCATED_BOUNDED, "gumbel_truncated_bounded", AT(truncated_bounded),
     CUDA_BLOCKS_BYTES_MAX},
    {CUDA_MODULE_PROGRAM_BLOCKS, "gumbel_program_blocks", AT(program_blocks),
     CUDA_BLOCKS_BYTES_MAX},
    {CUDA_MODULE_PROGRAM_PIVOTS, "gumbel_program_pivots", AT(program_pivots), 0},
};

/* Kernels that wait for launches on other streams. */
static const size_t waiting_kernels[] = {AT(exchange_rows), AT(exchange_summaries),
                                         AT(request_rows), AT(exchange_top64),
                                         AT(select_exchange_top64)};
#undef AT

static CUfunction *kernel_at(cuda_device *cuda, size_t at)
{
    return (CUfunction *)((char *)cuda + at);
}

/* Names of dtypes in kernel names. */
static const char *const dtypes[] = {[CUDA_BF16] = "bf16", [CUDA_F16] = "f16", [CUDA_F32] = "f32"};

/* Get a kernel by name. Reading an attribute loads it onto the GPU now, so that its first launch
 * does not wait. On a GPU that has less than `shared_bytes`, launches can use the default of
 * CUDA_DEFAULT_SHARED_BYTES. */
static gumbel_status get_kernel(cuda_device *cuda, cuda_module module, const char *name,
                                int shared_bytes, CUfunction *kernel, gumbel_error *error)
{
    const int available = cuda->shared_bytes - CUDA_RESERVED_BYTES;
    int registers;
    CUDA_TRY(&cuda->driver, error, cuModuleGetFunction, kernel, cuda->modules[module], name);
    CUDA_TRY(&cuda->driver, error, cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS,
             *kernel);
    if (shared_bytes > 0 && shared_bytes <= available)
        CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel,
                 CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes);
    return GUMBEL_OK;
}

/* Give waiting kernels the maximum shared-memory carveout. The carveout of a multiprocessor is
 * fixed while a kernel runs there: a launch that requires more would wait for the kernel that
 * waits. */
static gumbel_status set_waiting_carveouts(cuda_device *cuda, gumbel_error *error)
{
    for (size_t i = 0; i < sizeof waiting_kernels / sizeof *waiting_kernels; i++)
        if (*kernel_at(cuda, waiting_kernels[i]))
            CUDA_TRY(&cuda->driver, error, cuFuncSetAttribute, *kernel_at(cuda, waiting_kernels[i]),
                     CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                     CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    return GUMBEL_OK;
}

static gumbel_status get_single_kernels(cuda_device *cuda, gumbel_error *error)
{
    for (size_t i = 0; i < sizeof single_kernels / sizeof *single_kernels; i++) {
        const single_kernel *one = &single_kernels[i];
        if (cuda->modules[one->module])
            GUMBEL_FORWARD(get_kernel(cuda, one->module, one->name, one->shared_bytes,
                                      kernel_at(cuda, one->at), error));
    }
    return set_waiting_carveouts(cuda, error);
}

/* The kernels that hold a row in the shared memory of several CTAs. */
static gumbel_status get_slice_kernels(cuda_device *cuda, gumbel_error *error)
{
    const int bytes = cuda_cluster_max_bytes(cuda->shared_bytes);
    if (cuda->modules[CUDA_MODULE_TRUNCATED_CLUSTER]) {
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_PROGRAM_CLUSTER, "gumbel_program_cluster",
                                  bytes, &cuda->program_cluster, error));
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_TRUNCATED_CLUSTER, "gumbel_truncated_cluster",
                                  bytes, &cuda->truncated_cluster, error));
    }
    if (!cuda->has_cooperative_launch)
        return GUMBEL_OK;
    GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_PROGRAM_GRID, "gumbel_program_grid", bytes,
                              &cuda->program_grid, error));
    return get_kernel(cuda, CUDA_MODULE_TRUNCATED_GRID, "gumbel_truncated_grid", bytes,
                      &cuda->truncated_grid, error);
}

static gumbel_status get_sm80_kernels(cuda_device *cuda, gumbel_error *error)
{
    const cuda_module module = CUDA_MODULE_FUSED_SM80;
    const int available = cuda->shared_bytes - CUDA_RESERVED_BYTES;
    char name[64];
    for (int dtype = CUDA_BF16; dtype < CUDA_DTYPES; dtype++)
        for (int i = 0; i < CUDA_SM80_WIDTHS; i++) {
            int n = cuda_sm80_widths[i], samples = CUDA_SM80_STATES / n;
            if (n > cuda_sm80_widest(dtype == CUDA_F32))
                continue;
            int bytes = cuda_sm80_shared_bytes(n, samples, 1, 0);
            snprintf(name, sizeof name, "gumbel_fused_sm80_%s_%d", dtypes[dtype], n);
            GUMBEL_FORWARD(get_kernel(cuda, module, name, bytes < available ? bytes : available,
                                      &cuda->fused_sm80[dtype][i], error));
        }
    for (int dtype = CUDA_BF16; dtype <= CUDA_F16; dtype++) {
        int n = cuda_sm80_widths[0], samples = CUDA_SM80_STATES / n;
        snprintf(name, sizeof name, "gumbel_fused_sm80_mixed_%s_%d", dtypes[dtype], n);
        GUMBEL_FORWARD(get_kernel(cuda, module, name, cuda_sm80_shared_bytes(n, samples, 1, 1),
                                  &cuda->mixed_sm80[dtype], error));
        for (int i = 0; i < CUDA_WIDE_KERNELS; i++) {
            snprintf(name, sizeof name, "gumbel_fused_wide_sm80_%s_%d_%d", dtypes[dtype],
                     cuda_wide_kernels[i].columns, cuda_wide_kernels[i].depth);
            GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_WIDE_SM80, name, available,
                                      &cuda->wide_sm80[dtype][i], error));
        }
    }
    return GUMBEL_OK;
}

static gumbel_status get_sm90_kernels(cuda_device *cuda, gumbel_error *error)
{
    static const char *const cases[] = {
        [CUDA_SM90_PLAIN] = "plain",   [CUDA_SM90_PLAIN_MASS] = "plain_mass",
        [CUDA_SM90_STORED] = "stored", [CUDA_SM90_BOTH] = "both",
        [CUDA_SM90_ANY] = "any",       [CUDA_SM90_STATISTICS] = "statistics"};
    for (int i = 0; i < (CUDA_F16 + 1) * CUDA_SM90_WIDTHS * CUDA_SM90_CASES; i++) {
        int dtype = i / CUDA_SM90_CASES / CUDA_SM90_WIDTHS;
        int width = i / CUDA_SM90_CASES % CUDA_SM90_WIDTHS, kind = i % CUDA_SM90_CASES;
        const cuda_module module =
            dtype == CUDA_F16 ? CUDA_MODULE_FUSED_HALF_SM90 : CUDA_MODULE_FUSED_SM90;
        char name[64];
        if (kind == CUDA_SM90_BOTH && !CUDA_SM90_HAS_BOTH(cuda_sm90_widths[width]))
            continue;
        snprintf(name, sizeof name, "gumbel_fused_sm90_%s_%d_%s", dtypes[dtype],
                 cuda_sm90_widths[width], cases[kind]);
        GUMBEL_FORWARD(get_kernel(cuda, module, name, CUDA_SM90_SHARED_BYTES,
                                  &cuda->fused_sm90[dtype][width][kind], error));
    }
    return GUMBEL_OK;
}

static gumbel_status get_allowed_kernels(cuda_device *cuda, gumbel_error *error)
{
    const cuda_module module = CUDA_MODULE_ALLOWED_PRODUCT, fused = CUDA_MODULE_ALLOWED_FUSED;
    GUMBEL_FORWARD(get_kernel(cuda, fused, "gumbel_draw_allowed_fused_bf16",
                              CUDA_ALLOWED_FUSED_BYTES, &cuda->draw_allowed_fused[CUDA_BF16],
                              error));
    GUMBEL_FORWARD(get_kernel(cuda, fused, "gumbel_draw_allowed_fused_f16",
                              CUDA_ALLOWED_FUSED_BYTES, &cuda->draw_allowed_fused[CUDA_F16],
                              error));
    GUMBEL_FORWARD(get_kernel(cuda, module, "gumbel_store_allowed_bf16", CUDA_ALLOWED_PRODUCT_BYTES,
                              &cuda->store_allowed[CUDA_BF16], error));
    return get_kernel(cuda, module, "gumbel_store_allowed_f16", CUDA_ALLOWED_PRODUCT_BYTES,
                      &cuda->store_allowed[CUDA_F16], error);
}

/* The kernels of a draw with a screen. */
static gumbel_status get_screen_kernels(cuda_device *cuda, gumbel_error *error)
{
    static const char *const cases[] = {[CUDA_SCREEN_PLAIN] = "",
                                        [CUDA_SCREEN_ANY] = "_any",
                                        [CUDA_SCREEN_TRUNCATED] = "_truncated",
                                        [CUDA_SCREEN_NESTED] = "_nested",
                                        [CUDA_SCREEN_NESTED_ANY] = "_nested_any",
                                        [CUDA_SCREEN_NESTED_TRUNCATED] = "_nested_truncated"};
    const cuda_module score = CUDA_MODULE_SCREEN_SCORE;
    char name[64];
    const int columns_max = GUMBEL_SCREEN_COLUMNS_MAX;
    GUMBEL_FORWARD(get_kernel(cuda, score, "gumbel_refine_rows",
                              CUDA_SCREEN_REFINE_BYTES((columns_max + 127) / 128),
                              &cuda->screen_refine, error));
    for (int kind = 0; kind < CUDA_SCREEN_CASES; kind++) {
        snprintf(name, sizeof name, "gumbel_split_rows%s", cases[kind]);
        GUMBEL_FORWARD(get_kernel(cuda, score, name, 0, &cuda->screen_split[kind], error));
    }
    for (int i = 0; i < CUDA_SCREEN_WIDTHS * CUDA_SCREEN_CASES; i++) {
        const int place = i / CUDA_SCREEN_CASES, kind = i % CUDA_SCREEN_CASES;
        if (kind == CUDA_SCREEN_NESTED && cuda_screen_widths[place] > 2 * CUDA_SCREEN_COARSE_DRAWS)
            continue;
        snprintf(name, sizeof name, "gumbel_screen_rows_%d%s", cuda_screen_widths[place],
                 cases[kind]);
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_SCREEN_DRAW, name, CUDA_SM90_SHARED_BYTES,
                                  &cuda->screen_draw[place][kind], error));
    }
    for (int dtype = CUDA_BF16; dtype <= CUDA_F16; dtype++) {
        for (int kind = 0; kind < CUDA_SCREEN_CASES; kind++) {
            snprintf(name, sizeof name, "gumbel_score_rows_%s%s", dtypes[dtype],
                     cuda_screen_truncates((cuda_screen_case)kind) ? "_truncated" : "");
            GUMBEL_FORWARD(get_kernel(cuda, score, name, CUDA_SCREEN_SCORE_BYTES,
                                      &cuda->screen_score[dtype][kind], error));
        }
        for (int i = 0; i <= cuda_sm90_width_for(CUDA_SCREEN_ROWS_MAX); i++) {
            snprintf(name, sizeof name, "gumbel_fused_fallback_%s_%d", dtypes[dtype],
                     cuda_sm90_widths[i]);
            GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_FALLBACK, name,
                                      CUDA_SM90_SHARED_BYTES, &cuda->fused_fallback[dtype][i],
                                      error));
            snprintf(name, sizeof name, "gumbel_store_fallback_%s_%d", dtypes[dtype],
                     cuda_sm90_widths[i]);
            GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_FALLBACK, name,
                                      CUDA_SM90_SHARED_BYTES, &cuda->store_fallback[dtype][i],
                                      error));
        }
    }
    return GUMBEL_OK;
}

/* The kernels of a draw with a screen by mma.sync. */
static gumbel_status get_screen_sm80_kernels(cuda_device *cuda, gumbel_error *error)
{
    static const char *const cases[] = {[CUDA_SCREEN_PLAIN] = "", [CUDA_SCREEN_ANY] = "_any"};
    const cuda_module draw = CUDA_MODULE_SCREEN_DRAW_SM80, score = CUDA_MODULE_SCREEN_SCORE_SM80;
    char name[64];
    for (int kind = 0; kind <= CUDA_SCREEN_ANY; kind++) {
        snprintf(name, sizeof name, "gumbel_split_tensor%s", cases[kind]);
        GUMBEL_FORWARD(get_kernel(cuda, score, name, 0, &cuda->screen_tensor_split[kind], error));
        for (int i = 0; i < CUDA_SCREEN_WIDTHS; i++) {
            snprintf(name, sizeof name, "gumbel_screen_tensor_%d%s", cuda_screen_widths[i],
                     cases[kind]);
            GUMBEL_FORWARD(get_kernel(cuda, draw, name, cuda->shared_bytes - CUDA_RESERVED_BYTES,
                                      &cuda->screen_tensor_draw[i][kind], error));
        }
    }
    for (int dtype = CUDA_BF16; dtype <= CUDA_F16; dtype++) {
        snprintf(name, sizeof name, "gumbel_score_tensor_%s", dtypes[dtype]);
        GUMBEL_FORWARD(get_kernel(cuda, score, name, CUDA_SCREEN_SM80_SCORE_BYTES,
                                  &cuda->screen_tensor_score[dtype], error));
        for (int i = 0; i < CUDA_SCREEN_SM80_FALLBACK_WIDTHS; i++) {
            const int n = cuda_sm80_widths[i];
            snprintf(name, sizeof name, "gumbel_fallback_sm80_%s_%d", dtypes[dtype], n);
            GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_FUSED_FALLBACK_SM80, name,
                                      cuda_sm80_shared_bytes(n, CUDA_SM80_STATES / n, 0, 0),
                                      &cuda->fallback_sm80[dtype][i], error));
        }
    }
    return GUMBEL_OK;
}

static gumbel_status get_logits_kernels(cuda_device *cuda, gumbel_error *error)
{
    char name[64];
    for (int i = 0; i < 4 * CUDA_DTYPES; i++) {
        int dtype = i / 4, mass = i / 2 % 2, noise = i % 2;
        snprintf(name, sizeof name, "gumbel_draw_logits_%s%s%s", dtypes[dtype],
                 noise ? "_noise" : "", mass ? "_mass" : "");
        GUMBEL_FORWARD(get_kernel(cuda, CUDA_MODULE_LOGITS, name,
                                  cuda_logits_shared_bytes(mass, INT64_MAX, CUDA_LOGITS_SAMPLES),
                                  &cuda->logits[dtype][mass][noise], error));
    }
    for (int dtype = CUDA_BF16; dtype < CUDA_DTYPES; dtype++) {
        snprintf(name, sizeof name, "gumbel_draw_logits_%s_edited", dtypes[dtype]);
        GUMBEL_FORWARD(
            get_kernel(cuda, CUDA_MODULE_LOGITS, name, 0, &cuda->logits_edited[dtype], error));
        snprintf(name, sizeof name, "gumbel_sum_masses_%s", dtypes[dtype]);
        GUMBEL_FORWARD(
            get_kernel(cuda, CUDA_MODULE_SOFTMAX, name, 0, &cuda->sum_masses[dtype], error));
        snprintf(name, sizeof name, "gumbel_normalize_%s", dtypes[dtype]);
        GUMBEL_FORWARD(
            get_kernel(cuda, CUDA_MODULE_SOFTMAX, name, 0, &cuda->normalise[dtype], error));
    }
    return GUMBEL_OK;
}

/* Whether a GPU of this capability can run a module's kernels. */
static int module_is_supported(int module, int capability)
{
    const char *kernels = "portable";
    if (module >= CUDA_MODULE_TOP64_SELECT && module <= CUDA_MODULE_PROGRAM_CLUSTER)
        kernels = "clusters";
    else if (module >= CUDA_MODULE_FUSED_SM80 && module <= CUDA_MODULE_SCREEN_SCORE_SM80)
        kernels = "tensor";
    else if (module >= CUDA_MODULE_FUSED_SM90)
        kernels = "hopper";
    return *cuda_find_architecture(kernels, capability) != 0;
}

gumbel_status cuda_load_kernels(cuda_device *cuda, gumbel_error *error)
{
    CUdeviceptr limit;
    size_t bytes;
    for (int i = 0; i < CUDA_MODULES; i++)
        if (module_is_supported(i, cuda->base.capability))
            CUDA_TRY(&cuda->driver, error, cuModuleLoadData, &cuda->modules[i], images[i]);
    GUMBEL_FORWARD(get_single_kernels(cuda, error));
    GUMBEL_FORWARD(get_slice_kernels(cuda, error));
    GUMBEL_FORWARD(get_logits_kernels(cuda, error));
    if (cuda->modules[CUDA_MODULE_FUSED_SM80]) {
        GUMBEL_FORWARD(get_sm80_kernels(cuda, error));
        GUMBEL_FORWARD(get_screen_sm80_kernels(cuda, error));
    }
    if (cuda->modules[CUDA_MODULE_FUSED_SM90]) {
        GUMBEL_FORWARD(get_sm90_kernels(cuda, error));
        GUMBEL_FORWARD(get_allowed_kernels(cuda, error));
        GUMBEL_FORWARD(get_screen_kernels(cuda, error));
    }
    CUDA_TRY(&cuda->driver, error, cuModuleGetGlobal, &limit, &bytes,
             cuda->modules[CUDA_MODULE_TOP64_DRAW], "gumbel_top64_limit");
    cuda->top64_limit = (const int32_t *)(uintptr_t)limit;
    return GUMBEL_OK;
}
