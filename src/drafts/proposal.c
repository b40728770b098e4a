/* SPDX-License-Identifier: Apache-2.0 */
#include "drafts/proposal.h"

#include "core/fail.h"
#include "core/output.h"

/* Where no workspace is there yet: a problem is sized, and no token is read. */
static const int32_t none = -1;

gumbel_problem gumbel_proposal_processed(const gumbel_problem *problem)
{
    gumbel_problem p = *problem;
    p.request &= GUMBEL_REQUEST_TRANSFORMS | GUMBEL_REQUEST_TRUNCATION;
    p.with_mass = 0;
    return p;
}

gumbel_problem gumbel_proposal_scored(const gumbel_problem *problem, int32_t count)
{
    gumbel_problem p = gumbel_proposal_processed(problem);
    p.request |= GUMBEL_REQUEST_GIVEN;
    p.with_mass = 1;
    p.sampling.num_samples = count;
    p.sampling.given = (gumbel_row_i32){&none, count};
    return p;
}

gumbel_problem gumbel_proposal_product(const gumbel_problem *problem)
{
    gumbel_problem p = *problem;
    p.request = 0;
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
    p.bias = (gumbel_tensor){.data = NULL}; /* it is in them */
    p.logits = rows_at(problem, rows, stride);
    p.sampling.math = GUMBEL_MATH_EXACT; /* FAST is for the caller's logits */
    return p;
}

/* Whether rows of the workspace hold what is read of a model on a GPU. */
static int has_rows(const gumbel_problem *problem)
{
    return problem->hidden_size > 0 || gumbel_proposal_processed(problem).request != 0;
}

/* What of a model's rows is read there. */
static gumbel_logit_rows locate(const gumbel_problem *problem, float *rows, int64_t stride)
{
    return (gumbel_logit_rows){has_rows(problem) ? rows_at(problem, rows, stride) : problem->logits,
                               gumbel_proposal_processed(problem).request != 0};
}

/* The scores that a host asks for, and its rows, one at a time. */
static void carve_reads(gumbel_proposal *by, gumbel_cursor *cursor, size_t rows, size_t vocab)
{
    size_t scored = 1 + (size_t)by->listed, tokens = rows * scored;
    by->slot = gumbel_carve_array(cursor, rows, 1, sizeof *by->slot);
    by->ids = gumbel_carve_array(cursor, rows, scored, sizeof *by->ids);
    by->target_rows = gumbel_carve_array(cursor, vocab, 1, sizeof *by->target_rows);
    by->draft_rows = gumbel_carve_array(cursor, vocab, 1, sizeof *by->draft_rows);
    by->chunk = gumbel_carve_array(cursor, GUMBEL_PROPOSAL_CHUNK, 1, sizeof *by->chunk);
    tokens = tokens > GUMBEL_PROPOSAL_CHUNK ? tokens : GUMBEL_PROPOSAL_CHUNK;
    by->tokens = gumbel_carve_array(cursor, tokens, 1, sizeof *by->tokens);
}

/* All rows that a GPU reads and no caller has. */
static void carve_rows(gumbel_proposal *by, gumbel_cursor *cursor, const gumbel_verification *v)
{
    by->told = v->draft.lse != NULL;
    by->dots =
        by->told && by->draft.hidden_size > 0 && !gumbel_proposal_processed(&by->draft).request;
    if (by->told) { /* nothing is written there */
        by->draft_lse = (float *)(uintptr_t)v->draft.lse;
        by->draft_logprobs = (float *)(uintptr_t)v->draft.logprobs;
    }
    const size_t rows = (size_t)v->rows;
    by->row_stride = gumbel_proposal_stride(&by->target);
    by->judged = gumbel_carve_array(cursor, (size_t)v->draft.requests, 1, sizeof *by->judged);
    if (has_rows(&by->target))
        by->target_rows =
            gumbel_carve_array(cursor, rows, (size_t)by->row_stride, sizeof *by->target_rows);
    if (has_rows(&by->draft) && !by->dots)
        by->draft_rows =
            gumbel_carve_array(cursor, rows, (size_t)by->row_stride, sizeof *by->draft_rows);
    by->target_logits = locate(&by->target, by->target_rows, by->row_stride);
    by->draft_logits = locate(&by->draft, by->draft_rows, by->row_stride);
}

void gumbel_proposal_carve(gumbel_proposal *by, gumbel_cursor *cursor,
                           const gumbel_problem *problem, const gumbel_verification *v, int reads)
{
    size_t rows = (size_t)v->rows, scored = 1 + (size_t)by->listed;
    const int block = v->draft.rule == GUMBEL_RULE_BLOCK;
    GUMBEL_ASSERT(by->listed >= 0 && by->listed <= GUMBEL_BEST_MOST);
    by->target_logprobs = gumbel_carve_array(cursor, rows, scored, sizeof *by->target_logprobs);
    by->draft_logprobs = gumbel_carve_array(cursor, rows, scored, sizeof *by->draft_logprobs);
    by->target_lse = gumbel_carve_array(cursor, rows, 1, sizeof *by->target_lse);
    by->draft_lse = gumbel_carve_array(cursor, rows, 1, sizeof *by->draft_lse);
    by->weighed = gumbel_carve_array(cursor, rows, 1, sizeof *by->weighed);
    by->sums = gumbel_carve_array(cursor, block ? rows : 0, 1, sizeof *by->sums);
    by->target = *problem;
    by->draft.sampling.position = problem->sampling.position;
    by->draft.position_by_row = 1;
    by->draft.stream = problem->stream;
    by->draft.list_of_row = problem->list_of_row;
    by->draft.path = problem->path;
    by->draft.sampling.slots = problem->sampling.slots;
    if (!reads) {
        carve_rows(by, cursor, v);
        return;
    }
    carve_reads(by, cursor, rows, (size_t)problem->vocab);
    by->target.sampling.slots.of_row = by->draft.sampling.slots.of_row = by->slot;
}

/* ------------------------------------------------------------------------------- scoring ---- */

/* Log-probabilities of by->ids by one of the models, and its log-normalisers. */
static gumbel_status score_rows(const gumbel_proposal *by, gumbel_device *device,
                                const gumbel_problem *problem, float *logprobs, float *lse,
                                gumbel_error *error)
{
    gumbel_problem p = gumbel_proposal_scored(problem, 1 + by->listed);
    const gumbel_output out = {
        .struct_size = sizeof out, .tokens = by->tokens, .logprobs = logprobs, .lse = lse};
    p.sampling.given.data = by->ids;
    return gumbel_draw_rows(device, &p, p.batch, &out, by->workspace, error);
}

/* What row b drew as a draft, and is scored: its token, or -1. */
static void choose(const gumbel_proposal *by, const gumbel_verification *v, int64_t b)
{
    int32_t drafted = gumbel_draft_token_after(v, b);
    by->ids[b * (1 + by->listed)] = drafted;
    by->slot[b] = drafted >= 0 ? v->of_row.slot[b] : GUMBEL_SLOT_UNUSED;
}

gumbel_status gumbel_proposal_score(const gumbel_proposal *by, gumbel_device *device,
                                    const gumbel_verification *v, gumbel_error *error)
{
    for (int64_t b = 0; b < v->rows; b++) {
        choose(by, v, b);
        for (int32_t k = 0; k < by->listed; k++)
            by->ids[b * (1 + by->listed) + 1 + k] = v->drawn.best_ids[b * by->listed + k];
    }
    GUMBEL_FORWARD(score_rows(by, device, &by->target, by->target_logprobs, by->target_lse, error));
    return score_rows(by, device, &by->draft, by->draft_logprobs, by->draft_lse, error);
}

/* --------------------------------------------------------------------------- rows, whole ---- */

/* From a head, as scores of given tokens, which are z; each chunk reads the weights again. */
static gumbel_status read_in_chunks(const gumbel_proposal *by, gumbel_device *device,
                                    const gumbel_problem *problem, int64_t b, float *z,
                                    gumbel_error *error)
{
    for (int64_t first = 0; first < problem->vocab; first += GUMBEL_PROPOSAL_CHUNK) {
        int64_t left = problem->vocab - first;
        int32_t count = left < GUMBEL_PROPOSAL_CHUNK ? (int32_t)left : GUMBEL_PROPOSAL_CHUNK;
        const gumbel_output out = {
            .struct_size = sizeof out, .tokens = by->tokens, .scores = z + first};
        gumbel_problem p = gumbel_proposal_scored(problem, count);
        p = gumbel_problem_slice(&p, b, 1);
        p.with_mass = 0;
        for (int32_t i = 0; i < count; i++)
            by->chunk[i] = (int32_t)(problem->first_token + first + i);
        p.sampling.given = (gumbel_row_i32){by->chunk, 0};
        GUMBEL_FORWARD(device->backend->sample(device, &p, &out, by->workspace, error));
    }
    return GUMBEL_OK;
}

gumbel_status gumbel_proposal_read(const gumbel_proposal *by, gumbel_device *device,
                                   const gumbel_problem *problem, int64_t b, float *z,
                                   gumbel_error *error)
{
    GUMBEL_ASSERT(b >= 0 && b < problem->batch);
    if (problem->hidden_size > 0)
        return read_in_chunks(by, device, problem, b, z, error);
    gumbel_problem p = gumbel_proposal_processed(problem);
    p = gumbel_problem_slice(&p, b, 1);
    return device->backend->process(device, &p, z, p.vocab, by->workspace, error);
}

/* ------------------------------------------------------------------------------ on a GPU ---- */

/* Multiply a model's head, if it has one, once. */
static gumbel_status store(const gumbel_proposal *by, gumbel_device *device,
                           const gumbel_problem *problem, float *rows, gumbel_error *error)
{
    gumbel_problem p = gumbel_proposal_product(problem);
    return p.hidden_size > 0
               ? device->backend->store(device, &p, rows, by->row_stride, by->workspace, error)
               : GUMBEL_OK;
}

/* Make rows what a draw sees, if that is something else. */
static gumbel_status process(const gumbel_proposal *by, gumbel_device *device,
                             const gumbel_problem *problem, float *rows, gumbel_error *error)
{
    gumbel_problem p = gumbel_proposal_processed(problem);
    p = gumbel_proposal_stored(&p, rows, by->row_stride);
    return p.request
               ? device->backend->process(device, &p, rows, by->row_stride, by->workspace, error)
               : GUMBEL_OK;
}

gumbel_status gumbel_proposal_queue(const gumbel_proposal *by, gumbel_device *device,
                                    const gumbel_problem *draw, const gumbel_verification *v,
                                    gumbel_error *error)
{
    GUMBEL_ASSERT(by->listed == 0 && by->row_stride >= by->target.vocab);
    GUMBEL_FORWARD(store(by, device, &by->target, by->target_rows, error));
    if (!by->dots)
        GUMBEL_FORWARD(store(by, device, &by->draft, by->draft_rows, error));
    if (by->drawn) {
        gumbel_problem p = gumbel_proposal_stored(draw, by->target_rows, by->row_stride);
        GUMBEL_FORWARD(device->backend->sample(device, &p, &v->drawn, by->workspace, error));
    }
    GUMBEL_FORWARD(process(by, device, &by->target, by->target_rows, error));
    return process(by, device, &by->draft, by->draft_rows, error);
}
