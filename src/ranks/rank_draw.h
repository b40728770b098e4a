/* SPDX-License-Identifier: Apache-2.0
 *
 * One draw of a group: the state that all methods share, and the draw function of each method
 * (rank_methods.c). If draw->output is NULL, a draw function only counts the workspace.
 */
#ifndef GUMBEL_RANKS_RANK_DRAW_H
#define GUMBEL_RANKS_RANK_DRAW_H

#include "ranks/group.h"

#include "core/workspace.h"

typedef struct ranks_draw {
    gumbel_group *group;
    const gumbel_problem *p; /* this rank's shard */
    const gumbel_output *output;
    int64_t end_token; /* end of the tokens that are not padding, over all ranks */
    void *local;       /* workspace of calls on this rank's device */
} ranks_draw;

/* Raises *max_bytes to the workspace size of a call on the rank's device, if that is larger. */
gumbel_status ranks_count_call(const gumbel_group *group, const gumbel_problem *problem,
                               uint64_t purpose, size_t *max_bytes, gumbel_error *error);

/* On CPUs: exchange headers, with `bytes` of payload or none, and set draw->end_token. */
gumbel_status ranks_begin_exchange(ranks_draw *draw, const void *payload, void *received,
                                   size_t bytes, void *rest, gumbel_error *error);

/* On GPUs: compare the arguments that are in host memory, if they differ from those of the previous
 * call. */
gumbel_status ranks_compare_device_call(ranks_draw *draw, gumbel_error *error);

/* Methods on CPUs. */
gumbel_status ranks_draw_plain(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);
gumbel_status ranks_draw_candidates(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);
gumbel_status ranks_draw_whole_rows(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);

/* Methods on GPUs, which queue all of their work. */
gumbel_status ranks_queue_plain(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);
gumbel_status ranks_queue_top64(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);
gumbel_status ranks_queue_whole_rows(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);

#endif
