/* SPDX-License-Identifier: Apache-2.0
 *
 * What the Hopper kernel keeps in shared memory beside its ring of stages, for N columns (batch
 * rows, padded) and S samples. A draw is a column and a sample; draw i is column i % N of sample
 * i / N. A draw's owner is the consumer thread of its number.
 */
#ifndef GUMBEL_CUDA_SHARED_SM90_CUH
#define GUMBEL_CUDA_SHARED_SM90_CUH

#include "core/summary.h"
#include "cuda/cuda_params.h"
#include "cuda/merge.cuh"
#include "cuda/ptx.cuh"

#include <limits.h>

#define SM90_DEPTH         64 /* elements of D a stage */
#define SM90_WEIGHT_BYTES  (CUDA_SM90_TILE * SM90_DEPTH * 2)
#define SM90_DRAW_THREADS  256
#define SM90_NOISE_THREADS 96
#define SM90_WARPS         (SM90_DRAW_THREADS / 32)

/* Named barrier of the threads that draw; 0 is __syncthreads(). */
#define SM90_DRAWING 1

/* Offers of a warp that wait until a whole warp can score them: 31, and 32 more. */
#define SM90_OFFERS 64

namespace
{

/* Wait for all threads that draw. */
__device__ __forceinline__ void drawing_sync()
{
    asm volatile("bar.sync %0, %1;" ::"n"(SM90_DRAWING), "n"(SM90_DRAW_THREADS) : "memory");
}

__device__ __forceinline__ int sm90_depths(const cuda_params &p)
{
    return (int)((p.problem.hidden_size + SM90_DEPTH - 1) / SM90_DEPTH);
}

/* A draw's parameters. */
struct sm90_draw {
    uint64_t seed;
    uint32_t position, sample;
    float inverse_temperature;
    int greedy;
};

/* The screen of a draw: z becomes z * slope + offset (cuda/screen_sm90.cuh). */
struct sm90_screen {
    float slope, offset;
};

/* A token that passed the screen. */
struct sm90_offer {
    float z;
    uint32_t place; /* its draw, 8 bits; then its token in the tile, 7; then the CTA's turn */
};

/* The best token of a draw, so that a 128-bit compare-and-swap keeps it whole. */
struct __align__(16) sm90_best
{
    float score, z;
    int id;
    uint32_t none;

    __device__ __forceinline__ ulonglong2 bits() const
    {
        return {__float_as_uint(score) | (uint64_t)__float_as_uint(z) << 32,
                (uint32_t)id | (uint64_t)none << 32};
    }
};

template <int n> struct shared_sm90 {
    static constexpr int stage_bytes = SM90_WEIGHT_BYTES + n * SM90_DEPTH * 2;

    unsigned char *stages;
    unsigned char *noise; /* [S][64 n] bytes (cuda/noise_sm90.cuh) */
    sm90_best *best;      /* [S][n] */
    sm90_screen *screens; /* [S][n] */
    sm90_draw *draws;     /* [S][n] */
    float2 *masses;       /* [8 warps][n], with the mass: the largest z, the sum of exp(z - it) */
    sm90_offer *offers;   /* [8 warps][SM90_OFFERS] */
    uint64_t *full, *empty;
    uint64_t *noise_made, *noise_wanted;
    int *highest;    /* [S][n]: of the first tile, the screen's largest value */
    uint32_t *flags; /* [S][n] */

    __device__ shared_sm90(const cuda_params &p, unsigned char *memory)
    {
        int all = n * p.problem.sampling.num_samples;
        stages = memory;
        noise = stages + p.stages * stage_bytes;
        best = (sm90_best *)(noise + 64 * all);
        screens = (sm90_screen *)(best + all);
        draws = (sm90_draw *)(screens + all);
        masses = (float2 *)(draws + all);
        offers = (sm90_offer *)(masses + (p.problem.with_mass ? SM90_WARPS * n : 0));
        full = (uint64_t *)(offers + SM90_WARPS * SM90_OFFERS);
        empty = full + CUDA_SM90_STAGES_MOST;
        noise_made = empty + CUDA_SM90_STAGES_MOST;
        noise_wanted = noise_made + 1;
        highest = (int *)(noise_wanted + 1);
        flags = (uint32_t *)(highest + all);
    }

    /* All threads: nothing has been drawn yet. A column that no row uses never passes a screen. */
    __device__ void clear(const cuda_params &p) const
    {
        const gumbel_problem &q = p.problem;
        int all = n * q.sampling.num_samples;
        for (int i = threadIdx.x; i < all; i += CUDA_SM90_THREADS) {
            best[i] = {-INFINITY, -INFINITY, -1, 0};
            highest[i] = INT_MIN;
            flags[i] = 0;
            screens[i] = {0.0f, -INFINITY};
            draws[i] = {};
            if (i % n >= (int)q.batch)
                continue;
            gumbel_row row = gumbel_problem_row(&q, i % n);
            draws[i] = {row.stream.seed, row.stream.position, row.stream.sample + (uint32_t)(i / n),
                        row.inverse_temperature, row.greedy};
        }
        if (q.with_mass)
            for (int i = threadIdx.x; i < SM90_WARPS * n; i += CUDA_SM90_THREADS)
                masses[i] = {-INFINITY, 0.0f};
    }

    /* All threads, once all tiles are drawn from: eight lanes write a draw's summary, of which each
     * adds one warp's mass. */
    __device__ void write_summaries(const cuda_params &p) const
    {
        int samples = p.problem.sampling.num_samples, draws = (int)p.problem.batch * samples;
        int warp = threadIdx.x % SM90_WARPS;
        for (int at = 0; at < draws; at += CUDA_SM90_THREADS / SM90_WARPS) {
            int i = at + threadIdx.x / SM90_WARPS, column = i < draws ? i / samples : 0;
            gumbel_summary s;
            gumbel_summary_empty(&s);
            if (p.problem.with_mass) {
                float2 m = masses[warp * n + column];
                if (m.y > 0.0f) {
                    s.max_z = m.x;
                    gumbel_mass_add_block(&s, m.x, m.y);
                }
                merge_masses_of_lanes<SM90_WARPS>(&s);
            }
            if (i >= draws || warp != 0)
                continue;
            int own = i % samples * n + column;
            s.best_score = best[own].score;
            s.best_z = best[own].z;
            s.best_id = best[own].id;
            s.flags = flags[own];
            p.summaries[(int64_t)blockIdx.x * draws + i] = s;
        }
    }
};

} // namespace

#endif
