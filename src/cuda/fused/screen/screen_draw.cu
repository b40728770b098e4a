/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   what can win of a screened draw on Hopper: of each token and row of the batch an interval
 *        that holds the logit of the full product, by the bytes of a screen and two planes of the
 *        hidden state (docs/maths.md, section 14); what no noise lifts to the best lower end is
 *        dropped, the rest goes to a list. Where rows are cut, that goes by what as many lower ends
 *        reach as tokens matter, without noise.
 * COST   V D bytes, once; 4 V D B byte operations on the tensor cores.
 * MAP    as fused_sm90.cu has it: a persistent CTA a multiprocessor, two warpgroups that multiply
 *        and draw in turns, three warps that serve them, one thread that copies. A tile is 128 rows
 *        of the screen by n columns: 2 b is the upper plane of row b, 2 b + 1 the lower one, so a
 *        thread holds both of the sums of its two neighbouring tokens of a row. Row
 *        16 w + 8 f + g of the operand is token 16 w + 2 g + f.
 * SMEM   a ring of stages, each 128 x 128 of the screen and n x 128 of the planes, both as they lie
 *        in memory, swizzled; then screen_shared.cuh.
 * SYNC   as fused_sm90.cu: full and empty for stages; served, drawn and multiplied for teams.
 *        Starts while the launch before it ends, and asks for its first stages until then.
 * NUMERICS  sums of integers are exact; an interval holds whatever the order of the full product.
 */
#include "cuda/fused/hopper/lanes_sm90.cuh"
#include "cuda/fused/hopper/seeds_sm90.cuh"
#include "cuda/fused/hopper/wgmma.cuh"
#include "cuda/fused/screen/screen_ptx.cuh"
#include "cuda/fused/screen/screen_serve.cuh"

namespace
{

/* Registers a thread, of 168 each at first: 2 x 208 + 88 = 3 x 168. */
constexpr int kScreenDrawRegisters = 208, kScreenServeRegisters = 88;
constexpr int kTileBytes = CUDA_SCREEN_TILE * CUDA_SCREEN_TILE;
/* Half a tile, and a whole one, in the units of descriptors. */
constexpr uint32_t kHalf = kTileBytes / 2 / 16, kWhole = kTileBytes / 16;

/* A place in the ring of stages. */
struct screen_ring {
    int stages, stage;
    uint32_t parity;
    __device__ __forceinline__ explicit screen_ring(int count) : stages(count), stage(0), parity(0)
    {
    }
    __device__ __forceinline__ void advance()
    {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
    /* The places that the other team uses. */
    __device__ __forceinline__ void skip(int count)
    {
        int to = stage + count;
        parity ^= to / stages & 1;
        stage = to % stages;
    }
};

/* What a kernel of n columns has in shared memory. */
template <int n> struct screen_memory {
    unsigned char *stages;
    screen_side<n> &side;
    __device__ __forceinline__ screen_memory(const cuda_screen_params &s, unsigned char *memory)
        : stages(memory),
          side(*(screen_side<n> *)(memory + s.call.stages * CUDA_SCREEN_STAGE_BYTES(n)))
    {
    }
};

/* Ask for the first stages, though the launch before may still write them: the second-level cache,
 * where they go, is where all writes meet. */
__device__ __forceinline__ void fetch_stages(const cuda_screen_params &s)
{
    const int tile = blockIdx.x;
    for (int k = 0; k < min(s.call.stages, s.depths) && tile < s.call.tiles; k++)
        screen_fetch(s.copy + ((int64_t)tile * s.depths + k) * kTileBytes, kTileBytes);
}

template <int n>
__device__ void produce(const cuda_screen_params &s, const screen_memory<n> &memory)
{
    constexpr int bytes = CUDA_SCREEN_STAGE_BYTES(n), planes = n * CUDA_SCREEN_TILE;
    screen_ring at(s.call.stages);
    uint64_t once = ptx_policy_evict_first(), often = ptx_policy_evict_last();
    for (int tile = blockIdx.x; tile < s.call.tiles; tile += gridDim.x) {
        const int8_t *from = s.copy + (int64_t)tile * s.depths * kTileBytes;
#pragma unroll 1
        for (int k = 0; k < s.depths; k++, at.advance()) {
            unsigned char *stage = memory.stages + at.stage * bytes;
            uint64_t *arrived = &memory.side.full[at.stage];
            ptx_barrier_wait(&memory.side.empty[at.stage], at.parity ^ 1);
            ptx_barrier_arrive_expect(arrived, bytes);
            screen_copy(stage, from + (int64_t)k * kTileBytes, kTileBytes, arrived, once);
            screen_copy(stage + kTileBytes, s.planes + (int64_t)k * planes, planes, arrived, often);
        }
    }
}

template <int n> using screen_sums = int32_t[2][n / 2];

/* The product of the team's tile. */
template <int n>
__device__ __forceinline__ void multiply(screen_sums<n> &sum, int depths,
                                         const screen_memory<n> &memory, screen_ring &at)
{
    screen_side<n> &side = memory.side;
    const uint32_t start = wgmma_address(memory.stages);
    int previous = -1;
#pragma unroll
    for (int i = 0; i < n; i++)
        sum[i / (n / 2)][i % (n / 2)] = 0;
#pragma unroll 1
    for (int k = 0; k < depths; k++, at.advance()) {
        const uint32_t stage = start + at.stage * (CUDA_SCREEN_STAGE_BYTES(n) / 16);
        const uint32_t a = __shfl_sync(~0u, stage, 0);
        const uint32_t b = __shfl_sync(~0u, stage + kWhole, 0);
        ptx_barrier_wait(&side.full[at.stage], at.parity);
        ptx_wgmma_fence();
#pragma unroll
        for (int step = 0; step < CUDA_SCREEN_TILE / 32; step++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                screen_wgmma<n>::add(sum[h], wgmma_descriptor(a + h * kHalf + 2 * step),
                                     wgmma_descriptor(b + 2 * step));
        ptx_wgmma_commit();
        ptx_wgmma_wait<1>();
        if (previous >= 0 && threadIdx.x % 128 == 0)
            ptx_barrier_arrive(&side.empty[previous]);
        previous = at.stage;
    }
    if (threadIdx.x % 32 == 0)
        ptx_barrier_arrive(&side.multiplied[threadIdx.x / 128]);
    ptx_wgmma_wait<0>();
    if (threadIdx.x % 128 == 0)
        ptx_barrier_arrive(&side.empty[previous]);
}

/* A team and its tile. */
template <int n, class call> class screen_team
{
    const call &s;
    screen_side<n> &side;
    const int thread, lane, own; /* place of the thread's first token in each half of a tile */
    const int tokens;            /* of the tile that count */

  public:
    float2 steps[2]; /* of the thread's two tokens in each half */

    __device__ __forceinline__ screen_team(const call &params, screen_side<n> &memory, int index,
                                           int tile)
        : s(params), side(memory), thread(index % 128), lane(index % 32),
          own((int)sm90_place(index % 128)),
          tokens((int)(params.call.problem.end_token - params.call.problem.first_token) -
                 tile * CUDA_SCREEN_TILE)
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
            steps[h] = __ldg((const float2 *)&s.steps[tile * CUDA_SCREEN_TILE + 64 * h + own]);
    }

    /* Offer what passes its marks. */
    __device__ __forceinline__ void draw(const screen_sums<n> &sum) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < n / 8; j++) {
                const int row = 4 * j + lane % 4;
                const screen_mark mark = side.marks[h][row];
                const float unit = side.units[row];
                const float t0 = middle_of(sum[h] + 4 * j, unit),
                            t1 = middle_of(sum[h] + 4 * j + 2, unit);
                const float e0 = fmaf(steps[h].x, t0 + mark.width, CUDA_SCREEN_TINY);
                const float e1 = fmaf(steps[h].y, t1 + mark.width, CUDA_SCREEN_TINY);
                bool p0 = !(e0 < mark.least), p1 = !(e1 < mark.least);
                if (__any_sync(~0u, p0 || p1)) {
                    const uint32_t allowed =
                        call::masked ? side.allowed[h][row][own / 32] >> own % 32 : 3;
                    p0 = p0 && mark.least < INFINITY && 64 * h + own < tokens && (allowed & 1);
                    p1 = p1 && mark.least < INFINITY && 64 * h + own + 1 < tokens && (allowed & 2);
                    put(p0, p1, {lower_of(steps[h].x, t0, mark), e0},
                        {lower_of(steps[h].y, t1, mark), e1}, row | (64 * h + own) << 8);
                }
            }
    }

    /* By the team, before its first tile is drawn from: thresholds by the tokens of most noise, of
     * this CTA and of others, and marks. */
    __device__ __forceinline__ void plant(const screen_sums<n> &sum, int tile) const
    {
        gumbel_screen_block blocks[kTileBlocks];
        load_blocks(s, tile, blocks);
        store_seeds(sum, blocks);
        ptx_named_barrier<1, 128>();
        const bool draws = side.draws_row(thread);
        if (draws) {
            side.thresholds[thread] = seeded();
            if ((blockIdx.x + thread) % SM90_SEEDERS == 0)
                give_floor(s, side, thread, 0);
        }
        if (thread < (side.rows + 31) / 32 * 32)
            share(draws);
        if (draws) {
            float reaches[kTileBlocks];
#pragma unroll
            for (int b = 0; b < kTileBlocks; b++)
                reaches[b] =
                    draw_reach(side.draws[thread].greedy, word_below(side.first_words[b][thread]));
            set_marks(s, side, thread, reaches, blocks);
        }
        ptx_named_barrier<1, 128>();
    }

    /* The same where rows are cut: the tile's peaks, and marks as soon as there are floors. */
    __device__ __forceinline__ void plant_peaks(const screen_sums<n> &sum, int tile) const
    {
        gumbel_screen_block blocks[kTileBlocks];
        load_blocks(s, tile, blocks);
#pragma unroll
        for (int j = 0; j < n / 8; j++) {
            const int row = 4 * j + lane % 4;
            float peak = -INFINITY;
            if (side.draws_row(row))
#pragma unroll
                for (int h = 0; h < 2; h++)
                    peak = fmaxf(peak, peak_of(sum[h] + 4 * j, h, row, blocks[h]));
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2)
                peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, lanes));
            if (lane < 4)
                side.reach(row, peak, 0);
        }
        ptx_named_barrier<1, 128>();
        const bool draws = side.draws_row(thread);
        if (draws)
            give_peak(s, side, thread, tile);
        if (thread < (side.rows + 31) / 32 * 32)
            wait_for_floors(s, side, thread, draws);
        if (draws) {
            const float reaches[kTileBlocks] = {};
            set_marks(s, side, thread, reaches, blocks);
        }
        ptx_named_barrier<1, 128>();
    }

    /* Wait for the team's other threads. */
    __device__ __forceinline__ void sync() const
    {
        if (threadIdx.x < 128)
            ptx_named_barrier<1, 128>();
        else
            ptx_named_barrier<2, 128>();
    }

  private:
    /* u t, of a token's two sums. */
    static __device__ __forceinline__ float middle_of(const int32_t *sums, float unit)
    {
        return unit * fmaf(256.0f, (float)sums[0], (float)sums[1]);
    }

    static __device__ __forceinline__ float lower_of(float step, float middle,
                                                     const screen_mark &mark)
    {
        return fmaf(step, middle - mark.width, -CUDA_SCREEN_TINY);
    }

    /* What the larger logit of this thread's two tokens of a block is not below, of those of row
     * `row`, which draws, that count. */
    __device__ __forceinline__ float peak_of(const int32_t *sums, int h, int row,
                                             const gumbel_screen_block &block) const
    {
        const screen_mark mark = {0.0f, gumbel_screen_width(&side.reaches[row], &block)};
        const uint32_t allowed = side.allowed[h][row][own / 32] >> own % 32;
        const float unit = side.units[row];
        const int place = 64 * h + own;
        float peak = -INFINITY;
        if (place < tokens && (allowed & 1))
            peak = lower_of(steps[h].x, middle_of(sums, unit), mark);
        if (place + 1 < tokens && (allowed & 2))
            peak = fmaxf(peak, lower_of(steps[h].y, middle_of(sums + 2, unit), mark));
        return peak;
    }

    __device__ __forceinline__ void put(bool p0, bool p1, float2 first, float2 second,
                                        uint32_t place) const
    {
        if (!(p0 || p1))
            return;
        uint32_t at = atomicAdd(&side.offered, (uint32_t)p0 + (uint32_t)p1);
        if (p0 && at < CUDA_SCREEN_TILE_QUEUE)
            side.offers[at] = {first.x, first.y, place};
        at += p0;
        if (p1 && at < CUDA_SCREEN_TILE_QUEUE)
            side.offers[at] = {second.x, second.y, place + (1 << 8)};
    }

    /* The lower ends of the tokens of most noise that this thread holds. */
    __device__ __forceinline__ void
    store_seeds(const screen_sums<n> &sum, const gumbel_screen_block (&blocks)[kTileBlocks]) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < n / 8; j++) {
                const int row = 4 * j + lane % 4;
                const int other = (int)((side.first_words[h][row] - own) % GUMBEL_BLOCK);
                if (!side.draws_row(row) || other > 1 || 64 * h + own + other >= tokens ||
                    (call::masked && !(side.allowed[h][row][own / 32] >> (own % 32 + other) & 1)))
                    continue;
                const screen_mark mark = {0.0f,
                                          gumbel_screen_width(&side.reaches[row], &blocks[h])};
                const float middle = other ? middle_of(sum[h] + 4 * j + 2, side.units[row])
                                           : middle_of(sum[h] + 4 * j, side.units[row]);
                side.seeds[h][row] = lower_of(other ? steps[h].y : steps[h].x, middle, mark);
            }
    }

    /* What this thread's row is sure to reach by the tokens that were stored; -inf for none. */
    __device__ __forceinline__ float seeded() const
    {
        const sm90_draw &draw = side.draws[thread];
        float threshold = -INFINITY;
#pragma unroll
        for (int b = 0; b < kTileBlocks; b++) {
            const float z =
                (side.seeds[b][thread] * s.call.problem.scale) * draw.inverse_temperature;
            const float floor =
                draw_score_bound_of_word(draw.greedy, z, word_above(side.first_words[b][thread]));
            if (fabsf(floor) < INFINITY)
                threshold = fmaxf(threshold, floor);
        }
        return threshold;
    }

    /* Take floors, and give, until this CTA leads in few of the warp's rows (seeds_sm90.cuh). */
    __device__ __forceinline__ void share(bool draws) const
    {
        const uint32_t few = SM90_SEED_LEADS + 64 / gridDim.x;
#pragma unroll 1
        for (int looks = 1; looks <= SM90_SEED_LOOKS; looks++) {
            bool news = looks == 1, leads = false;
            __nanosleep(SM90_SEED_NAP);
            if (draws) {
                const uint64_t floor = load_threshold(floor_of_row(s, thread));
                news |= take_floor(s, side, thread, floor);
                leads = give_floor(s, side, thread, floor);
            }
            const uint32_t count = __popc(__ballot_sync(~0u, leads));
            if (count <= few || (count <= 4 * few && !__any_sync(~0u, news)))
                return;
        }
    }
};

/* A team: its tiles, one after the other, in turns with the other one. */
template <int n, class call> __device__ void consume(const call &s, unsigned char *shared)
{
    const screen_memory<n> memory(s, shared);
    screen_side<n> &side = memory.side;
    screen_sums<n> sum;
    screen_ring at(s.call.stages);
    const int own = threadIdx.x / 128, stride = kScreenTeams * (int)gridDim.x;
    uint32_t served = 0;
    int turn = 0;
    at.skip(own * s.depths);
    for (int tile = blockIdx.x + own * gridDim.x; tile < s.call.tiles; tile += stride, turn++) {
        const screen_team<n, call> team(s, side, threadIdx.x, tile);
        if (own != 0 || turn != 0)
            ptx_barrier_wait(&side.multiplied[1 - own], (turn & 1) ^ (own == 0));
        const uint32_t began = clock();
        multiply<n>(sum, s.depths, memory, at);
        at.skip(s.depths);
        if (threadIdx.x % 128 == 0) {
            const uint32_t ended = clock();
            side.times[own] = {ended, ended - began};
        }
        bool repeats = true;
#pragma unroll 1
        for (int tries = 0; repeats; tries++) {
            ptx_barrier_wait(&side.served[own], served++ & 1);
            if (served == 1 && own == 0)
                call::cuts ? team.plant_peaks(sum, tile) : team.plant(sum, tile);
            team.draw(sum);
            team.sync();
            repeats = side.repeats(tries);
            ptx_barrier_arrive(&side.drawn[own]);
        }
    }
}

template <int n, class call> __device__ __forceinline__ void screen(const call &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const screen_memory<n> memory(s, shared_memory);
    if (threadIdx.x == 0)
        memory.side.start_barriers(s.call.stages, call::servers);
    if (threadIdx.x == 32)
        fetch_stages(s);
    ptx_wait_for_launch();
    memory.side.clear(s);
    __syncthreads();
    if (memory.side.is_known) {
        if (blockIdx.x == 0 && threadIdx.x == 0)
            s.state->again = 1;
        return;
    }
    if (threadIdx.x < SM90_DRAW_THREADS) {
        ptx_increase_registers<kScreenDrawRegisters>();
        consume<n, call>(s, shared_memory);
    } else {
        ptx_decrease_registers<kScreenServeRegisters>();
        if (threadIdx.x < SM90_DRAW_THREADS + call::servers)
            screen_server<n, call>(s, memory.side).serve();
        else if (threadIdx.x < SM90_DRAW_THREADS + SM90_SERVE_THREADS)
            screen_raise_floors(s, memory.side);
        else if (threadIdx.x == SM90_DRAW_THREADS + SM90_SERVE_THREADS) {
            produce<n>(s, memory);
            ptx_allow_launch();
        }
    }
}

} // namespace

#define KERNEL(n, name, kind)                                                                      \
    extern "C" __global__ void __launch_bounds__(CUDA_SM90_THREADS, 1)                             \
        gumbel_screen_rows_##n##name(const __grid_constant__ screen_call<kind> s)                  \
    {                                                                                              \
        screen<n>(s);                                                                              \
    }
#define KERNELS(n)                                                                                 \
    KERNEL(n, , CUDA_SCREEN_PLAIN)                                                                 \
    KERNEL(n, _any, CUDA_SCREEN_ANY)                                                               \
    KERNEL(n, _cut, CUDA_SCREEN_TRUNCATED)
KERNELS(8)
KERNELS(16)
KERNELS(32)
KERNELS(64)
KERNELS(128)
