/* SPDX-License-Identifier: Apache-2.0
 *
 * Exchanges with GPUs whose memory this one reaches, rows laid out anew, and looks at a stream.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

#define SUMMARY_WORDS ((int64_t)(sizeof(gumbel_summary) / sizeof(uint32_t)))

gumbel_status cuda_exchange(gumbel_device *device, void *stream, const gumbel_peer_exchange *e,
                            const gumbel_finish_call *call, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const gumbel_peers *peers = e->peers;
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    cuda_exchange_params p = {
        .rank = peers->rank,
        .ranks = peers->ranks,
        .room = (int64_t)peers->words,
        .words = e->words,
        .count = e->count,
        .received = e->received,
        .stride = e->stride,
        .failed = peers->failed_there,
        .timeout_ns = (uint64_t)e->timeout_ms * 1000000,
    };
    void *arguments[] = {&p};
    CUcontext popped;
    GUMBEL_ASSERT(e->count > 0 && e->count <= p.room);
    for (int32_t r = 0; r < peers->ranks; r++)
        p.mailboxes[r] = peers->mailboxes[r];
    int64_t each = CUDA_EXCHANGE_THREADS;
    if (call) {
        GUMBEL_ASSERT(e->count % SUMMARY_WORDS == 0 && call->output);
        p.output = *call->output;
        p.num_samples = call->num_samples;
        /* One warp a CTA first, so that few draws are spread over many multiprocessors. */
        each = SUMMARY_WORDS;
    }
    int64_t ctas = (e->count + each - 1) / each;
    cuda_shape shape = {ctas < CUDA_EXCHANGE_CTAS ? ctas : CUDA_EXCHANGE_CTAS,
                        CUDA_EXCHANGE_THREADS, 0, 1};
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    gumbel_status status =
        cuda_launch(&job, call ? cuda->exchange_summaries : cuda->exchange_words, shape, arguments);
    cuda->driver.cuCtxPopCurrent(&popped);
    return status;
}

gumbel_status cuda_lay(gumbel_device *device, void *stream, float *to, int64_t to_stride,
                       const float *from, int64_t from_stride, int64_t rows, int64_t columns,
                       gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    CUcontext popped;
    const CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = (CUdeviceptr)(uintptr_t)from,
        .srcPitch = (size_t)from_stride * sizeof *from,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = (CUdeviceptr)(uintptr_t)to,
        .dstPitch = (size_t)to_stride * sizeof *to,
        .WidthInBytes = (size_t)columns * sizeof *to,
        .Height = (size_t)rows,
    };
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    CUresult result = cuda->driver.cuMemcpy2DAsync(&copy, stream);
    cuda->driver.cuCtxPopCurrent(&popped);
    return result == CUDA_SUCCESS
               ? GUMBEL_OK
               : cuda_driver_fail(&cuda->driver, result, "cuMemcpy2DAsync", error);
}

gumbel_status cuda_look(gumbel_device *device, void *stream, int *done, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    CUcontext popped;
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    CUresult result = cuda->driver.cuStreamQuery(stream);
    cuda->driver.cuCtxPopCurrent(&popped);
    *done = result == CUDA_SUCCESS;
    return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY
               ? GUMBEL_OK
               : cuda_driver_fail(&cuda->driver, result, "cuStreamQuery", error);
}
