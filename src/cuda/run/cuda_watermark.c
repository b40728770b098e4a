/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fail.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"
#include "drafts/watermark_rows.h"

gumbel_status cuda_watermark_draws(gumbel_device *device, void *stream,
                                   const gumbel_watermark_call *call, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    const cuda_shape shape = {call->rows, CUDA_WATERMARK_THREADS, 0, 1};
    gumbel_watermark_call copy = *call;
    if (call->rows > INT32_MAX)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B rows are more than one call on CUDA takes");
    return cuda_launch_in_context(&job, cuda->watermark, shape, &copy);
}
