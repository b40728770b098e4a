/* SPDX-License-Identifier: Apache-2.0
 *
 * Processed rows: the transformed, truncated logits z that a draw uses, or their softmax.
 */
#include "api/call.h"
#include "core/fail.h"
#include "core/output.h"
#include "maths/rounding.h"
#include "validate/validate.h"
#include "validate/validate_token_ids.h"

#include <inttypes.h>

/* The type of gumbel_backend.store_processed and .store_probabilities. */
typedef gumbel_status (*store_rows)(gumbel_device *device, const gumbel_problem *problem,
                                    const gumbel_plan *plan, gumbel_row_array rows, void *workspace,
                                    gumbel_error *error);

/* Checks the output rows [B, V], an argument called `name`. */
static gumbel_status check_output_rows(const gumbel_problem *p, const gumbel_row_array *out,
                                       const char *name, gumbel_error *error)
{
    const gumbel_tensor *l = &p->logits;
    const int64_t stride = out->stride;
    const int size = out->dtype == GUMBEL_FLOAT32 ? 4 : 2;
    int64_t elements;
    GUMBEL_REFUSE_IF(out->dtype != GUMBEL_FLOAT32 && out->dtype != l->dtype, error, "dtype",
                     "must be GUMBEL_FLOAT32 or the dtype of the logits");
    GUMBEL_REFUSE_IF(stride < p->vocab, error, "stride",
                     "is %" PRId64 "; it must be at least %" PRId64 ", the number of tokens",
                     stride, p->vocab);
    GUMBEL_REFUSE_IF(
        __builtin_mul_overflow(p->batch, stride, &elements) || elements > INT64_MAX / size, error,
        "stride", "%" PRId64 " rows with stride %" PRId64 " are larger than any memory", p->batch,
        stride);
    GUMBEL_REFUSE_IF(!out->data && p->batch > 0, error, name, "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(out->data, (size_t)size, name, error));
    GUMBEL_REFUSE_IF(
        out->data && out->data == l->data && (l->dtype != out->dtype || l->stride != stride), error,
        name, "output in place of the logits requires their dtype and their stride");
    return GUMBEL_OK;
}

/* Validates and runs a call whose output rows `store` fills. Unused rows are set to NaN. */
static gumbel_status run_row_call(gumbel_device *device, gumbel_problem *problem, store_rows store,
                                  const char *name, gumbel_row_array out, void *workspace,
                                  size_t workspace_bytes, gumbel_error *error)
{
    gumbel_plan plan;
    problem->features &= ~(uint32_t)GUMBEL_FEATURE_GIVEN;
    GUMBEL_FORWARD(gumbel_refuse_token_ids(&problem->sampling,
                                           "the call has no output that holds ids", error));
    GUMBEL_FORWARD(gumbel_settle_features(device, problem, error));
    out.stride = out.stride ? out.stride : problem->vocab;
    GUMBEL_FORWARD(check_output_rows(problem, &out, name, error));
    GUMBEL_FORWARD(gumbel_plan_in_workspace(device, problem, GUMBEL_CAPABILITY_ROWS, workspace,
                                            workspace_bytes, &plan, error));
    const int32_t *live_rows = problem->sampling.live_rows;
    int64_t rows = device->backend->host_memory && live_rows ? *live_rows : problem->batch;
    GUMBEL_ASSERT(rows >= 0 && rows <= problem->batch);
    for (int64_t b = rows; b < problem->batch; b++)
        for (int64_t i = 0; i < problem->vocab; i++)
            gumbel_store_element(out.data, out.dtype, b * out.stride + i, NAN);
    gumbel_problem live = gumbel_problem_slice(problem, 0, rows);
    return rows == 0
               ? GUMBEL_OK
               : store(device, &live, rows == problem->batch ? &plan : NULL, out, workspace, error);
}

gumbel_status gumbel_process_logits_into(gumbel_device *device, void *stream,
                                         const gumbel_logits *logits,
                                         const gumbel_sampling *sampling, void *processed,
                                         gumbel_dtype dtype, int64_t stride, void *workspace,
                                         size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    const gumbel_row_array out = {processed, dtype, stride};
    GUMBEL_FORWARD(gumbel_read_call_of_logits(&problem, device, stream, logits, sampling, error));
    return run_row_call(device, &problem, device->backend->store_processed, "processed", out,
                        workspace, workspace_bytes, error);
}

gumbel_status gumbel_process_logits(gumbel_device *device, void *stream,
                                    const gumbel_logits *logits, const gumbel_sampling *sampling,
                                    float *processed, int64_t stride, void *workspace,
                                    size_t workspace_bytes, gumbel_error *error)
{
    return gumbel_process_logits_into(device, stream, logits, sampling, processed, GUMBEL_FLOAT32,
                                      stride, workspace, workspace_bytes, error);
}

gumbel_status gumbel_softmax(gumbel_device *device, void *stream, const gumbel_logits *logits,
                             const gumbel_sampling *sampling, float *probabilities, int64_t stride,
                             void *workspace, size_t workspace_bytes, gumbel_error *error)
{
    gumbel_problem problem;
    const gumbel_row_array out = {probabilities, GUMBEL_FLOAT32, stride};
    GUMBEL_FORWARD(gumbel_read_call_of_logits(&problem, device, stream, logits, sampling, error));
    return run_row_call(device, &problem, device->backend->store_probabilities, "probabilities",
                        out, workspace, workspace_bytes, error);
}
