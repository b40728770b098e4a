/* SPDX-License-Identifier: Apache-2.0
 *
 * How a call gets onto the caller's stream: each function queues kernels and returns; nothing here
 * waits.
 */
#ifndef GUMBEL_CUDA_RUN_H
#define GUMBEL_CUDA_RUN_H

#include "core/workspace.h"
#include "cuda/host/cuda_device.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_request.h"

/* One call on its way. */
typedef struct cuda_job {
    cuda_device *cuda;
    cuda_params params; /* of the whole call */
    CUstream stream;
    gumbel_error *error;
    const struct cuda_job *again; /* of a request whose product stored by bounds that can fail: the
                                   * product that stores all, if a row lacks a block; else NULL */
} cuda_job;

/* The size of a launch. */
typedef struct cuda_shape {
    int64_t ctas;
    int threads;
    int shared_bytes; /* dynamic ones, a CTA */
    int overlaps;     /* may start while the launch before it ends */
} cuda_shape;

/* Queue a kernel on the job's stream, with the device's context current; a driver's error is
 * reported in job->error. `arguments` are those of cuLaunchKernelEx(), copied before it returns. */
gumbel_status cuda_launch(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                          void **arguments);

/* A launch of CUDA_THREADS a CTA that is a whole call: with the device's context current. */
gumbel_status cuda_launch_alone(const cuda_job *job, CUfunction kernel, int64_t ctas,
                                void *argument);

/* What kernels are given for the soft-cap; 0 for none. */
static inline float cuda_inverse_cap(const gumbel_problem *p)
{
    return p->soft_cap > 0.0f ? 1.0f / p->soft_cap : 0.0f;
}

/* Merge what the parts of a slice found, and write what was asked for; p->parts may be 0. */
gumbel_status cuda_finish(const cuda_job *job, cuda_params *p);

/* A tag for a launch's words in the workspace (floor.cuh, parts.cuh): 40 bits. */
uint64_t cuda_tag(cuda_device *cuda);

/* The rows [first, first + count) of a call. */
cuda_params cuda_slice(const cuda_params *whole, int64_t first, int64_t count);

/* Draw all rows of the call, with the kernels of the name. */
gumbel_status cuda_run_naive(const cuda_job *job);
gumbel_status cuda_run_logits(const cuda_job *job);
gumbel_status cuda_run_sm80(const cuda_job *job);
gumbel_status cuda_run_sm90(const cuda_job *job);

/* Serve all rows of a call from logits, whatever is asked. They may be edited in place if they are
 * params.stored; params.peaks are theirs where that is set. The workspace goes on at `rest`, where
 * cuda_carve_request() says how much of it is taken. */
gumbel_status cuda_run_request(const cuda_job *job, gumbel_cursor rest);

/* What a request needs of the workspace, and CTAs that share a row tell each other. */
typedef struct cuda_request_room {
    uint64_t *counters;
    cuda_part *heads;
    cuda_candidate *candidates;
    float *edited;  /* [B, V], where edits are all that is asked for */
    float *peaks;   /* [B, blocks], where blocks can tell which tokens matter; else NULL */
    int32_t *left;  /* [B], likewise */
    uint64_t *told; /* [B, 2, parts, CUDA_REQUEST_TOLD], where rows are drawn before they are cut */
    /* Where the product may store by bounds; else NULL. */
    uint8_t *written; /* [blocks][B in whole 32s] */
    float *unseen;    /* [B, blocks], where penalties lower what a history has seen */
    int32_t *again;   /* [1], where bounds can fail */
} cuda_request_room;

/* Blocks of a row (cuda_policy.h). */
int64_t cuda_request_blocks(const gumbel_problem *problem);

/* Have a draw clear what the CTAs of rows that are drawn before they are cut tell each other. */
void cuda_clear_told(cuda_params *draw, const cuda_request_room *room);

/* Take a request's room from the workspace, or count its bytes; what a request does not need is
 * NULL. Edits need none where the logits may be edited in place. */
cuda_request_room cuda_carve_request(gumbel_cursor *cursor, const cuda_device *cuda,
                                     const gumbel_problem *problem, int edited_in_place);

#endif
