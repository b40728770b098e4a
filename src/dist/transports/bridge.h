/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank on a GPU in a group whose messages lie in host memory. To the group it is a device of host
 * memory: what this rank's shard comes to is made on the GPU and brought over, all that is made of
 * it and of what other ranks say is made on the host. A call's parameters are brought over before,
 * its outputs put back behind; it waits for its stream, within the group's time-out.
 */
#ifndef GUMBEL_DIST_BRIDGE_H
#define GUMBEL_DIST_BRIDGE_H

#include "core/backend.h"

#include "gumbel/dist.h"

/* A copy in host memory of what lies on the GPU; kept from call to call for its room. */
typedef struct dist_copy {
    unsigned char *host;
    const unsigned char *there; /* NULL: host memory alone */
    size_t bytes, room;
    int written; /* goes back behind the call */
} dist_copy;

enum { DIST_COPIES = 48 };

typedef struct dist_bridge {
    gumbel_device base; /* first: a pointer to the bridge is one to a device */
    gumbel_backend table;
    gumbel_group *group;
    gumbel_device *gpu, *cpu;
    void *stream;         /* of the call under way */
    gumbel_tensor logits; /* its logits on the GPU, no data where there are none */
    unsigned char *room;  /* its workspace on the GPU */
    dist_copy of[DIST_COPIES];
    int copies; /* of the call under way */
} dist_bridge;

/* What a call is made with on the host. */
typedef struct dist_bridged {
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_output output;
} dist_bridged;

/* Make a bridge to `gpu`, for all of the group's life; close it, and NULL is allowed. */
gumbel_status dist_bridge_open(dist_bridge **bridge, gumbel_group *group, gumbel_device *gpu,
                               gumbel_error *error);
void dist_bridge_close(dist_bridge *bridge);

/* Bytes of a call's workspace on the GPU. One of head and logits is NULL, both are fitted. */
gumbel_status dist_bridge_size(const dist_bridge *bridge, const gumbel_head *head,
                               const gumbel_logits *logits, const gumbel_sampling *sampling,
                               const gumbel_output *output, size_t *bytes, gumbel_error *error);

/* Make a call of the group, whose parameters, outputs and workspace are on the GPU. */
gumbel_status dist_bridge_draw(dist_bridge *bridge, void *stream, const gumbel_head *head,
                               const gumbel_logits *logits, const gumbel_sampling *sampling,
                               const gumbel_output *output, void *workspace, size_t workspace_bytes,
                               gumbel_error *error);

/* ------------------------------------------------------------- for the bridge's own files ---- */

/* A bridge's table. */
gumbel_backend dist_bridge_table(const gumbel_device *gpu, const gumbel_device *cpu);

/* Bytes of the GPU's workspace of a checked problem. */
gumbel_status dist_bridge_room(const dist_bridge *bridge, const gumbel_problem *problem,
                               size_t *bytes, gumbel_error *error);

/* Have the next of the bridge's copies hold `bytes` of host memory; NULL where there is no more. */
dist_copy *dist_bridge_hold(dist_bridge *bridge, size_t bytes, gumbel_error *error);

/* Where on the GPU a copy's original lies, at the same place in it; what is in no copy is on the
 * GPU as it is. */
const void *dist_bridge_there(const dist_bridge *bridge, const void *data);

/* Copy from the GPU, once the stream has done what is queued; wait. */
gumbel_status dist_bridge_bring(dist_bridge *bridge, void *to, const void *from, size_t bytes,
                                gumbel_error *error);

#endif
