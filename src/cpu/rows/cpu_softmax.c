/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of probabilities (eq. 13) in place of processed logits: the largest z, exponentials and
 * their sum, the division. Sums of pieces are rounded to integers, which any threads may add.
 */
#include "core/fail.h"
#include "cpu/call/cpu_job.h"
#include "cpu/cpu_policy.h"

enum { PIECE = CPU_LOGITS_TILE };

/* What is known of a row, or of a thread's pieces of it. */
typedef struct row_sum {
    uint64_t mass; /* sum of exp(z - max z) in units of 2^-32 */
    float max_z;
    uint32_t flags;
} row_sum;

/* Tokens [at, at + count) of row b, which become probabilities at z. */
typedef struct row_piece {
    int64_t b, at;
    float *z;
    int count;
} row_piece;

typedef struct softmax_job softmax_job;

/* A step over one piece; `own` is the thread's sum of the row. */
typedef void (*softmax_step)(const softmax_job *job, const row_piece *piece, row_sum *own);

struct softmax_job {
    const cpu_kernels *kernels;
    const gumbel_problem *problem;
    float *rows; /* [B, V] at `stride` */
    int64_t stride;
    row_sum *sums; /* [threads, B]; the first B are those of whole rows */
    const softmax_step *steps;
    int count;            /* of the steps */
    int64_t width;        /* tokens a claim: a piece, or all of a row */
    _Atomic int64_t next; /* claim */
};

/* ---------------------------------------------------------------------------------- steps ---- */

/* z of a piece, from the logits. */
static void transform(const softmax_job *job, const row_piece *piece)
{
    const gumbel_problem *p = job->problem;
    int64_t counts = p->end_token - p->first_token - piece->at;
    GUMBEL_ASSERT(piece->count > 0 && piece->count <= PIECE &&
                  piece->at + piece->count <= p->vocab);
    int count = counts < 0 ? 0 : counts < piece->count ? (int)counts : piece->count;
    cpu_transform t =
        cpu_transform_of(p, gumbel_problem_row(p, piece->b).inverse_temperature, NULL);
    const char *from = (const char *)p->logits.data + (piece->b * p->logits.stride + piece->at) *
                                                          cpu_element_size(p->logits.dtype);
    job->kernels->transform(from, p->logits.dtype, count, &t, piece->z);
    for (int i = count; i < piece->count; i++)
        piece->z[i] = -INFINITY;
}

static void find_largest(const softmax_job *job, const row_piece *piece, row_sum *own)
{
    float peaks[PIECE / GUMBEL_BLOCK], end[GUMBEL_BLOCK], peak;
    int blocks = piece->count / GUMBEL_BLOCK, whole = blocks * GUMBEL_BLOCK;
    if (!job->problem->request)
        transform(job, piece);
    own->flags |= job->kernels->survey(piece->z, blocks, peaks);
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        end[i] = whole + i < piece->count ? piece->z[whole + i] : -INFINITY;
    own->flags |= job->kernels->survey(end, 1, &peak);
    for (int i = 0; i < blocks; i++)
        peak = peaks[i] > peak ? peaks[i] : peak;
    own->max_z = peak > own->max_z ? peak : own->max_z;
}

static int has_tokens(const row_sum *row) { return !row->flags && row->max_z > -INFINITY; }

static void exponentiate(const softmax_job *job, const row_piece *piece, row_sum *own)
{
    const row_sum *row = &job->sums[piece->b];
    if (!has_tokens(row))
        return;
    double sum = job->kernels->exponentiate(piece->z, piece->count, row->max_z);
    GUMBEL_ASSERT(sum >= 0.0 && sum <= (double)piece->count);
    own->mass += (uint64_t)(sum * 0x1p32 + 0.5);
}

static void divide(const softmax_job *job, const row_piece *piece, row_sum *own)
{
    const row_sum *row = &job->sums[piece->b];
    float by = has_tokens(row) ? (float)(0x1p32 / (double)row->mass) : NAN;
    (void)own;
    job->kernels->multiply(piece->z, piece->count, by);
}

/* -------------------------------------------------------------------------------- threads ---- */

/* Claims that take a row. */
static int64_t claims(const softmax_job *job)
{
    return cpu_rounded_up(job->problem->vocab, job->width) / job->width;
}

/* One thread's share: claim until none is left. */
static void run_share(void *argument, int32_t thread)
{
    softmax_job *job = argument;
    int64_t batch = job->problem->batch, vocab = job->problem->vocab;
    int whole_rows = claims(job) == 1;
    for (int64_t item; (item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) <
                       batch * claims(job);) {
        int64_t b = item / claims(job), begin = item % claims(job) * job->width;
        int64_t end = vocab - begin < job->width ? vocab : begin + job->width;
        GUMBEL_ASSERT(begin < end && b < batch);
        GUMBEL_ASSERT(thread >= 0);
        row_sum *own = &job->sums[whole_rows ? b : thread * batch + b];
        for (int i = 0; i < job->count; i++)
            for (int64_t at = begin; at < end; at += PIECE) {
                row_piece piece = {b, at, job->rows + b * job->stride + at,
                                   (int)(end - at < PIECE ? end - at : PIECE)};
                job->steps[i](job, &piece, own);
            }
    }
}

/* Make what the threads found one, from which each of them goes on. */
static void join_sums(softmax_job *job, int32_t threads)
{
    int64_t batch = job->problem->batch;
    for (int64_t b = 0; b < batch; b++) {
        row_sum *all = &job->sums[b];
        for (int32_t i = 1; i < threads; i++) {
            row_sum *own = &job->sums[i * batch + b];
            all->mass += own->mass;
            all->max_z = own->max_z > all->max_z ? own->max_z : all->max_z;
            all->flags |= own->flags;
            own->mass = 0;
        }
    }
}

gumbel_status cpu_softmax(gumbel_device *device, const gumbel_problem *p, const gumbel_plan *plan,
                          float *probabilities, int64_t stride, void *workspace,
                          gumbel_error *error)
{
    static const softmax_step steps[] = {find_largest, exponentiate, divide};
    cpu_device *cpu = (cpu_device *)device;
    gumbel_cursor cursor = {workspace, 0};
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(probabilities && stride >= p->vocab);
    softmax_job job = {.kernels = cpu->kernels,
                       .problem = p,
                       .rows = probabilities,
                       .stride = stride,
                       .width = p->batch >= cpu->threads ? p->vocab : PIECE};
    if (p->request)
        GUMBEL_FORWARD(cpu_process(device, p, plan, probabilities, stride, workspace, error));
    /* Less than the summaries that every thread's slot has room for. */
    job.sums =
        gumbel_carve_array(&cursor, (size_t)cpu->threads, (size_t)p->batch, sizeof *job.sums);
    for (int64_t i = 0; i < cpu->threads * p->batch; i++)
        job.sums[i] = (row_sum){0, -INFINITY, 0};
    /* A whole row takes all steps while it is in the caches; pieces of one wait for each other. */
    job.count = claims(&job) == 1 ? 3 : 1;
    for (int first = 0; first < 3; first += job.count) {
        job.steps = steps + first;
        atomic_store(&job.next, 0);
        join_sums(&job, cpu_run_task(cpu, cpu_worth_threads(p), run_share, &job));
    }
    return GUMBEL_OK;
}
