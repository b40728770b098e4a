/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel_mpi is opened at run time, so that the command runs where there is no MPI.
 */
#define _GNU_SOURCE
#include "rank_group.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "gumbel/dist.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define LIBRARY    "libgumbel_mpi.so." TEXT(GUMBEL_VERSION_MAJOR) "." TEXT(GUMBEL_VERSION_MINOR)
enum { BLOCK = 64 };

struct rank_group {
    gumbel_group *group;
    int64_t first, rows; /* this rank's rows of the head */
    void (*end)(void);
    void *workspace;
    size_t workspace_bytes;
};

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        fail("--group", "%s lacks %s", LIBRARY, name);
    }
    return found;
}

struct rank_group *rank_group_open(const char *kind, gumbel_device *device, gumbel_tensor weight)
{
    struct rank_group *made = calloc(1, sizeof *made);
    gumbel_status (*world)(gumbel_transport *, gumbel_error *);
    gumbel_transport transport;
    gumbel_error error = {"", ""};

    if (strcmp(kind, "mpi") != 0) {
        fail("--group", "'%s' is not known; 'mpi' is", kind);
    }
    /* Parts of an MPI look for others of it among all symbols. */
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fail("--group", "%s", dlerror());
    }
    if (!made) {
        fail("--group", "not enough memory");
    }
    void *symbol = find(library, "gumbel_mpi_world");
    memcpy(&world, &symbol, sizeof world);
    symbol = find(library, "gumbel_mpi_world_end");
    memcpy(&made->end, &symbol, sizeof made->end);
    if (world(&transport, &error) != GUMBEL_OK) {
        fail("--group", "%s: %s", error.field, error.message);
    }
    if (transport.rank > 0 && !freopen("/dev/null", "w", stdout)) {
        fail("--group", "rank %d cannot be silent", (int)transport.rank);
    }
    /* Whole blocks of 64 tokens, so that what travels is small. */
    int64_t blocks = (weight.rows + BLOCK - 1) / BLOCK;
    int64_t end = blocks * (transport.rank + 1) / transport.ranks * BLOCK;
    made->first = blocks * transport.rank / transport.ranks * BLOCK;
    made->rows = (end < weight.rows ? end : weight.rows) - made->first;
    const gumbel_group_options options = {
        .struct_size = sizeof options, .first_token = made->first, .rows = made->rows};
    if (gumbel_group_open(&transport, device, &options, &made->group, &error) != GUMBEL_OK) {
        fail("--group", "%s: %s", error.field, error.message);
    }
    return made;
}

void rank_group_close(struct rank_group *group)
{
    if (!group) {
        return;
    }
    gumbel_group_close(group->group);
    group->end();
    free(group->workspace);
    free(group);
}

gumbel_status rank_group_draw(void *context, const gumbel_head *head,
                              const gumbel_sampling *sampling, const gumbel_output *output,
                              gumbel_error *error)
{
    struct rank_group *g = context;
    gumbel_head shard = *head;
    size_t size = head->weight.dtype == GUMBEL_FLOAT32 ? 4 : 2;
    int64_t stride = head->weight.stride ? head->weight.stride : head->weight.cols;
    size_t bytes = 0;

    shard.weight.data = (const char *)head->weight.data + (size_t)(g->first * stride) * size;
    shard.weight.rows = g->rows;
    shard.first_token = g->first;
    gumbel_status status =
        gumbel_group_workspace_size(g->group, &shard, NULL, sampling, output, &bytes, error);
    if (status != GUMBEL_OK) {
        return status;
    }
    if (!g->workspace || bytes > g->workspace_bytes) {
        g->workspace_bytes = (bytes + 64) / 64 * 64;
        free(g->workspace);
        g->workspace = aligned_alloc(64, g->workspace_bytes);
    }
    return gumbel_group_sample(g->group, NULL, &shard, sampling, output, g->workspace, bytes,
                               error);
}
