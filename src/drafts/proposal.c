/* SPDX-License-Identifier: Apache-2.0 */
#include "drafts/proposal.h"

#include "core/fail.h"
#include "core/output.h"

/* The given tokens of a problem that is planned without a workspace; they are not read. */
static const int32_t no_token = -1;

gumbel_problem gumbel_proposal_processed(const gumbel_problem *problem)
{
    gumbel_problem p = *problem;
    p.features &= GUMBEL_FEATURE_TRANSFORMS | GUMBEL_FEATURE_TRUNCATION | GUMBEL_FEATURE_PROGRAM;
    p.with_mass = 0;
    return p;
}

gumbel_problem gumbel_proposal_scored(const gumbel_problem *problem, int32_t count)
{
    gumbel_problem p = gumbel_proposal_processed(problem);
    p.features |= GUMBEL_FEATURE_GIVEN;
    p.with_mass = 1;
    p.sampling.num_samples = count;
    p.sampling.given = (gumbel_row_i32){&no_token, count};
    return p;
}

gumbel_problem gumbel_proposal_product(const gumbel_problem *problem)
{
    gumbel_problem p = *problem;
    p.features = 0;
    p.with_path = 0;
    p.with_mass = 0;
    return p;
}

static gumbel_tensor rows_at(const gumbel_problem *problem, float *rows, int64_t stride)
{
    return (gumbel_tensor){.data = rows,
                           .dtype = GUMBEL_FLOAT32,
                           .rows = problem->batch,
                           .cols = problem->vocab,
                           .stride = stride};
}

gumbel_problem gumbel_proposal_stored(const gumbel_problem *problem, float *rows, int64_t stride)
{
    gumbel_problem p = *problem;
    if (p.hidden_size == 0)
        return p;
    p.hidden_size = 0;
    p.bias = (gumbel_tensor){.data = NULL}; /* the stored logits include it */
    p.logits = rows_at(problem, rows, stride);
    return p;
}

/* Whether kernels read a model's rows from the workspace. */
static int has_stored_rows(const gumbel_problem *problem)
{
    return problem->hidden_size > 0 || gumbel_proposal_processed(problem).features != 0;
}

/* The logits of a model that kernels read. */
static gumbel_logit_rows find_logits(const gumbel_problem *problem, float *rows, int64_t stride)
{
    return (gumbel_logit_rows){has_stored_rows(problem) ? rows_at(problem, rows, stride)
                                                        : problem->logits,
                               gumbel_proposal_processed(problem).features != 0};
}

/* Carves the host's arrays: scores, and one row of each model. */
static void carve_host_arrays(gumbel_proposal *proposal, gumbel_cursor *cursor, size_t rows,
                              size_t vocab)
{
    size_t scored = 1 + (size_t)proposal->num_best, tokens = rows * scored;
    proposal->slot = gumbel_carve_array(cursor, rows, 1, sizeof *proposal->slot);
    proposal->ids = gumbel_carve_array(cursor, rows, scored, sizeof *proposal->ids);
    proposal->target_rows = gumbel_carve_array(cursor, vocab, 1, sizeof *proposal->target_rows);
    proposal->draft_rows = gumbel_carve_array(cursor, vocab, 1, sizeof *proposal->draft_rows);
    proposal->chunk = gumbel_carve_array(cursor, GUMBEL_PROPOSAL_CHUNK, 1, sizeof *proposal->chunk);
    tokens = tokens > GUMBEL_PROPOSAL_CHUNK ? tokens : GUMBEL_PROPOSAL_CHUNK;
    proposal->tokens = gumbel_carve_array(cursor, tokens, 1, sizeof *proposal->tokens);
}

/* Carves the GPU's arrays: the rows that the caller does not have. */
static void carve_device_arrays(gumbel_proposal *proposal, gumbel_cursor *cursor,
                                const gumbel_verification *v)
{
    proposal->supplied = v->draft.lse != NULL;
    proposal->dots = proposal->supplied && proposal->draft.hidden_size > 0 &&
                     !gumbel_proposal_processed(&proposal->draft).features;
    if (proposal->supplied) { /* kernels do not write them */
        proposal->draft_lse = (float *)(uintptr_t)v->draft.lse;
        proposal->draft_logprobs = (float *)(uintptr_t)v->draft.logprobs;
    }
    const size_t rows = (size_t)v->rows;
    proposal->row_stride = gumbel_proposal_stride(&proposal->target);
    proposal->residual_nodes =
        gumbel_carve_array(cursor, (size_t)v->draft.requests, 1, sizeof *proposal->residual_nodes);
    if (has_stored_rows(&proposal->target))
        proposal->target_rows = gumbel_carve_array(cursor, rows, (size_t)proposal->row_stride,
                                                   sizeof *proposal->target_rows);
    if (has_stored_rows(&proposal->draft) && !proposal->dots)
        proposal->draft_rows = gumbel_carve_array(cursor, rows, (size_t)proposal->row_stride,
                                                  sizeof *proposal->draft_rows);
    proposal->target_logits =
        find_logits(&proposal->target, proposal->target_rows, proposal->row_stride);
    proposal->draft_logits =
        find_logits(&proposal->draft, proposal->draft_rows, proposal->row_stride);
}

void gumbel_proposal_carve(gumbel_proposal *proposal, gumbel_cursor *cursor,
                           const gumbel_problem *problem, const gumbel_verification *v, int on_host)
{
    size_t rows = (size_t)v->rows, scored = 1 + (size_t)proposal->num_best;
    const int block = v->draft.rule == GUMBEL_RULE_BLOCK;
    GUMBEL_ASSERT(proposal->num_best >= 0 && proposal->num_best <= GUMBEL_BEST_MAX);
    proposal->target_logprobs =
        gumbel_carve_array(cursor, rows, scored, sizeof *proposal->target_logprobs);
    proposal->draft_logprobs =
        gumbel_carve_array(cursor, rows, scored, sizeof *proposal->draft_logprobs);
    proposal->target_lse = gumbel_carve_array(cursor, rows, 1, sizeof *proposal->target_lse);
    proposal->draft_lse = gumbel_carve_array(cursor, rows, 1, sizeof *proposal->draft_lse);
    proposal->rule_nodes = gumbel_carve_array(cursor, rows, 1, sizeof *proposal->rule_nodes);
    proposal->sums = gumbel_carve_array(cursor, block ? rows : 0, 1, sizeof *proposal->sums);
    proposal->target = *problem;
    proposal->draft.sampling.position = problem->sampling.position;
    proposal->draft.position_by_row = 1;
    proposal->draft.stream = problem->stream;
    proposal->draft.list_of_row = problem->list_of_row;
    proposal->draft.path = problem->path;
    proposal->draft.sampling.slots = problem->sampling.slots;
    if (!on_host) {
        carve_device_arrays(proposal, cursor, v);
        return;
    }
    carve_host_arrays(proposal, cursor, rows, (size_t)problem->vocab);
    proposal->target.sampling.slots.of_row = proposal->draft.sampling.slots.of_row = proposal->slot;
}

/* ------------------------------------------------------------------------------- scoring ---- */

/* Computes the log-probabilities of proposal->ids by a model, and its log-normalisers. */
static gumbel_status score_rows(const gumbel_proposal *proposal, gumbel_device *device,
                                const gumbel_problem *problem, float *logprobs, float *lse,
                                gumbel_error *error)
{
    gumbel_problem p = gumbel_proposal_scored(problem, 1 + proposal->num_best);
    const gumbel_output out = {
        .struct_size = sizeof out, .tokens = proposal->tokens, .logprobs = logprobs, .lse = lse};
    p.sampling.given.data = proposal->ids;
    return gumbel_draw_rows(device, &p, NULL, p.batch, &out, proposal->workspace, error);
}

/* Sets the first id to score in row b: the draft after it, or -1. */
static void set_drafted_id(const gumbel_proposal *proposal, const gumbel_verification *v, int64_t b)
{
    int32_t drafted = gumbel_draft_token_after(v, b);
    proposal->ids[b * (1 + proposal->num_best)] = drafted;
    proposal->slot[b] = drafted >= 0 ? v->of_row.slot[b] : GUMBEL_SLOT_UNUSED;
}

gumbel_status gumbel_proposal_score(const gumbel_proposal *proposal, gumbel_device *device,
                                    const gumbel_verification *v, gumbel_error *error)
{
    for (int64_t b = 0; b < v->rows; b++) {
        set_drafted_id(proposal, v, b);
        for (int32_t k = 0; k < proposal->num_best; k++)
            proposal->ids[b * (1 + proposal->num_best) + 1 + k] =
                v->drawn.best_ids[b * proposal->num_best + k];
    }
    GUMBEL_FORWARD(score_rows(proposal, device, &proposal->target, proposal->target_logprobs,
                              proposal->target_lse, error));
    return score_rows(proposal, device, &proposal->draft, proposal->draft_logprobs,
                      proposal->draft_lse, error);
}

/* ---------------------------------------------------------------------------- whole rows ---- */

/* Reads a row of a head as scores of given tokens, which are z; each chunk reads the weights again.
 */
static gumbel_status read_in_chunks(const gumbel_proposal *proposal, gumbel_device *device,
                                    const gumbel_problem *problem, int64_t b, float *z,
                                    gumbel_error *error)
{
    for (int64_t first = 0; first < problem->vocab; first += GUMBEL_PROPOSAL_CHUNK) {
        int64_t rest = problem->vocab - first;
        int32_t count = rest < GUMBEL_PROPOSAL_CHUNK ? (int32_t)rest : GUMBEL_PROPOSAL_CHUNK;
        const gumbel_output out = {
            .struct_size = sizeof out, .tokens = proposal->tokens, .scores = z + first};
        gumbel_problem p = gumbel_proposal_scored(problem, count);
        p = gumbel_problem_slice(&p, b, 1);
        p.with_mass = 0;
        for (int32_t i = 0; i < count; i++)
            proposal->chunk[i] = (int32_t)(problem->first_token + first + i);
        p.sampling.given = (gumbel_row_i32){proposal->chunk, 0};
        GUMBEL_FORWARD(device->backend->sample(device, &p, NULL, &out, proposal->workspace, error));
    }
    return GUMBEL_OK;
}

gumbel_status gumbel_proposal_read(const gumbel_proposal *proposal, gumbel_device *device,
                                   const gumbel_problem *problem, int64_t b, float *z,
                                   gumbel_error *error)
{
    GUMBEL_ASSERT(b >= 0 && b < problem->batch);
    if (problem->hidden_size > 0)
        return read_in_chunks(proposal, device, problem, b, z, error);
    gumbel_problem p = gumbel_proposal_processed(problem);
    p = gumbel_problem_slice(&p, b, 1);
    const gumbel_row_array into = {z, GUMBEL_FLOAT32, p.vocab};
    return device->backend->store_processed(device, &p, NULL, into, proposal->workspace, error);
}

/* ------------------------------------------------------------------------------ on a GPU ---- */

/* Stores the logits of a model's head, if it has one. */
static gumbel_status store_head_logits(const gumbel_proposal *proposal, gumbel_device *device,
                                       const gumbel_problem *problem, float *rows,
                                       gumbel_error *error)
{
    gumbel_problem p = gumbel_proposal_product(problem);
    return p.hidden_size > 0 ? device->backend->store_logits(device, &p, rows, proposal->row_stride,
                                                             proposal->workspace, error)
                             : GUMBEL_OK;
}

/* Replaces l by z in a model's rows, if they differ. */
static gumbel_status process_rows(const gumbel_proposal *proposal, gumbel_device *device,
                                  const gumbel_problem *problem, float *rows, gumbel_error *error)
{
    gumbel_problem p = gumbel_proposal_processed(problem);
    p = gumbel_proposal_stored(&p, rows, proposal->row_stride);
    const gumbel_row_array into = {rows, GUMBEL_FLOAT32, proposal->row_stride};
    return p.features ? device->backend->store_processed(device, &p, NULL, into,
                                                         proposal->workspace, error)
                      : GUMBEL_OK;
}

gumbel_status gumbel_proposal_queue(const gumbel_proposal *proposal, gumbel_device *device,
                                    const gumbel_problem *draw, const gumbel_verification *v,
                                    gumbel_error *error)
{
    GUMBEL_ASSERT(proposal->num_best == 0 && proposal->row_stride >= proposal->target.vocab);
    GUMBEL_FORWARD(
        store_head_logits(proposal, device, &proposal->target, proposal->target_rows, error));
    if (!proposal->dots)
        GUMBEL_FORWARD(
            store_head_logits(proposal, device, &proposal->draft, proposal->draft_rows, error));
    if (proposal->drawn) {
        gumbel_problem p =
            gumbel_proposal_stored(draw, proposal->target_rows, proposal->row_stride);
        GUMBEL_FORWARD(
            device->backend->sample(device, &p, NULL, &v->drawn, proposal->workspace, error));
    }
    GUMBEL_FORWARD(process_rows(proposal, device, &proposal->target, proposal->target_rows, error));
    return process_rows(proposal, device, &proposal->draft, proposal->draft_rows, error);
}
