/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts in device memory, and their verification on the GPU.
 */
#ifndef TESTS_CUDA_DRAFTS_H
#define TESTS_CUDA_DRAFTS_H

#include "cuda_support.h"
#include "draft_cycles.h"
#include "gpu_copies.h"
#include "wide_drafts.h"

/* A cycle whose arguments are in device memory. */
typedef struct gpu_cycle {
    cycle req;
    gumbel_truncation truncation;
    gpu_copies copies;
    void *workspace;
    size_t workspace_bytes;
} gpu_cycle;

gpu_cycle *gpu_cycle_make(const cycle *host);
void gpu_cycle_free(gpu_cycle *generated);

/* The outputs of a verification in device memory: a copy of `like`; copied to host memory; freed.
 */
verified_arrays *gpu_verified_make(const verified_arrays *like);
void gpu_verified_fetch(const verified_arrays *from, verified_arrays *into);
void gpu_verified_free(verified_arrays *generated);

/* Allocate a workspace of exactly the reported size, and verify the cycle on `stream`, which may be
 * captured. Both end the program on an error. */
void gpu_cycle_prepare(gpu_cycle *generated, const verified_arrays *into);
void gpu_cycle_verify(CUstream stream, const gpu_cycle *generated, const verified_arrays *into);

/* Wide rows in device memory, verified into `into`. */
typedef struct gpu_wide {
    wide_drafts req;
    gpu_copies copies;
    void *workspace;
    size_t workspace_bytes;
} gpu_wide;

gpu_wide *gpu_wide_make(const wide_drafts *host, const verified_arrays *into);
void gpu_wide_free(gpu_wide *generated);
void gpu_wide_verify(CUstream stream, const gpu_wide *generated, const verified_arrays *into);

#endif
