/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls before and after a decode step, one kernel each: compute noise ahead of time, advance
 * positions, and draw one of several parts of a vocabulary by their masses (a grouped draw).
 */
#include "core/fail.h"
#include "cuda/common/cuda_parts.h"
#include "cuda/run/cuda_calls.h"
#include "cuda/run/cuda_run.h"

gumbel_status cuda_check_draws(int64_t batch, int32_t num_samples, gumbel_error *error)
{
    if (batch > INT32_MAX / num_samples)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B * S is 2^31 or more; split the batch into several calls");
    return GUMBEL_OK;
}

gumbel_status cuda_store_noise(gumbel_device *device, const gumbel_problem *problem, float *noise,
                               int64_t noise_stride, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const gumbel_sampling *s = &problem->sampling;
    GUMBEL_FORWARD(cuda_check_draws(problem->batch, s->num_samples, error));
    cuda_job job = {.cuda = cuda, .stream = problem->stream, .error = error};
    cuda_noise_params p = {.problem = *problem, .noise = noise, .stride = noise_stride};
    int64_t tokens = problem->first_token % GUMBEL_BLOCK + problem->vocab;
    int64_t max_ctas = (int64_t)cuda->multiprocessors * CUDA_NOISE_CTAS;
    p.tiles = (tokens + CUDA_NOISE_TILE - 1) / CUDA_NOISE_TILE;
    int64_t items = p.tiles * problem->batch * s->num_samples;
    return cuda_launch_in_context(&job, cuda->noise,
                                  cuda_shape_of(items < max_ctas ? items : max_ctas), &p);
}

gumbel_status cuda_advance_step(gumbel_device *device, void *stream, const gumbel_step *step,
                                gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    GUMBEL_FORWARD(cuda_check_draws(step->batch, step->num_samples, error));
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    gumbel_step copy = *step;
    int64_t ctas = (step->batch + CUDA_ADVANCE_ROWS - 1) / CUDA_ADVANCE_ROWS;
    return cuda_launch_in_context(&job, cuda->advance,
                                  cuda_shape_of(step->position_stride ? ctas : 1), &copy);
}

gumbel_status cuda_update_rules(gumbel_device *device, void *stream,
                                const gumbel_rule_updates *updates, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    GUMBEL_FORWARD(cuda_check_draws(updates->batch, 1, error));
    cuda_job job = {.cuda = cuda, .stream = stream, .error = error};
    gumbel_rule_updates copy = *updates;
    int64_t ctas = (updates->batch + CUDA_THREADS - 1) / CUDA_THREADS;
    return cuda_launch_in_context(&job, cuda->update_rules, cuda_shape_of(ctas), &copy);
}

gumbel_status cuda_draw_group(gumbel_device *device, const gumbel_parts_call *call,
                              gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    const gumbel_problem *q = call->problem;
    int64_t draws = q->batch * q->sampling.num_samples;
    GUMBEL_FORWARD(cuda_check_draws(q->batch, q->sampling.num_samples, error));
    cuda_job job = {.cuda = cuda, .stream = q->stream, .error = error};
    cuda_parts_params p = {.problem = *q,
                           .parts = call->parts,
                           .log_masses = call->log_masses,
                           .tokens = call->tokens,
                           .drawn = call->drawn,
                           .which = call->which,
                           .lse = call->lse,
                           .status = call->status,
                           .draws = call->draws};
    int64_t draws_per_cta = call->draws ? CUDA_PARTS_THREADS : CUDA_PARTS_THREADS / 32;
    cuda_shape shape = {(draws + draws_per_cta - 1) / draws_per_cta, CUDA_PARTS_THREADS, 0, 0};
    return cuda_launch_in_context(
        &job, call->draws ? cuda->update_stream_draws : cuda->draw_group_tokens, shape, &p);
}
