/* SPDX-License-Identifier: Apache-2.0
 *
 * A group is a device whose vocabulary is that of all ranks. The library's entry points check a
 * call and pass it to the group's backend table, whose draw exchanges partial results of the
 * shards.
 */
#ifndef GUMBEL_RANKS_GROUP_H
#define GUMBEL_RANKS_GROUP_H

#include <pthread.h>

#include "core/backend.h"
#include "ranks/agree.h"

#include "gumbel/dist.h"

/* The tokens of one rank. */
typedef struct ranks_shard {
    int64_t first_token;
    int64_t rows;
} ranks_shard;

/* The thread that runs host collectives for this rank's GPU (transports/host_worker.c). */
typedef struct ranks_host_worker {
    gumbel_host_collective *host, *device; /* one request block at its two addresses */
    pthread_t thread;
    uint32_t stop;
    int has_thread; /* the same on all ranks */
    /* The gather that failed, if `failed`: written by the thread before it sets `failed`. */
    uint32_t failed;
    int64_t elapsed_ms;
    char why[GUMBEL_WHY_BYTES];
} ranks_host_worker;

struct gumbel_group {
    gumbel_device base; /* first member: a pointer to a group is a pointer to its device */
    gumbel_backend table;
    gumbel_device *device; /* of this rank */
    gumbel_transport transport;
    int64_t timeout_ms;
    size_t frame_bytes;
    ranks_shard *shards;            /* [ranks] */
    int64_t first_token, end_token; /* range of all shards */
    int64_t rows_max;               /* of a shard */
    int aligned;                    /* all boundaries between shards are multiples of a block */
    unsigned char *sent_frame;      /* this rank's frame */
    unsigned char *frames;          /* [ranks] frames received */
    uint64_t step;                  /* exchanges of headers so far */
    int broken;                     /* an exchange failed: the ranks may be out of step */
    int exchanged;                  /* the current call has reached its exchange of headers */
    int64_t vocab_size;             /* of the call: end of the whole vocabulary, or 0 */
    uint64_t draft_digest;          /* of the call's draft */
    uint64_t compared_digest;       /* on GPUs: digest of the arguments compared last */
    gumbel_peers peers;             /* .ranks is 0 without peer memory */
    ranks_host_worker worker;
    gumbel_traffic traffic;
};

/* This rank's shard. */
static inline const ranks_shard *ranks_own_shard(const gumbel_group *group)
{
    return &group->shards[group->transport.rank];
}

/* Returns the error of an exchange that failed after elapsed_ms: the time limit if it has passed,
 * and the transport's reason, `why`, which may be empty. Later calls of the group fail. */
gumbel_status ranks_fail_exchange(gumbel_group *group, int64_t elapsed_ms, const char *why,
                                  gumbel_error *error);

/* One all-gather of host memory, `bytes` bytes from each rank. */
gumbel_status ranks_gather(gumbel_group *group, const void *send, void *receive, size_t bytes,
                           gumbel_error *error);

/* Exchanges headers, and `bytes` of payload, which go to received[rank * bytes] of every rank if
 * the headers agree. `rest` has room for (ranks + 1) * bytes. */
gumbel_status ranks_exchange_headers(gumbel_group *group, const ranks_header *own,
                                     const void *payload, void *received, size_t bytes, void *rest,
                                     gumbel_error *error);

/* The header that rank r sent in the last exchange. */
const ranks_header *ranks_header_of(const gumbel_group *group, int32_t rank);

/* Queues an all-gather of device memory by the transport. */
gumbel_status ranks_queue_gather(gumbel_group *group, void *stream, const void *send, void *receive,
                                 size_t bytes, gumbel_error *error);

/* ---------------------------------------------------------------------------- peer memory ---- */

/* Connects peer memory if the options allow it and all ranks support it. All ranks call it, with
 * equal options. */
gumbel_status ranks_connect_peers(gumbel_group *group, const gumbel_group_options *options,
                                  gumbel_error *error);

/* Returns an error that names the rank which timed out, if an exchange by peer memory is known to
 * have failed. */
gumbel_status ranks_check_peers(gumbel_group *group, gumbel_error *error);

/* Exchanges the summaries of a draw, and writes the outputs as finish() does. */
gumbel_status ranks_exchange_summaries(gumbel_group *group, void *stream,
                                       const gumbel_finish_call *call, gumbel_error *error);
gumbel_status ranks_exchange_rows(gumbel_group *group, void *stream, const gumbel_peer_rows *rows,
                                  gumbel_error *error);

/* Waits for the work queued on a stream, within the time-out. */
gumbel_status ranks_wait_stream(gumbel_group *group, void *stream, gumbel_error *error);

/* ----------------------------------------------------------------------- host collectives ---- */

/* Starts the worker if all ranks can. All ranks call it at once. */
gumbel_status ranks_start_host_worker(gumbel_group *group, gumbel_error *error);
void ranks_stop_host_worker(gumbel_group *group);

/* The request block at its device address. *timeout_ms: the longest time that the GPU waits for the
 * host. */
gumbel_host_collective *ranks_get_collective(const gumbel_group *group, int64_t *timeout_ms);

/* Returns an error if a host collective is known to have failed. */
gumbel_status ranks_check_host_worker(gumbel_group *group, gumbel_error *error);

#endif
