/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls around a draw from a head over a subset of the vocabulary, one kernel each: the noise of a
 * table of token ids before it, and the map from rows to ids after it.
 */
#include "core/fail.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"

gumbel_status cuda_store_table_noise(gumbel_device *device, const gumbel_problem *problem,
                                     float *noise, int64_t noise_stride, uint32_t *mask,
                                     gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const int32_t samples = problem->sampling.num_samples;
    GUMBEL_FORWARD(cuda_check_draws(problem->batch, samples, error));
    cuda_job job = {.cuda = cuda, .stream = problem->stream, .error = error};
    cuda_noise_params p = {
        .problem = *problem, .noise = noise, .stride = noise_stride, .mask = mask};
    const int64_t max_ctas = (int64_t)cuda->multiprocessors * CUDA_NOISE_CTAS;
    p.tiles = (problem->vocab + CUDA_TABLE_TILE - 1) / CUDA_TABLE_TILE;
    const int64_t items = p.tiles * problem->batch * samples;
    GUMBEL_ASSERT(problem->sampling.token_ids && problem->first_token == 0);
    return cuda_launch_in_context(&job, cuda->table_noise,
                                  cuda_shape_of(items < max_ctas ? items : max_ctas), &p);
}

/* The most elements of a row of the outputs that every thread maps. */
static int64_t count_row_elements(const gumbel_output *output, int32_t num_samples)
{
    int64_t count = num_samples;
    if (output->top_ids && output->num_top > count)
        count = output->num_top;
    if (output->best_ids && output->num_best > count)
        count = output->num_best;
    return count;
}

gumbel_status cuda_map_token_ids(gumbel_device *device, const gumbel_problem *problem,
                                 const gumbel_output *output, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const int32_t samples = problem->sampling.num_samples;
    const int64_t max_ctas = (int64_t)cuda->multiprocessors * CUDA_NOISE_CTAS;
    cuda_job job = {.cuda = cuda, .stream = problem->stream, .error = error};
    cuda_token_ids_params p = {.ids = problem->sampling.token_ids,
                               .batch = problem->batch,
                               .num_samples = samples,
                               .output = *output};
    const int64_t elements = problem->batch * count_row_elements(output, samples);
    int64_t ctas = (elements + CUDA_THREADS - 1) / CUDA_THREADS;
    if (output->kept_ids && ctas < problem->batch)
        ctas = problem->batch;
    return cuda_launch_in_context(&job, cuda->map_token_ids,
                                  cuda_shape_of(ctas < max_ctas ? ctas : max_ctas), &p);
}
