/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's part of a request in device memory: made before any rank calls, as an allocation may
 * wait for kernels that wait for another rank.
 */
#ifndef TESTS_GPU_SHARDS_H
#define TESTS_GPU_SHARDS_H

#include "cuda_drafts.h"
#include "cuda_requests.h"
#include "shards.h"

typedef struct gpu_shard {
    gumbel_group *group;
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_output out, req; /* what is there, and what of it is asked for */
    int fused;
    void *workspace;
    size_t bytes;
} gpu_shard;

/* Rank r's part; outputs are those of `like`, poisoned; `bare`: tokens, scores and statuses alone
 * are asked for. GUMBEL_ERROR_UNSUPPORTED where the group does not serve it; other errors end the
 * program. */
gumbel_status gpu_shard_make(gpu_shard *generated, gumbel_group *group, const gpu_request *whole,
                             const shard_cut *cut, int32_t rank, int fused, int bare,
                             const outcome *like, gumbel_error *error);
void gpu_shard_free(gpu_shard *generated);

/* Queue its call. */
gumbel_status gpu_shard_draw(const gpu_shard *generated, CUstream stream, gumbel_error *error);

/* Likewise a rank's part of a verification. It stays where it is made. */
typedef struct gpu_shard_cycle {
    gumbel_group *group;
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    const gumbel_draft *draft;
    verified_arrays *into; /* on the GPU */
    int fused;
    void *workspace;
    size_t bytes;
} gpu_shard_cycle;

/* It verifies into a copy of `like`. An error ends the program. */
void gpu_shard_cycle_make(gpu_shard_cycle *generated, gumbel_group *group, const gpu_cycle *whole,
                          const shard_cut *cut, int32_t rank, const verified_arrays *like);
void gpu_shard_cycle_free(gpu_shard_cycle *generated);
gumbel_status gpu_shard_cycle_verify(const gpu_shard_cycle *generated, CUstream stream,
                                     gumbel_error *error);

/* What one GPU makes of a whole cycle; free it with verified_free(). */
verified_arrays *gpu_cycle_outcome(gpu_cycle *whole);

#endif
