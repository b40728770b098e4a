/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the fused draw on Hopper (eq. 1 to 4; FlashSampling, Algorithm 2).
 * COST   2 V D bytes of weights, once; 2 V D B flops on the tensor cores. On an H200 these run at
 *        4.6 TB/s and 790 TFLOP/s.
 * MAP    a persistent CTA a multiprocessor: a producer warp copies, two consumer warpgroups
 *        multiply. A tile is 128 weight rows by N batch rows, N the batch padded to 8 .. 256. The
 *        5-dimensional tensor map lays weight rows down so that MMA row 16 w + 8 f + 2 h + l is
 *        token 16 w + 4 h + 2 l + f: two neighbouring lanes hold the four tokens of a Philox
 *        block, so each computes the block of one column and they swap halves.
 * SMEM   a ring of stages, each 128 x 64 weights (16 KiB) and N x 64 hidden states (128 N bytes),
 *        both in 128-byte swizzle; the barriers (256 bytes); for each of N columns and S samples
 *        the draw's state (96 bytes) and a seed (4); with the mass, 8 warps x N x 8 bytes of it.
 * SYNC   full[s]: the producer's one arrival and the bytes of the stage. empty[s]: one arrival of
 *        each warpgroup that multiplies the stage, once the products that read it are done.
 *        turns[w]: one arrival of the other warpgroup, once it has seen all stages of its tile
 *        full; a warpgroup that waited for a stage from further away could mistake an earlier
 *        round of the ring for its own.
 * NUMERICS  a dot product is summed 16 elements a wgmma, in the order of D, whatever N: token,
 *        score and log-normaliser do not depend on the batch.
 */
#include "cuda/epilogue_sm90.cuh"
#include "cuda/wgmma.cuh"

namespace
{

constexpr int kTile = CUDA_SM90_TILE, kDepth = 64, kConsumers = 2;
constexpr int kThreads = 128 * (kConsumers + 1);
static_assert(kThreads == CUDA_SM90_THREADS, "the launcher starts what the roles add up to");
constexpr int kWeightBytes = kTile * kDepth * 2;
/* In the first tile one CTA in this many shares its floor of a row: all at once, on one address,
 * they would queue for 15 us. */
constexpr int kSeeders = 8;

template <int n> struct layout {
    static constexpr int hidden_bytes = n * kDepth * 2;
    static constexpr int stage_bytes = kWeightBytes + hidden_bytes;
    /* As many stages as 192 KiB hold, 12 at most; the draw has the rest. */
    static constexpr int stages = 192 * 1024 / stage_bytes < 12 ? 192 * 1024 / stage_bytes : 12;
};

/* A place in the ring: how many stages went by. */
template <int stages> struct ring {
    uint32_t count = 0;
    __device__ __forceinline__ int stage() const { return count % stages; }
    __device__ __forceinline__ uint32_t parity() const { return count / stages & 1; }
};

template <int n>
__device__ void produce(const cuda_params &p, const CUtensorMap *weight, const CUtensorMap *hidden,
                        unsigned char *stages, uint64_t *full, uint64_t *empty)
{
    using sizes = layout<n>;
    ring<sizes::stages> at;
    int depths = (int)((p.problem.hidden_size + kDepth - 1) / kDepth);
    uint64_t once = ptx_policy_evict_first(), often = ptx_policy_evict_last();
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x)
        for (int k = 0; k < depths; k++, at.count++) {
            unsigned char *stage = stages + at.stage() * sizes::stage_bytes;
            uint64_t *arrived = &full[at.stage()];
            ptx_barrier_wait(&empty[at.stage()], at.parity() ^ 1);
            ptx_barrier_arrive_expect(arrived, sizes::stage_bytes);
            ptx_copy_5d(stage, weight, k * kDepth, 0, 0, 0, tile * (kTile / 16), arrived, once);
            ptx_copy_2d(stage + kWeightBytes, hidden, k * kDepth, 0, arrived, often);
        }
}

/* The product of one tile: `halves` blocks of 64 weight rows, from row 64 * first on. */
template <int n, bool half, int halves>
__device__ __forceinline__ void
multiply(float (&sum)[halves][n / 2], int depths, unsigned char *stages, int first, uint64_t *full,
         uint64_t *empty, uint64_t *other, ring<layout<n>::stages> &at)
{
    using sizes = layout<n>;
    int previous = -1;
#pragma unroll
    for (int i = 0; i < halves * n / 2; i++)
        sum[i / (n / 2)][i % (n / 2)] = 0.0f;
    for (int k = 0; k < depths; k++, at.count++) {
        unsigned char *stage = stages + at.stage() * sizes::stage_bytes;
        uint64_t a = wgmma_descriptor(stage + first * (kWeightBytes / 2));
        uint64_t b = wgmma_descriptor(stage + kWeightBytes);
        ptx_barrier_wait(&full[at.stage()], at.parity());
        ptx_wgmma_fence();
#pragma unroll
        for (int step = 0; step < kDepth / 16; step++)
#pragma unroll
            for (int h = 0; h < halves; h++)
                wgmma<n, half>::add(sum[h], a + h * (kWeightBytes / 2 / 16) + 2 * step,
                                    b + 2 * step);
        ptx_wgmma_commit();
        ptx_wgmma_wait<1>();
        if (previous >= 0 && threadIdx.x % 128 == 0)
            ptx_barrier_arrive(&empty[previous]);
        previous = at.stage();
    }
    if (other && threadIdx.x % 128 == 0)
        ptx_barrier_arrive(other);
    ptx_wgmma_wait<0>();
    if (threadIdx.x % 128 == 0)
        ptx_barrier_arrive(&empty[previous]);
}

/* The threads that draw from a tile together. */
template <int threads> __device__ __forceinline__ void team_meets(int team)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(threads) : "memory");
}

/* A use of the sums that the compiler cannot see through, and that never writes. */
template <int n> __device__ __forceinline__ void keep(const float (&sum)[n], draw_state *states)
{
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < n; i++)
        all += sum[i];
    if (all == 0x1.23456p+99f)
        states->ones = 0;
}

/* Draw from a finished tile. With `first`, find thresholds before. */
template <int n, int halves>
__device__ __forceinline__ void finish_tile(epilogue<n> &end, float (&sum)[halves][n / 2],
                                            uint32_t token, bool first, int team, uint64_t floor,
                                            float &given)
{
    constexpr int threads = 128 * (kConsumers / halves);
#pragma unroll
    for (int h = 0; h < halves; h++) {
        end.token = token + 64 * h;
        end.prepare(sum[h]);
    }
    if (first) {
        end.token = token;
        end.seed(sum[0]); /* the other half's tokens would add little */
        team_meets<threads>(team);
        end.take_seeds();
        end.give_floors(given, blockIdx.x, kSeeders);
        floor = end.load_floor();
    }
    end.take_floors(floor);
    if (first)
        team_meets<threads>(team);
#pragma unroll
    for (int h = 0; h < halves; h++) {
        end.token = token + 64 * h;
        end.draw(sum[h]);
        if (end.p.problem.with_mass)
            end.add_mass(sum[h]);
    }
    end.give_floors(given, 0, 1);
}

/* Up to 128 columns each warpgroup multiplies every other tile of the CTA alone, so that one
 * draws while the other multiplies; 256 columns of 128 rows do not fit its registers, and both
 * share each tile. */
template <int n, bool half>
__device__ void consume(const cuda_params &p, unsigned char *stages, draw_state *states,
                        uint32_t *seeds, float2 *masses, uint64_t *full, uint64_t *empty)
{
    constexpr int halves = n <= 128 ? 2 : 1;
    constexpr bool alone = halves == 2;
    ring<layout<n>::stages> at;
    float sum[halves][n / 2];
    int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    int g = lane / 4, depths = (int)((p.problem.hidden_size + kDepth - 1) / kDepth);
    int thread = alone ? threadIdx.x % 128 : threadIdx.x;
    epilogue<n> end = {p,
                       states,
                       seeds,
                       masses,
                       (int)p.problem.batch,
                       p.problem.sampling.num_samples,
                       lane,
                       thread,
                       128 * (kConsumers / halves),
                       0};
    uint32_t own = 16 * warp + 4 * (g >> 1) + 2 * (g & 1) + (alone ? 0 : 64 * group);
    float given = -INFINITY;
    bool first = true;
    int turn = 0;
    uint32_t mine = 0; /* parity of this warpgroup's turn */
    uint64_t *turns = empty + layout<n>::stages;
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, turn ^= 1) {
        if (alone && turn != group) {
            at.count += depths;
            continue;
        }
        uint64_t floor = end.load_floor();
        if (alone && tile != (int)blockIdx.x) {
            ptx_barrier_wait(&turns[group], mine);
            mine ^= 1;
        }
        multiply<n, half>(sum, depths, stages, alone ? 0 : group, full, empty,
                          alone ? &turns[group ^ 1] : nullptr, at);
        if (p.multiply_only) {
#pragma unroll
            for (int h = 0; h < halves; h++)
                keep(sum[h], states);
            continue;
        }
        uint32_t token = (uint32_t)(p.problem.first_token + (int64_t)tile * kTile) + own;
        finish_tile<n, halves>(end, sum, token, first, group * alone, floor, given);
        first = false;
    }
}

/* The eight warps' masses of a column. */
__device__ __forceinline__ void sum_masses(gumbel_summary *s, const float2 *column, int stride)
{
    for (int warp = 0; warp < 4 * kConsumers; warp++) {
        float2 m = column[warp * stride];
        if (m.y > 0.0f) {
            s->max_z = fmaxf(s->max_z, m.x);
            gumbel_mass_add_block(s, m.x, m.y);
        }
    }
}

template <int n, bool half>
__device__ __forceinline__ void fused(const cuda_params &p, const CUtensorMap *weight,
                                      const CUtensorMap *hidden)
{
    using sizes = layout<n>;
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char *stages = shared;
    uint64_t *full = (uint64_t *)(shared + sizes::stages * sizes::stage_bytes);
    uint64_t *empty = full + sizes::stages;
    draw_state *states = (draw_state *)(full + 32);
    draw_best *bests = (draw_best *)(states + n * p.problem.sampling.num_samples);
    float2 *masses = (float2 *)(bests + n * p.problem.sampling.num_samples);
    uint32_t *seeds = (uint32_t *)(masses + (p.problem.with_mass ? 8 * n : 0));
    int samples = p.problem.sampling.num_samples, rows = (int)p.problem.batch;
    if (threadIdx.x == 0) {
        for (int i = 0; i < sizes::stages; i++) {
            ptx_barrier_init(&full[i], 1);
            ptx_barrier_init(&empty[i], n <= 128 ? 1 : kConsumers);
        }
        for (int i = 0; i < kConsumers; i++)
            ptx_barrier_init(&empty[sizes::stages + i], 1);
        ptx_fence_barrier_init();
        ptx_prefetch_map(weight);
        ptx_prefetch_map(hidden);
    }
    for (int i = threadIdx.x; i < n * samples; i += kThreads)
        if (i < rows * samples)
            draw_state_init(&states[i], &bests[i], &p.problem, i / samples, i % samples);
        else
            draw_state_idle(&states[i], &bests[i]);
    for (int i = threadIdx.x; i < n * samples; i += kThreads)
        seeds[i] = 0;
    if (p.problem.with_mass)
        for (int i = threadIdx.x; i < 8 * n; i += kThreads)
            masses[i] = {-INFINITY, 0.0f};
    __syncthreads();
    if (threadIdx.x / 128 == kConsumers) {
        ptx_registers_fewer<40>();
        if (threadIdx.x == 128 * kConsumers)
            produce<n>(p, weight, hidden, stages, full, empty);
    } else {
        ptx_registers_more<232>();
        consume<n, half>(p, stages, states, seeds, masses, full, empty);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * samples; i += kThreads) {
        gumbel_summary s;
        gumbel_summary_empty(&s);
        s.best_score = bests[i].score;
        s.best_z = bests[i].z;
        s.best_id = bests[i].id;
        s.flags = bests[i].flags;
        if (p.problem.with_mass)
            sum_masses(&s, masses + i / samples, n);
        p.summaries[(int64_t)blockIdx.x * rows * samples + i] = s;
    }
}

} // namespace

#define KERNEL(n, name, half)                                                                      \
    extern "C" __global__ void __launch_bounds__(kThreads, 1) gumbel_fused_sm90_##name##_##n(      \
        const __grid_constant__ cuda_params params, const __grid_constant__ CUtensorMap weight,    \
        const __grid_constant__ CUtensorMap hidden)                                                \
    {                                                                                              \
        fused<n, half>(params, &weight, &hidden);                                                  \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, bf16, false)                                                                         \
    KERNEL(n, f16, true)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
KERNELS(128)
KERNELS(256)
