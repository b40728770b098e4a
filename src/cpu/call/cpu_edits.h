/* SPDX-License-Identifier: Apache-2.0
 *
 * The edits of a call (edits.h): mask, bans, biases and penalties, applied tile by tile. A tile
 * without edits costs a read of a few words. Edits are few, so all instruction sets share plain C.
 * cpu_lists.c sorts token lists; cpu_edits.c applies the edits.
 */
#ifndef GUMBEL_CPU_EDITS_H
#define GUMBEL_CPU_EDITS_H

#include "maths/edits.h"
#include "core/workspace.h"
#include "cpu/host/cpu_device.h"

/* Tokens that penalties count: the caller's history, or a history of B rows in the workspace that
 * is computed from token lists. Token 0 of `history` is token `first` of the vocabulary. A token's
 * count is defined only if its bit in history.output is set. */
typedef struct cpu_counted_tokens {
    gumbel_history history;
    int64_t first; /* a multiple of 64 */
    int64_t words; /* of a row */
    int by_row;    /* indexed by rows, not by slots */
} cpu_counted_tokens;

/* Biases of rows, sorted by blocks. */
typedef struct cpu_biases {
    const gumbel_token_lists *lists;
    uint32_t *ends; /* [B, blocks] end of each block's range in `order`; NULL: no biases */
    uint32_t
        *order; /* [B, CPU_BIASES * blocks] indices into the row's list, sorted by block, within
                      * one block in the order of the list */
} cpu_biases;

/* Edits of a call, over the shard's blocks of 64 tokens from token `base` on. */
typedef struct cpu_edits {
    const gumbel_problem *problem; /* NULL: no edits */
    int64_t base;
    int64_t blocks;
    uint32_t *banned;              /* [B, 2 * blocks] or NULL */
    cpu_biases bias, late_bias;    /* before and after penalties */
    cpu_counted_tokens counted[2]; /* tokens that penalties count, [sources] */
    int sources;
} cpu_edits;

/* Value of ends[0] if the row's list is too long for `order`: each tile reads the list. */
#define CPU_BIASES_UNSORTED UINT32_MAX

/* One row's token list. */
typedef struct cpu_list {
    const int32_t *ids;
    int64_t count;
} cpu_list;

/* List b; empty if there are no lists. */
static inline cpu_list cpu_get_list(const gumbel_token_lists *lists, int64_t b)
{
    if (!lists->offsets || lists->offsets[b] == lists->offsets[b + 1])
        return (cpu_list){NULL, 0};
    return (cpu_list){lists->ids + lists->offsets[b], lists->offsets[b + 1] - lists->offsets[b]};
}

struct cpu_row_tile;

/* Workspace bytes of the edits, in addition to those of the plain draw. */
size_t cpu_count_edits_workspace(const gumbel_problem *problem);

/* Divides `workspace` and sorts the lists. Sets no edits if the request has no transforms. */
void cpu_prepare_edits(cpu_edits *edits, cpu_device *cpu, const gumbel_problem *problem,
                       void *workspace);

/* Whether masks or bans may exclude a token of the call. */
int cpu_excludes_tokens(const cpu_edits *edits);

/* The tokens that the tile has and that mask and bans allow, of the 32 from tile->token + `at` on,
 * a multiple of 32. For calls that may exclude tokens. */
uint32_t cpu_find_allowed_bits(const cpu_edits *edits, const struct cpu_row_tile *tile, int at);

/* Moves `run` to the next run of blocks of `whole` with an allowed token; returns 0 if there is
 * none. Before the first call, run->token is whole->token and run->high is 0. */
int cpu_find_allowed_blocks(const cpu_edits *edits, const struct cpu_row_tile *whole,
                            struct cpu_row_tile *run);

/* Whether any edit applies to the tile. */
int cpu_has_edits(const cpu_edits *edits, const struct cpu_row_tile *tile);

/* Writes the tile's logits, transformed and edited, to z[0] .. z[high - low - 1]; z may be
 * `from`. */
void cpu_transform_edited_tile(const cpu_edits *edits, const cpu_kernels *kernels,
                               const struct cpu_row_tile *tile, const cpu_transform *transform,
                               float *z);

#endif
