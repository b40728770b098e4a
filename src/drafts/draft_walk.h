/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk of a request: from the root it emits each node's drawn token, and continues at the child
 * that drafted this token, if there is one.
 */
#ifndef GUMBEL_DRAFTS_WALK_H
#define GUMBEL_DRAFTS_WALK_H

#include "drafts/draft_rows.h"

/* The parent of an invalid node. */
#define GUMBEL_PARENT_NONE (-2)

/* A node and the token drawn after it. */
typedef struct gumbel_node {
    int32_t drafted; /* the node's token; -1: none */
    int32_t parent;  /* index of the parent; -1: this is the root */
    int32_t drawn;   /* the token drawn after it */
    int32_t status;
    int32_t stops; /* `drawn` ends the request */
} gumbel_node;

GUMBEL_INLINE int gumbel_list_contains(const gumbel_token_lists *lists, int64_t r, int32_t id)
{
    if (!lists->offsets)
        return 0;
    for (int64_t i = lists->offsets[r]; i < lists->offsets[r + 1]; i++)
        if (lists->ids[i] == id)
            return 1;
    return 0;
}

/* Node j of a request, before its draw. */
GUMBEL_INLINE gumbel_node gumbel_read_draft_node(const gumbel_verification *v, int64_t first,
                                                 int32_t j)
{
    gumbel_node node = {-1, -1, -1, GUMBEL_ROW_UNUSED, 0};
    int32_t token = j > 0 ? v->draft.tokens[first + j] : -1;
    node.drafted = token < v->end_token ? token : -1;
    if (j > 0) {
        node.parent = gumbel_draft_parent(&v->draft, first, j);
        node.parent = node.parent < 0 ? GUMBEL_PARENT_NONE : node.parent;
    }
    return node;
}

/* Adds the draw of row b. A row that belongs to another request makes the node invalid. */
GUMBEL_INLINE void gumbel_draft_add_draw(const gumbel_verification *v, int64_t r, int64_t b,
                                         gumbel_node *node)
{
    if (v->of_row.slot[b] != GUMBEL_SLOT_UNUSED && v->of_row.request[b] != r)
        node->parent = GUMBEL_PARENT_NONE;
    node->drawn = v->drawn.tokens[b];
    node->status = v->drawn.status[b];
    node->stops =
        node->status == GUMBEL_ROW_OK && gumbel_list_contains(&v->draft.stop, r, node->drawn);
}

/* Node j of request r. */
GUMBEL_INLINE gumbel_node gumbel_read_drawn_node(const gumbel_verification *v, int64_t r,
                                                 int64_t first, int32_t j)
{
    gumbel_node node = gumbel_read_draft_node(v, first, j);
    gumbel_draft_add_draw(v, r, first + j, &node);
    return node;
}

/* The end of a walk. */
typedef struct gumbel_walk_result {
    int32_t emitted;  /* tokens; also the number of nodes on the path */
    int64_t last_row; /* row of the last node on the path; -1: the path is empty */
    int32_t finished, status;
} gumbel_walk_result;

/* The result of a request without a walk. */
GUMBEL_INLINE gumbel_walk_result gumbel_walk_result_none(gumbel_row_status status)
{
    gumbel_walk_result w = {0, -1, GUMBEL_FINISHED_NOT, status};
    return w;
}

GUMBEL_INLINE int32_t gumbel_walk_accepted(const gumbel_walk_result *w)
{
    return w->emitted > 0 ? w->emitted - 1 : 0;
}

/* Whether the histogram counts the walk. */
GUMBEL_INLINE int gumbel_walk_is_counted(const gumbel_walk_result *w)
{
    return w->status != GUMBEL_ROW_UNUSED && w->status != GUMBEL_ROW_DRAFT;
}

/* The first child of `node` that drafted `token`; -1: none. */
GUMBEL_INLINE int32_t gumbel_find_child(const gumbel_node *nodes, int32_t count, int32_t node,
                                        int32_t token)
{
    for (int32_t j = node + 1; j < count; j++)
        if (nodes[j].parent == node && nodes[j].drafted == token)
            return j;
    return -1;
}

/* Sets the outputs of row b to those of its draw; a rule may overwrite them. */
GUMBEL_INLINE void gumbel_draft_emit_draw(const gumbel_verification *v, int64_t b)
{
    if (v->logprobs)
        v->logprobs[b] = v->drawn.logprobs[b];
    if (v->scores)
        v->scores[b] = v->drawn.scores[b];
}

/* Writes `token`, drawn after the node of row b, as token `i` of request r. */
GUMBEL_INLINE void gumbel_draft_emit(const gumbel_verification *v, int64_t r, int64_t b, int32_t i,
                                     int32_t token)
{
    const gumbel_verified *to = &v->verified;
    int64_t at = r * v->draft.max_nodes + i;
    to->tokens[at] = token;
    if (to->path)
        to->path[at] = (int32_t)b;
    if (to->logprobs)
        to->logprobs[at] = v->logprobs[b];
    if (to->scores)
        to->scores[at] = v->scores[b];
}

/* Walks from the root of a live request with one node or more, whose rows begin at `first`, and
 * writes the emitted tokens. A node whose row could not be drawn is not accepted: the next call has
 * it as its root. */
GUMBEL_INLINE gumbel_walk_result gumbel_draft_walk(const gumbel_verification *v, int64_t r,
                                                   int64_t first, const gumbel_node *nodes,
                                                   int32_t count)
{
    const int32_t *limits = v->draft.limit;
    gumbel_walk_result w = gumbel_walk_result_none(GUMBEL_ROW_OK);
    if (limits && limits[r] <= 0)
        w.finished = GUMBEL_FINISHED_LIMIT;
    for (int32_t node = 0; node >= 0 && !w.finished;) {
        const gumbel_node *at = &nodes[node];
        w.status = at->status;
        if (at->status != GUMBEL_ROW_OK)
            break;
        gumbel_draft_emit(v, r, first + node, w.emitted++, at->drawn);
        w.last_row = first + node;
        if (limits && w.emitted >= limits[r])
            w.finished = GUMBEL_FINISHED_LIMIT;
        if (at->stops)
            w.finished = GUMBEL_FINISHED_STOP;
        node = gumbel_find_child(nodes, count, node, at->drawn);
    }
    return w;
}

/* Writes the results of request r's walk. Threads split the unused elements after the last token:
 * this one fills every lanes-th from `lane` on. Lane 0 writes the values of the request. */
GUMBEL_INLINE void gumbel_draft_write_end(const gumbel_verification *v, int64_t r,
                                          const gumbel_walk_result *w, int32_t lane, int32_t lanes)
{
    const gumbel_verified *to = &v->verified;
    int32_t max_nodes = v->draft.max_nodes;
    for (int64_t at = r * max_nodes + w->emitted + lane; at < (r + 1) * max_nodes; at += lanes) {
        to->tokens[at] = -1;
        if (to->path)
            to->path[at] = -1;
        if (to->logprobs)
            to->logprobs[at] = NAN;
        if (to->scores)
            to->scores[at] = NAN;
    }
    if (lane != 0)
        return;
    to->emitted[r] = w->emitted;
    if (to->accepted)
        to->accepted[r] = gumbel_walk_accepted(w);
    if (to->last_row)
        to->last_row[r] = (int32_t)w->last_row;
    if (to->finished)
        to->finished[r] = w->finished;
    if (to->status)
        to->status[r] = w->status;
}

/* Advances the position of request r by its emitted tokens. The slot of a request that is not live
 * is unknown. */
GUMBEL_INLINE void gumbel_draft_advance(const gumbel_verification *v, int64_t r, int32_t emitted)
{
    if (!v->verified.position || (v->slots.of_row && r >= gumbel_draft_live(v)))
        return;
    int64_t slot = gumbel_draft_slot(v, r);
    if (slot < 0 || (v->slots.of_row && slot >= v->slots.count))
        return;
    uint64_t position = v->position.data ? v->position.data[slot * v->position.stride] : 0;
    v->verified.position[slot] = position + (uint64_t)emitted;
}

/* Walks all requests, in host memory. `proposal` drew the drafts, NULL for COUPLED; nodes: [M] of
 * scratch. */
gumbel_status gumbel_drafts_accept(const gumbel_verification *verification,
                                   const gumbel_proposal *proposal, gumbel_device *device,
                                   gumbel_node *nodes, gumbel_error *error);

#endif
