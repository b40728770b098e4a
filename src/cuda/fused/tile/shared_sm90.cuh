/* SPDX-License-Identifier: Apache-2.0
 *
 * How the Hopper kernel shares out its work, and what it keeps in shared memory beside its ring of
 * stages, for N columns (batch rows, padded) and S samples. A draw is a column and a sample; draw i
 * is column i % N of sample i / N, and owned by the thread of that number, modulo a team's.
 */
#ifndef GUMBEL_CUDA_SHARED_SM90_CUH
#define GUMBEL_CUDA_SHARED_SM90_CUH

#include "maths/summary.h"
#include "cuda/fused/tile/case_sm90.cuh"
#include "cuda/common/merge.cuh"
#include "cuda/common/ptx.cuh"

#include <limits.h>

#define SM90_DEPTH         64 /* elements of D a stage */
#define SM90_WEIGHT_BYTES  (CUDA_SM90_TILE * SM90_DEPTH * 2)
#define SM90_DRAW_THREADS  256
#define SM90_SERVE_THREADS 96
#define SM90_WARPS         (SM90_DRAW_THREADS / 32)

/* Units of a nat in a byte of noise: 255 / (65 ln 2). A quarter of ln 2 is 0.98 of one. */
#define SM90_UNITS 5.6598f
/* 1.5 * 2^23: adding it leaves an integer in the low bits of a float. */
#define SM90_SCREEN_ORIGIN 12582912.0f

/* Offers of a warp that wait until a whole warp can score them: 31, and 32 more. */
#define SM90_OFFERS 64

namespace
{

/* The warpgroups that share a tile. Up to 64 columns each takes every other tile of the CTA alone,
 * in two halves of 64 tokens, and draws while the other one multiplies; with more, the sums of a
 * whole tile leave no registers to draw with, and two share every tile, a half each. */
template <int n> struct sm90_team {
    static constexpr bool alone = CUDA_SM90_ALONE(n);
    static constexpr int teams = alone ? 2 : 1, halves = alone ? 2 : 1;
    static constexpr int threads = SM90_DRAW_THREADS / teams;
    int index;

    __device__ __forceinline__ sm90_team(int thread) : index(thread / threads) {}

    /* Wait for the team's other threads, at a named barrier; 0 is __syncthreads(). */
    __device__ __forceinline__ void sync() const
    {
        if (index == 0)
            ptx_named_barrier<1, threads>();
        else
            ptx_named_barrier<2, threads>();
    }
};

/* CTAs of a cluster take neighbouring tiles at the same time, and each copies a part of the hidden
 * states for all. One that is left alone with a tile copies all parts for itself. */
template <int n> struct sm90_cluster {
    static constexpr int ctas = CUDA_SM90_CLUSTER(n);
    static constexpr int rows = n / ctas; /* of a part */

    static __device__ __forceinline__ int rank() { return blockIdx.x % ctas; }

    /* Whether each of several CTAs has a tile when this one takes `tile`. */
    static __device__ __forceinline__ bool is_whole(const cuda_params &p, int tile)
    {
        return ctas > 1 && tile / ctas < p.tiles / ctas;
    }

    /* Wait for all threads of all CTAs. */
    static __device__ __forceinline__ void sync()
    {
        if (ctas > 1)
            ptx_cluster_sync();
        else
            __syncthreads();
    }
};

/* A thread's sums of its team's tile (layout: wgmma.cuh). */
template <int n> using sm90_sums = float[sm90_team<n>::halves][n / 2];

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

/* The screen of a draw: z becomes z * slope + offset (epilogue_sm90.cuh). */
struct sm90_screen {
    float slope, offset;
};

/* What a score of the draw must reach; before there is anything, of the first tile the screen's
 * largest value. Without draws, what a column's peak must reach. */
union sm90_reach {
    float threshold;
    int highest;
};

/* What the first flag tells where logits are stored by bounds. */
enum sm90_bounds_flag : uint32_t {
    SM90_ENOUGH = 1,  /* no more bounds are wanted */
    SM90_STARTED = 2, /* all CTAs have started, so that bounds are those of this launch */
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

/* Replace *best by `next` if it is `seen`; what it was. */
__device__ __forceinline__ sm90_best swap_best(sm90_best *best, sm90_best seen, sm90_best next)
{
    ulonglong2 was = ptx_swap_16(best, seen.bits(), next.bits());
    return {__uint_as_float((uint32_t)was.x), __uint_as_float((uint32_t)(was.x >> 32)),
            (int)(uint32_t)was.y, 0};
}

template <int n> struct shared_sm90 {
    static constexpr int stage_bytes = SM90_WEIGHT_BYTES + n * SM90_DEPTH * 2;
    static constexpr int teams = sm90_team<n>::teams;

    unsigned char *stages;
    unsigned char *noise; /* [teams][S][64 n] bytes (noise_sm90.cuh), or peaks */
    sm90_best *best;      /* [S][n] */
    sm90_screen *screens; /* [teams][S][n] */
    sm90_reach *reaches;  /* [S][n] */
    sm90_draw *draws;     /* [S][n] */
    sm90_offer *offers;   /* [8 warps][SM90_OFFERS] */
    uint64_t *full, *empty;
    uint64_t *served, *drawn, *multiplied, *summed; /* [teams] each */
    uint32_t *flags;                                /* [S][n] */
    float2 *masses; /* [8][n], with the mass: the largest z, the sum of exp(z - it) */

    template <class call> __device__ shared_sm90(const call &p, unsigned char *memory)
    {
        int all = n * p.samples();
        stages = memory;
        noise = stages + p.stages * stage_bytes;
        best = (sm90_best *)(noise + teams * 64 * all);
        screens = (sm90_screen *)(best + all);
        draws = (sm90_draw *)(screens + teams * all);
        offers = (sm90_offer *)(draws + all);
        full = (uint64_t *)(offers + SM90_WARPS * SM90_OFFERS);
        empty = full + CUDA_SM90_STAGES_MOST;
        served = empty + CUDA_SM90_STAGES_MOST;
        drawn = served + teams;
        multiplied = drawn + teams;
        summed = multiplied + teams;
        reaches = (sm90_reach *)(summed + teams);
        flags = (uint32_t *)(reaches + all);
        masses = (float2 *)(flags + all); /* last: not all calls have them */
    }

    template <class call>
    __device__ __forceinline__ unsigned char *noise_of_team(const call &p, int team) const
    {
        return noise + team * p.samples() * 64 * n;
    }

    /* [CUDA_REQUEST_STRIPS][n]: the largest logit of each strip of a tile, where logits are
     * stored; they lie where the noise would. A team's even and odd tiles have peaks of their own,
     * so that a tile's can be read until the one after the next is there. */
    template <class call>
    __device__ __forceinline__ float *peaks_of_team(const call &p, int team, int turn) const
    {
        static_assert(2 * CUDA_REQUEST_STRIPS * sizeof(float) <= 64,
                      "peaks fit into the noise of one sample");
        return (float *)noise_of_team(p, team) + (turn & 1) * CUDA_REQUEST_STRIPS * n;
    }

    /* [n]: each column's bits for the team's tile, where logits are stored by bounds: tokens that
     * the mask leaves, and that the history has seen. They lie where offers would. */
    __device__ __forceinline__ uint4 *masks_of_team(int team) const
    {
        static_assert(!CUDA_SM90_BOUNDS(n) || 2 * teams * n * sizeof(uint4) <=
                                                  SM90_WARPS * SM90_OFFERS * sizeof(sm90_offer),
                      "bits fit into the lists of offers");
        return (uint4 *)offers + team * n;
    }
    __device__ __forceinline__ uint4 *seen_of_team(int team) const
    {
        return masks_of_team(teams + team);
    }

    template <class call>
    __device__ __forceinline__ sm90_screen *screens_of_team(const call &p, int team) const
    {
        return screens + team * p.samples() * n;
    }

    /* Of draw i's screen. */
    template <class call> __device__ __forceinline__ float slope(const call &p, int i) const
    {
        return p.scale() * draws[i].inverse_temperature * SM90_UNITS;
    }

    /* One thread; `servers` are those that serve a team. */
    __device__ void start_barriers(int count, int servers) const
    {
        for (int i = 0; i < count; i++) {
            ptx_barrier_init(&full[i], 1);
            ptx_barrier_init(&empty[i], SM90_DRAW_THREADS / 128 / teams * sm90_cluster<n>::ctas);
        }
        for (int i = 0; i < teams; i++) {
            ptx_barrier_init(&served[i], servers);
            ptx_barrier_init(&drawn[i], sm90_team<n>::threads);
            ptx_barrier_init(&multiplied[i], 128 / 32);
            ptx_barrier_init(&summed[i], sm90_team<n>::threads);
        }
        ptx_fence_barrier_init();
    }

    /* All threads: nothing has been drawn yet. A column that no live row uses never passes a
     * screen. */
    template <class call> __device__ void clear(const call &p) const
    {
        const gumbel_problem &q = p.problem;
        int all = n * p.samples();
        for (int i = threadIdx.x; i < all; i += CUDA_SM90_THREADS) {
            best[i] = {-INFINITY, -INFINITY, -1, 0};
            if (call::stores)
                reaches[i].threshold = -INFINITY;
            else
                reaches[i].highest = INT_MIN;
            flags[i] = 0;
            draws[i] = {};
            sm90_screen screen = {0.0f, -INFINITY};
            if (i % n < (int)q.batch && gumbel_problem_row_lives(&q, i % n)) {
                gumbel_row row = gumbel_problem_row(&q, i % n);
                draws[i] = {row.stream.seed, row.stream.position,
                            row.stream.sample + (uint32_t)(i / n), row.inverse_temperature,
                            row.greedy};
                screen = {slope(p, i), SM90_SCREEN_ORIGIN};
            }
            for (int team = 0; team < teams; team++)
                screens[team * all + i] = screen;
        }
        if (p.with_mass())
            for (int i = threadIdx.x; i < SM90_WARPS * n; i += CUDA_SM90_THREADS)
                masses[i] = {-INFINITY, 0.0f};
    }

    /* All threads that draw, once all tiles are drawn from: eight lanes write a draw's summary, of
     * which each adds the masses of sixteen tokens a tile. */
    template <class call> __device__ void write_summaries(const call &p) const
    {
        int samples = p.samples(), draws = (int)p.problem.batch * samples;
        int warp = threadIdx.x % SM90_WARPS;
        for (int at = 0; at < draws; at += SM90_DRAW_THREADS / SM90_WARPS) {
            int i = at + threadIdx.x / SM90_WARPS, column = i < draws ? i / samples : 0;
            gumbel_summary s;
            gumbel_summary_empty(&s);
            if (p.with_mass()) {
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
