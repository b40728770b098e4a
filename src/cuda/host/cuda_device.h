/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device.
 */
#ifndef GUMBEL_CUDA_DEVICE_H
#define GUMBEL_CUDA_DEVICE_H

#include "core/backend.h"
#include "cuda/common/cuda_request.h"
#include "cuda/host/cuda_driver.h"
#include "cuda/policy/cuda_policy.h"
#include "cuda/policy/screen_policy.h"

#include <stdatomic.h>
#include <sys/types.h>

/* Places of the kernels of one dtype in cuda_device's tables. */
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
    CUDA_MODULE_DRAW_PARTS,
    CUDA_MODULE_EXCHANGE,
    CUDA_MODULE_FINISH,
    CUDA_MODULE_GATHER,
    CUDA_MODULE_HISTORY,
    CUDA_MODULE_NAIVE,
    CUDA_MODULE_NOISE,
    CUDA_MODULE_LOGITS,
    CUDA_MODULE_REQUEST,
    CUDA_MODULE_REQUEST_EDIT,
    CUDA_MODULE_REQUEST_NAIVE,
    CUDA_MODULE_REQUEST_PIVOTS,
    CUDA_MODULE_SCREEN_MAKE,
    CUDA_MODULE_SOFTMAX,
    CUDA_MODULE_RULE_DRAFTS,
    CUDA_MODULE_TOP64_SELECT, /* this and the next two where there are clusters */
    CUDA_MODULE_REQUEST_BLOCKS,
    CUDA_MODULE_REQUEST_CLUSTER,
    CUDA_MODULE_FUSED_SM80,
    CUDA_MODULE_FUSED_SM90, /* this and those behind it on Hopper alone */
    CUDA_MODULE_FUSED_HALF_SM90,
    CUDA_MODULE_FUSED_AGAIN,
    CUDA_MODULE_SCREEN_DRAW,
    CUDA_MODULE_SCREEN_ROWS,
    CUDA_MODULE_SCREEN_SCORE,
    CUDA_MODULES,
} cuda_module;

/* Rows of the tables of what serves calls (cuda_rungs.c). */
#define CUDA_PRODUCTS  5
#define CUDA_ROW_RUNGS 10

/* Which of them may be used, as bits: products from bit 0 on, behind them those for rows. */
typedef struct cuda_rung_choice {
    uint32_t left_out;
    uint32_t preferred; /* come first where they serve */
} cuda_rung_choice;

typedef struct cuda_device {
    struct gumbel_device base;
    cuda_driver driver;
    CUdevice device;
    CUcontext context; /* the primary one, retained */
    pid_t process;     /* which opened the device; its children have no context */
    int ordinal;
    cuda_rung_choice rungs;
    int capability; /* 10 * major + minor */
    int multiprocessors;
    int shared_bytes;               /* of a multiprocessor */
    CUmodule modules[CUDA_MODULES]; /* NULL where the GPU cannot run it */
    CUfunction advance;
    CUfunction best;
    CUfunction exchange_rows, exchange_summaries, ask_rows, lay_rows;
    CUfunction draw_candidates, tell_candidates, spread_rows;
    CUfunction list_rows, tell_rows; /* NULL where there are no clusters */
    CUfunction draw_parts, add_part;
    const int32_t *listed_tokens; /* on the GPU: CUDA_TOP64 */
    CUfunction expand_drafts;
    CUfunction accept_drafts;
    CUfunction expand_weighed, weigh_drafts, sum_drafts, race_drafts;
    CUfunction allow;
    CUfunction finish, finish_any;
    CUfunction gather;
    CUfunction history_start;
    CUfunction history_update;
    CUfunction naive;
    CUfunction request;
    CUfunction request_edit;
    CUfunction request_naive;
    CUfunction request_pivots;
    CUfunction request_blocks, request_bounded,
        request_cluster; /* NULL where there are no clusters */
    CUfunction noise;
    CUfunction logits[CUDA_DTYPES][2][2]; /* [with mass][noise given] */
    CUfunction logits_edited[CUDA_DTYPES];
    CUfunction weigh[CUDA_DTYPES], normalise[CUDA_DTYPES];
    CUfunction fused_sm80[CUDA_DTYPES][CUDA_SM80_WIDTHS];
    CUfunction mixed_sm80[CUDA_F16 + 1];
    CUfunction fused_sm90[CUDA_F16 + 1][CUDA_SM90_WIDTHS][CUDA_SM90_CASES];
    /* Of CUDA_SCREEN_ROWS_MAX rows. */
    CUfunction fused_again[CUDA_F16 + 1][CUDA_SM90_WIDTHS];
    CUfunction store_again[CUDA_F16 + 1][CUDA_SM90_WIDTHS];
    CUfunction screen_begin, screen_make, screen_seal, screen_verify;
    CUfunction screen_split[CUDA_SCREEN_CASES], screen_cut;
    CUfunction screen_score[CUDA_F16 + 1][CUDA_SCREEN_CASES];
    CUfunction screen_draw[CUDA_SCREEN_WIDTHS][CUDA_SCREEN_CASES];
    _Atomic uint64_t launches; /* so far: makes the tags of floors (row_thresholds.cuh) */
} cuda_device;

static inline cuda_dtype cuda_dtype_of(gumbel_dtype dtype)
{
    return dtype == GUMBEL_BFLOAT16 ? CUDA_BF16 : dtype == GUMBEL_FLOAT16 ? CUDA_F16 : CUDA_F32;
}

/* Make the device's context current. A child of fork() is refused, and the driver not asked. */
gumbel_status cuda_enter(const cuda_device *cuda, gumbel_error *error);

/* Load every kernel that this GPU can run. The context is current. */
gumbel_status cuda_load_kernels(cuda_device *cuda, gumbel_error *error);

/* The choice that names of rungs make, by commas, a minus before those that are left out. */
gumbel_status cuda_read_rungs(cuda_rung_choice *choice, const char *names, const char *field,
                              gumbel_error *error);

/* The backend's jobs (cuda_backend.c, cuda_plan.c, cuda_softmax.c, cuda_history.c, cuda_step.c,
 * cuda_run_drafts.c, cuda_ranks.c, cuda_peers.c); see backend.h. */
size_t cuda_most(const gumbel_device *device, const gumbel_limits *limits);
gumbel_status cuda_call_size(const gumbel_device *device, const gumbel_problem *problem,
                             uint32_t more, size_t *bytes, gumbel_error *error);
gumbel_status cuda_explain(const gumbel_device *device, const gumbel_problem *problem,
                           gumbel_text *text, gumbel_error *error);
gumbel_status cuda_partial(gumbel_device *device, const gumbel_problem *problem,
                           gumbel_summary *summaries, void *workspace, gumbel_error *error);
gumbel_status cuda_sample(gumbel_device *device, const gumbel_problem *problem,
                          const gumbel_output *output, void *workspace, gumbel_error *error);
gumbel_status cuda_process(gumbel_device *device, const gumbel_problem *problem, float *processed,
                           int64_t stride, void *workspace, gumbel_error *error);
gumbel_status cuda_softmax(gumbel_device *device, const gumbel_problem *problem,
                           float *probabilities, int64_t stride, void *workspace,
                           gumbel_error *error);
gumbel_status cuda_history_start(gumbel_device *device, void *stream, const gumbel_history *history,
                                 int64_t batch, const gumbel_slots *slots,
                                 const gumbel_token_lists *prompts,
                                 const gumbel_token_lists *outputs, gumbel_error *error);
gumbel_status cuda_history_update(gumbel_device *device, void *stream,
                                  const gumbel_history *history, int64_t batch,
                                  const gumbel_slots *slots, const int32_t *tokens,
                                  int64_t token_stride, const int32_t *counts, gumbel_error *error);
gumbel_status cuda_noise(gumbel_device *device, const gumbel_problem *problem, float *noise,
                         int64_t noise_stride, gumbel_error *error);
gumbel_status cuda_expand_drafts(gumbel_device *device, void *stream,
                                 const gumbel_verification *verification, const gumbel_proposal *by,
                                 gumbel_error *error);
gumbel_status cuda_accept_drafts(gumbel_device *device, void *stream,
                                 const gumbel_verification *verification, const gumbel_proposal *by,
                                 gumbel_error *error);
size_t cuda_weighing_size(const gumbel_device *device, const gumbel_verification *verification,
                          const gumbel_proposal *by);
gumbel_status cuda_store(gumbel_device *device, const gumbel_problem *problem, float *logits,
                         int64_t stride, void *workspace, gumbel_error *error);
/* Sample from logits of rows of which there mostly are none, as sampling.live_rows says. */
gumbel_status cuda_sample_left(gumbel_device *device, const gumbel_problem *problem,
                               const gumbel_output *output, void *workspace, gumbel_error *error);
/* Sample from a head whose logits stay, all of them, in rows [B, V] at `stride`; cuda_stored_size()
 * is the workspace's. */
gumbel_status cuda_stored_size(const gumbel_device *device, const gumbel_problem *problem,
                               size_t *bytes, gumbel_error *error);
gumbel_status cuda_sample_stored(gumbel_device *device, const gumbel_problem *problem,
                                 const gumbel_output *output, float *rows, int64_t stride,
                                 void *workspace, gumbel_error *error);
/* Whether such rows are listed from few blocks. Then, in as much of the workspace, the product
 * alone, which stores what can matter to what is `asked` and output.num_top first tokens; and what
 * that has left, for those who list them. */
int cuda_lists_blocks(const gumbel_device *device, const gumbel_problem *listing);
gumbel_status cuda_store_listed(gumbel_device *device, const gumbel_problem *listing,
                                const gumbel_problem *asked, const gumbel_output *output,
                                float *rows, int64_t stride, void *workspace, gumbel_error *error);
gumbel_status cuda_find_listed(gumbel_device *device, const gumbel_problem *listing, float *rows,
                               int64_t stride, void *workspace, cuda_request_params *p,
                               gumbel_error *error);
extern const gumbel_rank_calls cuda_rank_calls;
gumbel_status cuda_edit(gumbel_device *device, const gumbel_problem *problem, float *rows,
                        int64_t stride, void *workspace, gumbel_error *error);
gumbel_status cuda_peers_make(gumbel_device *device, gumbel_peers *peers, gumbel_peer_handle *card,
                              gumbel_error *error);
gumbel_status cuda_peers_join(gumbel_device *device, gumbel_peers *peers,
                              const gumbel_peer_handle *cards, gumbel_error *error);
void cuda_peers_part(gumbel_device *device, gumbel_peers *peers);
gumbel_status cuda_advance(gumbel_device *device, void *stream, const gumbel_step *step,
                           gumbel_error *error);
gumbel_status cuda_draw_parts(gumbel_device *device, const gumbel_parts_call *call,
                              gumbel_error *error);
gumbel_status cuda_finish_parts(gumbel_device *device, void *stream, const gumbel_finish_call *call,
                                gumbel_error *error);
gumbel_status cuda_screen_prepare(gumbel_device *device, const gumbel_problem *problem,
                                  void *screen, gumbel_error *error);
gumbel_status cuda_screen_verify(gumbel_device *device, const gumbel_problem *problem,
                                 gumbel_error *error);
gumbel_status cuda_multiply(gumbel_device *device, const gumbel_problem *problem, void *workspace,
                            gumbel_error *error);

#endif
