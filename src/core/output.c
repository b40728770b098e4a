/* SPDX-License-Identifier: Apache-2.0 */
#include "core/output.h"

#include "core/fail.h"
#include "maths/summary.h"

/* Merges the summaries of all parts for draw `at`. */
static gumbel_summary merge_parts(const gumbel_finish_call *call, int64_t at)
{
    gumbel_summary whole = gumbel_summary_sound(&call->summaries[at]);
    int64_t draws = call->batch * call->num_samples;
    GUMBEL_ASSERT(at >= 0 && at < draws);
    GUMBEL_ASSERT(call->parts >= 1);
    for (int32_t part = 1; part < call->parts; part++)
        gumbel_summary_merge_any(&whole, &call->summaries[part * draws + at]);
    return whole;
}

void gumbel_write_outputs(const gumbel_finish_call *call)
{
    const gumbel_output *out = call->output;
    int32_t samples = call->num_samples;
    GUMBEL_ASSERT(samples >= 1);
    GUMBEL_ASSERT(out && (out->tokens || call->batch == 0));
    for (int64_t b = 0; b < call->batch; b++) {
        gumbel_summary best = merge_parts(call, b * samples);
        gumbel_row_status status = gumbel_summary_status(&best);
        int ok = status == GUMBEL_ROW_OK;
        float lse = ok && gumbel_output_has_lse(out) ? gumbel_summary_lse(&best) : NAN;
        for (int64_t at = b * samples; at < (b + 1) * samples; at++) {
            if (at > b * samples)
                best = merge_parts(call, at);
            int drawn = ok && best.best_id >= 0;
            out->tokens[at] = drawn ? best.best_id : -1;
            if (out->logprobs)
                out->logprobs[at] = drawn ? gumbel_logprob(best.best_z, lse) : NAN;
            if (out->scores)
                out->scores[at] = drawn ? best.best_score : NAN;
        }
        if (out->lse)
            out->lse[b] = lse;
        if (out->status)
            out->status[b] = (int32_t)status;
    }
}

gumbel_output gumbel_output_slice(const gumbel_output *output, int64_t first, int32_t num_samples)
{
    gumbel_output o = *output;
    int64_t draws = first * num_samples, top = first * o.num_top;
    GUMBEL_ASSERT(first >= 0 && num_samples >= 1);
    GUMBEL_ASSERT(o.num_top >= 0 && o.num_top <= GUMBEL_TOP_MAX);
#define SKIP(field, elements) o.field = o.field ? o.field + (elements) : NULL
    SKIP(tokens, draws);
    SKIP(logprobs, draws);
    SKIP(scores, draws);
    SKIP(ranks, draws);
    SKIP(lse, first);
    SKIP(status, first);
    SKIP(kept, first);
    SKIP(top_ids, top);
    SKIP(top_logprobs, top);
    SKIP(top_logits, top);
    SKIP(best_ids, first * o.num_best);
    SKIP(best_scores, first * o.num_best);
    SKIP(kept_ids, first * o.kept_capacity);
    SKIP(kept_logprobs, first * o.kept_capacity);
    SKIP(entropy, first);
#undef SKIP
    return o;
}

void gumbel_output_fill_unused(const gumbel_output *out, int64_t first, int64_t end,
                               int32_t num_samples)
{
    GUMBEL_ASSERT(first >= 0 && first <= end);
    GUMBEL_ASSERT(num_samples >= 1);
#define FILL(field, each, value)                                                                   \
    for (int64_t i = first * (each); i < end * (each) && out->field; i++)                          \
    out->field[i] = (value)
    FILL(tokens, num_samples, -1);
    FILL(logprobs, num_samples, NAN);
    FILL(scores, num_samples, NAN);
    FILL(ranks, num_samples, -1);
    FILL(lse, 1, NAN);
    FILL(status, 1, GUMBEL_ROW_UNUSED);
    FILL(kept, 1, 0);
    FILL(top_ids, out->num_top, -1);
    FILL(top_logprobs, out->num_top, NAN);
    FILL(top_logits, out->num_top, NAN);
    FILL(best_ids, out->num_best, -1);
    FILL(best_scores, out->num_best, NAN);
    FILL(entropy, 1, NAN);
#undef FILL
}

gumbel_status gumbel_draw_rows(gumbel_device *device, const gumbel_problem *problem,
                               const gumbel_plan *plan, int64_t batch, const gumbel_output *output,
                               void *workspace, gumbel_error *error)
{
    int64_t rows_max = gumbel_slice_rows_max(problem);
    for (int64_t first = 0; first < batch; first += rows_max) {
        int64_t count = batch - first < rows_max ? batch - first : rows_max;
        GUMBEL_ASSERT(count >= 1 && count <= rows_max);
        gumbel_problem slice = gumbel_problem_slice(problem, first, count);
        gumbel_output out = gumbel_output_slice(output, first, problem->sampling.num_samples);
        /* A shorter last slice may be served by other rungs. */
        const gumbel_plan *known = count == rows_max ? plan : NULL;
        GUMBEL_FORWARD(device->backend->sample(device, &slice, known, &out, workspace, error));
    }
    return GUMBEL_OK;
}
