/* SPDX-License-Identifier: Apache-2.0
 *
 * Processed rows: the transformed, truncated logits z that a draw uses, or their softmax.
 */
#include "api/call.h"
#include "core/fail.h"
#include "core/output.h"
#include "validate/validate.h"

#include <inttypes.h>

/* The type of gumbel_backend.store_processed and .store_probabilities. */
typedef gumbel_status (*store_rows)(gumbel_device *device, const gumbel_problem *problem,
                                    const gumbel_plan *plan, float *out, int64_t stride,
                                    void *workspace, gumbel_error *error);

/* Checks the output rows [B, V], an argument called `name`. */
static gumbel_status check_output_rows(const gumbel_problem *p, const float *out, int64_t stride,
                                       const char *name, gumbel_error *error)
{
    int64_t elements;
    GUMBEL_REFUSE_IF(stride < p->vocab, error, "stride",
                     "is %" PRId64 "; it must be at least %" PRId64 ", the number of tokens",
                     stride, p->vocab);
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(p->batch, stride, &elements) ||
                         elements > INT64_MAX / (int64_t)sizeof *out,
                     error, "stride",
                     "%" PRId64 " rows with stride %" PRId64 " are larger than any memory",
                     p->batch, stride);
    GUMBEL_REFUSE_IF(!out && p->batch > 0, error, name, "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(out, sizeof *out, name, error));
    const gumbel_tensor *l = &p->logits;
    GUMBEL_REFUSE_IF(out && out == l->data && (l->dtype != GUMBEL_FLOAT32 || l->stride != stride),
                     error, name,
                     "output in place of the logits requires float32 logits of the same stride");
    return GUMBEL_OK;
}

/* Validates and runs a call whose output rows `store` fills. Unused rows are set to NaN. */
static gumbel_status run_row_call(gumbel_device *device, gumbel_problem *problem, store_rows store,
                                  const char *name, float *out, int64_t stride, void *workspace,
                                  size_t workspace_bytes, gumbel_error *error)
{
    gumbel_plan plan;
    problem->features &= ~(uint32_t)GUMBEL_FEATURE_GIVEN;
    GUMBEL_FORWARD(gumbel_settle_features(device, problem, error));
    stride = stride ? stride : problem->vocab;
    GUMBEL_FORWARD(check_output_rows(problem, out, stride, name, error));
    GUMBEL_FORWARD(gumbel_plan_in_workspace(device, problem, GUMBEL_CAPABILITY_ROWS, workspace,
                                            workspace_bytes, &plan, error));
    const int32_t *live_rows = problem->sampling.live_rows;
    int64_t rows = device->backend->host_memory && live_rows ? *live_rows : problem->batch;
    GUMBEL_ASSERT(rows >= 0 && rows <= problem->batch);
    GUMBEL_ASSERT(stride >= problem->vocab);
    for (int64_t b = rows; b < problem->batch; b++)
        for (int64_t i = 0; i < problem->vocab; i++)
            out[b * stride + i] = NAN;
    gumbel_problem live = gumbel_problem_slice(problem, 0, rows);
    return rows == 0 ? GUMBEL_OK
                     : store(device, &live, rows == problem->batch ? &plan : NULL, out, stride,
                             workspace, error);
}

gumbel_status gumbel_process_logits(gumbel_device *device, void *stream,
                                    const gumbel_logits *logits, const gumbel_sampling *sampling,
                                    float *processed, int64_t stride, void *workspace,
                                    size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_read_call_of_logits(&problem, device, stream, logits, sampling, error));
    return run_row_call(device, &problem, device->backend->store_processed, "processed", processed,
                        stride, workspace, workspace_bytes, error);
}

gumbel_status gumbel_softmax(gumbel_device *device, void *stream, const gumbel_logits *logits,
                             const gumbel_sampling *sampling, float *probabilities, int64_t stride,
                             void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_FORWARD(gumbel_read_call_of_logits(&problem, device, stream, logits, sampling, error));
    return run_row_call(device, &problem, device->backend->store_probabilities, "probabilities",
                        probabilities, stride, workspace, workspace_bytes, error);
}
