/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank on a GPU in a group whose messages lie in host memory. To the group it is a device of host
 * memory: what this rank's shard comes to is made on the GPU and brought over, all that is made of
 * it and of what other ranks say is made on the host. A call's parameters are brought over before,
 * its outputs put back behind; it waits for its stream, within the group's time-out.
 */
#ifndef GUMBEL_RANKS_BRIDGE_H
#define GUMBEL_RANKS_BRIDGE_H

#include "core/backend.h"

#include "gumbel/dist.h"

/* A copy in host memory of what lies on the GPU; kept from call to call for its room. */
typedef struct dist_copy {
    unsigned char *host;
    const unsigned char *there; /* NULL: host memory alone */
    size_t bytes, room;
    int written; /* goes back behind the call */
} dist_copy;

enum { DIST_COPIES = 72 };

typedef struct dist_bridge {
    gumbel_device base; /* first: a pointer to the bridge is one to a device */
    gumbel_backend table;
    gumbel_group *group;
    gumbel_device *gpu, *cpu;
    void *stream;         /* of the call under way */
    gumbel_tensor logits; /* its logits on the GPU, no data where there are none */
    unsigned char *room;  /* its workspace on the GPU, */
    size_t upload_most;   /* which begins with so many bytes for what the host has made */
    dist_copy of[DIST_COPIES];
    int copies; /* of the call under way */
} dist_bridge;

/* What a call is made with on the host. */
typedef struct dist_bridged {
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_output output;
    gumbel_draft draft;
    gumbel_verified verified;
    void *workspace;
    size_t bytes;
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

/* The same of a verification. Its begin brings over what the group then verifies by, with a stream
 * of NULL and a workspace on the host; its end puts back what that wrote. */
gumbel_status dist_bridge_verify_size(const dist_bridge *bridge, const gumbel_head *head,
                                      const gumbel_logits *logits, const gumbel_sampling *sampling,
                                      const gumbel_draft *draft, const gumbel_verified *verified,
                                      size_t *bytes, gumbel_error *error);
gumbel_status dist_bridge_verify_begin(dist_bridge *bridge, void *stream, const gumbel_head *head,
                                       const gumbel_logits *logits, const gumbel_sampling *sampling,
                                       const gumbel_draft *draft, const gumbel_verified *verified,
                                       void *workspace, size_t workspace_bytes, dist_bridged *call,
                                       gumbel_error *error);
gumbel_status dist_bridge_end(dist_bridge *bridge, gumbel_error *error);

/* ------------------------------------------------------------- for the bridge's own files ---- */

/* A bridge's table. */
gumbel_backend dist_bridge_table(const gumbel_device *gpu, const gumbel_device *cpu);

/* Bytes of the GPU's workspace of a checked problem, of which `uploads` are for what the host
 * makes. */
gumbel_status dist_bridge_room(const dist_bridge *bridge, const gumbel_problem *problem,
                               size_t uploads, size_t *bytes, gumbel_error *error);

/* Begin a call with a workspace on the GPU, of which `needed` bytes are needed: wait for what is
 * queued on its stream. */
gumbel_status dist_bridge_begin(dist_bridge *bridge, void *stream, const gumbel_tensor *logits,
                                void *workspace, size_t given, size_t needed, size_t uploads,
                                gumbel_error *error);

/* Bring a call's parameters over, of a checked problem; have its outputs on the host. */
gumbel_status dist_bridge_sampling(dist_bridge *bridge, dist_bridged *call,
                                   const gumbel_sampling *sampling, const gumbel_problem *p,
                                   gumbel_error *error);
gumbel_status dist_bridge_output(dist_bridge *bridge, dist_bridged *call,
                                 const gumbel_output *checked, const gumbel_problem *p,
                                 gumbel_error *error);

/* Have *data, `bytes` on the GPU, be a copy of them on the host; NULL stays NULL. */
gumbel_status dist_bridge_copy(dist_bridge *bridge, const void **data, size_t bytes,
                               gumbel_error *error);
/* Likewise lists of tokens. */
gumbel_status dist_bridge_lists(dist_bridge *bridge, gumbel_token_lists *lists, int64_t batch,
                                const char *name, gumbel_error *error);

/* The same of a pointer of any kind to `count` of what the caller reads; returns on an error. */
#define DIST_BRING(bridge, field, count, error)                                                    \
    do {                                                                                           \
        const void *data_ = (field);                                                               \
        GUMBEL_FORWARD(                                                                            \
            dist_bridge_copy(bridge, &data_, (size_t)(count) * sizeof *(field), error));           \
        (field) = (void *)(uintptr_t)data_;                                                        \
    } while (0)

/* Have the next of the bridge's copies hold `bytes` of host memory; NULL where there is no more. */
dist_copy *dist_bridge_hold(dist_bridge *bridge, size_t bytes, gumbel_error *error);

/* Where on the GPU a copy's original lies, at the same place in it; what is in no copy is on the
 * GPU as it is. */
const void *dist_bridge_there(const dist_bridge *bridge, const void *data);

/* Copy from the GPU, once the stream has done what is queued; wait. */
gumbel_status dist_bridge_bring(dist_bridge *bridge, void *to, const void *from, size_t bytes,
                                gumbel_error *error);

#endif
