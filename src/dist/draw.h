/* SPDX-License-Identifier: Apache-2.0
 *
 * One draw of a group on its way.
 */
#ifndef GUMBEL_DIST_DRAW_H
#define GUMBEL_DIST_DRAW_H

#include "dist/group.h"

#include "core/workspace.h"

typedef struct ranks_draw {
    gumbel_group *group;
    const gumbel_problem *p; /* of this rank's shard */
    const gumbel_output *output;
    int64_t end_token; /* of what counts, of all ranks */
    void *local;       /* workspace of calls on this rank's device */
} ranks_draw;

/* Whether summaries tell a draw: it asks for nothing that they do not hold. */
int ranks_is_plain(const gumbel_group *group, const gumbel_problem *problem);

/* Bytes that a call of the rank's device takes. */
gumbel_status ranks_count_call(const gumbel_group *group, const gumbel_problem *problem, uint32_t more,
                         size_t *most, gumbel_error *error);

/* Draw plain rows: summaries are gathered and finished. */
gumbel_status ranks_draw_plain(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);

/* Draw any rows: by the tokens that ranks list, and rows that these do not tell by whole rows. With
 * a NULL draw->output the workspace is counted alone. */
gumbel_status ranks_draw_candidates(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);

/* Draw rows that have given tokens or noise: by whole rows. */
gumbel_status ranks_draw_whole_rows(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);

/* Whether first tokens of each rank may tell the rows of a draw on GPUs; draw it by these, and rows
 * that they do not tell by whole rows. As above where draw->output is NULL. */
int ranks_can_list(const gumbel_group *group, const gumbel_problem *problem);
gumbel_status ranks_queue_top64(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);

/* Draw any rows on GPUs: by whole rows. */
gumbel_status ranks_queue_whole_rows(ranks_draw *draw, gumbel_cursor *cursor, gumbel_error *error);

/* Exchange headers, with `bytes` of payload or none, and learn where tokens end. */
gumbel_status ranks_begin_exchange(ranks_draw *draw, const void *payload, void *received, size_t bytes,
                         void *rest, gumbel_error *error);

#endif
