/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the ends of a screened draw on Hopper: before it, hidden states as planes; behind it, the
 *        tokens that can win scored by the full product, and the outputs.
 * COST   of scoring, 2 D bytes a candidate and a chain of D / 16 wgmmas.
 * MAP    splitting: a CTA a row. Scoring: CTAs share out the groups of eight rows, and the
 *        candidates of a group among each other, up to 32 at a time, gathered from anywhere. A
 *        wgmma multiplies 64 rows: what it reads of others, and what comes of that, is not looked
 *        at.
 * SMEM   a ring of 512 columns each: 32 rows of weights and then 8 hidden states, as [8][rows][64],
 *        each 64 columns in 128-byte swizzle.
 * NUMERICS  a dot product is summed 16 elements a wgmma, in the order of D, as in fused_sm90.cu:
 *        the same logits, bit by bit.
 */
#include "cuda/fused/hopper/offers_sm90.cuh"
#include "cuda/fused/hopper/wgmma.cuh"
#include "cuda/fused/tile/ending_sm90.cuh"
#include "cuda/fused/screen/screen_ptx.cuh"
#include "cuda/fused/screen/screen_split.cuh"

namespace
{

constexpr int kRows = CUDA_SCREEN_SIDE_BY_SIDE, kGroup = CUDA_SCREEN_GROUP;
constexpr int kChunk = 64; /* columns of a swizzled row of 128 bytes */
constexpr int kChunks = CUDA_SCREEN_SEGMENT / kChunk;
constexpr int kWeightBytes = kRows * 2 * CUDA_SCREEN_SEGMENT; /* of a segment */
constexpr int kUnits = CUDA_SCREEN_SEGMENT / 8;               /* of 16 bytes, a row */
constexpr int kAhead = CUDA_SCREEN_SEGMENTS - 1;

struct score_shared {
    cuda_screen_entry entries[kRows];
    int count;
    sm90_draw draws[kGroup];
    sm90_best best[kGroup];
    float floors[kGroup]; /* what rows have surely reached; -inf for nothing known */
    uint32_t again, is_last;
};
static_assert((64 - kRows) * 128 <= kGroup * 2 * CUDA_SCREEN_SEGMENT, "a wgmma reads the ring");
static_assert(sizeof(score_shared) <= CUDA_SCREEN_SCORE_SIDE_BYTES, "as the launch has it");
static_assert(sizeof(split_shared) <= CUDA_SCREEN_SPLIT_BYTES, "as the launch has it");

template <bool half> class scorer
{
    const cuda_screen_params &s;
    score_shared &shared;
    unsigned char *stages;
    const int group, thread;
    const int segments;

  public:
    __device__ __forceinline__ scorer(const cuda_screen_params &params, score_shared &memory,
                                      unsigned char *ring, int of_rows)
        : s(params), shared(memory), stages(ring), group(of_rows), thread(threadIdx.x),
          segments((int)((params.call.problem.hidden_size + CUDA_SCREEN_SEGMENT - 1) /
                         CUDA_SCREEN_SEGMENT))
    {
    }

    /* Score this CTA's candidates, the member-th of so many CTAs. */
    __device__ __forceinline__ void score_all(int member, int members, int listed) const
    {
        for (int from = member; from < listed; from += kRows * members) {
            choose(from, members, listed);
            if (shared.count == 0)
                continue;
            float sum[4] = {};
            multiply(sum);
            keep(sum);
            __syncthreads(); /* the entries may change */
        }
    }

  private:
    /* Of the next candidates those that can still win. */
    __device__ __forceinline__ void choose(int from, int members, int listed) const
    {
        if (thread == 0)
            shared.count = 0;
        __syncthreads();
        const int at = from + members * thread;
        if (thread < kRows && at < listed) {
            const uint4 raw =
                __ldcg((const uint4 *)&s.entries[group * CUDA_SCREEN_LISTED_MOST + at]);
            const cuda_screen_entry own = {__uint_as_float(raw.x), raw.y, raw.z, 0};
            if (!(own.upper < shared.floors[own.row % kGroup]))
                shared.entries[atomicAdd(&shared.count, 1)] = own;
        }
        __syncthreads();
    }

    /* Copy a segment of the candidates, and of the hidden states. */
    __device__ __forceinline__ void copy(int segment) const
    {
        const gumbel_problem &q = s.call.problem;
        unsigned char *to = stages + segment % CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES;
        const int64_t column = (int64_t)segment * CUDA_SCREEN_SEGMENT;
        const int hidden = min(kGroup, (int)q.batch - kGroup * group);
        const int rows = shared.count + hidden;
        for (int i = thread; i < rows * kUnits && segment < segments;
             i += CUDA_SCREEN_SCORE_THREADS) {
            const int unit = i % kUnits, r = i / kUnits, chunk = unit / 8;
            const bool is_weight = r < shared.count;
            const int row = is_weight ? r : r - shared.count;
            const gumbel_tensor &t = is_weight ? q.weight : q.hidden;
            const int64_t from = is_weight ? (int64_t)shared.entries[row].token - q.first_token
                                           : (int64_t)(kGroup * group + row);
            unsigned char *place =
                to + (is_weight ? chunk * kRows * 128 : kWeightBytes + chunk * kGroup * 128) +
                row * 128 + ((unit % 8) ^ (row % 8)) * 16;
            if (column + 8 * unit < q.hidden_size)
                ptx_copy_async<16>(place,
                                   (const uint16_t *)t.data + from * t.stride + column + 8 * unit);
            else
                *(uint4 *)place = {0, 0, 0, 0};
        }
        ptx_copy_async_commit();
    }

    __device__ __forceinline__ void multiply(float (&sum)[4]) const
    {
        const int depths = sm90_depths(s.call);
        for (int segment = 0; segment < kAhead; segment++)
            copy(segment);
#pragma unroll 1
        for (int segment = 0; segment < segments; segment++) {
            ptx_copy_async_wait<kAhead - 1>();
            screen_fence_shared();
            ptx_wgmma_wait<0>();
            __syncthreads(); /* this segment is there, and the one before has been read */
            const unsigned char *stage =
                stages + segment % CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES;
            const uint32_t a = __shfl_sync(~0u, wgmma_address(stage), 0);
            const uint32_t b = __shfl_sync(~0u, wgmma_address(stage + kWeightBytes), 0);
            const int chunks = min(kChunks, depths - segment * kChunks);
#pragma unroll 1
            for (int chunk = 0; chunk < chunks; chunk++) {
                ptx_wgmma_fence();
#pragma unroll
                for (int step = 0; step < kChunk / 16; step++)
                    wgmma<8, half>::add(
                        sum, wgmma_descriptor(a + chunk * (kRows * 128 / 16) + 2 * step),
                        wgmma_descriptor(b + chunk * (kGroup * 128 / 16) + 2 * step));
            }
            ptx_wgmma_commit();
            copy(segment + kAhead);
        }
        ptx_wgmma_wait<0>();
        ptx_copy_async_wait<0>();
    }

    /* Score the sums of candidates in their own rows of the batch (layout: wgmma.cuh). */
    __device__ __forceinline__ void keep(const float (&sum)[4]) const
    {
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const int at = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2);
            const uint32_t column = 2 * (thread % 4) + i % 2;
            const float logit = i & 2 ? (i & 1 ? sum[3] : sum[2]) : i & 1 ? sum[1] : sum[0];
            if (at < shared.count && shared.entries[at].row % kGroup == column)
                score(logit, shared.entries[at].token, (int)column);
        }
    }

    __device__ __forceinline__ void score(float logit, uint32_t token, int column) const
    {
        const sm90_draw &draw = shared.draws[column];
        const float z = (logit * s.call.problem.scale) * draw.inverse_temperature;
        float score = z;
        if (!(z < INFINITY)) {
            shared.again = 1;
            return;
        }
        if (!draw.greedy)
            score += draw_noise_of(
                {draw.seed, draw.position, draw.sample, s.call.problem.sampling.domain}, token);
        const sm90_best offer = {score, z, (int)token, 0};
        sm90_best seen, found = swap_best(&shared.best[column], offer, offer); /* only reads */
        while (offer.score > found.score || (offer.score == found.score && offer.id < found.id)) {
            seen = found;
            found = swap_best(&shared.best[column], seen, offer);
            if (found.id == seen.id && found.score == seen.score)
                return;
        }
    }
};

__device__ __forceinline__ void start(const cuda_screen_params &s, score_shared &shared, int group)
{
    const gumbel_problem &q = s.call.problem;
    const int i = threadIdx.x, row = kGroup * group + i;
    if (i == 0)
        shared.again = shared.is_last = 0;
    if (i >= kGroup)
        return;
    shared.best[i] = {-INFINITY, -INFINITY, -1, 0};
    shared.draws[i] = {};
    shared.floors[i] = -INFINITY;
    if (row < (int)q.batch) {
        const uint64_t floor = floor_load(&s.call.shared_floors[CUDA_FLOOR_WORDS * (int64_t)row]);
        if (floor >> FLOOR_BITS == s.call.tag)
            shared.floors[i] = floor_unpack(floor);
        const gumbel_row own = gumbel_problem_row(&q, row);
        shared.draws[i] = {own.stream.seed, own.stream.position, own.stream.sample,
                           own.inverse_temperature, own.greedy};
    }
}

/* Tell what this CTA has found; by the last one, write the outputs. A row that lives and has no
 * token is for the full pass to tell. */
__device__ __forceinline__ void end(const cuda_screen_params &s, score_shared &shared, int group)
{
    const gumbel_problem &q = s.call.problem;
    const int i = threadIdx.x, row = kGroup * group + i;
    __syncthreads();
    if (i < kGroup && row < (int)q.batch && shared.best[i].id >= 0)
        raise_draw(s.call, row, shared.best[i], 0);
    if (i == 0 && shared.again)
        s.state->again = 1;
    __syncwarp();
    if (i == 0)
        shared.is_last = ptx_count(&s.state->ended) + 1 == gridDim.x;
    __syncthreads();
    if (!shared.is_last || i >= (int)q.batch)
        return;
    if (gumbel_problem_row_flags(&q, i) == 0 && __ldcg(&words_of_draw(s.call, i)->best) == 0)
        s.state->again = 1;
    write_best(s.call, i);
}

template <bool half> __device__ __forceinline__ void score(const cuda_screen_params &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    unsigned char *ring = shared_memory;
    score_shared &shared =
        *(score_shared *)(ring + CUDA_SCREEN_SEGMENTS * CUDA_SCREEN_SEGMENT_BYTES);
    const int groups = ((int)s.call.problem.batch + kGroup - 1) / kGroup;
    const int group = blockIdx.x % groups, member = blockIdx.x / groups;
    const int members = ((int)gridDim.x - group + groups - 1) / groups;
    ptx_wait_for_launch();
    ptx_allow_launch();
    /* Nothing of this waits for another load. */
    const uint32_t again = __ldcg(&s.state->again), all = __ldcg(&s.state->listed[group]);
    const int list_most = min(max(s.header->list_most, 1), GUMBEL_SCREEN_LIST_MOST);
    start(s, shared, group);
    if (again)
        return;
    __syncthreads();
    scorer<half>(s, shared, ring, group)
        .score_all(member, members, (int)min(all, (uint32_t)CUDA_SCREEN_LISTED(list_most)));
    end(s, shared, group);
}

/* A row's planes; the words of its draw are cleared with them, and what the others tell. */
__device__ __forceinline__ void split_row(const cuda_screen_params &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    split_shared &shared = *(split_shared *)shared_memory;
    const gumbel_problem &q = s.call.problem;
    const int64_t row = blockIdx.x;
    ptx_allow_launch();
    ptx_wait_for_launch();
    if (row == 0 && threadIdx.x == 0)
        *s.state = {};
    if (row < q.batch && threadIdx.x < CUDA_FLOOR_WORDS)
        s.call.shared_floors[CUDA_FLOOR_WORDS * row + threadIdx.x] = 0;
    const row_split own(s, shared, row);
    if (row >= q.batch || !gumbel_problem_row_lives(&q, row)) {
        if (threadIdx.x < kSplitThreads)
            own.clear();
        return;
    }
    gumbel_screen_reach reach = {};
    if (threadIdx.x < kSplitThreads)
        reach = own.split();
    else
        own.look_at_header();
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    if (!shared.fits)
        reach.unit = __uint_as_float(0x7fc00000);
    s.reaches[row] = reach;
}

} // namespace

extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SPLIT_THREADS)
    gumbel_split_rows(const __grid_constant__ cuda_screen_params s)
{
    split_row(s);
}

#define KERNEL(dtype, half)                                                                        \
    extern "C" __global__ void __launch_bounds__(CUDA_SCREEN_SCORE_THREADS)                        \
        gumbel_score_rows_##dtype(const __grid_constant__ cuda_screen_params s)                    \
    {                                                                                              \
        score<half>(s);                                                                            \
    }
KERNEL(bf16, false)
KERNEL(f16, true)
