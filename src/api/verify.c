/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts verified: each row is told its request and its position, all rows are drawn as in any
 * other call, and a walk over the draws accepts.
 */
#include "gumbel/drafts.h"

#include "api/call.h"
#include "core/fail.h"
#include "drafts/proposal.h"
#include "validate/validate_draft.h"

/* A verification, and the draw that it is. */
typedef struct verify_call {
    gumbel_problem draw;
    gumbel_verification v;
    gumbel_proposal by;
    int proposed; /* `by` is there: the rule is not COUPLED */
    int reads;    /* its rows are read one at a time: memory is the host's */
    int weighs;   /* kernels weigh them, and make what is emitted */
    gumbel_node *nodes;
} verify_call;

/* What a verification takes of the workspace before its draw does. */
static void carve(gumbel_cursor *cursor, verify_call *call)
{
    const gumbel_problem *p = &call->draw;
    gumbel_verification *v = &call->v;
    const gumbel_verified *to = &v->verified;
    size_t rows = (size_t)v->rows, most = (size_t)v->draft.max_nodes;
    GUMBEL_ASSERT(most >= 1 && most <= GUMBEL_NODES_MOST);
    gumbel_draft_rows *of_row = &v->of_row;
    of_row->slot = gumbel_carve(cursor, rows, 1, sizeof *of_row->slot);
    of_row->position = gumbel_carve(cursor, rows, 1, sizeof *of_row->position);
    of_row->request = gumbel_carve(cursor, rows, 1, sizeof *of_row->request);
    of_row->path_offsets = NULL;
    of_row->path_ids = NULL;
    if (p->with_path || (call->proposed && call->by.draft.with_path)) {
        of_row->path_offsets = gumbel_carve(cursor, rows + 1, 1, sizeof *of_row->path_offsets);
        of_row->path_ids = gumbel_carve(cursor, rows, most - 1, sizeof *of_row->path_ids);
    }
#define CARVE_UNLESS_THERE(field, wanted)                                                          \
    if (!v->drawn.field && (wanted))                                                               \
    v->drawn.field = gumbel_carve(cursor, rows, 1, sizeof *v->drawn.field)
    CARVE_UNLESS_THERE(tokens, 1);
    CARVE_UNLESS_THERE(status, 1);
    CARVE_UNLESS_THERE(logprobs, to->logprobs && !call->weighs);
    CARVE_UNLESS_THERE(scores, to->scores && !call->weighs);
#undef CARVE_UNLESS_THERE
    v->logprobs = v->drawn.logprobs;
    v->scores = v->drawn.scores;
    call->nodes = gumbel_carve(cursor, most, 1, sizeof *call->nodes);
}

/* What a rule but COUPLED takes beside it. */
static void carve_proposal(gumbel_cursor *cursor, verify_call *call)
{
    gumbel_verification *v = &call->v;
    size_t rows = (size_t)v->rows, listed = (size_t)call->by.listed;
    if (listed > 0 && !v->drawn.best_ids)
        v->drawn.best_ids = gumbel_carve(cursor, rows, listed, sizeof *v->drawn.best_ids);
    if (listed > 0 && !v->drawn.best_scores)
        v->drawn.best_scores = gumbel_carve(cursor, rows, listed, sizeof *v->drawn.best_scores);
    v->logprobs = v->scores = NULL;
    if (v->verified.logprobs)
        v->logprobs = gumbel_carve(cursor, rows, 1, sizeof *v->logprobs);
    if (v->verified.scores)
        v->scores = gumbel_carve(cursor, rows, 1, sizeof *v->scores);
    gumbel_proposal_carve(&call->by, cursor, &call->draw, v, call->reads);
}

/* A mask of a row a node. */
static gumbel_status check_mask(const gumbel_problem *p, int64_t rows, const char *field,
                                gumbel_error *error)
{
    int64_t words;
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(rows, p->transforms.mask.stride, &words) ||
                         words > INT64_MAX / (int64_t)sizeof(int32_t),
                     error, field, "it is larger than any memory");
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
    GUMBEL_FORWARD(check_mask(p, rows, "sampling.transforms.mask", error));
    if (reads && device->backend->host_memory) {
        GUMBEL_FORWARD(gumbel_check_host_screen(p, device->backend->screen_layout, error));
        GUMBEL_FORWARD(gumbel_check_host_sampling(p, error));
        GUMBEL_FORWARD(gumbel_check_host_draft(draft, p->sampling.live_rows, rows, error));
    }
    p->batch = rows;
    return GUMBEL_OK;
}

/* Return an error if REJECTION or BLOCK does not support the call. */
static gumbel_status check_rule(const gumbel_problem *p, const gumbel_verification *v,
                                gumbel_error *error)
{
    const gumbel_draft *d = &v->draft;
    int block = d->rule == GUMBEL_RULE_BLOCK;
    const char *reason = NULL, *field = "draft.rule";
    if (block && (d->head || p->hidden_size > 0))
        reason = "blocks are verified from logits alone";
    else if (v->drawn.logprobs_of == GUMBEL_RAW)
        reason = "the rule weighs processed probabilities", field = "verified.rows.logprobs_of";
    return reason ? gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, field, "%s", reason) : GUMBEL_OK;
}

/* The draft's call, if the rule asks for it. The problem still has parameters of requests. */
static gumbel_status read_proposal(verify_call *call, const gumbel_device *device, int64_t rows,
                                   int reads, gumbel_error *error)
{
    gumbel_verification *v = &call->v;
    gumbel_problem *q = &call->by.draft;
    call->proposed = v->draft.rule != GUMBEL_RULE_COUPLED && (v->draft.head || v->draft.logits);
    if (!call->proposed)
        return GUMBEL_OK;
    GUMBEL_FORWARD(check_rule(&call->draw, v, error));
    call->reads = device->backend->host_memory;
    call->weighs = !call->reads;
    GUMBEL_FORWARD(
        gumbel_read_proposal(q, &v->draft, &call->draw, rows, reads && call->reads, error));
    GUMBEL_FORWARD(check_mask(q, rows, "draft.sampling.transforms.mask", error));
    q->batch = rows;
    q->sampling.live_rows = NULL;
    q->mask_by_row = (q->request & GUMBEL_REQUEST_MASK) != 0;
    q->with_path = q->request & GUMBEL_REQUEST_PENALTIES && v->draft.max_nodes > 1;
    if (!call->reads || v->draft.rule != GUMBEL_RULE_REJECTION)
        return GUMBEL_OK;
    if (!v->drawn.num_best)
        v->drawn.num_best = GUMBEL_BEST_MOST;
    call->by.listed = v->drawn.num_best;
    return GUMBEL_OK;
}

/* Ids from here on no penalty counts. */
static int64_t counted_end(const gumbel_problem *p)
{
    return p->history.prompt ? p->history.vocab_size : INT64_MAX;
}

/* A call's verification, and the problem that its draw is, but for what lies in the workspace. The
 * problem has its tensors already. */
static gumbel_status read_call(verify_call *call, const gumbel_device *device,
                               const gumbel_sampling *sampling, const gumbel_draft *draft,
                               const gumbel_verified *verified, int reads, gumbel_error *error)
{
    gumbel_problem *p = &call->draw;
    gumbel_verification *v = &call->v;
    int64_t rows = p->batch;
    int64_t (*whole_end)(const gumbel_device *, const gumbel_problem *) =
        device->backend->whole_end;
    *v = (gumbel_verification){.rows = rows,
                               .end_token = whole_end ? whole_end(device, p) : p->end_token};
    GUMBEL_FORWARD(gumbel_read_draft(&v->draft, draft, rows, error));
    GUMBEL_FORWARD(gumbel_read_verified(&v->verified, verified, v->draft.requests, error));
    if (v->verified.rows)
        GUMBEL_FORWARD(gumbel_read_output(&v->drawn, v->verified.rows, rows, error));
    GUMBEL_FORWARD(read_requests(p, device, sampling, &v->draft, reads, error));
    GUMBEL_FORWARD(read_proposal(call, device, rows, reads, error));
    v->counted_end = counted_end(p);
    if (call->proposed && counted_end(&call->by.draft) < v->counted_end)
        v->counted_end = counted_end(&call->by.draft);
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
    if (!call->weighs && !wanted.logprobs)
        wanted.logprobs = v->verified.logprobs;
    /* A row that was processed does not say what is wrong with it: its draw does. */
    call->by.drawn = v->verified.rows || gumbel_proposal_whole(p).request;
    p->request |= gumbel_output_request(&wanted);
    if (call->by.listed > 0)
        p->request |= GUMBEL_REQUEST_BEST;
    p->with_mass = wanted.lse || wanted.logprobs;
    return gumbel_call_served(device, p, error);
}

/* Lay the workspace out; what is left of it begins at `used`. */
static void lay_out(verify_call *call, void *workspace, size_t *used)
{
    gumbel_cursor cursor = {workspace, 0};
    gumbel_problem *p = &call->draw;
    const gumbel_draft_rows *of_row = &call->v.of_row;
    carve(&cursor, call);
    p->sampling.slots.of_row = of_row->slot;
    p->sampling.position = (gumbel_row_u64){of_row->position, 1};
    p->list_of_row = of_row->request;
    p->path = (gumbel_token_lists){.offsets = of_row->path_offsets, .ids = of_row->path_ids};
    if (call->proposed)
        carve_proposal(&cursor, call);
    *used = cursor.used;
}

/* Make *most no less than what a draw takes. */
static gumbel_status count_draw(const gumbel_device *device, const gumbel_problem *p, uint32_t more,
                                size_t *most, gumbel_error *error)
{
    size_t bytes;
    GUMBEL_FORWARD(gumbel_call_size(device, p, more, &bytes, error));
    *most = bytes > *most ? bytes : *most;
    return GUMBEL_OK;
}

/* What scoring and reading a model's rows takes. */
static gumbel_status count_scores(const gumbel_device *device, const gumbel_problem *problem,
                                  int32_t scored, size_t *most, gumbel_error *error)
{
    gumbel_problem p = gumbel_proposal_scored(problem, scored);
    GUMBEL_FORWARD(gumbel_call_served(device, &p, error));
    GUMBEL_FORWARD(count_draw(device, &p, 0, most, error));
    p = gumbel_problem_slice(problem, 0, 1);
    if (p.hidden_size > 0) {
        p = gumbel_proposal_scored(&p, GUMBEL_PROPOSAL_CHUNK);
        return count_draw(device, &p, 0, most, error);
    }
    p = gumbel_proposal_whole(&p);
    return count_draw(device, &p, GUMBEL_NEED_ROWS, most, error);
}

/* What storing and processing a model's rows takes where kernels weigh them. */
static gumbel_status count_rows(const gumbel_device *device, const gumbel_problem *problem,
                                size_t *most, gumbel_error *error)
{
    gumbel_problem p = gumbel_proposal_product(problem);
    if (p.hidden_size > 0)
        GUMBEL_FORWARD(count_draw(device, &p, GUMBEL_NEED_PRODUCT, most, error));
    p = gumbel_proposal_whole(problem);
    GUMBEL_FORWARD(gumbel_call_served(device, &p, error));
    p = gumbel_proposal_stored(&p, NULL, gumbel_proposal_stride(&p));
    return p.request ? count_draw(device, &p, GUMBEL_NEED_ROWS, most, error) : GUMBEL_OK;
}

/* What a rule but COUPLED takes of the workspace while a draw is not on its way. */
static gumbel_status count_proposal(const gumbel_device *device, const verify_call *call,
                                    size_t *most, gumbel_error *error)
{
    const gumbel_proposal *by = &call->by;
    if (call->reads) {
        GUMBEL_FORWARD(count_scores(device, &by->target, 1 + by->listed, most, error));
        return count_scores(device, &by->draft, 1 + by->listed, most, error);
    }
    size_t weighing = device->backend->weighing_size(device, &call->v, by);
    *most = weighing > *most ? weighing : *most;
    GUMBEL_FORWARD(count_rows(device, &by->target, most, error));
    return by->dots ? GUMBEL_OK : count_rows(device, &by->draft, most, error);
}

/* What the target's draw takes: from rows that are stored where kernels weigh these. */
static gumbel_status count_target(const gumbel_device *device, const verify_call *call,
                                  size_t *most, gumbel_error *error)
{
    gumbel_problem p = call->draw;
    if (call->weighs && !call->by.drawn)
        return GUMBEL_OK;
    if (call->weighs)
        p = gumbel_proposal_stored(&p, NULL, gumbel_proposal_stride(&p));
    return count_draw(device, &p, 0, most, error);
}

static gumbel_status size_of_call(const gumbel_device *device, const verify_call *read,
                                  size_t *bytes, gumbel_error *error)
{
    verify_call call = *read;
    size_t used, draw = 0;
    *bytes = 0;
    if (call.v.draft.requests == 0)
        return GUMBEL_OK;
    lay_out(&call, NULL, &used);
    GUMBEL_FORWARD(count_target(device, &call, &draw, error));
    if (call.proposed && call.v.rows > 0)
        GUMBEL_FORWARD(count_proposal(device, &call, &draw, error));
    GUMBEL_REFUSE_IF(used == SIZE_MAX || __builtin_add_overflow(used, draw, bytes), error, "draft",
                     "so many rows and nodes are larger than any memory");
    return GUMBEL_OK;
}

/* Expand, draw, accept. */
static gumbel_status run(gumbel_device *device, verify_call *call, void *workspace,
                         gumbel_error *error)
{
    const gumbel_backend *backend = device->backend;
    const gumbel_verification *v = &call->v;
    const gumbel_problem *p = &call->draw;
    const gumbel_proposal *by = call->proposed && v->rows > 0 ? &call->by : NULL;
    call->by.workspace = workspace;
    if (v->rows > 0) {
        GUMBEL_ASSERT(v->drawn.tokens && v->drawn.status);
        GUMBEL_ASSERT(p->batch == v->rows && p->sampling.slots.of_row == v->of_row.slot);
        GUMBEL_ASSERT(!v->verified.logprobs || v->logprobs);
        GUMBEL_ASSERT(!v->verified.scores || v->scores);
        if (backend->host_memory)
            gumbel_drafts_expand(v);
        else
            GUMBEL_FORWARD(backend->expand_drafts(device, p->stream, v, by, error));
        if (by && call->weighs)
            GUMBEL_FORWARD(gumbel_proposal_queue(by, device, p, v, error));
        else
            GUMBEL_FORWARD(backend->sample(device, p, &v->drawn, workspace, error));
    }
    return backend->host_memory ? gumbel_drafts_accept(v, by, device, call->nodes, error)
                                : backend->accept_drafts(device, p->stream, v, by, error);
}

/* The common end of both calls. */
static gumbel_status verify(gumbel_device *device, verify_call *call,
                            const gumbel_sampling *sampling, const gumbel_draft *draft,
                            const gumbel_verified *verified, void *workspace,
                            size_t workspace_bytes, gumbel_error *error)
{
    size_t needed, used;
    GUMBEL_FORWARD(read_call(call, device, sampling, draft, verified, 1, error));
    GUMBEL_FORWARD(size_of_call(device, call, &needed, error));
    GUMBEL_FORWARD(gumbel_check_workspace(workspace, workspace_bytes, needed,
                                          "gumbel_verify_workspace_size()", error));
    if (call->v.draft.requests == 0)
        return GUMBEL_OK;
    lay_out(call, workspace, &used);
    GUMBEL_ASSERT(used <= needed);
    return run(device, call, (char *)workspace + used, error);
}

gumbel_status gumbel_verify(gumbel_device *device, void *stream, const gumbel_head *head,
                            const gumbel_sampling *sampling, const gumbel_draft *draft,
                            const gumbel_verified *verified, void *workspace,
                            size_t workspace_bytes, gumbel_error *error)
{
    verify_call call = {.proposed = 0};
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(gumbel_read_head(&call.draw, device->backend->screen_layout, head, NULL, error));
    call.draw.stream = stream;
    return verify(device, &call, sampling, draft, verified, workspace, workspace_bytes, error);
}

gumbel_status gumbel_verify_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                   const gumbel_sampling *sampling, const gumbel_draft *draft,
                                   const gumbel_verified *verified, void *workspace,
                                   size_t workspace_bytes, gumbel_error *error)
{
    verify_call call = {.proposed = 0};
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_FORWARD(gumbel_read_logits(&call.draw, logits, NULL, error));
    call.draw.stream = stream;
    return verify(device, &call, sampling, draft, verified, workspace, workspace_bytes, error);
}

gumbel_status gumbel_verify_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                           const gumbel_logits *logits,
                                           const gumbel_sampling *sampling,
                                           const gumbel_draft *draft,
                                           const gumbel_verified *verified, size_t *bytes,
                                           gumbel_error *error)
{
    verify_call call = {.proposed = 0};
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "bytes is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "one of head and logits must be given");
    GUMBEL_FORWARD(
        head ? gumbel_read_head(&call.draw, device->backend->screen_layout, head, NULL, error)
             : gumbel_read_logits(&call.draw, logits, NULL, error));
    GUMBEL_FORWARD(read_call(&call, device, sampling, draft, verified, 0, error));
    return size_of_call(device, &call, bytes, error);
}
