/* SPDX-License-Identifier: Apache-2.0
 *
 * An LM head whose rows are split over the processes started by mpirun: each draws from its shard,
 * and all receive the same tokens. The rest of the model is replicated.
 */
#ifndef GUMBEL_CLI_RANK_GROUP_H
#define GUMBEL_CLI_RANK_GROUP_H

#include "decoder/generate.h"
#include "source.h"

struct rank_group;

/* Joins the processes by `kind`, which is "mpi", for `vocab` tokens from `first_token` on; fail()
 * on an error. Sets `seed` to that of the first rank, and redirects the stdout of other ranks to
 * /dev/null. Release it with rank_group_close(), where NULL is allowed. */
struct rank_group *rank_group_open(const char *kind, gumbel_device *device, int64_t first_token,
                                   int64_t vocab, uint64_t *seed);
void rank_group_close(struct rank_group *group);

/* True for the process that writes the results. */
bool rank_group_writes(const struct rank_group *group);

/* Draws from this rank's shard of `source`; fail() on an error. */
void rank_group_sample(struct rank_group *group, const struct source *source,
                       const gumbel_sampling *sampling, const gumbel_output *output);

/* A generate_draw; `context` is a struct rank_group. */
gumbel_status rank_group_draw(void *context, const gumbel_head *head,
                              const gumbel_sampling *sampling, const gumbel_output *output,
                              gumbel_error *error);

#endif
