/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives that a host runs for its GPU, for ranks whose GPUs cannot reach each other's memory.
 * Only the GPU knows which rows it needs, so a kernel requests the gather and waits for it.
 */
#ifndef GUMBEL_CORE_RANKS_HOST_COLLECTIVE_H
#define GUMBEL_CORE_RANKS_HOST_COLLECTIVE_H

#include "core/ranks/peers.h"

/* The request, in host memory that both map. The device sets the last three fields, increments
 * `requested`, and waits until `done` equals it or `failed` is not 0. */
typedef struct gumbel_host_collective {
    uint64_t requested; /* written by the device */
    uint64_t done;      /* written by the host */
    uint64_t failed;    /* written by either: 1 from then on */
    uint64_t send, receive, bytes;
} gumbel_host_collective;

/* Rows of all ranks as an all-gather leaves them, [ranks, rows, width] words, which are scattered
 * into rows that are whole, as `rows` describes. */
typedef struct gumbel_gathered_rows {
    gumbel_peer_rows rows; /* begins and widths are of these ranks */
    int32_t rank, ranks;
    uint32_t *gathered;
    gumbel_host_collective *collective; /* device address; NULL: all rows are gathered already */
    uint32_t *ended;    /* in device memory: CTAs that have ended; 0 between calls */
    int64_t timeout_ms; /* of the collective */
} gumbel_gathered_rows;

#endif
