/* SPDX-License-Identifier: Apache-2.0
 *
 * Heads over a subset of the vocabulary: the noise of the tokens of a table, and the map from rows
 * to their ids.
 */
#include "cpu/call/cpu_calls.h"

#include "cpu/host/cpu_device.h"
#include "core/fail.h"
#include "core/row.h"
#include "cpu/cpu_policy.h"

typedef struct table_job {
    const cpu_kernels *kernels;
    const gumbel_problem *problem;
    float *noise; /* [B, S] rows, `stride` apart */
    int64_t stride;
    int64_t row_tiles; /* tiles of a row: CPU_TABLE_TILE ids each */
    int64_t items;     /* tiles of all rows, each computed by the thread that claims it */
    _Atomic int64_t next;
} table_job;

/* Computes the noise of `count` ids. Of a run of ids in one block, as ascending tables have them,
 * the kernel computes the whole block. */
static void fill_table_tile(const cpu_kernels *kernels, gumbel_stream stream, const int32_t *ids,
                            int64_t count, float *out)
{
    float block[GUMBEL_BLOCK];
    for (int64_t i = 0, end; i < count; i = end) {
        const int32_t in_block = ids[i] / GUMBEL_BLOCK;
        end = i + 1;
        while (end < count && ids[end] / GUMBEL_BLOCK == in_block)
            end++;
        const int is_run = end - i >= CPU_TABLE_RUN;
        if (is_run)
            kernels->make_noise(stream, (uint32_t)in_block * GUMBEL_BLOCK, 1, block);
        for (int64_t j = i; j < end; j++)
            out[j] = is_run ? block[ids[j] % GUMBEL_BLOCK]
                            : gumbel_noise_of_token(stream, (uint32_t)ids[j]);
    }
}

/* Computes tiles until all are claimed; each thread runs it. */
static void fill_claimed_tiles(void *argument, int32_t thread)
{
    table_job *job = argument;
    const gumbel_problem *p = job->problem;
    const int32_t samples = p->sampling.num_samples;
    (void)thread;
    for (int64_t item; cpu_claim_item(&job->next, job->items, &item);) {
        const int64_t draw = item / job->row_tiles, first = item % job->row_tiles * CPU_TABLE_TILE;
        const int64_t rest = p->vocab - first;
        GUMBEL_ASSERT(draw < p->batch * samples && rest > 0);
        gumbel_stream stream = gumbel_problem_row(p, draw / samples).stream;
        stream.sample += (uint32_t)(draw % samples);
        fill_table_tile(job->kernels, stream, p->sampling.token_ids + first,
                        rest < CPU_TABLE_TILE ? rest : CPU_TABLE_TILE,
                        job->noise + draw * job->stride + first);
    }
}

gumbel_status cpu_compute_table_noise(gumbel_device *device, const gumbel_problem *p, float *noise,
                                      int64_t noise_stride, uint32_t *mask, gumbel_error *error)
{
    cpu_device *cpu = (cpu_device *)device;
    table_job job = {.kernels = cpu->kernels, .problem = p, .noise = noise, .stride = noise_stride};
    (void)error, (void)mask;
    GUMBEL_ASSERT(!mask && p->sampling.token_ids && noise_stride >= p->vocab);
    job.row_tiles = (p->vocab + CPU_TABLE_TILE - 1) / CPU_TABLE_TILE;
    job.items = job.row_tiles * p->batch * p->sampling.num_samples;
    cpu_run_task(cpu, job.items >= CPU_PARALLEL_TILES, fill_claimed_tiles, &job);
    return GUMBEL_OK;
}

/* Replaces rows of the weights by their ids; -1 stands for no token. */
static void replace_rows(const gumbel_problem *p, int32_t *rows, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        GUMBEL_ASSERT(rows[i] >= -1 && rows[i] < p->vocab);
        if (rows[i] >= 0)
            rows[i] = p->sampling.token_ids[rows[i]];
    }
}

gumbel_status cpu_map_token_ids(gumbel_device *device, const gumbel_problem *p,
                                const gumbel_output *output, gumbel_error *error)
{
    const int64_t batch = p->batch;
    (void)device, (void)error;
    replace_rows(p, output->tokens, batch * p->sampling.num_samples);
    if (output->top_ids)
        replace_rows(p, output->top_ids, batch * output->num_top);
    if (output->best_ids)
        replace_rows(p, output->best_ids, batch * output->num_best);
    for (int64_t b = 0; b < batch && output->kept_ids; b++)
        if (output->kept[b] <= output->kept_capacity)
            replace_rows(p, output->kept_ids + b * output->kept_capacity, output->kept[b]);
    return GUMBEL_OK;
}
