/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes noise ahead of a decode step; after one, advances positions and updates parameters.
 */
#include "cpu/call/cpu_calls.h"

#include "cpu/host/cpu_device.h"
#include "core/fail.h"
#include "core/rule_updates.h"
#include "cpu/cpu_policy.h"

typedef struct noise_job {
    const cpu_kernels *kernels;
    const gumbel_problem *problem;
    float *noise; /* [B, S] rows, `stride` apart */
    int64_t stride;
    int64_t row_tiles; /* tiles of a row: CPU_NOISE_TILE tokens, from a multiple of that number */
    int64_t items;     /* tiles of all rows, each computed by the thread that claims it */
    _Atomic int64_t next;
} noise_job;

/* Computes the noise of tokens [first, end): whole blocks by the kernel, others one by one. */
static void fill_noise_tile(const cpu_kernels *kernels, gumbel_stream stream, int64_t first,
                            int64_t end, float *out)
{
    int64_t blocks_first = (first + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK * GUMBEL_BLOCK;
    int64_t blocks_end = end / GUMBEL_BLOCK * GUMBEL_BLOCK;
    GUMBEL_ASSERT(first <= end && end - first <= CPU_NOISE_TILE);
    if (blocks_first >= blocks_end) {
        gumbel_fill_noise(stream, (uint32_t)first, end - first, out);
        return;
    }
    gumbel_fill_noise(stream, (uint32_t)first, blocks_first - first, out);
    kernels->make_noise(stream, (uint32_t)blocks_first,
                        (int)((blocks_end - blocks_first) / GUMBEL_BLOCK),
                        out + (blocks_first - first));
    gumbel_fill_noise(stream, (uint32_t)blocks_end, end - blocks_end, out + (blocks_end - first));
}

/* Computes tiles until all are claimed; each thread runs it. */
static void fill_claimed_tiles(void *argument, int32_t thread)
{
    noise_job *job = argument;
    const gumbel_problem *p = job->problem;
    int32_t samples = p->sampling.num_samples;
    int64_t end = p->first_token + p->vocab;
    (void)thread;
    for (int64_t item; cpu_claim_item(&job->next, job->items, &item);) {
        int64_t draw = item / job->row_tiles;
        int64_t tile_first =
            (p->first_token / CPU_NOISE_TILE + item % job->row_tiles) * CPU_NOISE_TILE;
        int64_t tile_end = tile_first + CPU_NOISE_TILE < end ? tile_first + CPU_NOISE_TILE : end;
        tile_first = tile_first > p->first_token ? tile_first : p->first_token;
        GUMBEL_ASSERT(tile_first < tile_end && tile_first >= p->first_token);
        GUMBEL_ASSERT(draw < p->batch * samples);
        gumbel_stream stream = gumbel_problem_row(p, draw / samples).stream;
        stream.sample += (uint32_t)(draw % samples);
        fill_noise_tile(job->kernels, stream, tile_first, tile_end,
                        job->noise + draw * job->stride + (tile_first - p->first_token));
    }
}

gumbel_status cpu_compute_noise(gumbel_device *device, const gumbel_problem *p, float *noise,
                                int64_t noise_stride, gumbel_error *error)
{
    (void)error;
    cpu_device *cpu = (cpu_device *)device;
    noise_job job = {.kernels = cpu->kernels, .problem = p, .noise = noise, .stride = noise_stride};
    int64_t tokens = p->first_token % CPU_NOISE_TILE + p->vocab;
    job.row_tiles = (tokens + CPU_NOISE_TILE - 1) / CPU_NOISE_TILE;
    job.items = job.row_tiles * p->batch * p->sampling.num_samples;
    GUMBEL_ASSERT(noise_stride >= p->vocab && job.row_tiles >= 0);
    cpu_run_task(cpu, job.items >= CPU_PARALLEL_TILES, fill_claimed_tiles, &job);
    return GUMBEL_OK;
}

gumbel_status cpu_advance_positions(gumbel_device *device, void *stream, const gumbel_step *step,
                                    gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    const int32_t *slots = step->slots.of_row;
    int64_t rows = step->live_rows ? *step->live_rows : step->batch;
    int64_t ring_rows = slots ? step->slots.count : step->batch; /* of one step in the ring */
    size_t bytes = (size_t)step->num_samples * sizeof *step->ring;
    GUMBEL_ASSERT(rows >= 0 && rows <= step->batch);
    for (int64_t b = 0; b < rows && step->ring; b++) {
        int64_t slot = slots ? slots[b] : b;
        uint64_t position = step->position[slot * step->position_stride];
        int64_t ring_step = (int64_t)(position % (uint64_t)step->ring_length);
        GUMBEL_ASSERT(slot >= 0 && slot < ring_rows);
        GUMBEL_ASSERT(ring_step < step->ring_length);
        memcpy(step->ring + (ring_step * ring_rows + slot) * step->num_samples,
               step->tokens + b * step->num_samples, bytes);
    }
    if (step->position_stride == 0)
        step->position[0]++;
    for (int64_t b = 0; b < rows && step->position_stride; b++)
        step->position[(slots ? slots[b] : b) * step->position_stride]++;
    return GUMBEL_OK;
}

gumbel_status cpu_update_rules(gumbel_device *device, void *stream,
                               const gumbel_rule_updates *updates, gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    for (int64_t b = 0; b < updates->batch; b++)
        gumbel_update_row_rules(updates, b);
    return GUMBEL_OK;
}
