/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of a verification of drafts (docs/maths.md, section 12), and the map from the rows
 * of its draw to requests and nodes of their draft trees. The host cannot check drafts in GPU
 * memory; if a request there is invalid, it emits no token.
 */
#ifndef GUMBEL_DRAFTS_ROWS_H
#define GUMBEL_DRAFTS_ROWS_H

#include "core/backend.h"
#include "core/row.h"

#include "gumbel/drafts.h"

/* The request and node of each row, [n] each, in the workspace. */
typedef struct gumbel_draft_rows {
    int32_t *slot;         /* slot of the row's request; GUMBEL_SLOT_UNUSED: the row has no node */
    uint64_t *position;    /* position of the row's draw */
    int32_t *request;      /* index of the row's token lists; 0 for an unused row */
    int64_t *path_offsets; /* [n + 1] rows of gumbel_problem.path, M - 1 ids each; or NULL */
    int32_t *path_ids;     /* drafted tokens from the root to the node; -1 after the last */
} gumbel_draft_rows;

/* One verification. */
struct gumbel_verification {
    gumbel_draft draft;
    gumbel_verified verified;
    int64_t rows;             /* n */
    int64_t end_token;        /* a drafted id >= end_token is invalid */
    int64_t counted_end;      /* penalties do not count ids >= counted_end */
    gumbel_slots slots;       /* the caller's, one for each request */
    gumbel_row_u64 position;  /* the caller's, one for each request; stride 0: one for all */
    const int32_t *live_rows; /* the caller's: number of live requests */
    gumbel_draft_rows of_row;
    gumbel_output drawn;      /* of n rows: tokens, status, and the outputs that the caller set */
    float *logprobs, *scores; /* [n] of the token emitted after each row; or NULL */
};

/* The nodes of a request: rows first .. first + count - 1. */
typedef struct gumbel_span {
    int64_t first;
    int32_t count;
    int sound; /* 0: the request is invalid */
} gumbel_span;

GUMBEL_INLINE int64_t gumbel_draft_slot(const gumbel_verification *v, int64_t r)
{
    return v->slots.of_row ? v->slots.of_row[r] : r;
}

/* The number of live requests. */
GUMBEL_INLINE int64_t gumbel_draft_live(const gumbel_verification *v)
{
    int64_t live = v->live_rows ? *v->live_rows : v->draft.requests;
    return live < v->draft.requests ? live : v->draft.requests;
}

GUMBEL_INLINE gumbel_span gumbel_draft_span(const gumbel_verification *v, int64_t r)
{
    const gumbel_draft *d = &v->draft;
    gumbel_span span = {r * d->max_nodes, 0, 0};
    int64_t end = span.first + d->max_nodes;
    if (d->offsets) {
        span.first = d->offsets[r];
        end = d->offsets[r + 1];
    }
    if (span.first < 0 || end < span.first || end > v->rows || end - span.first > d->max_nodes)
        return span;
    span.count = d->nodes ? d->nodes[r] : (int32_t)(end - span.first);
    span.sound = span.count >= 0 && span.count <= end - span.first;
    span.count = span.sound ? span.count : 0;
    return span;
}

/* The only request that can contain row b: the last live request whose first row is <= b. */
GUMBEL_INLINE int64_t gumbel_draft_request(const gumbel_verification *v, int64_t b)
{
    const gumbel_draft *d = &v->draft;
    int64_t low = 0, high = gumbel_draft_live(v);
    if (!d->offsets)
        return b / d->max_nodes < high ? b / d->max_nodes : 0;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (d->offsets[middle] <= b)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The parent of node j > 0 of a request whose rows begin at `first`; -1 if it is invalid. */
GUMBEL_INLINE int32_t gumbel_draft_parent(const gumbel_draft *d, int64_t first, int32_t j)
{
    int32_t parent = d->parents ? d->parents[first + j] : j - 1;
    return parent < j && parent >= 0 ? parent : -1;
}

/* Writes the request, slot, position and path of row b. */
GUMBEL_INLINE void gumbel_draft_expand_row(const gumbel_verification *v, int64_t b)
{
    const gumbel_draft *d = &v->draft;
    const gumbel_draft_rows *to = &v->of_row;
    int64_t r = gumbel_draft_request(v, b), place, path = b * (d->max_nodes - 1);
    gumbel_span span = gumbel_draft_span(v, r);
    int32_t node = (int32_t)(b - span.first), depth = 0;
    int used = b >= span.first && b < span.first + span.count && r < gumbel_draft_live(v);
    for (; used && node > 0; depth++) {
        if (to->path_ids) {
            int32_t token = d->tokens[span.first + node];
            to->path_ids[path + depth] = token < v->counted_end ? token : -1;
        }
        node = gumbel_draft_parent(d, span.first, node);
        used = node >= 0;
    }
    for (int32_t i = depth; to->path_ids && i < d->max_nodes - 1; i++)
        to->path_ids[path + i] = -1;
    if (to->path_offsets)
        to->path_offsets[b + 1] = path + d->max_nodes - 1;
    place = gumbel_draft_slot(v, r);
    to->slot[b] = used ? (int32_t)place : GUMBEL_SLOT_UNUSED;
    to->request[b] = used ? (int32_t)r : 0;
    /* A row with an invalid slot is not drawn; slot 0 keeps the read of its position in bounds. */
    place = place >= 0 && (!v->slots.of_row || place < v->slots.count) ? place : 0;
    to->position[b] = v->position.data ? v->position.data[place * v->position.stride] : 0;
    to->position[b] += (uint64_t)depth;
    if (d->node_position)
        to->position[b] = d->node_position[b];
}

/* Expands all rows, in host memory. */
void gumbel_drafts_expand(const gumbel_verification *verification);

/* In a chain of drafts, the token of the node after row b, which must be expanded; -1: none. */
GUMBEL_INLINE int32_t gumbel_draft_token_after(const gumbel_verification *v, int64_t b)
{
    if (v->of_row.slot[b] == GUMBEL_SLOT_UNUSED)
        return -1;
    gumbel_span span = gumbel_draft_span(v, v->of_row.request[b]);
    if (!span.sound || b < span.first || b + 1 >= span.first + span.count)
        return -1;
    int32_t token = v->draft.tokens[b + 1];
    return token >= 0 && token < v->end_token ? token : -1;
}

#endif
