/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend's entry points: they carve the workspace and choose the kernels that serve a call.
 */
#include "core/fail.h"
#include "core/workspace.h"
#include "cuda/cuda_run.h"

typedef struct cuda_room {
    gumbel_summary *summaries; /* [parts][B, S] of one slice after the other */
    uint64_t *floors;          /* [B, S][CUDA_FLOOR_WORDS] */
} cuda_room;

static cuda_room carve(gumbel_cursor *cursor, const cuda_device *cuda, size_t batch, size_t samples)
{
    size_t draws, count = SIZE_MAX, sms = (size_t)cuda->multiprocessors;
    if (!__builtin_mul_overflow(batch, samples, &draws)) {
        size_t side = samples < CUDA_LOGITS_SAMPLES ? samples : CUDA_LOGITS_SAMPLES;
        size_t portable = sms * CUDA_NAIVE_CTAS * side;
        size_t sm80 =
            CUDA_SM80_CTAS_MOST * sms * (draws < CUDA_SM80_STATES ? draws : CUDA_SM80_STATES);
        size_t sm90 = sms * (draws < CUDA_SM90_STATES ? draws : CUDA_SM90_STATES);
        count = draws > portable ? draws : portable;
        count = count > sm80 ? count : sm80;
        count = count > sm90 ? count : sm90;
    }
    cuda_room room;
    room.summaries = gumbel_carve(cursor, count, 1, sizeof(gumbel_summary));
    room.floors = gumbel_carve(cursor, batch, samples, CUDA_FLOOR_WORDS * sizeof(uint64_t));
    return room;
}

size_t cuda_workspace_size(const gumbel_device *device, int64_t batch, int64_t hidden_size,
                           int32_t num_samples)
{
    gumbel_cursor cursor = {0};
    (void)hidden_size;
    carve(&cursor, (const cuda_device *)device, (size_t)batch, (size_t)num_samples);
    return cursor.used;
}

static gumbel_status run(const cuda_job *job)
{
    const gumbel_problem *p = &job->params.problem;
    cuda_params nothing = job->params;
    if (p->batch > INT32_MAX / p->sampling.num_samples)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B * S is 2^31 or more, which one call on CUDA does not take");
    if (p->end_token <= p->first_token)
        return cuda_finish(job, &nothing);
    if (p->hidden_size == 0)
        return cuda_run_logits(job);
    if (cuda_sm90_serves(job->cuda->capability, p))
        return cuda_run_sm90(job);
    return cuda_sm80_serves(p) ? cuda_run_sm80(job) : cuda_run_naive(job);
}

/* Run with the device's context current. */
static gumbel_status start(gumbel_device *device, const gumbel_problem *problem, void *workspace,
                           cuda_job *job, gumbel_error *error)
{
    cuda_device *cuda = (cuda_device *)device;
    gumbel_cursor cursor = {workspace, 0};
    cuda_room room =
        carve(&cursor, cuda, (size_t)problem->batch, (size_t)problem->sampling.num_samples);
    CUcontext popped;
    job->cuda = cuda;
    job->stream = problem->sampling.stream;
    job->error = error;
    job->params.problem = *problem;
    job->params.inverse_cap = problem->soft_cap > 0.0f ? 1.0f / problem->soft_cap : 0.0f;
    job->params.summaries = room.summaries;
    job->params.shared_floors = room.floors;
    CUDA_TRY(&cuda->driver, error, cuCtxPushCurrent, cuda->context);
    gumbel_status status = run(job);
    cuda->driver.cuCtxPopCurrent(&popped);
    return status;
}

gumbel_status cuda_partial(gumbel_device *device, const gumbel_problem *problem,
                           gumbel_summary *summaries, void *workspace, gumbel_error *error)
{
    cuda_job job = {.params.partials = summaries};
    return start(device, problem, workspace, &job, error);
}

gumbel_status cuda_sample(gumbel_device *device, const gumbel_problem *problem,
                          const gumbel_output *output, void *workspace, gumbel_error *error)
{
    cuda_job job = {.params.output = *output};
    return start(device, problem, workspace, &job, error);
}

gumbel_status cuda_multiply(gumbel_device *device, const gumbel_problem *problem, void *workspace,
                            gumbel_error *error)
{
    cuda_job job = {.params.multiply_only = 1};
    return start(device, problem, workspace, &job, error);
}
