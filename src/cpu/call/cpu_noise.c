/* SPDX-License-Identifier: Apache-2.0
 *
 * What surrounds a decode step: noise made ahead of time, and positions that move on.
 */
#include "cpu/host/cpu_device.h"
#include "core/fail.h"
#include "cpu/cpu_policy.h"

#include <stdatomic.h>

typedef struct noise_job {
    const cpu_kernels *kernels;
    const gumbel_problem *problem;
    float *noise; /* [B, S] rows at `stride` */
    int64_t stride;
    int64_t pieces; /* of a draw: CPU_NOISE_PIECE tokens, from a multiple of it on */
    int64_t items;  /* claims: pieces times B times S */
    _Atomic int64_t next;
} noise_job;

/* Noise of the tokens [first, end): whole blocks by the kernel, the ends one by one. */
static void fill(const cpu_kernels *kernels, gumbel_stream stream, int64_t first, int64_t end,
                 float *out)
{
    int64_t low = (first + GUMBEL_BLOCK - 1) / GUMBEL_BLOCK * GUMBEL_BLOCK;
    int64_t high = end / GUMBEL_BLOCK * GUMBEL_BLOCK;
    GUMBEL_ASSERT(first <= end && end - first <= CPU_NOISE_PIECE);
    if (low >= high) {
        gumbel_fill_noise(stream, (uint32_t)first, end - first, out);
        return;
    }
    gumbel_fill_noise(stream, (uint32_t)first, low - first, out);
    kernels->noise(stream, (uint32_t)low, (int)((high - low) / GUMBEL_BLOCK), out + (low - first));
    gumbel_fill_noise(stream, (uint32_t)high, end - high, out + (high - first));
}

/* One thread's share: claim pieces until none is left. */
static void make_noise(void *argument, int32_t index)
{
    noise_job *job = argument;
    const gumbel_problem *p = job->problem;
    int32_t samples = p->sampling.num_samples;
    int64_t end = p->first_token + p->vocab;
    (void)index;
    for (int64_t item;
         (item = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->items;) {
        int64_t draw = item / job->pieces;
        int64_t first = (p->first_token / CPU_NOISE_PIECE + item % job->pieces) * CPU_NOISE_PIECE;
        int64_t low = first > p->first_token ? first : p->first_token;
        int64_t high = first + CPU_NOISE_PIECE < end ? first + CPU_NOISE_PIECE : end;
        GUMBEL_ASSERT(low < high && low >= p->first_token);
        GUMBEL_ASSERT(draw < p->batch * samples);
        gumbel_stream stream = gumbel_problem_row(p, draw / samples).stream;
        stream.sample += (uint32_t)(draw % samples);
        fill(job->kernels, stream, low, high,
             job->noise + draw * job->stride + (low - p->first_token));
    }
}

gumbel_status cpu_noise(gumbel_device *device, const gumbel_problem *p, float *noise,
                        int64_t noise_stride, gumbel_error *error)
{
    (void)error;
    cpu_device *cpu = (cpu_device *)device;
    noise_job job = {.kernels = cpu->kernels, .problem = p, .noise = noise, .stride = noise_stride};
    int64_t tokens = p->first_token % CPU_NOISE_PIECE + p->vocab;
    job.pieces = (tokens + CPU_NOISE_PIECE - 1) / CPU_NOISE_PIECE;
    job.items = job.pieces * p->batch * p->sampling.num_samples;
    GUMBEL_ASSERT(noise_stride >= p->vocab && job.pieces >= 0);
    cpu_run_task(cpu, job.items >= CPU_PARALLEL_PIECES, make_noise, &job);
    return GUMBEL_OK;
}

gumbel_status cpu_advance(gumbel_device *device, void *stream, const gumbel_step *step,
                          gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    const int32_t *slots = step->slots.of_row;
    int64_t rows = step->live_rows ? *step->live_rows : step->batch;
    int64_t width = slots ? step->slots.count : step->batch;
    size_t bytes = (size_t)step->num_samples * sizeof *step->ring;
    GUMBEL_ASSERT(rows >= 0 && rows <= step->batch);
    for (int64_t b = 0; b < rows && step->ring; b++) {
        int64_t slot = slots ? slots[b] : b;
        uint64_t position = step->position[slot * step->position_stride];
        int64_t place = (int64_t)(position % (uint64_t)step->ring_length);
        GUMBEL_ASSERT(slot >= 0 && slot < width);
        GUMBEL_ASSERT(place < step->ring_length);
        memcpy(step->ring + (place * width + slot) * step->num_samples,
               step->tokens + b * step->num_samples, bytes);
    }
    if (step->position_stride == 0)
        step->position[0]++;
    for (int64_t b = 0; b < rows && step->position_stride; b++)
        step->position[(slots ? slots[b] : b) * step->position_stride]++;
    return GUMBEL_OK;
}
