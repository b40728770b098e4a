/* SPDX-License-Identifier: Apache-2.0
 *
 * A group is a device whose tokens are those of all ranks: the library's own entry points check a
 * call and hand it to the group's table, whose draw exchanges what shards come to.
 */
#ifndef GUMBEL_DIST_GROUP_H
#define GUMBEL_DIST_GROUP_H

#include <pthread.h>

#include "core/backend.h"
#include "dist/agree.h"

#include "gumbel/dist.h"

/* Where a rank's shard lies. */
typedef struct ranks_shard {
    int64_t first_token;
    int64_t rows;
} ranks_shard;

/* What a thread of the group's runs errands by (transports/errands.c). */
typedef struct ranks_host_worker {
    gumbel_host_collective *here, *there; /* as the host and as the device reach it */
    pthread_t thread;
    uint32_t stop;
    int run; /* 0: nobody runs any */
} ranks_host_worker;

struct gumbel_group {
    gumbel_device base; /* first: a pointer to the group is one to a device */
    gumbel_backend table;
    gumbel_device *device; /* of this rank, or the bridge to it */
    gumbel_transport transport;
    int64_t timeout_ms;
    size_t frame_bytes;
    ranks_shard *shards;             /* [ranks] */
    int64_t first_token, end_token; /* what shards tile */
    int64_t rows_most;              /* of a shard */
    int aligned;                    /* shards meet at multiples of a block */
    unsigned char *frame;           /* what this rank sends first */
    unsigned char *frames;          /* [ranks] of all of them */
    uint64_t step;                  /* exchanges of headers so far */
    int broken;                     /* an exchange failed: ranks may stand at different ones */
    int entered;                    /* the call came to its exchange */
    int64_t vocab_size;             /* of the call: 0, or where the whole's tokens end */
    uint64_t drafted;               /* digest of the call's draft */
    uint64_t agreed;    /* of a CUDA device's call: digest of what ranks compared last */
    gumbel_peers peers; /* whose memory this rank's device reaches; no ranks where it does not */
    struct dist_bridge *bridge; /* where the rank is on a GPU, and messages lie in host memory */
    ranks_host_worker errands;
    gumbel_traffic traffic;
};

/* This rank's shard. */
static inline const ranks_shard *ranks_own_shard(const gumbel_group *group)
{
    return &group->shards[group->transport.rank];
}

/* One all-gather of `bytes` a rank. */
gumbel_status ranks_gather(gumbel_group *group, const void *send, void *receive, size_t bytes,
                          gumbel_error *error);

/* Queue one all-gather of device memory, by the transport. */
gumbel_status ranks_queue_gather(gumbel_group *group, void *stream, const void *send, void *receive,
                         size_t bytes, gumbel_error *error);

/* Have device memory exchanged by mailboxes, as the options say; all ranks call it, with options
 * that are the same on all. */
gumbel_status ranks_connect_peers(gumbel_group *group, const gumbel_group_options *options,
                              gumbel_error *error);

/* GUMBEL_OK, or an error that names the rank which did not answer, where an exchange by mailboxes
 * is known to have failed. */
gumbel_status ranks_check_peers(gumbel_group *group, gumbel_error *error);

/* Exchange a draw's summaries by mailboxes, and write it out as finish() does; rows. */
gumbel_status ranks_exchange_summaries(gumbel_group *group, void *stream, const gumbel_finish_call *call,
                                gumbel_error *error);
gumbel_status ranks_exchange_rows(gumbel_group *group, void *stream, const gumbel_peer_rows *rows,
                              gumbel_error *error);

/* Wait for what is queued on a GPU's stream, within the time-out; with mailboxes, or a bridge. */
gumbel_status ranks_wait_stream(gumbel_group *group, gumbel_device *device, void *stream,
                               gumbel_error *error);

/* Have a thread run this rank's errands, where those of all ranks can; end it, where it runs, and
 * what it is asked by. All ranks start them at once. */
gumbel_status ranks_start_host_worker(gumbel_group *group, gumbel_error *error);
void ranks_stop_host_worker(gumbel_group *group);

/* What the device asks for errands by, and how long it waits for one at most. */
gumbel_host_collective *ranks_get_collective(const gumbel_group *group, int64_t *timeout_ms);

/* GUMBEL_OK, or an error where one is known to have failed. */
gumbel_status ranks_check_host_worker(gumbel_group *group, gumbel_error *error);

/* Exchange headers and `bytes` of payload, which goes to received[rank * bytes] of all, once all
 * ranks are seen to agree. `rest` has room for (ranks + 1) * bytes. */
gumbel_status ranks_exchange_headers(gumbel_group *group, const ranks_header *own, const void *payload,
                            void *received, size_t bytes, void *rest, gumbel_error *error);

/* The header of rank r, after an exchange. */
const ranks_header *ranks_header_of(const gumbel_group *group, int32_t rank);

/* The table of a group on `device`. */
gumbel_backend ranks_backend_of(const gumbel_device *device);

#endif
