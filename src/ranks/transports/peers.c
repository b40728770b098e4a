/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges of device memory by peer buffers, among ranks of one host whose GPUs reach each other's
 * memory.
 */
#define _POSIX_C_SOURCE 199309L
#include "core/fail.h"
#include "core/output.h"
#include "ranks/group.h"
#include "ranks/transports/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(gumbel_peer_handle) <= sizeof(ranks_header), "a handle fits into a frame");

#define SLEEP_NS 20000
/* The host waits longer than the exchange's time-out, so that its kernel can report which rank is
 * missing. */
#define GRACE_MS 200

size_t gumbel_peer_buffer_bytes(int32_t ranks, size_t peer_bytes)
{
    if (ranks < 1 || ranks > GUMBEL_PEERS_RANKS || peer_bytes % sizeof(gumbel_summary) != 0)
        return 0;
    return gumbel_peer_buffer_size(ranks, peer_bytes / sizeof(uint32_t));
}

/* Exchanges the handles of all ranks; *all: whether all of them are valid. */
static gumbel_status gather_handles(gumbel_group *group, gumbel_peer_handle *handles,
                                    const gumbel_peer_handle *own, int *all, gumbel_error *error)
{
    GUMBEL_FORWARD(ranks_gather(group, own, handles, sizeof *own, error));
    *all = 1;
    for (int32_t r = 0; r < group->transport.ranks; r++)
        *all &= handles[r].status == GUMBEL_OK;
    return GUMBEL_OK;
}

/* Creates the own buffer, maps those of the other ranks, and sets *all to whether all ranks did. */
static gumbel_status connect_buffers(gumbel_group *group, void *const *buffers,
                                     gumbel_peer_handle *handles, int *all, gumbel_error *own_error,
                                     gumbel_error *error)
{
    const gumbel_rank_calls *calls = group->device->backend->ranks;
    gumbel_peers *peers = &group->peers;
    gumbel_peer_handle own = {.status = GUMBEL_OK};
    if (peers->ranks > GUMBEL_PEERS_RANKS)
        own.status = gumbel_fail(own_error, GUMBEL_ERROR_UNSUPPORTED, "options.peer_memory",
                                 "there are more than %d ranks", GUMBEL_PEERS_RANKS);
    if (buffers && own.status == GUMBEL_OK)
        memcpy(peers->buffers, buffers, (size_t)peers->ranks * sizeof *buffers);
    if (own.status == GUMBEL_OK)
        own.status = calls->create_peers(group->device, peers, &own, own_error);
    GUMBEL_FORWARD(gather_handles(group, handles, &own, all, error));
    if (!*all)
        return GUMBEL_OK;
    if (!buffers)
        own.status = calls->connect_peers(group->device, peers, handles, own_error);
    return gather_handles(group, handles, &own, all, error);
}

gumbel_status ranks_connect_peers(gumbel_group *group, const gumbel_group_options *options,
                                  gumbel_error *error)
{
    int32_t ranks = group->transport.ranks;
    int all = 0;
    gumbel_error own_error = {"", ""};
    /* The handles of all ranks fit into their frames. */
    gumbel_peer_handle *handles = (gumbel_peer_handle *)(void *)group->frames;
    group->peers = (gumbel_peers){.rank = group->transport.rank,
                                  .ranks = ranks,
                                  .words = options->peer_bytes / sizeof(uint32_t),
                                  .timeout_ms = group->timeout_ms};
    gumbel_status status =
        connect_buffers(group, options->peer_buffers, handles, &all, &own_error, error);
    int32_t missing = 0;
    while (missing + 1 < ranks && handles[missing].status == GUMBEL_OK)
        missing++;
    if (status != GUMBEL_OK || all)
        return status;
    group->device->backend->ranks->release_peers(group->device, &group->peers);
    group->peers.ranks = 0;
    if (options->peer_memory == GUMBEL_PEERS_ALLOW)
        return GUMBEL_OK;
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.peer_memory",
                       "rank %d does not reach all others%s%.160s", (int)missing,
                       own_error.message[0] ? "; on this rank: " : "", own_error.message);
}

gumbel_status ranks_check_peers(gumbel_group *group, gumbel_error *error)
{
    const volatile gumbel_peer_report *report = group->peers.report;
    uint32_t failed = group->peers.ranks ? report->failed : 0;
    if (!failed)
        return GUMBEL_OK;
    group->broken = 1;
    char begun[96] = "";
    for (int32_t r = 0, used = 0; r < group->peers.ranks && used < (int32_t)sizeof begun; r++)
        used += snprintf(begun + used, sizeof begun - (size_t)used, " %" PRIu64, report->begun[r]);
    return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group",
                       "rank %d did not answer within %" PRId64 " ms, in exchange %" PRIu32
                       " of call %" PRId64 "; begun by ranks 0 to %d:%s",
                       (int)failed - 1, group->timeout_ms, report->exchange, group->traffic.calls,
                       (int)group->peers.ranks - 1, begun);
}

gumbel_status ranks_exchange_summaries(gumbel_group *group, void *stream,
                                       const gumbel_finish_call *call, gumbel_error *error)
{
    const size_t each = sizeof *call->summaries / sizeof(uint32_t);
    int64_t max_rows = (int64_t)(group->peers.words / each) / call->num_samples;
    if (max_rows == 0)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "options.peer_bytes",
                           "is too small for %d samples of a row", (int)call->num_samples);
    for (int64_t done = 0; done < call->batch; done += max_rows) {
        int64_t rows = call->batch - done < max_rows ? call->batch - done : max_rows;
        gumbel_output output = gumbel_output_slice(call->output, done, call->num_samples);
        gumbel_finish_call slice = *call;
        slice.summaries += done * call->num_samples;
        slice.batch = rows;
        slice.output = &output;
        group->traffic.exchanges++;
        group->traffic.bytes += rows * call->num_samples * (int64_t)sizeof *call->summaries;
        GUMBEL_FORWARD(group->device->backend->ranks->exchange_summaries(
            group->device, stream, &group->peers, &slice, error));
    }
    return GUMBEL_OK;
}

gumbel_status ranks_exchange_rows(gumbel_group *group, void *stream, const gumbel_peer_rows *rows,
                                  gumbel_error *error)
{
    int64_t words = rows->rows * rows->width, room = (int64_t)group->peers.words / 2;
    if (!rows->chosen) { /* the host does not know how many rows are chosen */
        group->traffic.exchanges += (words + room - 1) / room;
        group->traffic.bytes += words * (int64_t)sizeof(uint32_t);
    }
    return group->device->backend->ranks->exchange_rows(group->device, stream, &group->peers, rows,
                                                        error);
}

gumbel_status ranks_wait_stream(gumbel_group *group, void *stream, gumbel_error *error)
{
    gumbel_device *device = group->device;
    const struct timespec pause = {0, SLEEP_NS};
    int64_t end = ranks_now_ms() + group->timeout_ms + GRACE_MS;
    for (int done = 0; !done;) {
        gumbel_status status = device->backend->ranks->poll_stream(device, stream, &done, error);
        if (status == GUMBEL_OK)
            status = ranks_check_peers(group, error);
        if (status == GUMBEL_OK && !done && ranks_now_ms() >= end)
            status =
                gumbel_fail(error, GUMBEL_ERROR_GROUP, "group",
                            "queued work was not done within %" PRId64 " ms", group->timeout_ms);
        group->broken |= status != GUMBEL_OK;
        GUMBEL_FORWARD(status);
        if (!done)
            nanosleep(&pause, NULL);
    }
    return ranks_check_peers(group, error);
}
