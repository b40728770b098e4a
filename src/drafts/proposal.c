/* SPDX-License-Identifier: Apache-2.0 */
#include "drafts/proposal.h"

#include "core/fail.h"
#include "core/output.h"

/* Where no workspace is there yet: a problem is sized, and no token is read. */
static const int32_t none = -1;

gumbel_problem gumbel_proposal_whole(const gumbel_problem *problem)
{
    gumbel_problem p = *problem;
    p.request &= GUMBEL_REQUEST_TRANSFORMS | GUMBEL_REQUEST_TRUNCATION;
    p.with_mass = 0;
    return p;
}

gumbel_problem gumbel_proposal_scored(const gumbel_problem *problem, int32_t count)
{
    gumbel_problem p = gumbel_proposal_whole(problem);
    p.request |= GUMBEL_REQUEST_GIVEN;
    p.with_mass = 1;
    p.sampling.num_samples = count;
    p.sampling.given = (gumbel_row_i32){&none, count};
    return p;
}

void gumbel_proposal_carve(gumbel_proposal *by, gumbel_cursor *cursor,
                           const gumbel_problem *problem, const gumbel_verification *v, int reads)
{
    size_t rows = (size_t)v->rows, scored = 1 + (size_t)by->listed, vocab = (size_t)problem->vocab;
    size_t tokens = rows * scored;
    GUMBEL_ASSERT(by->listed >= 0 && by->listed <= GUMBEL_BEST_MOST);
    by->slot = gumbel_carve(cursor, rows, 1, sizeof *by->slot);
    by->ids = gumbel_carve(cursor, rows, scored, sizeof *by->ids);
    by->target_logprobs = gumbel_carve(cursor, rows, scored, sizeof *by->target_logprobs);
    by->draft_logprobs = gumbel_carve(cursor, rows, scored, sizeof *by->draft_logprobs);
    by->target_lse = gumbel_carve(cursor, rows, 1, sizeof *by->target_lse);
    by->draft_lse = gumbel_carve(cursor, rows, 1, sizeof *by->draft_lse);
    by->row_stride = reads ? 0 : (problem->vocab + 3) / 4 * 4; /* as kernels like it */
    vocab = reads ? vocab : (size_t)by->row_stride;
    by->target_rows = gumbel_carve(cursor, reads ? 1 : rows, vocab, sizeof *by->target_rows);
    by->draft_rows = gumbel_carve(cursor, reads ? 1 : rows, vocab, sizeof *by->draft_rows);
    if (reads) {
        tokens = tokens > GUMBEL_PROPOSAL_CHUNK ? tokens : GUMBEL_PROPOSAL_CHUNK;
        by->chunk = gumbel_carve(cursor, GUMBEL_PROPOSAL_CHUNK, 1, sizeof *by->chunk);
    }
    by->tokens = gumbel_carve(cursor, tokens, 1, sizeof *by->tokens);
    by->target = *problem;
    by->target.sampling.slots.of_row = by->slot;
    by->draft.sampling.slots = (gumbel_slots){by->slot, problem->sampling.slots.count};
    by->draft.sampling.position = problem->sampling.position;
    by->draft.position_by_row = 1;
    by->draft.stream = problem->stream;
    by->draft.list_of_row = problem->list_of_row;
    by->draft.path = problem->path;
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

gumbel_status gumbel_proposal_score(const gumbel_proposal *by, gumbel_device *device,
                                    const gumbel_verification *v, gumbel_error *error)
{
    for (int64_t b = 0; b < v->rows; b++) {
        gumbel_proposal_choose(by, v, b);
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
    gumbel_problem p = gumbel_proposal_whole(problem);
    p = gumbel_problem_slice(&p, b, 1);
    return device->backend->process(device, &p, z, p.vocab, by->workspace, error);
}

gumbel_status gumbel_proposal_queue(const gumbel_proposal *by, gumbel_device *device,
                                    gumbel_error *error)
{
    gumbel_problem target = gumbel_proposal_whole(&by->target);
    gumbel_problem draft = gumbel_proposal_whole(&by->draft);
    GUMBEL_ASSERT(by->listed == 0 && by->row_stride >= target.vocab);
    GUMBEL_FORWARD(score_rows(by, device, &by->target, by->target_logprobs, by->target_lse, error));
    GUMBEL_FORWARD(score_rows(by, device, &by->draft, by->draft_logprobs, by->draft_lse, error));
    GUMBEL_FORWARD(device->backend->process(device, &target, by->target_rows, by->row_stride,
                                            by->workspace, error));
    return device->backend->process(device, &draft, by->draft_rows, by->row_stride, by->workspace,
                                    error);
}
