/* SPDX-License-Identifier: Apache-2.0
 *
 * How the Hopper kernel splits its work, and the shared memory beside its ring of stages, for N
 * columns (batch rows, padded) and S samples. A draw is a column and a sample: draw i is column
 * i % N of sample i / N. Thread i modulo the threads of a consumer owns draw i.
 */
#ifndef GUMBEL_CUDA_SHARED_SM90_CUH
#define GUMBEL_CUDA_SHARED_SM90_CUH

#include "maths/summary.h"
#include "cuda/fused/tile/case_sm90.cuh"
#include "cuda/fused/tile/draw_state_sm90.cuh"
#include "cuda/common/merge.cuh"
#include "cuda/common/ptx.cuh"

#include <float.h>

#define SM90_DEPTH         64 /* elements of D a stage */
#define SM90_WEIGHT_BYTES  (CUDA_SM90_TILE * SM90_DEPTH * 2)
#define SM90_DRAW_THREADS  256
#define SM90_SERVE_THREADS 96

namespace
{

/* Registers a thread of the consumers and of the third warpgroup; all threads start with 168:
 * 2 x 208 + 88 = 3 x 168. */
constexpr int kDrawRegisters = 208, kServeRegisters = 88;

/* Consumers: the two warpgroups that multiply and draw. Each takes every other tile, in two halves
 * of 64 tokens, and one draws while the other multiplies. */
struct sm90_consumer {
    static constexpr int consumers = 2, halves = 2;
    static constexpr int threads = SM90_DRAW_THREADS / consumers;
    int index;

    __device__ __forceinline__ sm90_consumer(int thread) : index(thread / threads) {}

    /* Waits for the consumer's other threads, at a named barrier; barrier 0 is __syncthreads(). */
    __device__ __forceinline__ void sync() const
    {
        if (index == 0)
            ptx_named_barrier<1, threads>();
        else
            ptx_named_barrier<2, threads>();
    }
};

/* The CTAs of a cluster take neighbouring tiles at the same time, and each multicasts its slice of
 * the rows of hidden states to the cluster. In the last wave a CTA may be the only one of its
 * cluster with a tile; it then copies all rows itself. Paired CTAs take the same tile for different
 * rows, and each multicasts half of the tile's weights. */
template <int n> struct sm90_cluster {
    static constexpr int ctas = CUDA_SM90_CLUSTER(n);
    static constexpr int rows = n / ctas; /* of hidden states, in a copy */

    static __device__ __forceinline__ int cta_rank() { return blockIdx.x % ctas; }

    /* Whether every CTA of the cluster has a tile when this CTA takes `tile`. */
    template <class call> static __device__ __forceinline__ bool is_whole(const call &p, int tile)
    {
        return p.template is_paired<n>() || (ctas > 1 && tile / ctas < p.tiles / ctas);
    }

    /* Waits for all threads of all CTAs of the cluster. */
    static __device__ __forceinline__ void sync()
    {
        if (ctas > 1)
            ptx_cluster_sync();
        else
            __syncthreads();
    }
};

/* A thread's accumulators of its consumer's tile (layout: wgmma.cuh). */
template <int n> using sm90_sums = float[sm90_consumer::halves][n / 2];

__device__ __forceinline__ int sm90_depths(const cuda_params &p)
{
    return (int)((p.problem.hidden_size + SM90_DEPTH - 1) / SM90_DEPTH);
}

/* The position of a producer or consumer in the ring of stages. */
struct stage_ring {
    int stages, stage;
    uint32_t parity;
    __device__ __forceinline__ explicit stage_ring(int count) : stages(count), stage(0), parity(0)
    {
    }
    __device__ __forceinline__ void advance()
    {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    /* Advances past the stages that another consumer reads. */
    __device__ __forceinline__ void skip_stages(int count)
    {
        int to = stage + count;
        parity ^= to / stages & 1;
        stage = to % stages;
    }
};

/* Waits until `cycles` cycles after `start`; for a whole warp. */
__device__ __forceinline__ void sm90_wait_cycles(uint32_t start, uint32_t cycles)
{
    constexpr int backoff = 250; /* nanoseconds */
    while ((uint32_t)clock() - start < cycles)
        __nanosleep(backoff);
    __syncwarp();
}

template <int n> struct shared_sm90 {
    static constexpr int stage_bytes = SM90_WEIGHT_BYTES + n * SM90_DEPTH * 2;
    static constexpr int consumers = sm90_consumer::consumers;
    /* Arrays of masses: paired CTAs have one for each consumer. */
    static constexpr int mass_sets = sm90_cluster<n>::ctas;
    /* Masses of a column in an array: one for each warp of a consumer. */
    static constexpr int mass_groups = sm90_consumer::threads / 32;

    unsigned char *stages;
    uint64_t *full, *empty;
    uint64_t *served, *drawn, *multiplied, *summed; /* each [consumers] */
    float *thresholds; /* [S][n]: least score that may win; stored logits: least subtile maximum */
    uint32_t *flags;   /* [S][n] */

    /* If the kernel draws: */
    sm90_best *best;    /* [S][n] */
    sm90_bound *bounds; /* [CUDA_SM90_BLOCKS][S][n], columns in the order of bound_place() */
    sm90_draw *draws;   /* [S][n] */
    float2 *masses;     /* [mass_sets][mass_groups][n]: reference z; sum of exp(z - reference) */
    /* The end of a list of list_capacity() candidates, which grows downwards, and the number of
     * candidates appended, including those that did not fit. */
    sm90_candidate *candidates;
    uint32_t *candidate_count;

    /* If the call has statistics: */
    sm90_tops *tops;       /* [n] */
    float *top_thresholds; /* [n]: lower bound on the row's second largest z */
    float *weights;        /* [mass_sets][mass_groups][n]: sum of x log2 x of the tokens of a
                            * mass, where x = exp(z - reference) */
    uint4 *removed_bits;   /* [consumers][n]: one bit for each banned token of a tile */
    int *removed_turn;     /* [consumers]: the last turn, from 1 on, whose tile has banned tokens */

    /* If the kernel only stores logits: */
    float *subtile_maxima; /* [consumers][2][CUDA_SUBTILES][n] */
    uint4 *token_bits;     /* [2 consumers][n] */

    template <class call> __device__ shared_sm90(const call &p, unsigned char *memory)
    {
        static_assert(sizeof *best + sizeof *draws + CUDA_SM90_BLOCKS * sizeof *bounds +
                              sizeof *thresholds + sizeof *flags ==
                          CUDA_SM90_DRAW_BYTES,
                      "cuda_sm90_stages() counts this size");
        const int all = n * p.sample_count();
        stages = memory;
        best = (sm90_best *)(stages + p.stages * stage_bytes);
        subtile_maxima = (float *)best;
        bounds = (sm90_bound *)(best + all);
        token_bits = (uint4 *)(subtile_maxima + consumers * 2 * CUDA_SUBTILES * n);
        draws = (sm90_draw *)(bounds + CUDA_SM90_BLOCKS * all);
        tops = (sm90_tops *)(draws + all);
        removed_bits = (uint4 *)(tops + n);
        full = (uint64_t *)(call::stores           ? (void *)(token_bits + 2 * consumers * n)
                            : call::has_statistics ? (void *)(removed_bits + consumers * n)
                                                   : (void *)(draws + all));
        empty = full + CUDA_SM90_STAGES_MAX;
        served = empty + CUDA_SM90_STAGES_MAX;
        drawn = served + consumers;
        multiplied = drawn + consumers;
        summed = multiplied + consumers;
        static_assert((2 * CUDA_SM90_STAGES_MAX + 4 * consumers + 2) * sizeof *full <=
                          CUDA_SM90_BARRIER_BYTES,
                      "cuda_sm90_stages() counts this size");
        /* Two words are reserved for the count, so that `masses` is aligned to 8 bytes. */
        candidate_count = (uint32_t *)(summed + consumers);
        thresholds = (float *)(candidate_count + 2);
        flags = (uint32_t *)(thresholds + all);
        masses = (float2 *)(flags + all);
        weights = (float *)(masses + mass_sets * mass_groups * n);
        top_thresholds = weights + mass_sets * mass_groups * n;
        removed_turn = (int *)(top_thresholds + n);
        candidates = (sm90_candidate *)(memory + CUDA_SM90_SHARED_BYTES);
    }

    /* The number of candidates that fit into the list. */
    template <class call> __device__ __forceinline__ uint32_t list_capacity(const call &p) const
    {
        const void *end = call::has_statistics
                              ? (const void *)(removed_turn + consumers)
                              : masses + (p.with_mass() ? mass_sets * mass_groups * n : 0);
        const uint32_t remaining = (uint32_t)((unsigned char *)candidates - (unsigned char *)end);
        return min(remaining / (uint32_t)sizeof *candidates, (uint32_t)CUDA_SM90_LIST_MAX);
    }

    /* Index, within its sample, of draw i's bound: the bounds of a thread's columns among 16
     * neighbours are adjacent (layout: wgmma.cuh). */
    static __device__ __forceinline__ int bound_place(int i)
    {
        return n < 16 ? i : (i & ~15) | (i & 6) << 1 | (i >> 2 & 2) | (i & 1);
    }

    /* Index of draw i's bound for the first block; the next block's is S n further. */
    __device__ __forceinline__ int first_bound_of(int i) const
    {
        return i / n * n + bound_place(i % n);
    }

    /* Index of a sample's first bound for the block that holds token `place` of the tile. */
    template <class call>
    __device__ __forceinline__ int bounds_of(const call &p, int sample, uint32_t place) const
    {
        const uint32_t off = (uint32_t)p.problem.first_token % GUMBEL_BLOCK;
        return ((int)((off + place) / GUMBEL_BLOCK) * p.sample_count() + sample) * n;
    }

    /* [CUDA_SM90_BLOCKS][S][n], in the order of bounds: in the first tile, the sum of the token
     * with the largest noise of each block, or -inf. Uses the space of the list of candidates. */
    __device__ __forceinline__ float *initial_sums(int all) const
    {
        return (float *)candidates - CUDA_SM90_BLOCKS * all;
    }

    /* [CUDA_SUBTILES][n]: the largest logit of each subtile of a tile, where logits are
     * stored. Even and odd tiles of a consumer have copies of their own, so that one can be read
     * until the tile after the next. */
    __device__ __forceinline__ float *maxima_of_consumer(int consumer, int turn) const
    {
        return subtile_maxima + (2 * consumer + (turn & 1)) * CUDA_SUBTILES * n;
    }

    /* [n]: one bit a token of the consumer's tile and column, where logits are stored by bounds:
     * the tokens that the mask allows, and those that the history has seen. */
    __device__ __forceinline__ uint4 *masks_of_consumer(int consumer) const
    {
        return token_bits + consumer * n;
    }
    __device__ __forceinline__ uint4 *seen_of_consumer(int consumer) const
    {
        return masks_of_consumer(consumers + consumer);
    }

    /* The masses to which a consumer adds. In paired CTAs each consumer has masses of its own:
     * its tiles are those of one CTA of a launch without pairs, so that the log-normaliser does
     * not depend on the batch. */
    template <class call>
    __device__ __forceinline__ float2 *masses_of_consumer(const call &p, int consumer) const
    {
        return masses + (p.template is_paired<n>() ? consumer * mass_groups * n : 0);
    }

    /* Factor from draw i's sums to z; 0 if there is nothing to draw. */
    template <class call> __device__ __forceinline__ float slope_of(const call &p, int i) const
    {
        return p.scale() * draws[i].inverse_temperature;
    }

    /* Initialises the barriers; by one thread. `servers` threads serve a consumer. */
    __device__ void start_barriers(int count, int servers) const
    {
        for (int i = 0; i < count; i++) {
            ptx_barrier_init(&full[i], 1);
            ptx_barrier_init(&empty[i], sm90_cluster<n>::ctas);
        }
        for (int i = 0; i < consumers; i++) {
            ptx_barrier_init(&served[i], servers);
            ptx_barrier_init(&drawn[i], sm90_consumer::threads);
            ptx_barrier_init(&multiplied[i], 128 / 32);
            ptx_barrier_init(&summed[i], sm90_consumer::threads);
        }
        ptx_fence_barrier_init();
    }

    /* Initialises the state of all draws; all threads call it. A column without a live row draws
     * nothing. */
    template <class call> __device__ void clear(const call &p) const
    {
        const gumbel_problem &q = p.problem;
        int all = n * p.sample_count();
        for (int i = threadIdx.x; i < all; i += CUDA_SM90_THREADS) {
            thresholds[i] = -INFINITY;
            flags[i] = 0;
            if (call::stores)
                continue;
            best[i] = {-INFINITY, -INFINITY, -1, 0};
            for (int b = 0; b < CUDA_SM90_BLOCKS; b++)
                bounds[b * all + i].min_sum = INFINITY;
            draws[i] = {};
            const int column = i % n;
            if (column < p.template column_count<n>() &&
                gumbel_problem_row_is_live(&q, p.template row_of<n>(column))) {
                gumbel_row row = gumbel_problem_row(&q, p.template row_of<n>(column));
                draws[i] = {row.stream.seed, row.stream.position,
                            row.stream.sample + (uint32_t)(i / n + p.sample_of(column)),
                            row.inverse_temperature, row.greedy};
            }
        }
        if (threadIdx.x == 0)
            *candidate_count = 0;
        if (p.with_mass())
            for (int i = threadIdx.x; i < mass_sets * mass_groups * n; i += CUDA_SM90_THREADS)
                masses[i] = {-INFINITY, 0.0f};
        if (call::has_statistics)
            clear_statistics();
    }

  private:
    __device__ __forceinline__ void clear_statistics() const
    {
        for (int i = threadIdx.x; i < mass_sets * mass_groups * n; i += CUDA_SM90_THREADS)
            weights[i] = 0.0f;
        for (int i = threadIdx.x; i < n; i += CUDA_SM90_THREADS) {
            tops[i] = {{-INFINITY, -INFINITY}, {-1, -1}};
            top_thresholds[i] = -INFINITY;
        }
        if (threadIdx.x < consumers)
            removed_turn[threadIdx.x] = 0;
    }
};

} // namespace

#endif
