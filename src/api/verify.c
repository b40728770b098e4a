/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts verified: each row is told its request and its position, all rows are drawn as in any
 * other call, and a walk over the draws accepts.
 */
#include "gumbel/drafts.h"

#include "api/call.h"
#include "core/fail.h"
#include "drafts/draft_walk.h"
#include "validate/validate_draft.h"

/* What a verification takes of the workspace before its draw does. */
static void carve(gumbel_cursor *cursor, const gumbel_problem *p, gumbel_verification *v,
                  gumbel_node **nodes)
{
    const gumbel_verified *to = &v->verified;
    size_t rows = (size_t)v->rows, most = (size_t)v->draft.max_nodes;
    GUMBEL_ASSERT(most >= 1 && most <= GUMBEL_NODES_MOST);
    gumbel_draft_rows *of_row = &v->of_row;
    of_row->slot = gumbel_carve(cursor, rows, 1, sizeof *of_row->slot);
    of_row->position = gumbel_carve(cursor, rows, 1, sizeof *of_row->position);
    of_row->request = gumbel_carve(cursor, rows, 1, sizeof *of_row->request);
    of_row->path_offsets = NULL;
    of_row->path_ids = NULL;
    if (p->with_path) {
        of_row->path_offsets = gumbel_carve(cursor, rows + 1, 1, sizeof *of_row->path_offsets);
        of_row->path_ids = gumbel_carve(cursor, rows, most - 1, sizeof *of_row->path_ids);
    }
#define CARVE_UNLESS_THERE(field, wanted)                                                          \
    if (!v->drawn.field && (wanted))                                                               \
    v->drawn.field = gumbel_carve(cursor, rows, 1, sizeof *v->drawn.field)
    CARVE_UNLESS_THERE(tokens, 1);
    CARVE_UNLESS_THERE(status, 1);
    CARVE_UNLESS_THERE(logprobs, to->logprobs);
    CARVE_UNLESS_THERE(scores, to->scores);
#undef CARVE_UNLESS_THERE
    *nodes = gumbel_carve(cursor, most, 1, sizeof **nodes);
}

/* A mask of a row a node. */
static gumbel_status check_mask(const gumbel_problem *p, int64_t rows, gumbel_error *error)
{
    int64_t words;
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(rows, p->transforms.mask.stride, &words) ||
                         words > INT64_MAX / (int64_t)sizeof(int32_t),
                     error, "sampling.transforms.mask", "it is larger than any memory");
    return GUMBEL_OK;
}

/* Positions that are moved on where they are read. */
static gumbel_status check_position(const gumbel_verification *v, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(v->verified.position && v->verified.position == v->position.data &&
                         v->position.stride != 1,
                     error, "verified.position",
                     "it is the sampling's position, whose stride must then be 0 or 1");
    return GUMBEL_OK;
}

/* The parameters of a verification's requests, in a problem that has its tensors. What they point
 * to is followed if the call `reads` it. */
static gumbel_status read_requests(gumbel_problem *p, const gumbel_device *device,
                                   const gumbel_sampling *sampling, const gumbel_draft *draft,
                                   int reads, gumbel_error *error)
{
    int64_t rows = p->batch;
    p->batch = draft->requests;
    GUMBEL_FORWARD(gumbel_read_sampling(p, sampling, error));
    GUMBEL_REFUSE_IF(p->sampling.num_samples != 1, error, "sampling.num_samples",
                     "num_samples is %d; a draft is verified by one draw",
                     (int)p->sampling.num_samples);
    GUMBEL_REFUSE_IF(p->sampling.given.data, error, "sampling.given",
                     "a draft is verified by a draw, not by given tokens");
    GUMBEL_REFUSE_IF(p->sampling.noise, error, "sampling.noise",
                     "rows are drawn by the noise of their positions");
    GUMBEL_FORWARD(check_mask(p, rows, error));
    if (reads && device->backend->host_memory) {
        GUMBEL_FORWARD(gumbel_check_host_sampling(p, error));
        GUMBEL_FORWARD(gumbel_check_host_draft(draft, p->sampling.live_rows, rows, error));
    }
    p->batch = rows;
    return GUMBEL_OK;
}

/* A call's verification, and the problem that its draw is, but for what lies in the workspace. */
static gumbel_status read_call(gumbel_problem *p, gumbel_verification *v,
                               const gumbel_device *device, const gumbel_sampling *sampling,
                               const gumbel_draft *draft, const gumbel_verified *verified,
                               int reads, gumbel_error *error)
{
    *v = (gumbel_verification){.rows = p->batch, .end_token = p->end_token};
    GUMBEL_FORWARD(gumbel_read_draft(&v->draft, draft, p->batch, error));
    GUMBEL_FORWARD(gumbel_read_verified(&v->verified, verified, v->draft.requests, error));
    if (v->verified.rows)
        GUMBEL_FORWARD(gumbel_read_output(&v->drawn, v->verified.rows, p->batch, error));
    GUMBEL_FORWARD(read_requests(p, device, sampling, &v->draft, reads, error));
    v->counted_end = p->history.prompt ? p->history.vocab_size : INT64_MAX;
    v->slots = p->sampling.slots;
    v->position = p->sampling.position;
    v->live_rows = p->sampling.live_rows;
    GUMBEL_FORWARD(check_position(v, error));
    p->sampling.live_rows = NULL;
    p->sampling.slots.count = v->slots.of_row ? v->slots.count : v->draft.requests;
    p->mask_by_row = (p->request & GUMBEL_REQUEST_MASK) != 0;
    p->position_by_row = 1;
    p->with_path = p->request & GUMBEL_REQUEST_PENALTIES && v->draft.max_nodes > 1;
    gumbel_output wanted = v->drawn;
    wanted.logprobs = wanted.logprobs ? wanted.logprobs : v->verified.logprobs;
    p->request |= gumbel_output_request(&wanted);
    p->with_mass = wanted.lse || wanted.logprobs;
    return gumbel_call_served(device, p, error);
}

/* Lay the workspace out; what is left of it begins at `used`. */
static void lay_out(gumbel_problem *p, gumbel_verification *v, gumbel_node **nodes, void *workspace,
                    size_t *used)
{
    gumbel_cursor cursor = {workspace, 0};
    carve(&cursor, p, v, nodes);
    p->sampling.slots.of_row = v->of_row.slot;
    p->sampling.position = (gumbel_row_u64){v->of_row.position, 1};
    p->list_of_row = v->of_row.request;
    p->path = (gumbel_token_lists){.offsets = v->of_row.path_offsets, .ids = v->of_row.path_ids};
    *used = cursor.used;
}

static gumbel_status size_of_call(const gumbel_device *device, const gumbel_problem *problem,
                                  const gumbel_verification *verification, size_t *bytes,
                                  gumbel_error *error)
{
    gumbel_problem p = *problem;
    gumbel_verification v = *verification;
    gumbel_node *nodes;
    size_t used, draw;
    *bytes = 0;
    if (v.draft.requests == 0)
        return GUMBEL_OK;
    lay_out(&p, &v, &nodes, NULL, &used);
    GUMBEL_FORWARD(gumbel_call_size(device, &p, 0, &draw, error));
    GUMBEL_REFUSE_IF(used == SIZE_MAX || __builtin_add_overflow(used, draw, bytes), error, "draft",
                     "so many rows and nodes are larger than any memory");
    return GUMBEL_OK;
}

/* Expand, draw, accept. */
static gumbel_status run(gumbel_device *device, const gumbel_problem *p,
                         const gumbel_verification *v, gumbel_node *nodes, void *workspace,
                         gumbel_error *error)
{
    const gumbel_backend *backend = device->backend;
    if (v->rows > 0) {
        GUMBEL_ASSERT(v->drawn.tokens && v->drawn.status);
        GUMBEL_ASSERT(p->batch == v->rows && p->sampling.slots.of_row == v->of_row.slot);
        GUMBEL_ASSERT(!v->verified.logprobs || v->drawn.logprobs);
        GUMBEL_ASSERT(!v->verified.scores || v->drawn.scores);
        if (backend->host_memory)
            gumbel_drafts_expand(v);
        else
            GUMBEL_FORWARD(backend->expand_drafts(device, p->stream, v, error));
        GUMBEL_FORWARD(backend->sample(device, p, &v->drawn, workspace, error));
    }
    if (!backend->host_memory)
        return backend->accept_drafts(device, p->stream, v, error);
    gumbel_drafts_accept(v, nodes);
    return GUMBEL_OK;
}

/* The common end of both calls. */
static gumbel_status verify(gumbel_device *device, gumbel_problem *p,
                            const gumbel_sampling *sampling, const gumbel_draft *draft,
                            const gumbel_verified *verified, void *workspace,
                            size_t workspace_bytes, gumbel_error *error)
{
    gumbel_verification v;
    gumbel_node *nodes;
    size_t needed, used;
    GUMBEL_FORWARD(read_call(p, &v, device, sampling, draft, verified, 1, error));
    GUMBEL_FORWARD(size_of_call(device, p, &v, &needed, error));
    GUMBEL_FORWARD(gumbel_check_workspace(workspace, workspace_bytes, needed, error));
    if (v.draft.requests == 0)
        return GUMBEL_OK;
    lay_out(p, &v, &nodes, workspace, &used);
    GUMBEL_ASSERT(used <= needed);
    return run(device, p, &v, nodes, (char *)workspace + used, error);
}

gumbel_status gumbel_verify(gumbel_device *device, void *stream, const gumbel_head *head,
                            const gumbel_sampling *sampling, const gumbel_draft *draft,
                            const gumbel_verified *verified, void *workspace,
                            size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(gumbel_read_head(&problem, head, NULL, error));
    problem.stream = stream;
    return verify(device, &problem, sampling, draft, verified, workspace, workspace_bytes, error);
}

gumbel_status gumbel_verify_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                   const gumbel_sampling *sampling, const gumbel_draft *draft,
                                   const gumbel_verified *verified, void *workspace,
                                   size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(gumbel_read_logits(&problem, logits, NULL, error));
    problem.stream = stream;
    return verify(device, &problem, sampling, draft, verified, workspace, workspace_bytes, error);
}

gumbel_status gumbel_verify_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                           const gumbel_logits *logits,
                                           const gumbel_sampling *sampling,
                                           const gumbel_draft *draft,
                                           const gumbel_verified *verified, size_t *bytes,
                                           gumbel_error *error)
{
    gumbel_problem problem;
    gumbel_verification v;
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "bytes is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "one of head and logits must be given");
    GUMBEL_FORWARD(head ? gumbel_read_head(&problem, head, NULL, error)
                        : gumbel_read_logits(&problem, logits, NULL, error));
    GUMBEL_FORWARD(read_call(&problem, &v, device, sampling, draft, verified, 0, error));
    return size_of_call(device, &problem, &v, bytes, error);
}
