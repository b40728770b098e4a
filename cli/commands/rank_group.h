/* SPDX-License-Identifier: Apache-2.0
 *
 * An LM head whose rows are split over processes that mpirun has started: each draws from its own,
 * and all get the same tokens. Everything else of a model is the same on all of them.
 */
#ifndef GUMBEL_CLI_RANK_GROUP_H
#define GUMBEL_CLI_RANK_GROUP_H

#include "decoder/generate.h"
#include "source.h"

struct rank_group;

/* Join the processes by `kind`, which is "mpi", for `vocab` tokens from `first_token` on; a failure
 * ends the command. `seed` becomes that of the first rank. Ranks but the first have nowhere to
 * print to from then on. Leave with rank_group_close(), where NULL is allowed. */
struct rank_group *rank_group_open(const char *kind, gumbel_device *device, int64_t first_token,
                                   int64_t vocab, uint64_t *seed);
void rank_group_close(struct rank_group *group);

/* Whether this process is the one that writes results. */
bool rank_group_writes(const struct rank_group *group);

/* Draw from this rank's part of `source`; fail() on an error. */
void rank_group_sample(struct rank_group *group, const struct source *source,
                       const gumbel_sampling *sampling, const gumbel_output *output);

/* A generate_draw; `context` is a struct rank_group. */
gumbel_status rank_group_draw(void *context, const gumbel_head *head,
                              const gumbel_sampling *sampling, const gumbel_output *output,
                              gumbel_error *error);

#endif
