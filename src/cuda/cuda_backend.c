/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher: carves the workspace, cuts a call into slices that one launch takes, and queues
 * their kernels on the caller's stream. Nothing here waits.
 */
#include "core/fail.h"
#include "core/workspace.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_params.h"

#define FINISH_THREADS 128

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
        size_t fused = sms * (draws < CUDA_SM90_STATES ? draws : CUDA_SM90_STATES);
        count = draws > portable ? draws : portable;
        count = count > fused ? count : fused;
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

/* One call on its way. */
typedef struct cuda_job {
    cuda_device *cuda;
    cuda_params params; /* of the whole call */
    CUstream stream;
    gumbel_error *error;
} cuda_job;

typedef struct cuda_shape {
    int64_t ctas;
    int threads;
    int shared_bytes;
    int overlaps; /* may start while the launch before it ends */
} cuda_shape;

static gumbel_status launch(const cuda_job *job, CUfunction kernel, cuda_shape shape,
                            void **arguments)
{
    CUlaunchAttribute overlap = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value.programmaticStreamSerializationAllowed = 1,
    };
    CUlaunchConfig config = {
        .gridDimX = (unsigned)shape.ctas,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = (unsigned)shape.threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = (unsigned)shape.shared_bytes,
        .hStream = job->stream,
        .attrs = &overlap,
        .numAttrs = shape.overlaps && job->cuda->capability >= CUDA_SM90_CAPABILITY,
    };
    CUDA_TRY(&job->cuda->driver, job->error, cuLaunchKernelEx, &config, kernel, arguments, NULL);
    return GUMBEL_OK;
}

/* Merge what the parts of a slice found; p->parts may be 0. */
static gumbel_status finish(const cuda_job *job, cuda_params *p)
{
    void *arguments[] = {p};
    cuda_shape shape = {p->problem.batch * p->problem.sampling.num_samples, FINISH_THREADS, 0, 1};
    return p->multiply_only ? GUMBEL_OK : launch(job, job->cuda->finish, shape, arguments);
}

/* Tokens that count, from the block on that holds the first one. */
static int64_t block_range(const gumbel_problem *p)
{
    return p->end_token - p->first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
}

static gumbel_status run_naive(const cuda_job *job)
{
    cuda_params p = job->params;
    int64_t batch = p.problem.batch, groups = (batch + CUDA_NAIVE_ROWS - 1) / CUDA_NAIVE_ROWS;
    int64_t parts = cuda_parts_most((int64_t)job->cuda->multiprocessors * CUDA_NAIVE_CTAS, batch,
                                    p.problem.sampling.num_samples);
    p.chunk = cuda_chunk(block_range(&p.problem), parts, GUMBEL_BLOCK);
    p.parts = (int32_t)((block_range(&p.problem) + p.chunk - 1) / p.chunk);
    void *arguments[] = {&p};
    cuda_shape shape = {p.parts * groups, CUDA_THREADS, 0, 0};
    GUMBEL_FORWARD(launch(job, job->cuda->naive, shape, arguments));
    return finish(job, &p);
}

static gumbel_status run_logits(const cuda_job *job)
{
    cuda_params p = job->params;
    int64_t batch = p.problem.batch, range = block_range(&p.problem);
    int32_t samples = p.problem.sampling.num_samples;
    int64_t groups = (samples + CUDA_LOGITS_SAMPLES - 1) / CUDA_LOGITS_SAMPLES;
    int64_t parts =
        cuda_parts_most((int64_t)job->cuda->multiprocessors * CUDA_LOGITS_CTAS, batch, samples);
    p.chunk = cuda_chunk(range, parts, CUDA_LOGITS_STEP);
    p.parts = (int32_t)((range + p.chunk - 1) / p.chunk);
    void *arguments[] = {&p};
    cuda_shape shape = {p.parts * batch * groups, CUDA_THREADS, 0, 0};
    CUfunction kernel = job->cuda->logits[cuda_dtype_of(p.problem.logits.dtype)];
    GUMBEL_FORWARD(launch(job, kernel, shape, arguments));
    return finish(job, &p);
}

/* --------------------------------------------------------------- the fused way on Hopper ---- */

/* The rows [first, first + count) of a call. */
static cuda_params slice(const cuda_params *whole, int64_t first, int64_t count)
{
    cuda_params p = *whole;
    gumbel_problem *q = &p.problem;
    gumbel_sampling *s = &q->sampling;
    gumbel_output *out = &p.output;
    int64_t draws = first * s->num_samples;
    q->batch = count;
    q->first_row += first;
    q->hidden.rows = count;
    q->hidden.data = (const uint16_t *)q->hidden.data + first * q->hidden.stride;
    s->temperature = s->temperature ? s->temperature + first * s->temperature_stride : NULL;
    s->seed = s->seed ? s->seed + first * s->seed_stride : NULL;
    s->position = s->position ? s->position + first * s->position_stride : NULL;
    out->tokens = out->tokens ? out->tokens + draws : NULL;
    out->logprobs = out->logprobs ? out->logprobs + draws : NULL;
    out->scores = out->scores ? out->scores + draws : NULL;
    out->lse = out->lse ? out->lse + first : NULL;
    out->status = out->status ? out->status + first : NULL;
    p.partials = p.partials ? p.partials + draws : NULL;
    p.shared_floors += draws * CUDA_FLOOR_WORDS;
    return p;
}

static CUtensorMapDataType map_dtype(gumbel_dtype dtype)
{
    return dtype == GUMBEL_FLOAT16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                   : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

static gumbel_status encode(const cuda_job *job, CUtensorMap *map, const gumbel_tensor *t, int rank,
                            const cuuint64_t *sizes, const cuuint64_t *strides,
                            const cuuint32_t *box)
{
    static const cuuint32_t every[5] = {1, 1, 1, 1, 1};
    CUDA_TRY(&job->cuda->driver, job->error, cuTensorMapEncodeTiled, map, map_dtype(t->dtype),
             (cuuint32_t)rank, (void *)(uintptr_t)t->data, sizes, strides, box, every,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return GUMBEL_OK;
}

/* Weight row 16 d + 4 b + 2 a + c at (d, c, b, a): the order that the kernel's head explains. */
static gumbel_status encode_weight(const cuda_job *job, CUtensorMap *map)
{
    const gumbel_tensor *t = &job->params.problem.weight;
    cuuint64_t row = (cuuint64_t)t->stride * sizeof(uint16_t);
    cuuint64_t sizes[5] = {(cuuint64_t)t->cols, 2, 4, 2, (cuuint64_t)t->rows / 16};
    cuuint64_t strides[4] = {2 * row, 4 * row, row, 16 * row};
    cuuint32_t box[5] = {64, 2, 4, 2, CUDA_SM90_TILE / 16};
    return encode(job, map, t, 5, sizes, strides, box);
}

static gumbel_status encode_hidden(const cuda_job *job, CUtensorMap *map, const gumbel_tensor *t,
                                   int width)
{
    cuuint64_t sizes[2] = {(cuuint64_t)t->cols, (cuuint64_t)t->rows};
    cuuint64_t strides[1] = {(cuuint64_t)t->stride * sizeof(uint16_t)};
    cuuint32_t box[2] = {64, (cuuint32_t)width};
    return encode(job, map, t, 2, sizes, strides, box);
}

static gumbel_status run_fused_sm90(const cuda_job *job)
{
    cuda_device *cuda = job->cuda;
    const gumbel_problem *whole = &job->params.problem;
    CUtensorMap weight, hidden;
    int64_t most = cuda_sm90_rows_most(whole->sampling.num_samples, whole->with_mass);
    int64_t tokens = whole->end_token - whole->first_token;
    int32_t tiles = (int32_t)((tokens + CUDA_SM90_TILE - 1) / CUDA_SM90_TILE);
    GUMBEL_FORWARD(encode_weight(job, &weight));
    for (int64_t first = 0; first < whole->batch; first += most) {
        int64_t rows = whole->batch - first < most ? whole->batch - first : most;
        int width = cuda_sm90_width_for(rows);
        cuda_params p = slice(&job->params, first, rows);
        uint64_t launches = atomic_fetch_add_explicit(&cuda->launches, 1, memory_order_relaxed);
        p.tiles = tiles;
        p.parts = tiles < cuda->multiprocessors ? tiles : cuda->multiprocessors;
        p.tag = gumbel_mix_seed(0, launches + 1) >> 24;
        GUMBEL_FORWARD(encode_hidden(job, &hidden, &p.problem.hidden, cuda_sm90_widths[width]));
        void *arguments[] = {&p, &weight, &hidden};
        cuda_shape shape = {p.parts, CUDA_SM90_THREADS, CUDA_SM90_SHARED_BYTES, 0};
        CUfunction kernel = cuda->fused_sm90[cuda_dtype_of(whole->weight.dtype)][width];
        GUMBEL_FORWARD(launch(job, kernel, shape, arguments));
        GUMBEL_FORWARD(finish(job, &p));
    }
    return GUMBEL_OK;
}

/* ----------------------------------------------------------------------------- the jobs ---- */

static gumbel_status run(const cuda_job *job)
{
    const gumbel_problem *p = &job->params.problem;
    cuda_params nothing = job->params;
    if (p->batch > INT32_MAX / p->sampling.num_samples)
        return gumbel_fail(job->error, GUMBEL_ERROR_UNSUPPORTED, "batch",
                           "B * S is 2^31 or more, which one call on CUDA does not take");
    if (p->end_token <= p->first_token)
        return finish(job, &nothing);
    if (p->hidden_size == 0)
        return run_logits(job);
    return cuda_sm90_serves(job->cuda->capability, p) ? run_fused_sm90(job) : run_naive(job);
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
