/* SPDX-License-Identifier: Apache-2.0
 *
 * The tokens of a tile whose logits some row reads. Masks, allowed tokens and bans of a call often
 * exclude most of a tile, whose weights are then not multiplied.
 */
#ifndef GUMBEL_CPU_NEEDED_H
#define GUMBEL_CPU_NEEDED_H

#include "cpu/call/cpu_job.h"
#include "cpu/cpu_policy.h"

typedef struct cpu_needed_tokens {
    int any;
    int is_sparse; /* at most 1 / CPU_SPARSE_FRACTION of the tile: the tokens of `words` */
    int high;      /* of the tile */
    uint32_t words[CPU_TILE_MAX / 32]; /* bit i & 31 of word i >> 5 is token tile->token + i */
} cpu_needed_tokens;

/* Finds the needed tokens low .. high of the tile at `token`. Sets `words` only if is_sparse. */
void cpu_find_needed_tokens(const cpu_job *job, int64_t token, int low, int high,
                            cpu_needed_tokens *needed);

/* Moves `run` to the next run of needed tokens of a sparse tile; returns 0 if there is none. Before
 * the first call run->high is 0. */
int cpu_find_needed_run(const cpu_needed_tokens *needed, cpu_token_range *run);

#endif
