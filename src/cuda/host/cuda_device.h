/* SPDX-License-Identifier: Apache-2.0
 *
 * An open GPU: its driver, context, and loaded kernels.
 */
#ifndef GUMBEL_CUDA_DEVICE_H
#define GUMBEL_CUDA_DEVICE_H

#include "core/backend.h"
#include "cuda/common/cuda_truncated_params.h"
#include "cuda/host/cuda_driver.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/policy/grid_policy.h"
#include "cuda/policy/wide_policy.h"
#include "cuda/policy/screen_policy.h"

#include <stdatomic.h>
#include <sys/types.h>

/* Indices of dtypes in the kernel tables of cuda_device. */
typedef enum cuda_dtype {
    CUDA_BF16,
    CUDA_F16,
    CUDA_F32,
    CUDA_DTYPES,
} cuda_dtype;

typedef enum cuda_module {
    CUDA_MODULE_ADVANCE,
    CUDA_MODULE_ALLOW,
    CUDA_MODULE_BEST,
    CUDA_MODULE_TOP64_DRAW,
    CUDA_MODULE_DRAFTS,
    CUDA_MODULE_DRAW_ALLOWED,
    CUDA_MODULE_ENTROPY,
    CUDA_MODULE_GROUP_TOKENS,
    CUDA_MODULE_EXCHANGE,
    CUDA_MODULE_FINISH,
    CUDA_MODULE_GATHER,
    CUDA_MODULE_HISTORY,
    CUDA_MODULE_MAKE_LISTS,
    CUDA_MODULE_WATERMARK,
    CUDA_MODULE_NAIVE,
    CUDA_MODULE_NOISE,
    CUDA_MODULE_TOKEN_IDS,
    CUDA_MODULE_LOGITS,
    CUDA_MODULE_TRUNCATED_TWO_PASS,
    CUDA_MODULE_EDIT_LOGITS,
    CUDA_MODULE_TRUNCATED_NAIVE,
    CUDA_MODULE_TRUNCATED_BLOCKS,
    CUDA_MODULE_TRUNCATED_PIVOTS,
    CUDA_MODULE_TRUNCATED_GRID,
    CUDA_MODULE_PROGRAM_BLOCKS,
    CUDA_MODULE_PROGRAM_GRID,
    CUDA_MODULE_PROGRAM_PIVOTS,
    CUDA_MODULE_SCREEN_MAKE,
    CUDA_MODULE_SOFTMAX,
    CUDA_MODULE_RULE_DRAFTS,
    CUDA_MODULE_TOP64_SELECT, /* this and the next three: GPUs with clusters */
    CUDA_MODULE_ENTROPY_CLUSTER,
    CUDA_MODULE_TRUNCATED_CLUSTER,
    CUDA_MODULE_PROGRAM_CLUSTER,
    CUDA_MODULE_FUSED_SM80,
    CUDA_MODULE_FUSED_WIDE_SM80,
    CUDA_MODULE_FUSED_FALLBACK_SM80,
    CUDA_MODULE_SCREEN_DRAW_SM80,
    CUDA_MODULE_SCREEN_SCORE_SM80,
    CUDA_MODULE_FUSED_SM90, /* this and the following: Hopper only */
    CUDA_MODULE_FUSED_HALF_SM90,
    CUDA_MODULE_FUSED_FALLBACK,
    CUDA_MODULE_ALLOWED_FUSED,
    CUDA_MODULE_ALLOWED_PRODUCT,
    CUDA_MODULE_SCREEN_DRAW,
    CUDA_MODULE_SCREEN_ROWS,
    CUDA_MODULE_SCREEN_SCORE,
    CUDA_MODULE_TRUNCATED_BOUNDED,
    CUDA_MODULES,
} cuda_module;

/* The kernel variants that options.rungs names, as bits (cuda_plan.h). */
typedef struct cuda_rung_choice {
    uint32_t excluded;
    uint32_t preferred; /* tried before others */
} cuda_rung_choice;

typedef struct cuda_device {
    struct gumbel_device base;
    cuda_driver driver;
    CUdevice device;
    CUcontext context; /* the primary one, retained */
    pid_t process;     /* that opened the device; its forked children have no context */
    int ordinal;
    cuda_rung_choice rungs;
    int multiprocessors;
    int shared_bytes; /* of a multiprocessor */
    int has_cooperative_launch;
    CUmodule modules[CUDA_MODULES]; /* NULL if the GPU cannot run it */
    CUfunction advance, update_rules;
    CUfunction best;
    CUfunction entropy, entropy_cluster; /* the latter: NULL without clusters */
    CUfunction exchange_rows, exchange_summaries, request_rows, scatter_rows;
    CUfunction draw_top64, exchange_top64, scatter_outputs;
    CUfunction select_top64, select_exchange_top64; /* NULL without clusters */
    CUfunction draw_group_tokens, update_stream_draws;
    const int32_t *top64_limit; /* on the GPU: CUDA_TOP64, as a top_k */
    CUfunction expand_drafts;
    CUfunction accept_drafts;
    CUfunction expand_rule_drafts, sum_draft_masses, sum_draft_blocks, accept_rule_drafts;
    CUfunction allow, draw_allowed;
    CUfunction finish, finish_any, finish_statistics;
    CUfunction gather;
    CUfunction history_start;
    CUfunction history_update;
    CUfunction recent_start, recent_append, make_lists, watermark;
    CUfunction naive;
    CUfunction truncated_two_pass;
    CUfunction edit_logits;
    CUfunction truncated_naive;
    CUfunction truncated_blocks, program_blocks;
    CUfunction truncated_pivots, program_pivots;
    CUfunction truncated_grid, program_grid;       /* NULL without cooperative launches */
    CUfunction truncated_cluster, program_cluster; /* NULL without clusters */
    CUfunction truncated_bounded;                  /* NULL unless the GPU is a Hopper one */
    CUfunction noise, table_noise, map_token_ids;
    CUfunction logits[CUDA_DTYPES][2][2]; /* [with mass][noise given] */
    CUfunction logits_edited[CUDA_DTYPES];
    CUfunction sum_masses[CUDA_DTYPES], normalise[CUDA_DTYPES];
    CUfunction fused_sm80[CUDA_DTYPES][CUDA_SM80_WIDTHS]; /* NULL: wide kernels serve */
    CUfunction mixed_sm80[CUDA_F16 + 1];
    CUfunction wide_sm80[CUDA_F16 + 1][CUDA_WIDE_KERNELS];
    CUfunction store_allowed[CUDA_F16 + 1], draw_allowed_fused[CUDA_F16 + 1];
    CUfunction fused_sm90[CUDA_F16 + 1][CUDA_SM90_WIDTHS][CUDA_SM90_CASES];
    /* Full passes after a draw with a screen, of up to CUDA_SCREEN_ROWS_MAX rows. */
    CUfunction fused_fallback[CUDA_F16 + 1][CUDA_SM90_WIDTHS];
    CUfunction store_fallback[CUDA_F16 + 1][CUDA_SM90_WIDTHS];
    CUfunction screen_begin, screen_dither, screen_measure, screen_scale, screen_make, screen_seal,
        screen_verify;
    CUfunction screen_split[CUDA_SCREEN_CASES], screen_refine, screen_truncate;
    CUfunction screen_score[CUDA_F16 + 1][CUDA_SCREEN_CASES];
    CUfunction screen_draw[CUDA_SCREEN_WIDTHS][CUDA_SCREEN_CASES];
    /* Kernels of a draw with a screen by mma.sync. */
    CUfunction fallback_sm80[CUDA_F16 + 1][CUDA_SCREEN_SM80_FALLBACK_WIDTHS];
    CUfunction screen_tensor_split[CUDA_SCREEN_ANY + 1], screen_tensor_score[CUDA_F16 + 1];
    CUfunction screen_tensor_draw[CUDA_SCREEN_WIDTHS][CUDA_SCREEN_ANY + 1];
    _Atomic uint64_t launches; /* number of launches so far, from which tags of launches are made */
} cuda_device;

static inline cuda_dtype cuda_dtype_of(gumbel_dtype dtype)
{
    return dtype == GUMBEL_BFLOAT16 ? CUDA_BF16 : dtype == GUMBEL_FLOAT16 ? CUDA_F16 : CUDA_F32;
}

/* Make the device's context current. Fails in a child of fork(), without calling the driver. */
gumbel_status cuda_push_context(const cuda_device *cuda, gumbel_error *error);
void cuda_pop_context(const cuda_device *cuda);

/* Check that options set no CPU option, and read N of options->device, "cuda:N". */
gumbel_status cuda_check_options(const gumbel_device_options *options, int *ordinal,
                                 gumbel_error *error);

/* Open GPU N and load its kernels. The caller sets base.backend and rungs. */
gumbel_status cuda_open_device(int ordinal, cuda_device **device, gumbel_error *error);

/* Load every kernel that this GPU can run. The context is current. */
gumbel_status cuda_load_kernels(cuda_device *cuda, gumbel_error *error);

/* Entries of the backend's tables (core/backend.h). */
void cuda_close_device(gumbel_device *device);
void cuda_describe_device(const gumbel_device *device, gumbel_device_info *info);
gumbel_status cuda_create_peers(gumbel_device *device, gumbel_peers *peers,
                                gumbel_peer_handle *handle, gumbel_error *error);
gumbel_status cuda_connect_peers(gumbel_device *device, gumbel_peers *peers,
                                 const gumbel_peer_handle *handles, gumbel_error *error);
void cuda_release_peers(gumbel_device *device, gumbel_peers *peers);

#endif
