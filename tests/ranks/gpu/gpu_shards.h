/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's shard of a request in device memory. All shards must be allocated before any rank makes
 * a call: an allocation may wait for running kernels, and these may wait for another rank.
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
    gumbel_output out, req; /* all allocated outputs; the subset that is requested */
    int fused;
    void *workspace;
    size_t bytes;
} gpu_shard;

/* Makes the shard of rank r, with poisoned copies of the outputs of `like`. With `tokens_only`,
 * requests only tokens, scores and statuses. Returns GUMBEL_ERROR_UNSUPPORTED if the group does not
 * support the request; other errors end the program. */
gumbel_status gpu_shard_make(gpu_shard *generated, gumbel_group *group, const gpu_request *whole,
                             const shard_split *split, int32_t rank, int fused, int tokens_only,
                             const outcome *like, gumbel_error *error);
void gpu_shard_free(gpu_shard *generated);

/* Queues the call. */
gumbel_status gpu_shard_draw(const gpu_shard *generated, CUstream stream, gumbel_error *error);

/* A rank's shard of a verification. Must not be copied or moved, as its fields point to each other.
 */
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

/* Makes the shard of a verification; its outputs have the shapes of `like`. An error ends the
 * program. */
void gpu_shard_cycle_make(gpu_shard_cycle *generated, gumbel_group *group, const gpu_cycle *whole,
                          const shard_split *split, int32_t rank, const verified_arrays *like);
void gpu_shard_cycle_free(gpu_shard_cycle *generated);
gumbel_status gpu_shard_cycle_verify(const gpu_shard_cycle *generated, CUstream stream,
                                     gumbel_error *error);

/* The outcome of a whole cycle on one GPU; free it with verified_free(). */
verified_arrays *gpu_cycle_outcome(gpu_cycle *whole);

#endif
