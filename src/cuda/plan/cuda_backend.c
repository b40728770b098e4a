/* SPDX-License-Identifier: Apache-2.0
 *
 * The backend's entry points: they carve the workspace and choose the kernels that serve a call.
 */
#include "core/fail.h"
#include "core/workspace.h"
#include "cuda/plan/cuda_run.h"

typedef struct cuda_room {
    gumbel_summary *summaries; /* [parts][B, S] of one slice after the other */
    uint64_t *floors;          /* [B, S][CUDA_FLOOR_WORDS] */
    float *logits;             /* [B, V] of a request from a head */
} cuda_room;

/* Elements from one row of stored logits to the next. */
static int64_t stored_stride(const gumbel_problem *p) { return (p->vocab + 3) / 4 * 4; }

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

static void carve_logits(gumbel_cursor *cursor, const gumbel_problem *p, cuda_room *room)
{
    size_t rows = p->request && p->hidden_size > 0 ? (size_t)p->batch : 0;
    room->logits = gumbel_carve(cursor, rows, (size_t)stored_stride(p), sizeof(float));
}

/* Masses, of which is not known yet whether they are asked for, may be served in another way. */
size_t cuda_request_size(const gumbel_device *device, const gumbel_problem *problem)
{
    size_t most = 0;
    for (int with_mass = 0; with_mass < 2; with_mass++) {
        gumbel_problem asked = *problem;
        gumbel_cursor cursor = {0};
        cuda_room room;
        asked.with_mass = with_mass;
        carve_logits(&cursor, &asked, &room);
        cuda_carve_request(&cursor, (const cuda_device *)device, &asked, asked.hidden_size > 0);
        most = cursor.used > most ? cursor.used : most;
    }
    return most;
}

/* The fused way, with the kernels that serve the call. */
static gumbel_status run_fused(const cuda_job *job)
{
    const gumbel_problem *p = &job->params.problem;
    if (cuda_sm90_serves(job->cuda->capability, p))
        return cuda_run_sm90(job);
    return cuda_sm80_serves(p) ? cuda_run_sm80(job) : cuda_run_naive(job);
}

/* A request from logits, and the logits of what it lists. */
static gumbel_status run_request(const cuda_job *job, gumbel_cursor rest)
{
    const gumbel_problem *p = &job->params.problem;
    cuda_params params = job->params;
    void *arguments[] = {&params};
    GUMBEL_FORWARD(cuda_run_request(job, rest));
    if (!(p->request & GUMBEL_REQUEST_LOGITS))
        return GUMBEL_OK;
    int64_t ids = p->batch * params.output.num_top;
    cuda_shape shape = {(ids + CUDA_THREADS - 1) / CUDA_THREADS, CUDA_THREADS, 0, 1};
    return cuda_launch(job, job->cuda->gather, shape, arguments);
}

/* A request from a head: the product's logits are stored, and the request is served from them. */
static gumbel_status run_stored(const cuda_job *job, float *logits, gumbel_cursor rest)
{
    const gumbel_problem *p = &job->params.problem;
    cuda_job product = *job, again, request = *job;
    product.params.stored = logits;
    product.params.stored_stride = stored_stride(p);
    request.params.stored = logits;
    request.params.stored_stride = stored_stride(p);
    request.params.problem.hidden_size = 0;
    request.params.problem.logits =
        (gumbel_tensor){logits, GUMBEL_FLOAT32, p->batch, p->vocab, stored_stride(p)};
    if (cuda_sm90_serves(job->cuda->capability, p)) {
        gumbel_cursor ahead = rest;
        cuda_request_room room = cuda_carve_request(&ahead, job->cuda, p, 1);
        product.params.peaks = room.peaks;
        product.params.peaks_stride = cuda_request_blocks(p);
        product.params.again = room.again;
        again = product;
        product.params.written = room.written;
        product.params.unseen = room.unseen;
        request.params.peaks = product.params.peaks;
        product.params.draws_too =
            room.told && cuda_sm90_is_plain(p) && CUDA_SM90_HAS_BOTH(p->batch);
        cuda_clear_told(&product.params, &room);
        request.params.draws_too = product.params.draws_too;
        request.again = room.again ? &again : NULL;
    }
    if (p->end_token > p->first_token)
        GUMBEL_FORWARD(run_fused(&product));
    return run_request(&request, rest);
}

static gumbel_status run(const cuda_job *job, const cuda_room *room, gumbel_cursor rest)
{
    const gumbel_problem *p = &job->params.problem;
    cuda_params nothing = job->params;
    if (p->batch > INT32_MAX / p->sampling.num_samples)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B * S is 2^31 or more, which one call on CUDA does not take");
    if (p->request && !job->params.multiply_only)
        return p->hidden_size > 0 ? run_stored(job, room->logits, rest) : run_request(job, rest);
    if (p->end_token <= p->first_token)
        return cuda_finish(job, &nothing);
    return p->hidden_size == 0 ? cuda_run_logits(job) : run_fused(job);
}

/* Only requests whose product leaves logits out have more to say than 0. */
static gumbel_status clear_recomputed(const cuda_job *job)
{
    CUdeviceptr recomputed = (CUdeviceptr)(uintptr_t)job->params.output.recomputed;
    if (recomputed)
        CUDA_TRY(&job->cuda->driver, job->error, cuMemsetD32Async, recomputed, 0,
                 (size_t)job->params.problem.batch, job->stream);
    return GUMBEL_OK;
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
    carve_logits(&cursor, problem, &room);
    job->cuda = cuda;
    job->stream = problem->sampling.stream;
    job->error = error;
    job->params.problem = *problem;
    job->params.inverse_cap = cuda_inverse_cap(problem);
    job->params.summaries = room.summaries;
    job->params.shared_floors = room.floors;
    GUMBEL_FORWARD(cuda_enter(cuda, error));
    gumbel_status status = clear_recomputed(job);
    if (status == GUMBEL_OK)
        status = run(job, &room, cursor);
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
