/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of probabilities (eq. 13) in place of processed logits, in three steps: the largest z, the
 * exponentials and their sum, the division. The sum of a tile is rounded to an integer, so that
 * threads may add tiles in any order.
 */
#include "core/fail.h"
#include "cpu/call/cpu_job.h"
#include "cpu/rows/cpu_rows.h"
#include "cpu/cpu_policy.h"

enum { SOFTMAX_TILE = CPU_LOGITS_TILE };

/* Sums of a row, or of one thread's tiles of it. */
typedef struct row_sum {
    uint64_t mass; /* sum of exp(z - max z) in units of 2^-32 */
    float max_z;
    uint32_t flags;
} row_sum;

/* Tokens [at, at + count) of row b; z becomes the probabilities. */
typedef struct softmax_tile {
    int64_t b, at;
    float *z;
    int count;
} softmax_tile;

typedef struct softmax_job softmax_job;

/* One step over one tile; `own` holds the thread's sums of the row. */
typedef void (*softmax_step)(const softmax_job *job, const softmax_tile *tile, row_sum *own);

struct softmax_job {
    const cpu_kernels *kernels;
    const gumbel_problem *problem;
    float *rows; /* [B, V] at `stride` */
    int64_t stride;
    row_sum *sums; /* [threads, B]; the first B are the sums of whole rows */
    const softmax_step *steps;
    int count;            /* number of steps */
    int64_t width;        /* tokens of a claim: a tile, or a whole row */
    _Atomic int64_t next; /* claims so far */
};

/* ---------------------------------------------------------------------------------- steps ---- */

/* Transforms the logits of a tile. */
static void transform_tile(const softmax_job *job, const softmax_tile *tile)
{
    const gumbel_problem *p = job->problem;
    int64_t counts = p->end_token - p->first_token - tile->at;
    GUMBEL_ASSERT(tile->count > 0 && tile->count <= SOFTMAX_TILE &&
                  tile->at + tile->count <= p->vocab);
    int count = counts < 0 ? 0 : counts < tile->count ? (int)counts : tile->count;
    cpu_transform t =
        cpu_make_transform(p, gumbel_problem_row(p, tile->b).inverse_temperature, NULL);
    const char *from = (const char *)p->logits.data + (tile->b * p->logits.stride + tile->at) *
                                                          cpu_get_element_size(p->logits.dtype);
    job->kernels->transform_logits(from, p->logits.dtype, count, &t, tile->z);
    for (int i = count; i < tile->count; i++)
        tile->z[i] = -INFINITY;
}

static void find_tile_largest(const softmax_job *job, const softmax_tile *tile, row_sum *own)
{
    float maxima[SOFTMAX_TILE / GUMBEL_BLOCK], edge[GUMBEL_BLOCK], block_max;
    int blocks = tile->count / GUMBEL_BLOCK, whole = blocks * GUMBEL_BLOCK;
    if (!job->problem->features)
        transform_tile(job, tile);
    own->flags |= job->kernels->find_maxima(tile->z, blocks, maxima);
    for (int i = 0; i < GUMBEL_BLOCK; i++)
        edge[i] = whole + i < tile->count ? tile->z[whole + i] : -INFINITY;
    own->flags |= job->kernels->find_maxima(edge, 1, &block_max);
    for (int i = 0; i < blocks; i++)
        block_max = maxima[i] > block_max ? maxima[i] : block_max;
    own->max_z = block_max > own->max_z ? block_max : own->max_z;
}

static int has_tokens(const row_sum *row) { return !row->flags && row->max_z > -INFINITY; }

static void exponentiate_tile(const softmax_job *job, const softmax_tile *tile, row_sum *own)
{
    const row_sum *row = &job->sums[tile->b];
    if (!has_tokens(row))
        return;
    double sum = job->kernels->exponentiate_row(tile->z, tile->count, row->max_z);
    GUMBEL_ASSERT(sum >= 0.0 && sum <= (double)tile->count);
    own->mass += (uint64_t)(sum * 0x1p32 + 0.5);
}

static void divide_tile(const softmax_job *job, const softmax_tile *tile, row_sum *own)
{
    const row_sum *row = &job->sums[tile->b];
    float by = has_tokens(row) ? (float)(0x1p32 / (double)row->mass) : NAN;
    (void)own;
    job->kernels->scale_row(tile->z, tile->count, by);
}

/* -------------------------------------------------------------------------------- threads ---- */

/* Number of claims of a row. */
static int64_t count_claims_of_row(const softmax_job *job)
{
    return cpu_round_up(job->problem->vocab, job->width) / job->width;
}

static void run_claimed_tiles(void *argument, int32_t thread)
{
    softmax_job *job = argument;
    int64_t batch = job->problem->batch, vocab = job->problem->vocab;
    int64_t claims = count_claims_of_row(job);
    for (int64_t item; cpu_claim_item(&job->next, batch * claims, &item);) {
        int64_t b = item / claims, begin = item % claims * job->width;
        int64_t end = vocab - begin < job->width ? vocab : begin + job->width;
        GUMBEL_ASSERT(begin < end && b < batch);
        GUMBEL_ASSERT(thread >= 0);
        row_sum *own = &job->sums[claims == 1 ? b : thread * batch + b];
        for (int i = 0; i < job->count; i++)
            for (int64_t at = begin; at < end; at += SOFTMAX_TILE) {
                softmax_tile tile = {b, at, job->rows + b * job->stride + at,
                                     (int)(end - at < SOFTMAX_TILE ? end - at : SOFTMAX_TILE)};
                job->steps[i](job, &tile, own);
            }
    }
}

/* Merges the sums of all threads, with which the next step starts. */
static void merge_thread_sums(softmax_job *job, int32_t threads)
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

void cpu_compute_softmax(cpu_device *cpu, const gumbel_problem *p, float *rows, int64_t stride,
                         void *workspace)
{
    static const softmax_step steps[] = {find_tile_largest, exponentiate_tile, divide_tile};
    gumbel_cursor cursor = {workspace, 0};
    gumbel_problem_assert(p);
    GUMBEL_ASSERT(rows && stride >= p->vocab);
    softmax_job job = {.kernels = cpu->kernels,
                       .problem = p,
                       .rows = rows,
                       .stride = stride,
                       .width = p->batch >= cpu->threads ? p->vocab : SOFTMAX_TILE};
    /* The sums fit in the summaries of the threads' scratch. */
    job.sums =
        gumbel_carve_array(&cursor, (size_t)cpu->threads, (size_t)p->batch, sizeof *job.sums);
    for (int64_t i = 0; i < cpu->threads * p->batch; i++)
        job.sums[i] = (row_sum){0, -INFINITY, 0};
    /* A whole row takes all steps while it is in the caches; the tiles of a split row wait for each
     * other after every step. */
    job.count = count_claims_of_row(&job) == 1 ? 3 : 1;
    for (int first = 0; first < 3; first += job.count) {
        job.steps = steps + first;
        atomic_store(&job.next, 0);
        int32_t used = cpu_run_task(cpu, cpu_is_worth_threads(p), run_claimed_tiles, &job);
        merge_thread_sums(&job, used);
    }
}
