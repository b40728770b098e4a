/* SPDX-License-Identifier: Apache-2.0
 *
 * Merges the summaries of a vocabulary and writes outputs.
 */
#include "core/fail.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"

gumbel_status cuda_finish_summaries(gumbel_device *device, void *stream,
                                    const gumbel_finish_call *call, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    /* The kernel does not write summaries. */
    cuda_params p = {
        .problem = {.batch = call->batch, .sampling = {.num_samples = call->num_samples}},
        .summaries = (gumbel_summary *)(uintptr_t)call->summaries,
        .splits = call->parts,
        .partials = call->merged};
    void *arguments[] = {&p};
    if (call->output)
        p.output = *call->output;
    if (call->batch > INT32_MAX / call->num_samples)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B * S is 2^31 or more; split the batch into several calls");
    cuda_shape shape = {call->batch * call->num_samples, CUDA_FINISH_THREADS, 0, 1};
    GUMBEL_FORWARD(cuda_push_context(cuda, error));
    gumbel_status status = cuda_launch(&job, cuda->finish_any, shape, arguments);
    cuda_pop_context(cuda);
    return status;
}
