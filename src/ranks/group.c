/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens and closes groups of ranks; all-gathers of host memory, and of the headers of calls.
 */
#define _POSIX_C_SOURCE 200809L
#include "ranks/group.h"

#include "core/fail.h"
#include "maths/noise.h"
#include "ranks/rank_methods.h"
#include "ranks/transports/clock.h"
#include "validate/validate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TIMEOUT_MS  30000
#define FRAME_BYTES 4096
#define FRAME_MAX   (INT64_C(1) << 30)

#define PEER_BYTES     ((size_t)3 << 20)
#define PEER_BYTES_MAX ((size_t)1 << 30)

_Static_assert(GUMBEL_PEERS_MAX == GUMBEL_PEERS_RANKS, "equal to dist.h's");

#define OPEN_MESSAGE UINT64_C(0x67726f7570000000)

/* Message of gumbel_group_open(): a rank's version, options and shard. */
typedef struct open_message {
    uint64_t version;
    uint64_t frame_bytes, peer_bytes;
    ranks_shard shard;
    int32_t rank;
    int32_t status; /* gumbel_status of the rank's arguments */
    int32_t host_memory, peer_memory;
    int32_t has_stream_gather; /* whether the transport gathers device memory */
    int32_t reserved;
} open_message;

gumbel_status ranks_fail_exchange(gumbel_group *group, int64_t elapsed_ms, const char *why,
                                  gumbel_error *error)
{
    char limit[40] = "";
    int expired = elapsed_ms >= group->timeout_ms;
    group->broken = 1;
    if (expired)
        snprintf(limit, sizeof limit, " within %" PRId64 " ms", group->timeout_ms);
    if (!why[0])
        why = expired ? "a rank does not answer" : "the transport gives no reason";
    return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group", "an exchange failed%s: %.*s", limit,
                       GUMBEL_WHY_BYTES, why);
}

gumbel_status ranks_gather(gumbel_group *group, const void *send, void *receive, size_t bytes,
                           gumbel_error *error)
{
    char why[GUMBEL_WHY_BYTES] = "";
    const gumbel_transport *t = &group->transport;
    int64_t begin = ranks_now_ms();
    group->traffic.exchanges++;
    group->traffic.bytes += (int64_t)bytes;
    if (t->all_gather(t->context, NULL, send, receive, bytes, group->timeout_ms, why) == 0)
        return GUMBEL_OK;
    return ranks_fail_exchange(group, ranks_now_ms() - begin, why, error);
}

gumbel_status ranks_queue_gather(gumbel_group *group, void *stream, const void *send, void *receive,
                                 size_t bytes, gumbel_error *error)
{
    char why[GUMBEL_WHY_BYTES] = "";
    const gumbel_transport *t = &group->transport;
    group->traffic.exchanges++;
    group->traffic.bytes += (int64_t)bytes;
    if (t->stream_all_gather(t->context, stream, send, receive, bytes, group->timeout_ms, why) == 0)
        return GUMBEL_OK;
    group->broken = 1;
    why[sizeof why - 1] = '\0';
    return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group", "an exchange cannot be queued: %s", why);
}

gumbel_status gumbel_group_wait(gumbel_group *group, void *stream, gumbel_error *error)
{
    char why[GUMBEL_WHY_BYTES] = "";
    GUMBEL_REFUSE_IF(!group, error, "group", "is NULL");
    const gumbel_transport *t = &group->transport;
    if (group->broken)
        return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group", "an earlier exchange failed");
    if (group->peers.ranks)
        return ranks_wait_stream(group, stream, error);
    if (group->device->backend->host_memory)
        return GUMBEL_OK;
    int64_t begin = ranks_now_ms();
    if (t->wait(t->context, stream, group->timeout_ms, why) == 0)
        return ranks_check_host_worker(group, error);
    return ranks_fail_exchange(group, ranks_now_ms() - begin, why, error);
}

const ranks_header *ranks_header_of(const gumbel_group *group, int32_t rank)
{
    return (const ranks_header *)(group->frames + (size_t)rank * group->frame_bytes);
}

gumbel_status ranks_exchange_headers(gumbel_group *group, const ranks_header *own,
                                     const void *payload, void *received, size_t bytes, void *rest,
                                     gumbel_error *error)
{
    size_t room = group->frame_bytes - sizeof *own, first = bytes < room ? bytes : room;
    int32_t ranks = group->transport.ranks;
    group->step++;
    group->exchanged = 1;
    group->traffic.calls++;
    memset(group->sent_frame, 0, group->frame_bytes);
    memcpy(group->sent_frame, own, sizeof *own);
    if (first > 0)
        memcpy(group->sent_frame + sizeof *own, payload, first);
    GUMBEL_FORWARD(
        ranks_gather(group, group->sent_frame, group->frames, group->frame_bytes, error));
    GUMBEL_FORWARD(ranks_compare_headers(group->frames, group->frame_bytes, ranks, error));
    for (int32_t r = 0; r < ranks && first > 0; r++)
        memcpy((unsigned char *)received + (size_t)r * bytes,
               group->frames + (size_t)r * group->frame_bytes + sizeof *own, first);
    if (first == bytes)
        return GUMBEL_OK;
    size_t remaining = bytes - first;
    GUMBEL_FORWARD(
        ranks_gather(group, (const unsigned char *)payload + first, rest, remaining, error));
    for (int32_t r = 0; r < ranks; r++)
        memcpy((unsigned char *)received + (size_t)r * bytes + first,
               (unsigned char *)rest + (size_t)r * remaining, remaining);
    return GUMBEL_OK;
}

static gumbel_status read_transport(gumbel_transport *into, const gumbel_transport *transport,
                                    gumbel_error *error)
{
    *into = (gumbel_transport){0};
    GUMBEL_REFUSE_IF(!transport, error, "transport", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, transport, "transport", error));
    GUMBEL_REFUSE_IF(into->ranks < 1 || into->ranks > GUMBEL_RANKS_MAX, error, "transport.ranks",
                     "is %d; it must be in 1..%d", (int)into->ranks, GUMBEL_RANKS_MAX);
    GUMBEL_REFUSE_IF(into->rank < 0 || into->rank >= into->ranks, error, "transport.rank",
                     "is %d; it must be in 0..%d", (int)into->rank, (int)into->ranks - 1);
    GUMBEL_REFUSE_IF(!into->all_gather, error, "transport.all_gather", "is NULL");
    return GUMBEL_OK;
}

static gumbel_status read_group_options(gumbel_group_options *into,
                                        const gumbel_group_options *options, gumbel_error *error)
{
    *into = (gumbel_group_options){0};
    GUMBEL_REFUSE_IF(!options, error, "options", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, options, "options", error));
    into->timeout_ms = into->timeout_ms ? into->timeout_ms : TIMEOUT_MS;
    into->frame_bytes = into->frame_bytes ? into->frame_bytes : FRAME_BYTES;
    GUMBEL_REFUSE_IF(
        into->first_token < 0 || into->rows < 0 || into->first_token > (INT64_C(1) << 31) ||
            into->rows > (INT64_C(1) << 31) - into->first_token,
        error, "options.rows", "tokens %" PRId64 " .. + %" PRId64 " do not fit in 0..2^31",
        into->first_token, into->rows);
    GUMBEL_REFUSE_IF(into->timeout_ms < 1 || into->timeout_ms > INT64_C(1) << 31, error,
                     "options.timeout_ms", "is %" PRId64 "; it must be in 1..2^31",
                     into->timeout_ms);
    GUMBEL_REFUSE_IF(into->reserved, error, "options.reserved", "is not 0");
    into->peer_bytes = into->peer_bytes ? into->peer_bytes : PEER_BYTES;
    GUMBEL_REFUSE_IF(
        into->peer_memory < GUMBEL_PEERS_OFF || into->peer_memory > GUMBEL_PEERS_REQUIRE, error,
        "options.peer_memory", "is %d; it must be in 0..2", (int)into->peer_memory);
    GUMBEL_REFUSE_IF(into->peer_bytes % sizeof(gumbel_summary) != 0 ||
                         into->peer_bytes > PEER_BYTES_MAX,
                     error, "options.peer_bytes",
                     "is %zu; it must be a multiple of 48 and at most 2^30", into->peer_bytes);
    GUMBEL_REFUSE_IF(into->frame_bytes < sizeof(ranks_header) || into->frame_bytes > FRAME_MAX,
                     error, "options.frame_bytes", "is %zu; it must be in 256..2^30",
                     into->frame_bytes);
    return GUMBEL_OK;
}

/* Sets the group's range, which the shards must cover without gaps or overlaps. */
static gumbel_status join_shards(gumbel_group *group, gumbel_error *error)
{
    int64_t rows = 0, end = INT64_C(1) << 31;
    group->first_token = end;
    group->aligned = 1;
    for (int32_t r = 0; r < group->transport.ranks; r++) {
        const ranks_shard *s = &group->shards[r];
        rows += s->rows;
        group->rows_max = s->rows > group->rows_max ? s->rows : group->rows_max;
        if (s->rows > 0 && s->first_token < group->first_token)
            group->first_token = s->first_token;
    }
    if (rows == 0)
        return gumbel_fail(error, GUMBEL_ERROR_GROUP, "options.rows", "all shards are empty");
    group->end_token = group->first_token + rows;
    for (int64_t at = group->first_token; at < group->end_token;) {
        int32_t r = 0;
        while (r < group->transport.ranks &&
               (group->shards[r].rows == 0 || group->shards[r].first_token != at))
            r++;
        if (r == group->transport.ranks)
            return gumbel_fail(
                error, GUMBEL_ERROR_GROUP, "options.first_token",
                "the shards have a gap or overlap: no shard begins with token %" PRId64, at);
        if (at > group->first_token && at % GUMBEL_BLOCK != 0)
            group->aligned = 0;
        at += group->shards[r].rows;
    }
    return GUMBEL_OK;
}

/* The first exchange of a group: gathers the shards of all ranks, and checks that the ranks agree
 * on the options. */
static gumbel_status exchange_shards(gumbel_group *group, const open_message *own,
                                     open_message *all, gumbel_error *error)
{
    GUMBEL_FORWARD(ranks_gather(group, own, all, sizeof *own, error));
    for (int32_t r = 0; r < group->transport.ranks; r++) {
        if (all[r].version != own->version || all[r].rank != r)
            return gumbel_fail(
                error, GUMBEL_ERROR_GROUP, "transport",
                "expected rank %d, but rank %d answered; all ranks must use one version "
                "of libgumbel and open the group with distinct ranks",
                (int)r, (int)all[r].rank);
        if (all[r].status != GUMBEL_OK)
            return gumbel_fail(error, GUMBEL_ERROR_GROUP, "group", "rank %d: %s", (int)r,
                               gumbel_status_string((gumbel_status)all[r].status));
        if (all[r].frame_bytes != all[0].frame_bytes)
            return gumbel_fail(error, GUMBEL_ERROR_GROUP, "options.frame_bytes",
                               "ranks 0 and %d pass different values", (int)r);
        if (all[r].peer_memory != all[0].peer_memory || all[r].peer_bytes != all[0].peer_bytes)
            return gumbel_fail(error, GUMBEL_ERROR_GROUP, "options.peer_memory",
                               "ranks 0 and %d pass different modes or sizes", (int)r);
        group->shards[r] = all[r].shard;
    }
    return join_shards(group, error);
}

static gumbel_status check_device(const gumbel_device *device, const gumbel_group_options *o,
                                  gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    if (gumbel_version() != GUMBEL_VERSION)
        return gumbel_fail(
            error, GUMBEL_ERROR_UNSUPPORTED, "device",
            "libgumbel_dist and libgumbel are of different versions; libgumbel is %s",
            gumbel_version_string());
    if (device->backend->host_memory)
        return GUMBEL_OK;
    GUMBEL_REFUSE_IF(o->rows == 0, error, "options.rows", "is 0; it must be at least 1 on a GPU");
    return GUMBEL_OK;
}

/* Allocates a group, and the [ranks] that exchange_shards() receives. */
static gumbel_group *allocate_group(const gumbel_transport *t, size_t frame_bytes,
                                    open_message **all)
{
    size_t ranks = (size_t)t->ranks;
    gumbel_group *group = calloc(1, sizeof *group);
    *all = calloc(ranks, sizeof **all);
    if (group) {
        group->shards = calloc(ranks, sizeof *group->shards);
        group->sent_frame = calloc(1, frame_bytes);
        group->frames = calloc(ranks, frame_bytes);
    }
    return group;
}

/* Connects ranks on GPUs by peer memory, or else by the transport's `stream_all_gather`. The
 * decision depends only on `all` and on exchanged results, so it is the same on all ranks. */
static gumbel_status connect_devices(gumbel_group *group, const open_message *all,
                                     const gumbel_group_options *o, gumbel_error *error)
{
    int32_t ranks = group->transport.ranks, on_cpus = 0, with_stream_gather = 0;
    for (int32_t r = 0; r < ranks; r++) {
        on_cpus += all[r].host_memory;
        with_stream_gather += all[r].has_stream_gather;
    }
    if (on_cpus == ranks)
        return GUMBEL_OK;
    if (on_cpus > 0)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                           "%d of %d ranks are on CPUs and the others on GPUs; open the group with "
                           "all ranks on CPUs, or all on GPUs",
                           (int)on_cpus, (int)ranks);
    if (o->peer_memory != GUMBEL_PEERS_OFF)
        GUMBEL_FORWARD(ranks_connect_peers(group, o, error));
    if (group->peers.ranks)
        return GUMBEL_OK;
    if (with_stream_gather == ranks)
        return ranks_start_host_worker(group, error);
    return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "transport",
                       "the transport exchanges host memory only, and the ranks are on GPUs%s; use "
                       "gumbel_nccl_transport(), or GUMBEL_PEERS_REQUIRE on one host",
                       o->peer_memory == GUMBEL_PEERS_OFF ? "" : " that do not reach each other");
}

static void release_group(gumbel_group *group)
{
    ranks_stop_host_worker(group);
    if (group->peers.ranks)
        group->device->backend->ranks->release_peers(group->device, &group->peers);
    free(group->shards);
    free(group->sent_frame);
    free(group->frames);
    free(group);
}

gumbel_status gumbel_group_open(const gumbel_transport *transport, gumbel_device *device,
                                const gumbel_group_options *options, gumbel_group **opened,
                                gumbel_error *error)
{
    gumbel_transport t;
    gumbel_group_options o = {0};
    open_message *all = NULL;
    GUMBEL_REFUSE_IF(!opened, error, "group", "is NULL");
    *opened = NULL;
    GUMBEL_FORWARD(read_transport(&t, transport, error));
    /* A rank whose arguments have an error joins the exchange, so that the others get one, too. */
    gumbel_error own_error = {"", ""};
    gumbel_status status = read_group_options(&o, options, &own_error);
    if (status == GUMBEL_OK)
        status = check_device(device, &o, &own_error);
    gumbel_group *group =
        allocate_group(&t, status == GUMBEL_OK ? o.frame_bytes : FRAME_BYTES, &all);
    if (!group || !all || !group->shards || !group->sent_frame || !group->frames) {
        if (group)
            release_group(group);
        free(all);
        return gumbel_fail(error, GUMBEL_ERROR_MEMORY, "group", "out of memory");
    }
    group->transport = t;
    group->timeout_ms = o.timeout_ms > 0 ? o.timeout_ms : TIMEOUT_MS;
    group->frame_bytes = o.frame_bytes;
    group->device = device;
    group->traffic.struct_size = sizeof group->traffic;
    const open_message own = {.version = OPEN_MESSAGE | GUMBEL_VERSION,
                              .frame_bytes = o.frame_bytes,
                              .peer_bytes = o.peer_bytes,
                              .shard = {o.first_token, o.rows},
                              .rank = t.rank,
                              .status = (int32_t)status,
                              .host_memory = device && device->backend->host_memory,
                              .peer_memory = (int32_t)o.peer_memory,
                              .has_stream_gather = t.stream_all_gather && t.wait};
    gumbel_status joined = exchange_shards(group, &own, all, status == GUMBEL_OK ? error : NULL);
    if (joined == GUMBEL_OK)
        joined = connect_devices(group, all, &o, error);
    free(all);
    if (status != GUMBEL_OK && error)
        *error = own_error;
    status = status == GUMBEL_OK ? joined : status;
    if (status != GUMBEL_OK) {
        release_group(group);
        return status;
    }
    group->table = ranks_backend_of(group->device);
    group->base.backend = &group->table;
    *opened = group;
    return GUMBEL_OK;
}

void gumbel_group_close(gumbel_group *group)
{
    if (!group)
        return;
    ranks_stop_host_worker(group);
    if (group->transport.destroy)
        group->transport.destroy(group->transport.context);
    release_group(group);
}

int gumbel_group_has_peer_memory(const gumbel_group *group)
{
    return group && group->peers.ranks > 0;
}

gumbel_status gumbel_group_traffic(const gumbel_group *group, gumbel_traffic *traffic)
{
    if (!group || !traffic || traffic->struct_size < sizeof traffic->struct_size)
        return GUMBEL_ERROR_ARGUMENT;
    size_t size = traffic->struct_size, known = sizeof *traffic;
    memcpy(traffic, &group->traffic, size < known ? size : known);
    traffic->struct_size = size;
    return GUMBEL_OK;
}
