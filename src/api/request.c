/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call with a request takes, and what its draw sees.
 */
#include "api/call.h"
#include "core/fail.h"
#include "core/validate.h"

#include <inttypes.h>

gumbel_status gumbel_call_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                         const gumbel_logits *logits,
                                         const gumbel_sampling *sampling,
                                         const gumbel_output *output, size_t *bytes,
                                         gumbel_error *error)
{
    gumbel_problem problem;
    GUMBEL_REFUSE_IF(!device, error, "device", "device is NULL");
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "bytes is NULL");
    GUMBEL_REFUSE_IF(!head == !logits, error, "head", "one of head and logits must be given");
    GUMBEL_FORWARD(head ? gumbel_read_head(&problem, head, sampling, error)
                        : gumbel_read_logits(&problem, logits, sampling, error));
    if (output) {
        gumbel_output out;
        GUMBEL_FORWARD(gumbel_read_output(&out, output, 0, error));
        problem.request |= gumbel_output_request(&out);
    }
    GUMBEL_FORWARD(gumbel_call_served(device, &problem, error));
    return gumbel_call_size(device, &problem, bytes, error);
}

gumbel_status gumbel_process_logits(gumbel_device *device, const gumbel_logits *logits,
                                    const gumbel_sampling *sampling, float *processed,
                                    int64_t stride, void *workspace, size_t workspace_bytes,
                                    gumbel_error *error)
{
    gumbel_problem problem;
    int64_t elements;
    GUMBEL_FORWARD(gumbel_call_of_logits(&problem, device, logits, sampling, error));
    if (!device->backend->process)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                           "it does not give processed logits");
    GUMBEL_FORWARD(gumbel_call_served(device, &problem, error));
    if (stride == 0)
        stride = problem.vocab;
    GUMBEL_REFUSE_IF(stride < problem.vocab, error, "stride",
                     "stride is %" PRId64 ", less than %" PRId64 " tokens", stride, problem.vocab);
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(problem.batch, stride, &elements) ||
                         elements > INT64_MAX / (int64_t)sizeof *processed,
                     error, "stride",
                     "%" PRId64 " rows with stride %" PRId64 " are larger than any memory",
                     problem.batch, stride);
    GUMBEL_REFUSE_IF(!processed && problem.batch > 0, error, "processed", "processed is NULL");
    GUMBEL_REFUSE_IF((uintptr_t)processed % sizeof *processed != 0, error, "processed",
                     "it is not aligned to %zu bytes", sizeof *processed);
    GUMBEL_FORWARD(gumbel_call_workspace(device, &problem, workspace, workspace_bytes, error));
    if (problem.batch == 0)
        return GUMBEL_OK;
    return device->backend->process(device, &problem, processed, stride, workspace, error);
}
