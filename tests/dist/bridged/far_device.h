/* SPDX-License-Identifier: Apache-2.0
 *
 * A device whose memory the host cannot read, as that of a GPU, on machines without one: its
 * pointers lie 2^50 beyond what they stand for, so that whoever follows one crashes. It has what a
 * group needs whose messages lie in host memory, and draws as the CPU does.
 */
#ifndef TESTS_FAR_DEVICE_H
#define TESTS_FAR_DEVICE_H

#include "shards.h"

typedef struct far_device far_device;

far_device *far_device_make(gumbel_device *cpu);
void far_device_free(far_device *generated);
gumbel_device *far_device_of(far_device *generated);

/* From now on its stream is never done with what is queued. */
void far_device_hang(far_device *generated);

/* shards_draw() with all of the call in the device's memory. `spare` is how many bytes the
 * workspace has beyond those asked for. */
gumbel_status far_draw(gumbel_group *group, const request *req, const shard_cut *cut, int32_t rank,
                       int fused, int64_t spare, shard_outcome *into, gumbel_error *error);

/* A verification by a head or by logits, the other NULL, likewise. */
gumbel_status far_verify(gumbel_group *group, const gumbel_head *head, const gumbel_logits *logits,
                         const gumbel_sampling *sampling, const gumbel_draft *draft,
                         const gumbel_verified *to, gumbel_error *error);

/* What a pointer of the host is to the device. */
void *far_of(const void *data);
/* The stream of its calls. */
void *far_stream(void);

#endif
