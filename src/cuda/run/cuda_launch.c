/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches a kernel, launches the merge that ends most calls, and selects some rows of a call.
 */
#include "core/fail.h"
#include "core/output.h"
#include "cuda/run/cuda_run.h"

#include <stdio.h>

/* Report the driver's error of a launch, with its shape. */
static gumbel_status fail_launch(const cuda_job *job, cuda_shape shape, CUresult result)
{
    char call[64];
    snprintf(call, sizeof call, "a launch of %d x %d threads, %d bytes", (int)shape.ctas,
             shape.threads, shape.shared_bytes);
    return cuda_driver_fail(&job->cuda->driver, result, call, job->error);
}

/* Queue a kernel with a launch attribute; NULL: none. */
static gumbel_status launch_with(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                                 CUlaunchAttribute *attribute, void **arguments)
{
    GUMBEL_ASSERT(kernel && job->cuda);
    GUMBEL_ASSERT(shape.ctas >= 1 && shape.ctas <= INT32_MAX);
    GUMBEL_ASSERT(shape.threads >= 32 && shape.threads <= 1024 && shape.threads % 32 == 0);
    GUMBEL_ASSERT(shape.shared_bytes >= 0);
    CUlaunchConfig config = {
        .gridDimX = (unsigned)shape.ctas,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = (unsigned)shape.threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)shape.shared_bytes,
        .hStream = job->stream,
        .attrs = attribute,
        .numAttrs = attribute != NULL,
    };
    CUresult result = job->cuda->driver.cuLaunchKernelEx(&config, kernel, arguments, NULL);
    return result == CUDA_SUCCESS ? GUMBEL_OK : fail_launch(job, shape, result);
}

gumbel_status cuda_launch(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                          void **arguments)
{
    CUlaunchAttribute overlap = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    const int overlaps = shape.overlaps && job->cuda->base.capability >= CUDA_SM90_CAPABILITY;
    return launch_with(job, kernel, shape, overlaps ? &overlap : NULL, arguments);
}

gumbel_status cuda_launch_cooperatively(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                                        void **arguments)
{
    CUlaunchAttribute cooperative = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    GUMBEL_ASSERT(!shape.overlaps); /* the previous launch would occupy multiprocessors */
    return launch_with(job, kernel, shape, &cooperative, arguments);
}

gumbel_status cuda_launch_in_context(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                                     void *argument)
{
    void *arguments[] = {argument};
    GUMBEL_FORWARD(cuda_push_context(job->cuda, job->error));
    gumbel_status status = cuda_launch(job, kernel, shape, arguments);
    cuda_pop_context(job->cuda);
    return status;
}

gumbel_status cuda_launch_finish(const cuda_job *job, cuda_params *p)
{
    GUMBEL_ASSERT(p->splits >= 0 && (p->summaries || p->splits == 0 || p->logits_out));
    GUMBEL_ASSERT(p->output.tokens || p->partials || p->logits_out || p->multiply_only);
    void *arguments[] = {p};
    cuda_shape shape = {p->problem.batch * p->problem.sampling.num_samples, CUDA_FINISH_THREADS, 0,
                        1};
    return p->multiply_only || p->logits_out
               ? GUMBEL_OK
               : cuda_launch(job, job->cuda->finish, shape, arguments);
}

uint64_t cuda_new_tag(cuda_device *cuda)
{
    uint64_t launches = atomic_fetch_add_explicit(&cuda->launches, 1, memory_order_relaxed);
    return gumbel_mix_seed(0, launches + 1) >> 24;
}

cuda_params cuda_select_rows(const cuda_params *whole, int64_t first, int64_t count)
{
    cuda_params p = *whole;
    int32_t samples = whole->problem.sampling.num_samples;
    int64_t draws = first * samples;
    GUMBEL_ASSERT(first >= 0 && count > 0 && first + count <= whole->problem.batch);
    p.problem = gumbel_problem_slice(&whole->problem, first, count);
    p.output = gumbel_output_slice(&whole->output, first, samples);
    p.partials = p.partials ? p.partials + draws : NULL;
    p.logits_out = p.logits_out ? p.logits_out + first * p.logits_out_stride : NULL;
    p.block_maxima = p.block_maxima ? p.block_maxima + first * p.block_maxima_stride : NULL;
    p.unseen_block_maxima =
        p.unseen_block_maxima ? p.unseen_block_maxima + first * p.block_maxima_stride : NULL;
    p.row_thresholds += draws * CUDA_THRESHOLD_WORDS;
    return p;
}
