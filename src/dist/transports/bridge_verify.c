/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts over a bridge: they are brought to the host, laid out and accepted there; what that makes
 * of each row goes back to the GPU as its shard is drawn from.
 */
#include "core/fail.h"
#include "core/workspace.h"
#include "dist/group.h"
#include "dist/transports/bridge.h"
#include "validate/validate.h"

/* A call as its sizes are told: p has the parameters of its requests, and rows of its own. */
typedef struct sizes {
    gumbel_problem p;
    int64_t rows;
    size_t uploads, needed;
} sizes;

/* Bytes of what the host makes of `rows` rows; drafts of M nodes have paths of fewer tokens. */
static size_t upload_bytes(int64_t rows, int32_t max_nodes, int with_path)
{
    gumbel_cursor cursor = {NULL, 0};
    size_t n = (size_t)rows, tokens = with_path ? (size_t)(max_nodes - 1) : 0;
    gumbel_carve(&cursor, n, 1, sizeof(int32_t));
    gumbel_carve(&cursor, n, 1, sizeof(uint64_t));
    gumbel_carve(&cursor, n, 1, sizeof(int32_t));
    gumbel_carve(&cursor, n + 1, 1, sizeof(int64_t));
    gumbel_carve(&cursor, n, tokens, sizeof(int32_t));
    return cursor.used;
}

static gumbel_status read_sizes(const dist_bridge *bridge, sizes *s, const gumbel_head *head,
                                const gumbel_logits *logits, const gumbel_sampling *sampling,
                                const gumbel_draft *draft, gumbel_error *error)
{
    gumbel_problem *p = &s->p;
    gumbel_draft d = {0};
    GUMBEL_FORWARD(head ? gumbel_read_head(p, GUMBEL_SCREEN_LAYOUT_NONE, head, NULL, error)
                        : gumbel_read_logits(p, logits, NULL, error));
    GUMBEL_REFUSE_IF(!draft, error, "draft", "draft is NULL");
    GUMBEL_FORWARD(gumbel_read_options(&d, sizeof d, draft, "draft", error));
    GUMBEL_REFUSE_IF(d.requests < 0 || d.requests > INT32_MAX, error, "draft.requests",
                     "it must be in 0..2^31 - 1");
    GUMBEL_REFUSE_IF(d.max_nodes < 1 || d.max_nodes > GUMBEL_NODES_MOST, error, "draft.max_nodes",
                     "it must be in 1..%d", GUMBEL_NODES_MOST);
    s->rows = p->batch;
    p->batch = d.requests;
    GUMBEL_FORWARD(gumbel_read_sampling(p, sampling, error));
    int with_path = p->request & GUMBEL_REQUEST_PENALTIES && d.max_nodes > 1;
    gumbel_problem whole = *p;
    whole.batch = s->rows;
    whole.with_path = with_path;
    s->uploads = upload_bytes(s->rows, d.max_nodes, with_path);
    GUMBEL_REFUSE_IF(s->uploads == SIZE_MAX, error, "draft", "it is larger than any memory");
    return dist_bridge_room(bridge, &whole, s->uploads, &s->needed, error);
}

gumbel_status dist_bridge_verify_size(const dist_bridge *bridge, const gumbel_head *head,
                                      const gumbel_logits *logits, const gumbel_sampling *sampling,
                                      const gumbel_draft *draft, const gumbel_verified *verified,
                                      size_t *bytes, gumbel_error *error)
{
    sizes s;
    GUMBEL_REFUSE_IF(!verified, error, "verified", "verified is NULL");
    GUMBEL_FORWARD(read_sizes(bridge, &s, head, logits, sampling, draft, error));
    *bytes = s.needed;
    return GUMBEL_OK;
}

#define BRING(field, count) DIST_BRING(bridge, field, count, error)

static gumbel_status bring_draft(dist_bridge *bridge, gumbel_draft *d, const gumbel_draft *draft,
                                 int64_t rows, gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_read_options(d, sizeof *d, draft, "draft", error));
    d->struct_size = sizeof *d;
    BRING(d->tokens, rows);
    BRING(d->parents, rows);
    BRING(d->offsets, d->requests + 1);
    BRING(d->nodes, d->requests);
    BRING(d->limit, d->requests);
    return dist_bridge_lists(bridge, &d->stop, d->requests, "draft.stop", error);
}

/* The same of what is read and written: it goes back behind the call. */
static gumbel_status bring_written(dist_bridge *bridge, void **data, size_t bytes,
                                   gumbel_error *error)
{
    const void *from = *data;
    GUMBEL_FORWARD(dist_bridge_copy(bridge, &from, bytes, error));
    if (from)
        bridge->of[bridge->copies - 1].written = 1;
    *data = (void *)(uintptr_t)from;
    return GUMBEL_OK;
}

/* Positions that are moved on where they are read are one array on the host, too. */
static int share_position(dist_bridge *bridge, const dist_bridged *call, uint64_t **position)
{
    for (int i = 0; i < bridge->copies; i++) {
        dist_copy *c = &bridge->of[i];
        if ((const void *)call->sampling.position.data != c->host ||
            (const void *)*position != c->there)
            continue;
        c->written = 1;
        *position = (uint64_t *)(void *)c->host;
        return 1;
    }
    return 0;
}

static gumbel_status bring_verified(dist_bridge *bridge, dist_bridged *call, const sizes *s,
                                    const gumbel_verified *verified, gumbel_error *error)
{
    gumbel_verified *v = &call->verified;
    const int64_t requests = s->p.batch, nodes = call->draft.max_nodes;
    int64_t places = gumbel_places(&s->p.sampling.slots, requests);
    GUMBEL_REFUSE_IF(!verified, error, "verified", "verified is NULL");
    GUMBEL_FORWARD(gumbel_read_options(v, sizeof *v, verified, "verified", error));
    v->struct_size = sizeof *v;
#define WRITTEN(field, count)                                                                      \
    do {                                                                                           \
        void *data_ = v->field;                                                                    \
        GUMBEL_FORWARD(bring_written(bridge, &data_, (size_t)(count) * sizeof *v->field, error));  \
        v->field = data_;                                                                          \
    } while (0)
    WRITTEN(tokens, requests * nodes);
    WRITTEN(emitted, requests);
    WRITTEN(accepted, requests);
    WRITTEN(path, requests * nodes);
    WRITTEN(last_row, requests);
    WRITTEN(finished, requests);
    WRITTEN(status, requests);
    WRITTEN(logprobs, requests * nodes);
    WRITTEN(scores, requests * nodes);
    WRITTEN(histogram, nodes);
    if (!share_position(bridge, call, &v->position))
        WRITTEN(position, places);
#undef WRITTEN
    if (!v->rows)
        return GUMBEL_OK;
    gumbel_output out;
    gumbel_problem p = s->p;
    p.batch = s->rows;
    GUMBEL_FORWARD(gumbel_read_output(&out, v->rows, s->rows, error));
    GUMBEL_FORWARD(dist_bridge_output(bridge, call, &out, &p, error));
    v->rows = &call->output;
    return GUMBEL_OK;
}

gumbel_status dist_bridge_verify_begin(dist_bridge *bridge, void *stream, const gumbel_head *head,
                                       const gumbel_logits *logits, const gumbel_sampling *sampling,
                                       const gumbel_draft *draft, const gumbel_verified *verified,
                                       void *workspace, size_t workspace_bytes, dist_bridged *call,
                                       gumbel_error *error)
{
    sizes s;
    *call = (dist_bridged){.bytes = 0};
    GUMBEL_FORWARD(read_sizes(bridge, &s, head, logits, sampling, draft, error));
    GUMBEL_FORWARD(dist_bridge_begin(bridge, stream, &s.p.logits, workspace, workspace_bytes,
                                     s.needed, s.uploads, error));
    GUMBEL_FORWARD(dist_bridge_sampling(bridge, call, sampling, &s.p, error));
    GUMBEL_FORWARD(bring_draft(bridge, &call->draft, draft, s.rows, error));
    GUMBEL_FORWARD(bring_verified(bridge, call, &s, verified, error));
    GUMBEL_FORWARD(gumbel_verify_workspace_size(&bridge->group->base, head, logits, &call->sampling,
                                                &call->draft, &call->verified, &call->bytes,
                                                error));
    dist_copy *room = dist_bridge_hold(bridge, call->bytes, error);
    if (!room)
        return GUMBEL_ERROR_MEMORY;
    call->workspace = room->host;
    return GUMBEL_OK;
}
