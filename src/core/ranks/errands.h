/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks whose devices do not reach each other's memory: what a device alone knows to be needed,
 * its host has exchanged, on an errand, while the device waits.
 */
#ifndef GUMBEL_CORE_RANKS_ERRANDS_H
#define GUMBEL_CORE_RANKS_ERRANDS_H

#include "core/ranks/peers.h"

/* What a device has its host do, in host memory that both see: have words of all ranks gathered,
 * beside what is queued. The device says which, counts `asked` up, and waits until `done` is that,
 * or `failed` is not 0. */
typedef struct gumbel_host_collective {
    uint64_t asked;  /* by the device alone */
    uint64_t done;   /* by the host alone */
    uint64_t failed; /* by either: 1 from then on */
    uint64_t send, receive, bytes;
} gumbel_host_collective;

/* Rows of all ranks that are gathered one behind the other, as [ranks, rows, width] words, on an
 * errand or otherwise, to be laid side by side as `rows` says. */
typedef struct gumbel_gathered_rows {
    gumbel_peer_rows rows; /* begins and widths are of these ranks */
    int32_t rank, ranks;
    uint32_t *gathered;
    gumbel_host_collective *errand; /* as the device reaches it; NULL: there is none, and all rows go */
    uint32_t *ended;       /* of the device: 0, and left so */
    int64_t timeout_ms;    /* of an errand */
} gumbel_gathered_rows;

#endif
