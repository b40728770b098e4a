/* SPDX-License-Identifier: Apache-2.0
 *
 * Verification of drafts: each row gets its request's parameters and its position, all rows are
 * drawn as in any other call, and a walk over the drawn tokens accepts drafts.
 */
#include "gumbel/drafts.h"

#include "api/call.h"
#include "core/fail.h"
#include "core/output.h"
#include "drafts/proposal.h"
#include "validate/validate_draft.h"
#include "validate/validate_token_ids.h"

#include <inttypes.h>

/* A verification, and the draw of its rows. */
typedef struct verify_call {
    gumbel_problem draw;
    gumbel_verification v;
    gumbel_proposal proposal;
    int has_proposal;    /* the rule is REJECTION or BLOCK */
    int rules_on_host;   /* the host applies the rule, and reads rows one at a time */
    int rules_on_device; /* kernels apply the rule, and write the emitted tokens' outputs */
    gumbel_plan plan;    /* of `draw`, unless the rules run on the device */
    gumbel_node *nodes;
} verify_call;

/* Carves the arrays of a verification, which precede those of its draw. */
static void carve_verification(gumbel_cursor *cursor, verify_call *call)
{
    const gumbel_problem *p = &call->draw;
    gumbel_verification *v = &call->v;
    const gumbel_verified *to = &v->verified;
    size_t rows = (size_t)v->rows, max_nodes = (size_t)v->draft.max_nodes;
    GUMBEL_ASSERT(max_nodes >= 1 && max_nodes <= GUMBEL_NODES_MAX);
    gumbel_draft_rows *of_row = &v->of_row;
    of_row->slot = gumbel_carve_array(cursor, rows, 1, sizeof *of_row->slot);
    of_row->position = gumbel_carve_array(cursor, rows, 1, sizeof *of_row->position);
    of_row->request = gumbel_carve_array(cursor, rows, 1, sizeof *of_row->request);
    of_row->path_offsets = NULL;
    of_row->path_ids = NULL;
    if (p->with_path || (call->has_proposal && call->proposal.draft.with_path)) {
        of_row->path_offsets =
            gumbel_carve_array(cursor, rows + 1, 1, sizeof *of_row->path_offsets);
        of_row->path_ids =
            gumbel_carve_array(cursor, rows, max_nodes - 1, sizeof *of_row->path_ids);
    }
#define CARVE_UNLESS_SET(field, needed)                                                            \
    if (!v->drawn.field && (needed))                                                               \
    v->drawn.field = gumbel_carve_array(cursor, rows, 1, sizeof *v->drawn.field)
    CARVE_UNLESS_SET(tokens, 1);
    CARVE_UNLESS_SET(status, 1);
    CARVE_UNLESS_SET(logprobs, to->logprobs && !call->rules_on_device);
    CARVE_UNLESS_SET(scores, to->scores && !call->rules_on_device);
#undef CARVE_UNLESS_SET
    v->logprobs = v->drawn.logprobs;
    v->scores = v->drawn.scores;
    call->nodes = gumbel_carve_array(cursor, max_nodes, 1, sizeof *call->nodes);
}

size_t gumbel_verification_size_max(int64_t rows, int32_t max_nodes)
{
    float requested;
    verify_call call = {.draw.with_path = 1,
                        .v = {.rows = rows,
                              .draft.max_nodes = max_nodes,
                              .verified = {.logprobs = &requested, .scores = &requested}}};
    gumbel_cursor cursor = {NULL, 0};
    carve_verification(&cursor, &call);
    return cursor.used;
}

/* Carves the arrays of REJECTION and BLOCK. */
static void carve_proposal(gumbel_cursor *cursor, verify_call *call)
{
    gumbel_verification *v = &call->v;
    size_t rows = (size_t)v->rows, listed = (size_t)call->proposal.num_best;
    if (listed > 0 && !v->drawn.best_ids)
        v->drawn.best_ids = gumbel_carve_array(cursor, rows, listed, sizeof *v->drawn.best_ids);
    if (listed > 0 && !v->drawn.best_scores)
        v->drawn.best_scores =
            gumbel_carve_array(cursor, rows, listed, sizeof *v->drawn.best_scores);
    v->logprobs = v->scores = NULL;
    if (v->verified.logprobs)
        v->logprobs = gumbel_carve_array(cursor, rows, 1, sizeof *v->logprobs);
    if (v->verified.scores)
        v->scores = gumbel_carve_array(cursor, rows, 1, sizeof *v->scores);
    gumbel_proposal_carve(&call->proposal, cursor, &call->draw, v, call->rules_on_host);
}

/* Checks the size of a mask with a row for each node. */
static gumbel_status check_mask(const gumbel_problem *p, int64_t rows, const char *field,
                                gumbel_error *error)
{
    int64_t words;
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(rows, p->transforms.mask.stride, &words) ||
                         words > INT64_MAX / (int64_t)sizeof(int32_t),
                     error, field, "a mask of this size is larger than any memory");
    return GUMBEL_OK;
}

/* Checks positions that are updated in place. */
static gumbel_status check_position(const gumbel_verification *v, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(v->verified.position && v->verified.position == v->position.data &&
                         v->position.stride != 1,
                     error, "verified.position",
                     "an update of sampling.position in place requires a stride of 0 or 1");
    return GUMBEL_OK;
}

/* Reads the sampling parameters of a verification's requests into a problem that has its tensors.
 * `reads`: also check the values in host memory. */
static gumbel_status read_requests(gumbel_problem *p, const gumbel_device *device,
                                   const gumbel_sampling *sampling, const gumbel_draft *draft,
                                   int reads, gumbel_error *error)
{
    int64_t rows = p->batch;
    p->batch = draft->requests;
    GUMBEL_FORWARD(gumbel_read_sampling(p, sampling, error));
    GUMBEL_REFUSE_IF(p->sampling.num_samples != 1, error, "sampling.num_samples",
                     "is %d; it must be 1 in a verification", (int)p->sampling.num_samples);
    GUMBEL_REFUSE_IF(p->sampling.given.data, error, "sampling.given",
                     "given tokens are not supported in a verification");
    GUMBEL_REFUSE_IF(p->sampling.noise, error, "sampling.noise",
                     "given noise is not supported in a verification");
    GUMBEL_FORWARD(gumbel_refuse_token_ids(
        &p->sampling, "a verification draws from the target's whole vocabulary", error));
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
        reason = "the rule compares processed probabilities", field = "verified.rows.logprobs_of";
    return reason ? gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, field, "%s", reason) : GUMBEL_OK;
}

/* Reads the call that drew the drafts, for REJECTION and BLOCK. call->draw still has the parameters
 * of requests. */
static gumbel_status read_proposal(verify_call *call, const gumbel_device *device, int64_t rows,
                                   int reads, gumbel_error *error)
{
    gumbel_verification *v = &call->v;
    gumbel_problem *q = &call->proposal.draft;
    call->has_proposal = v->draft.rule != GUMBEL_RULE_COUPLED && (v->draft.head || v->draft.logits);
    if (!call->has_proposal)
        return GUMBEL_OK;
    GUMBEL_FORWARD(check_rule(&call->draw, v, error));
    call->rules_on_host = device->backend->host_memory;
    call->rules_on_device = !call->rules_on_host;
    GUMBEL_FORWARD(
        gumbel_read_proposal(q, &v->draft, &call->draw, rows, reads && call->rules_on_host, error));
    GUMBEL_FORWARD(check_mask(q, rows, "draft.sampling.transforms.mask", error));
    q->batch = rows;
    q->sampling.live_rows = NULL;
    q->mask_by_row = (q->features & GUMBEL_FEATURE_MASK) != 0;
    q->with_path = q->features & GUMBEL_FEATURE_PENALTIES && v->draft.max_nodes > 1;
    if (!call->rules_on_host || v->draft.rule != GUMBEL_RULE_REJECTION)
        return GUMBEL_OK;
    if (!v->drawn.num_best) { /* the caller's arrays have no places for the list */
        v->drawn.num_best = GUMBEL_BEST_MAX;
        v->drawn.best_ids = NULL;
        v->drawn.best_scores = NULL;
    }
    call->proposal.num_best = v->drawn.num_best;
    return GUMBEL_OK;
}

/* One past the last id that penalties count. */
static int64_t counted_end(const gumbel_problem *p)
{
    return p->history.prompt ? p->history.vocab_size : INT64_MAX;
}

/* Reads a verification and the problem of its draw, except the arrays in the workspace. The problem
 * already has its tensors. */
static gumbel_status read_call(verify_call *call, const gumbel_device *device,
                               const gumbel_sampling *sampling, const gumbel_draft *draft,
                               const gumbel_verified *verified, int reads, gumbel_error *error)
{
    gumbel_problem *p = &call->draw;
    gumbel_verification *v = &call->v;
    int64_t rows = p->batch;
    int64_t (*vocabulary_end)(const gumbel_device *, const gumbel_problem *) =
        device->backend->vocabulary_end;
    *v = (gumbel_verification){
        .rows = rows, .end_token = vocabulary_end ? vocabulary_end(device, p) : p->end_token};
    GUMBEL_FORWARD(gumbel_read_draft(&v->draft, draft, rows, error));
    GUMBEL_FORWARD(gumbel_read_verified(&v->verified, verified, v->draft.requests, error));
    if (v->verified.rows)
        GUMBEL_FORWARD(gumbel_read_output(&v->drawn, v->verified.rows, rows, error));
    GUMBEL_FORWARD(read_requests(p, device, sampling, &v->draft, reads, error));
    GUMBEL_FORWARD(read_proposal(call, device, rows, reads, error));
    v->counted_end = counted_end(p);
    if (call->has_proposal && counted_end(&call->proposal.draft) < v->counted_end)
        v->counted_end = counted_end(&call->proposal.draft);
    v->slots = p->sampling.slots;
    v->position = p->sampling.position;
    v->live_rows = p->sampling.live_rows;
    GUMBEL_FORWARD(check_position(v, error));
    p->sampling.live_rows = NULL;
    p->sampling.slots.count = v->slots.of_row ? v->slots.count : v->draft.requests;
    p->mask_by_row = (p->features & GUMBEL_FEATURE_MASK) != 0;
    p->position_by_row = 1;
    p->with_path = p->features & GUMBEL_FEATURE_PENALTIES && v->draft.max_nodes > 1;
    gumbel_output requested = v->drawn;
    if (!call->rules_on_device && !requested.logprobs)
        requested.logprobs = v->verified.logprobs;
    /* The draw reports the status of a row; processing a row does not. */
    call->proposal.drawn = v->verified.rows || gumbel_proposal_processed(p).features;
    gumbel_problem_request(p, &requested);
    if (call->proposal.num_best > 0)
        p->features |= GUMBEL_FEATURE_BEST;
    return gumbel_settle_features(device, p, error);
}

/* Carves the workspace and sets the arrays of the call; the draw's workspace begins at `used`. */
static void carve_call(verify_call *call, void *workspace, size_t *used)
{
    gumbel_cursor cursor = {workspace, 0};
    gumbel_problem *p = &call->draw;
    const gumbel_draft_rows *of_row = &call->v.of_row;
    carve_verification(&cursor, call);
    p->sampling.slots.of_row = of_row->slot;
    p->sampling.position = (gumbel_row_u64){of_row->position, 1};
    p->list_of_row = of_row->request;
    p->path = (gumbel_token_lists){.offsets = of_row->path_offsets, .ids = of_row->path_ids};
    if (call->has_proposal)
        carve_proposal(&cursor, call);
    *used = cursor.used;
}

/* Plans a draw, and raises *max_bytes to the bytes of its workspace. */
static gumbel_status count_draw(const gumbel_device *device, const gumbel_problem *p,
                                uint64_t purpose, gumbel_plan *plan, size_t *max_bytes,
                                gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_plan_call(device, p, purpose, plan, error));
    *max_bytes = plan->workspace_bytes > *max_bytes ? plan->workspace_bytes : *max_bytes;
    return GUMBEL_OK;
}

/* Counts the workspace that the host's rules need to score and read a model's rows. */
static gumbel_status count_scores(const gumbel_device *device, const gumbel_problem *problem,
                                  int32_t scored, size_t *max_bytes, gumbel_error *error)
{
    gumbel_plan plan;
    gumbel_problem p = gumbel_proposal_scored(problem, scored);
    GUMBEL_FORWARD(gumbel_settle_features(device, &p, error));
    GUMBEL_FORWARD(count_draw(device, &p, 0, &plan, max_bytes, error));
    p = gumbel_problem_slice(problem, 0, 1);
    if (p.hidden_size > 0) {
        p = gumbel_proposal_scored(&p, GUMBEL_PROPOSAL_CHUNK);
        return count_draw(device, &p, 0, &plan, max_bytes, error);
    }
    p = gumbel_proposal_processed(&p);
    return count_draw(device, &p, GUMBEL_CAPABILITY_ROWS, &plan, max_bytes, error);
}

/* Counts the workspace that the device's rules need to store and process a model's rows. */
static gumbel_status count_rows(const gumbel_device *device, const gumbel_problem *problem,
                                size_t *max_bytes, gumbel_error *error)
{
    gumbel_plan plan;
    gumbel_problem p = gumbel_proposal_product(problem);
    if (p.hidden_size > 0)
        GUMBEL_FORWARD(count_draw(device, &p, GUMBEL_CAPABILITY_PRODUCT, &plan, max_bytes, error));
    p = gumbel_proposal_processed(problem);
    GUMBEL_FORWARD(gumbel_settle_features(device, &p, error));
    p = gumbel_proposal_stored(&p, NULL, gumbel_proposal_stride(&p));
    return p.features ? count_draw(device, &p, GUMBEL_CAPABILITY_ROWS, &plan, max_bytes, error)
                      : GUMBEL_OK;
}

/* Counts the workspace of REJECTION and BLOCK outside the target's draw. */
static gumbel_status count_proposal(const gumbel_device *device, const verify_call *call,
                                    size_t *max_bytes, gumbel_error *error)
{
    const gumbel_proposal *proposal = &call->proposal;
    if (call->rules_on_host) {
        const int32_t scored = 1 + proposal->num_best;
        GUMBEL_FORWARD(count_scores(device, &proposal->target, scored, max_bytes, error));
        return count_scores(device, &proposal->draft, scored, max_bytes, error);
    }
    size_t rule = device->backend->rule_workspace_size(device, &call->v, proposal);
    *max_bytes = rule > *max_bytes ? rule : *max_bytes;
    GUMBEL_FORWARD(count_rows(device, &proposal->target, max_bytes, error));
    return proposal->dots ? GUMBEL_OK : count_rows(device, &proposal->draft, max_bytes, error);
}

/* Plans the target's draw; with rules on the device it reads stored logits. */
static gumbel_status count_target(const gumbel_device *device, const verify_call *call,
                                  gumbel_plan *plan, size_t *max_bytes, gumbel_error *error)
{
    gumbel_problem p = call->draw;
    if (call->rules_on_device && !call->proposal.drawn)
        return GUMBEL_OK;
    if (call->rules_on_device)
        p = gumbel_proposal_stored(&p, NULL, gumbel_proposal_stride(&p));
    return count_draw(device, &p, 0, plan, max_bytes, error);
}

/* Plans the call's draw and counts the whole workspace. */
static gumbel_status plan_verification(const gumbel_device *device, const verify_call *read,
                                       gumbel_plan *plan, size_t *bytes, gumbel_error *error)
{
    verify_call call = *read;
    size_t used, draw = 0;
    *bytes = 0;
    if (call.v.draft.requests == 0)
        return GUMBEL_OK;
    carve_call(&call, NULL, &used);
    GUMBEL_FORWARD(count_target(device, &call, plan, &draw, error));
    if (call.has_proposal && call.v.rows > 0)
        GUMBEL_FORWARD(count_proposal(device, &call, &draw, error));
    GUMBEL_REFUSE_IF(used == SIZE_MAX || __builtin_add_overflow(used, draw, bytes), error, "draft",
                     "%" PRId64 " rows of up to %d nodes are larger than any memory", call.v.rows,
                     (int)call.v.draft.max_nodes);
    return GUMBEL_OK;
}

/* Expands the rows, draws them, and accepts drafts. */
static gumbel_status run_verification(gumbel_device *device, verify_call *call, void *workspace,
                                      gumbel_error *error)
{
    const gumbel_backend *backend = device->backend;
    const gumbel_verification *v = &call->v;
    const gumbel_problem *p = &call->draw;
    const gumbel_proposal *proposal = call->has_proposal && v->rows > 0 ? &call->proposal : NULL;
    call->proposal.workspace = workspace;
    if (v->rows > 0) {
        GUMBEL_ASSERT(v->drawn.tokens && v->drawn.status);
        GUMBEL_ASSERT(p->batch == v->rows && p->sampling.slots.of_row == v->of_row.slot);
        GUMBEL_ASSERT(!v->verified.logprobs || v->logprobs);
        GUMBEL_ASSERT(!v->verified.scores || v->scores);
        if (backend->host_memory)
            gumbel_drafts_expand(v);
        else
            GUMBEL_FORWARD(backend->expand_drafts(device, p->stream, v, proposal, error));
        if (proposal && call->rules_on_device)
            GUMBEL_FORWARD(gumbel_proposal_queue(proposal, device, p, v, error));
        else
            GUMBEL_FORWARD(backend->sample(device, p, &call->plan, &v->drawn, workspace, error));
    }
    return backend->host_memory ? gumbel_drafts_accept(v, proposal, device, call->nodes, error)
                                : backend->accept_drafts(device, p->stream, v, proposal, error);
}

/* Validates, plans and runs either call. */
static gumbel_status verify_drafts(gumbel_device *device, verify_call *call,
                                   const gumbel_sampling *sampling, const gumbel_draft *draft,
                                   const gumbel_verified *verified, void *workspace,
                                   size_t workspace_bytes, gumbel_error *error)
{
    size_t needed, used;
    GUMBEL_FORWARD(read_call(call, device, sampling, draft, verified, 1, error));
    GUMBEL_FORWARD(plan_verification(device, call, &call->plan, &needed, error));
    GUMBEL_FORWARD(gumbel_check_workspace(workspace, workspace_bytes, needed,
                                          "gumbel_verify_workspace_size()", error));
    if (call->v.draft.requests == 0)
        return GUMBEL_OK;
    carve_call(call, workspace, &used);
    GUMBEL_ASSERT(used <= needed);
    return run_verification(device, call, (char *)workspace + used, error);
}

gumbel_status gumbel_verify(gumbel_device *device, void *stream, const gumbel_head *head,
                            const gumbel_sampling *sampling, const gumbel_draft *draft,
                            const gumbel_verified *verified, void *workspace,
                            size_t workspace_bytes, gumbel_error *error)
{
    verify_call call = {.has_proposal = 0};
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_FORWARD(gumbel_read_head(&call.draw, device->backend->screen_layout, head, NULL, error));
    call.draw.stream = stream;
    return verify_drafts(device, &call, sampling, draft, verified, workspace, workspace_bytes,
                         error);
}

gumbel_status gumbel_verify_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                   const gumbel_sampling *sampling, const gumbel_draft *draft,
                                   const gumbel_verified *verified, void *workspace,
                                   size_t workspace_bytes, gumbel_error *error)
{
    verify_call call = {.has_proposal = 0};
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_FORWARD(gumbel_read_logits(&call.draw, logits, NULL, error));
    call.draw.stream = stream;
    return verify_drafts(device, &call, sampling, draft, verified, workspace, workspace_bytes,
                         error);
}

gumbel_status gumbel_verify_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                           const gumbel_logits *logits,
                                           const gumbel_sampling *sampling,
                                           const gumbel_draft *draft,
                                           const gumbel_verified *verified, size_t *bytes,
                                           gumbel_error *error)
{
    verify_call call = {.has_proposal = 0};
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "one of head and logits must be given");
    GUMBEL_FORWARD(
        head ? gumbel_read_head(&call.draw, device->backend->screen_layout, head, NULL, error)
             : gumbel_read_logits(&call.draw, logits, NULL, error));
    GUMBEL_FORWARD(read_call(&call, device, sampling, draft, verified, 0, error));
    return plan_verification(device, &call, &call.plan, bytes, error);
}
