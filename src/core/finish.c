/* SPDX-License-Identifier: Apache-2.0 */
#include "core/finish.h"

#include "maths/summary.h"

void gumbel_read_out(const gumbel_summary *summaries, int64_t batch, int32_t num_samples,
                     const gumbel_output *out)
{
    for (int64_t b = 0; b < batch; b++) {
        gumbel_summary first = gumbel_summary_sound(summaries + b * num_samples);
        gumbel_row_status status = gumbel_summary_status(&first);
        int ok = status == GUMBEL_ROW_OK;
        float lse = ok && (out->lse || out->logprobs) ? gumbel_summary_lse(&first) : NAN;
        for (int64_t at = b * num_samples; at < (b + 1) * num_samples; at++) {
            gumbel_summary best = gumbel_summary_sound(&summaries[at]);
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
