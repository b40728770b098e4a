/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives that a host runs for its GPU, for ranks whose GPUs cannot reach each other's memory.
 * Only the GPU knows which rows it needs, so a kernel requests the gather and waits for it.
 */
#ifndef GUMBEL_CORE_RANKS_HOST_COLLECTIVE_H
#define GUMBEL_CORE_RANKS_HOST_COLLECTIVE_H

#include "core/ranks/peers.h"

/* A request, in host memory that the host and its GPU map. The GPU sets the last three fields,
 * increments `requested`, and waits until `done` equals `requested` or `failed` is not 0. */
typedef struct gumbel_host_collective {
    uint64_t requested; /* written by the device */
    uint64_t done;      /* written by the host */
    uint64_t failed;    /* set to 1 by either; never cleared */
    uint64_t send, receive, bytes;
} gumbel_host_collective;

/* The result of an all-gather of rows, [ranks, rows, width] words, and the whole rows into which it
 * is scattered. */
typedef struct gumbel_gathered_rows {
    gumbel_peer_rows rows; /* begins and widths are of these ranks */
    int32_t rank, ranks;
    uint32_t *gathered;
    gumbel_host_collective *collective; /* device address; NULL: all rows are gathered already */
    uint32_t *ended;    /* in device memory: CTAs that have ended; 0 between calls */
    int64_t timeout_ms; /* of the collective */
} gumbel_gathered_rows;

#endif
