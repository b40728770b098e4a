/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "rank_process.h"

#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { IDS_MAX = 256 };

/* Memory of all processes: the NCCL ids that rank 0 has generated, one per communicator. */
typedef struct shared_ids {
    char ids[IDS_MAX][GUMBEL_NCCL_ID_BYTES];
    _Atomic int count; /* ids generated */
} shared_ids;

static shared_ids *nccl_ids;
int32_t rank, ranks;
int failed_communicators; /* also the index of the id in use */
gumbel_peer_memory peer_memory;

int share_nccl_ids(void)
{
    nccl_ids =
        mmap(NULL, sizeof *nccl_ids, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return nccl_ids != MAP_FAILED;
}

/* Returns the transport of the next group. Groups share a communicator until one of them fails. */
static gumbel_transport connect_transport(void)
{
    static gumbel_transport transport;
    static int connected = -1; /* index of the transport's communicator */
    gumbel_error error = {"", ""};
    if (connected == failed_communicators)
        return transport;
    int index = connected = failed_communicators;
    if (index == IDS_MAX)
        die("too many groups");
    if (rank == 0) {
        if (gumbel_nccl_id(nccl_ids->ids[index], &error) != GUMBEL_OK)
            die("%s: %s", error.field, error.message);
        nccl_ids->count = index + 1;
    }
    while (nccl_ids->count <= index)
        usleep(1000);
    if (gumbel_nccl_transport(NULL, nccl_ids->ids[index], rank, ranks, 0, &transport, &error) !=
        GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    transport.destroy = NULL; /* closing a group must not destroy it */
    return transport;
}

gumbel_group *open_group(int64_t first_token, int64_t rows)
{
    gumbel_error error = {"", ""};
    gumbel_group *group;
    gumbel_transport transport = connect_transport();
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = first_token,
                                          .rows = rows,
                                          .timeout_ms = TIMEOUT_MS,
                                          .peer_memory = peer_memory};
    if (gumbel_group_open(&transport, gpu, &options, &group, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    return group;
}

void print_progress(const char *what, int done, int count)
{
    static struct timespec printed;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (rank != 0 || now.tv_sec < printed.tv_sec + 5)
        return;
    if (printed.tv_sec)
        printf("%s: %d of %d\n", what, done, count);
    printed = now;
}
