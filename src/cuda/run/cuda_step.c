/* SPDX-License-Identifier: Apache-2.0
 *
 * What surrounds a decode step: noise made ahead of time, positions that move on. One kernel each.
 */
#include "core/fail.h"
#include "cuda/run/cuda_run.h"

static gumbel_status check_draws(int64_t batch, int32_t num_samples, gumbel_error *error)
{
    if (batch > INT32_MAX / num_samples)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B * S is 2^31 or more, which one call on CUDA does not take");
    return GUMBEL_OK;
}

gumbel_status cuda_noise(gumbel_device *device, const gumbel_problem *problem, float *noise,
                         int64_t noise_stride, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const gumbel_sampling *s = &problem->sampling;
    GUMBEL_FORWARD(check_draws(problem->batch, s->num_samples, error));
    cuda_job job = {.cuda = cuda, .stream = problem->stream, .error = error};
    cuda_noise_params p = {.problem = *problem, .noise = noise, .stride = noise_stride};
    int64_t tokens = problem->first_token % GUMBEL_BLOCK + problem->vocab;
    int64_t most = (int64_t)cuda->multiprocessors * CUDA_NOISE_CTAS;
    p.pieces = (tokens + CUDA_NOISE_PIECE - 1) / CUDA_NOISE_PIECE;
    int64_t items = p.pieces * problem->batch * s->num_samples;
    return cuda_launch_alone(&job, cuda->noise, cuda_ctas(items < most ? items : most), &p);
}

gumbel_status cuda_advance(gumbel_device *device, void *stream, const gumbel_step *step,
                           gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    GUMBEL_FORWARD(check_draws(step->batch, step->num_samples, error));
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    gumbel_step copy = *step;
    int64_t ctas = (step->batch + CUDA_ADVANCE_ROWS - 1) / CUDA_ADVANCE_ROWS;
    return cuda_launch_alone(&job, cuda->advance, cuda_ctas(step->position_stride ? ctas : 1),
                             &copy);
}
