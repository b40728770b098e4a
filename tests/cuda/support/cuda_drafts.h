/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts in device memory, and what the GPU makes of them.
 */
#ifndef TESTS_CUDA_DRAFTS_H
#define TESTS_CUDA_DRAFTS_H

#include "cuda_support.h"
#include "draft_cycles.h"
#include "wide_drafts.h"

/* The same cycle with all that its call points at in device memory. */
typedef struct gpu_cycle {
    cycle req;
    gumbel_truncation truncation;
    void *owned[48];
    int owned_count;
    void *workspace;
    size_t workspace_bytes;
} gpu_cycle;

gpu_cycle *gpu_cycle_make(const cycle *host);
void gpu_cycle_free(gpu_cycle *generated);

/* Where a verification of the GPU goes: as `like`, in device memory, with what it holds; what that
 * holds, fetched; its end. */
verified_arrays *gpu_verified_make(const verified_arrays *like);
void gpu_verified_fetch(const verified_arrays *from, verified_arrays *into);
void gpu_verified_free(verified_arrays *generated);

/* Give a cycle a workspace of just the size that is asked for, and verify it on `stream`, which may
 * be one that is captured. They end the program on an error. */
void gpu_cycle_prepare(gpu_cycle *generated, const verified_arrays *into);
void gpu_cycle_verify(CUstream stream, const gpu_cycle *generated, const verified_arrays *into);

/* Wide rows likewise, to be verified into `into`. */
typedef struct gpu_wide {
    wide_drafts req;
    void *owned[16];
    void *workspace;
    size_t workspace_bytes;
} gpu_wide;

gpu_wide *gpu_wide_make(const wide_drafts *host, const verified_arrays *into);
void gpu_wide_free(gpu_wide *generated);
void gpu_wide_verify(CUstream stream, const gpu_wide *generated, const verified_arrays *into);

#endif
