/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups of ranks for the command. libgumbel_mpi is loaded at run time, so that the command also
 * runs without MPI.
 */
#define _GNU_SOURCE
#include "rank_group.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gumbel/dist.h"
#include "options.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define LIBRARY    "libgumbel_mpi.so." TEXT(GUMBEL_VERSION_MAJOR) "." TEXT(GUMBEL_VERSION_MINOR)
enum { BLOCK = 64 };

struct rank_group {
    gumbel_group *group;
    int64_t begin, end; /* this rank's tokens, relative to the first token of the head */
    int32_t rank;
    void (*leave)(void);
    void *workspace;
    size_t workspace_bytes;
};

static void *find_symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);

    if (!found) {
        fail("--group", "%s lacks %s", LIBRARY, name);
    }
    return found;
}

/* Sets the seed of all ranks to that of rank 0. */
static void broadcast_seed(const gumbel_transport *transport, uint64_t *seed)
{
    enum { TIMEOUT_MS = 60000 };
    uint64_t *seeds = require_memory("--group", transport->ranks, sizeof *seeds);
    char why[GUMBEL_WHY_BYTES] = "";

    if (transport->all_gather(transport->context, NULL, seed, seeds, sizeof *seed, TIMEOUT_MS,
                              why) != 0) {
        fail("--group", "the seed could not be sent to all ranks: %s", why);
    }
    *seed = seeds[0];
    free(seeds);
}

struct rank_group *rank_group_open(const char *kind, gumbel_device *device, int64_t first_token,
                                   int64_t vocab, uint64_t *seed)
{
    struct rank_group *g = calloc(1, sizeof *g);
    gumbel_status (*world)(gumbel_transport *, gumbel_error *);
    gumbel_transport transport;
    gumbel_error error = {"", ""};

    if (strcmp(kind, "mpi") != 0) {
        fail("--group", "'%s' is not supported; expected 'mpi'", kind);
    }
    /* RTLD_GLOBAL: libraries of an MPI find each other's symbols. */
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        fail("--group", "%s", dlerror());
    }
    if (!g) {
        fail("--group", "not enough memory");
    }
    void *symbol = find_symbol(library, "gumbel_mpi_world");
    memcpy(&world, &symbol, sizeof world);
    symbol = find_symbol(library, "gumbel_mpi_world_end");
    memcpy(&g->leave, &symbol, sizeof g->leave);
    if (world(&transport, &error) != GUMBEL_OK) {
        fail("--group", "%s: %s", error.field, error.message);
    }
    broadcast_seed(&transport, seed);
    if (transport.rank > 0 && !freopen("/dev/null", "w", stdout)) {
        fail("--group", "rank %d: stdout cannot be redirected to /dev/null", (int)transport.rank);
    }
    /* Shards of whole 64-token blocks keep the exchanged summaries small. */
    const int64_t low = first_token / BLOCK, high = (first_token + vocab + BLOCK - 1) / BLOCK;
    int64_t ends[2];
    for (int i = 0; i < 2; i++) {
        int64_t at =
            (low + (high - low) * (transport.rank + i) / transport.ranks) * BLOCK - first_token;
        ends[i] = at < 0 ? 0 : at < vocab ? at : vocab;
    }
    g->rank = transport.rank;
    g->begin = ends[0];
    g->end = ends[1];
    const gumbel_group_options options = {.struct_size = sizeof options,
                                          .first_token = first_token + g->begin,
                                          .rows = g->end - g->begin};
    if (gumbel_group_open(&transport, device, &options, &g->group, &error) != GUMBEL_OK) {
        fail("--group", "%s: %s", error.field, error.message);
    }
    return g;
}

void rank_group_close(struct rank_group *group)
{
    if (!group) {
        return;
    }
    gumbel_group_close(group->group);
    group->leave();
    free(group->workspace);
    free(group);
}

bool rank_group_writes(const struct rank_group *group) { return !group || group->rank == 0; }

/* Draws from this rank's shard, together with the other ranks. */
static gumbel_status draw_shard(struct rank_group *g, const struct source *whole,
                                const gumbel_sampling *sampling, const gumbel_output *output,
                                gumbel_error *error)
{
    const struct source shard = source_shard(whole, g->begin, g->end);
    const gumbel_head *head = shard.from_logits ? NULL : &shard.head;
    const gumbel_logits *logits = shard.from_logits ? &shard.logits : NULL;
    gumbel_sampling shard_sampling = *sampling;
    gumbel_transforms transforms;
    size_t bytes = 0;

    if (shard_sampling.transforms) { /* a row of a mask has the width of the whole vocabulary */
        const int64_t first =
            whole->from_logits ? whole->logits.first_token : whole->head.first_token;
        transforms = *shard_sampling.transforms;
        if (transforms.mask.data && transforms.mask.stride == 0) {
            transforms.mask.stride = (first + source_vocab(whole) + 31) / 32;
        }
        shard_sampling.transforms = &transforms;
    }
    gumbel_status status =
        gumbel_group_workspace_size(g->group, head, logits, &shard_sampling, output, &bytes, error);

    if (status != GUMBEL_OK) {
        return status;
    }
    if (!g->workspace || bytes > g->workspace_bytes) {
        g->workspace_bytes = (bytes + 64) / 64 * 64;
        free(g->workspace);
        g->workspace = aligned_alloc(64, g->workspace_bytes);
    }
    return head ? gumbel_group_sample(g->group, NULL, head, &shard_sampling, output, g->workspace,
                                      bytes, error)
                : gumbel_group_sample_logits(g->group, NULL, logits, &shard_sampling, output,
                                             g->workspace, bytes, error);
}

gumbel_status rank_group_draw(void *context, const gumbel_head *head,
                              const gumbel_sampling *sampling, const gumbel_output *output,
                              gumbel_error *error)
{
    const struct source whole = {.head = *head};

    return draw_shard(context, &whole, sampling, output, error);
}

void rank_group_sample(struct rank_group *group, const struct source *source,
                       const gumbel_sampling *sampling, const gumbel_output *output)
{
    gumbel_error error = {"", ""};

    if (draw_shard(group, source, sampling, output, &error) != GUMBEL_OK) {
        fail_field(error.field, error.message);
    }
}
