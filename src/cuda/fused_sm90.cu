/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the fused draw on Hopper (eq. 1 to 4; FlashSampling, Algorithm 2).
 * COST   2 V D bytes of weights, once; 2 V D B flops on the tensor cores. On an H200 these run at
 *        4.6 TB/s and 790 TFLOP/s.
 * MAP    a persistent CTA a multiprocessor, of three warpgroups: two multiply and draw; of the
 *        third, three warps make noise and one thread copies. A tile is 128 weight rows by N
 *        batch rows, N the batch padded to 8 .. 256. The 5-dimensional tensor map lays weight
 *        rows down so that MMA row 16 w + 8 f + 2 h + l is token 16 w + 4 h + 2 l + f: a thread
 *        holds two neighbouring tokens of each of its columns, two neighbouring lanes a Philox
 *        block.
 * SMEM   a ring of stages, each 128 x 64 weights (16 KiB) and N x 64 hidden states (128 N bytes),
 *        both in 128-byte swizzle; then what cuda/shared_sm90.cuh lays out.
 * SYNC   full[s]: the producer's one arrival and the bytes of the stage. empty[s]: one arrival of
 *        each multiplying warpgroup, once the products that read the stage are done. noise_made:
 *        every thread that draws or makes noise, once a tile's sums and noise are there.
 *        noise_wanted: every thread that draws, once the next noise may be made. And a named
 *        barrier of the 256 threads that draw.
 * NUMERICS  a dot product is summed 16 elements a wgmma, in the order of D, whatever N: token,
 *        score and log-normaliser do not depend on the batch.
 */
#include "cuda/epilogue_sm90.cuh"
#include "cuda/noise_sm90.cuh"
#include "cuda/wgmma.cuh"

namespace
{

/* Registers a thread: 65536 in all, 168 each at first. */
constexpr int kDrawRegisters = 216, kServeRegisters = 72;
/* The floor is asked for this many steps before a tile's sums are done. */
constexpr int kFloorAhead = 3;

/* A place in the ring of stages. */
struct ring {
    int stages, stage;
    uint32_t parity;
    __device__ __forceinline__ explicit ring(int count) : stages(count), stage(0), parity(0) {}
    __device__ __forceinline__ void advance()
    {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

template <int n>
__device__ void produce(const cuda_params &p, const CUtensorMap *weight, const CUtensorMap *hidden,
                        const shared_sm90<n> &shared)
{
    constexpr int bytes = shared_sm90<n>::stage_bytes;
    ring at(p.stages);
    int depths = sm90_depths(p);
    uint64_t once = ptx_policy_evict_first(), often = ptx_policy_evict_last();
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x)
        for (int k = 0; k < depths; k++, at.advance()) {
            unsigned char *stage = shared.stages + at.stage * bytes;
            uint64_t *arrived = &shared.full[at.stage];
            ptx_barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
            ptx_barrier_arrive_expect(arrived, bytes);
            ptx_copy_5d(stage, weight, k * SM90_DEPTH, 0, 0, 0, tile * (CUDA_SM90_TILE / 16),
                        arrived, once);
            ptx_copy_2d(stage + SM90_WEIGHT_BYTES, hidden, k * SM90_DEPTH, 0, arrived, often);
        }
}

/* The product of this warpgroup's half of a tile. Returns the floor that `end` asked for. */
template <int n, bool half>
__device__ __forceinline__ uint64_t multiply(float (&sum)[n / 2], int depths, int group,
                                             const shared_sm90<n> &shared, ring &at,
                                             const epilogue<n> &end)
{
    int previous = -1, ask = depths > kFloorAhead ? depths - kFloorAhead : 0;
    uint64_t floor = 0;
#pragma unroll
    for (int i = 0; i < n / 2; i++)
        sum[i] = 0.0f;
    for (int k = 0; k < depths; k++, at.advance()) {
        unsigned char *stage = shared.stages + at.stage * shared_sm90<n>::stage_bytes;
        uint64_t a = wgmma_descriptor(stage + group * (SM90_WEIGHT_BYTES / 2));
        uint64_t b = wgmma_descriptor(stage + SM90_WEIGHT_BYTES);
        ptx_barrier_wait(&shared.full[at.stage], at.parity);
        ptx_wgmma_fence();
#pragma unroll
        for (int step = 0; step < SM90_DEPTH / 16; step++)
            wgmma<n, half>::add(sum, a + 2 * step, b + 2 * step);
        ptx_wgmma_commit();
        if (k == ask)
            floor = end.load_floor();
        ptx_wgmma_wait<1>();
        if (previous >= 0 && threadIdx.x % 128 == 0)
            ptx_barrier_arrive(&shared.empty[previous]);
        previous = at.stage;
    }
    ptx_wgmma_wait<0>();
    if (threadIdx.x % 128 == 0)
        ptx_barrier_arrive(&shared.empty[previous]);
    return floor;
}

/* A use of the sums that the compiler cannot see through, and that never writes. */
template <int n> __device__ __forceinline__ void keep(const float (&sum)[n], uint32_t *flags)
{
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < n; i++)
        all += sum[i];
    if (all == 0x1.23456p+99f)
        *flags = 0;
}

/* Whether the tensor cores, not the memory, bound the product. Then noise is made between tiles, by
 * all warps: beside a wgmma every instruction of one of the four schedulers holds up all of them,
 * and noise made meanwhile takes twice its time. Else it is made meanwhile, by warps of its own. */
template <int n> constexpr bool noise_between = n == 256;

constexpr int kNoiseWarps = SM90_NOISE_THREADS / 32;

/* The two warpgroups that multiply and draw. */
template <int n, bool half>
__device__ void consume(const cuda_params &p, const shared_sm90<n> &shared)
{
    ring at(p.stages);
    float sum[n / 2];
    int depths = sm90_depths(p);
    epilogue<n> end(p, shared);
    tile_mass<n> mass(shared, (int)p.problem.batch, end.scale);
    uint32_t phase = 0;
    for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x, phase ^= 1) {
        bool first = tile == (int)blockIdx.x;
        uint64_t floor = multiply<n, half>(sum, depths, threadIdx.x / 128, shared, at, end);
        if (p.multiply_only) {
            keep(sum, shared.flags);
            continue;
        }
        end.start_tile();
        if (p.stored) {
            end.store(sum);
            continue;
        }
        if (noise_between<n>) {
            ptx_barrier_arrive(shared.noise_wanted);
            noise_of_tile<n>(p, shared, tile, threadIdx.x / 32, SM90_WARPS + kNoiseWarps);
        }
        end.prepare(sum);
        end.take_floor(floor);
        ptx_barrier_arrive(shared.noise_made);
        ptx_barrier_wait(shared.noise_made, phase);
        if (first)
            end.seed(sum);
        end.draw(sum);
        if (first)
            end.settle();
        if (!noise_between<n>)
            ptx_barrier_arrive(shared.noise_wanted);
        if (p.problem.with_mass)
            mass.add(sum);
        drawing_sync();
        end.take_best();
        end.give_floor();
    }
    end.settle();
}

/* The warps that only make noise. */
template <int n> __device__ void make_noise(const cuda_params &p, const shared_sm90<n> &shared)
{
    int warp = (threadIdx.x - SM90_DRAW_THREADS) / 32;
    int tiles = p.multiply_only || p.stored ? 0 : p.tiles;
    uint32_t phase = noise_between<n> ? 0 : 1; /* of the noise wanted; the first is at once */
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, phase ^= 1) {
        ptx_barrier_wait(shared.noise_wanted, phase);
        if (noise_between<n>)
            noise_of_tile<n>(p, shared, tile, SM90_WARPS + warp, SM90_WARPS + kNoiseWarps);
        else
            noise_of_tile<n>(p, shared, tile, warp, kNoiseWarps);
        ptx_barrier_arrive(shared.noise_made);
    }
}

template <int n, bool half>
__device__ __forceinline__ void fused(const cuda_params &p, const CUtensorMap *weight,
                                      const CUtensorMap *hidden)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    shared_sm90<n> shared(p, memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.stages; i++) {
            ptx_barrier_init(&shared.full[i], 1);
            ptx_barrier_init(&shared.empty[i], SM90_DRAW_THREADS / 128);
        }
        ptx_barrier_init(shared.noise_made, SM90_DRAW_THREADS + SM90_NOISE_THREADS);
        ptx_barrier_init(shared.noise_wanted, SM90_DRAW_THREADS);
        ptx_fence_barrier_init();
        ptx_prefetch_map(weight);
        ptx_prefetch_map(hidden);
    }
    shared.clear(p);
    __syncthreads();
    if (threadIdx.x < SM90_DRAW_THREADS) {
        ptx_registers_more<kDrawRegisters>();
        consume<n, half>(p, shared);
    } else {
        ptx_registers_fewer<kServeRegisters>();
        if (threadIdx.x < SM90_DRAW_THREADS + SM90_NOISE_THREADS)
            make_noise<n>(p, shared);
        else if (threadIdx.x == SM90_DRAW_THREADS + SM90_NOISE_THREADS)
            produce<n>(p, weight, hidden, shared);
    }
    __syncthreads();
    shared.write_summaries(p);
}

} // namespace

#define KERNEL(n, name, half)                                                                      \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_fused_sm90_##name##_##n(const __grid_constant__ cuda_params params,                 \
                                       const __grid_constant__ CUtensorMap weight,                 \
                                       const __grid_constant__ CUtensorMap hidden)                 \
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
