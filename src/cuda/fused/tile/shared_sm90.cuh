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

#include <float.h>

#define SM90_DEPTH         64 /* elements of D a stage */
#define SM90_WEIGHT_BYTES  (CUDA_SM90_TILE * SM90_DEPTH * 2)
#define SM90_DRAW_THREADS  256
#define SM90_SERVE_THREADS 96
#define SM90_WARPS         (SM90_DRAW_THREADS / 32)

namespace
{

/* The warpgroups that share a tile. Up to 64 columns each takes every other tile of the CTA alone,
 * in two halves of 64 tokens, and draws while the other one multiplies; with more, the sums of a
 * whole tile leave no registers to draw with, and two share every tile, a half each. */
template <int n> struct sm90_team {
    static constexpr bool alone = CUDA_SM90_WARPGROUP_PER_TILE(n);
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

/* Wait until so many cycles after a time, by a whole warp. */
__device__ __forceinline__ void sm90_sleep(uint32_t start, uint32_t cycles)
{
    constexpr int nap = 250; /* nanoseconds */
    while ((uint32_t)clock() - start < cycles)
        __nanosleep(nap);
    __syncwarp();
}

/* A draw's parameters. */
struct sm90_draw {
    uint64_t seed;
    uint32_t position, sample;
    float inverse_temperature;
    int greedy;
};

/* What a block of a draw is passed over by: the least sum that may win, finite, or +inf where there
 * is nothing to draw; in the first tile, first_word_of() the block. */
union sm90_bound {
    float least;
    uint32_t first_word;
};

/* What the first flag tells where logits are stored by bounds. */
enum sm90_bounds_flag : uint32_t {
    SM90_ENOUGH = 1,  /* no more bounds are wanted */
    SM90_STARTED = 2, /* all CTAs have started, so that bounds are those of this launch */
};

/* A token that passed its bound. */
struct sm90_offer {
    float sum;
    uint32_t place; /* its draw, 8 bits; then its token in the tile */
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
    ulonglong2 was = ptx_cas_shared_16(best, seen.bits(), next.bits());
    return {__uint_as_float((uint32_t)was.x), __uint_as_float((uint32_t)(was.x >> 32)),
            (int)(uint32_t)was.y, 0};
}

template <int n> struct shared_sm90 {
    static constexpr int stage_bytes = SM90_WEIGHT_BYTES + n * SM90_DEPTH * 2;
    static constexpr int teams = sm90_team<n>::teams;

    unsigned char *stages;
    uint64_t *full, *empty;
    uint64_t *served, *drawn, *multiplied, *summed; /* [teams] each */
    float *thresholds; /* [S][n]: what a score must reach; stored logits: what a peak must */
    uint32_t *flags;   /* [S][n] */

    /* Where there are draws: */
    sm90_best *best;    /* [S][n] */
    sm90_bound *bounds; /* [CUDA_SM90_BLOCKS][S][n], columns as bound_place() has them */
    sm90_draw *draws;   /* [S][n] */
    float2 *masses;     /* [8][n], with the mass: the largest z, the sum of exp(z - it) */
    sm90_offer *offers; /* behind a list of room() from there backwards, which takes what is left */
    uint32_t *offered;  /* how many were put there, or would have been */

    /* Where there are none: */
    float *peaks; /* [teams][2][CUDA_REQUEST_SUBTILES][n] */
    uint4 *bits;  /* [2 teams][n] */

    template <class call> __device__ shared_sm90(const call &p, unsigned char *memory)
    {
        static_assert(sizeof *best + sizeof *draws + CUDA_SM90_BLOCKS * sizeof *bounds +
                              sizeof *thresholds + sizeof *flags ==
                          CUDA_SM90_DRAW_BYTES,
                      "as the number of stages has it");
        const int all = n * p.samples();
        stages = memory;
        best = (sm90_best *)(stages + p.stages * stage_bytes);
        peaks = (float *)best;
        bounds = (sm90_bound *)(best + all);
        bits = (uint4 *)(peaks + teams * 2 * CUDA_REQUEST_SUBTILES * n);
        draws = (sm90_draw *)(bounds + CUDA_SM90_BLOCKS * all);
        full = call::stores ? (uint64_t *)(bits + 2 * teams * n) : (uint64_t *)(draws + all);
        empty = full + CUDA_SM90_STAGES_MAX;
        served = empty + CUDA_SM90_STAGES_MAX;
        drawn = served + teams;
        multiplied = drawn + teams;
        summed = multiplied + teams;
        static_assert((2 * CUDA_SM90_STAGES_MAX + 4 * teams + 1) * sizeof *full <=
                          CUDA_SM90_BARRIER_BYTES,
                      "as the number of stages has it");
        offered = (uint32_t *)(summed + teams); /* and a word more: masses are two */
        thresholds = (float *)(offered + 2);
        flags = (uint32_t *)(thresholds + all);
        masses = (float2 *)(flags + all);
        offers = (sm90_offer *)(memory + CUDA_SM90_SHARED_BYTES);
    }

    /* Offers that the list has room for. */
    template <class call> __device__ __forceinline__ uint32_t room(const call &p) const
    {
        const float2 *end = masses + (p.with_mass() ? SM90_WARPS * n : 0);
        const uint32_t left = (uint32_t)((unsigned char *)offers - (unsigned char *)end);
        return min(left / (uint32_t)sizeof *offers, (uint32_t)CUDA_SM90_LIST_MAX);
    }

    /* Where, among its sample's, draw i's bound lies: that of a thread's columns of 16 neighbours
     * side by side (layout: wgmma.cuh). */
    static __device__ __forceinline__ int bound_place(int i)
    {
        return n < 16 ? i : (i & ~15) | (i & 6) << 1 | (i >> 2 & 2) | (i & 1);
    }

    /* The first block's bound of draw i; the others' are S n bounds apart. */
    __device__ __forceinline__ int first_bound_of(int i) const
    {
        return i / n * n + bound_place(i % n);
    }

    /* Where the bounds of a sample begin, of the block that holds a place of the tile. */
    template <class call>
    __device__ __forceinline__ int bounds_of(const call &p, int sample, uint32_t place) const
    {
        const uint32_t off = (uint32_t)p.problem.first_token % GUMBEL_BLOCK;
        return ((int)((off + place) / GUMBEL_BLOCK) * p.samples() + sample) * n;
    }

    /* [CUDA_SM90_BLOCKS][S][n], as bounds: in the first tile, the sum of each block's token of most
     * noise, or -inf. They lie where offers will. */
    __device__ __forceinline__ float *seeds(int all) const
    {
        return (float *)offers - CUDA_SM90_BLOCKS * all;
    }

    /* [CUDA_REQUEST_SUBTILES][n]: the largest logit of each strip of a tile, where logits are
     * stored. A team's even and odd tiles have peaks of their own, so that a tile's can be read
     * until the one after the next is there. */
    __device__ __forceinline__ float *peaks_of_team(int team, int turn) const
    {
        return peaks + (2 * team + (turn & 1)) * CUDA_REQUEST_SUBTILES * n;
    }

    /* [n]: each column's bits for the team's tile, where logits are stored by bounds: tokens that
     * the mask leaves, and that the history has seen. */
    __device__ __forceinline__ uint4 *masks_of_team(int team) const { return bits + team * n; }
    __device__ __forceinline__ uint4 *seen_of_team(int team) const
    {
        return masks_of_team(teams + team);
    }

    /* What draw i's sums are multiplied with, to z; 0 where there is nothing to draw. */
    template <class call> __device__ __forceinline__ float slope(const call &p, int i) const
    {
        return p.scale() * draws[i].inverse_temperature;
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

    /* All threads: nothing has been drawn yet. A column that no live row uses has nothing to draw.
     */
    template <class call> __device__ void clear(const call &p) const
    {
        const gumbel_problem &q = p.problem;
        int all = n * p.samples();
        for (int i = threadIdx.x; i < all; i += CUDA_SM90_THREADS) {
            thresholds[i] = -INFINITY;
            flags[i] = 0;
            if (call::stores)
                continue;
            best[i] = {-INFINITY, -INFINITY, -1, 0};
            for (int b = 0; b < CUDA_SM90_BLOCKS; b++)
                bounds[b * all + i].least = INFINITY;
            draws[i] = {};
            const int column = i % n;
            if (column < p.columns() && gumbel_problem_row_lives(&q, p.row_of(column))) {
                gumbel_row row = gumbel_problem_row(&q, p.row_of(column));
                draws[i] = {row.stream.seed, row.stream.position,
                            row.stream.sample + (uint32_t)(i / n + p.sample_of(column)),
                            row.inverse_temperature, row.greedy};
            }
        }
        if (threadIdx.x == 0)
            *offered = 0;
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
                s.max_z = m.x;
                if (m.y > 0.0f) /* 0 or NaN if z is too large for exp(z - m.x) to be exact */
                    gumbel_mass_add_block(&s, m.x, m.y);
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
