/* SPDX-License-Identifier: Apache-2.0
 *
 * Refines the bounds of the candidates of coarse bounds, which become 16 times narrower: the
 * products of the low nibbles are added to the middle of the coarse bounds. Candidates that can
 * still win go to the list of tokens to score. A CTA refines candidates of one row.
 */
#ifndef GUMBEL_CUDA_SCREEN_REFINE_CUH
#define GUMBEL_CUDA_SCREEN_REFINE_CUH

#include "cuda/common/draw.cuh"
#include "cuda/common/row_thresholds.cuh"
#include "cuda/fused/screen/screen_shared.cuh"

namespace
{

constexpr int kRefineThreads = CUDA_SCREEN_REFINE_THREADS;
constexpr int kPartBytes = 16, kParts = CUDA_SCREEN_TILE / 2 / kPartBytes; /* of a row of a tile */
constexpr int kPartsAhead = 8; /* that a lane loads at once */
/* Bounds the rounding of a refined middle, relative to the sizes of its terms (docs/maths.md,
 * section 14). */
constexpr float kMiddleError = 0x1p-20f;

/* Sums of a token's low nibbles with the two planes of a row. */
struct plane_sums {
    int32_t upper, lower;
};

/* The row's parameters, and its candidates that wait for their bounds; then the row's planes, for
 * each 128 columns the upper and the lower one, and 16 bytes of padding, so that a warp reads all
 * banks at once. */
struct refine_shared {
    uint2 queue[kRefineThreads];     /* tokens, and the bits of their middles */
    plane_sums sums[kRefineThreads]; /* of the tokens */
    int queued;
    sm90_draw draw;
    gumbel_screen_hidden_error hidden_error, coarse_error;

    __device__ __forceinline__ int8_t *planes_at(int depth)
    {
        return (int8_t *)this + CUDA_SCREEN_REFINE_SIDE + depth * CUDA_SCREEN_REFINE_DEPTH_BYTES;
    }
};
static_assert(sizeof(refine_shared) <= CUDA_SCREEN_REFINE_SIDE, "the launch has this size");

template <class call> class screen_refiner
{
    const call &s;
    refine_shared &shared;
    const int row, group, lane;

  public:
    __device__ __forceinline__ screen_refiner(const call &params, refine_shared &memory, int b)
        : s(params), shared(memory), row(b), group(b / CUDA_SCREEN_GROUP), lane(threadIdx.x % 32)
    {
    }

    /* Refines the candidates of the row, as number `member` of `members` CTAs. */
    __device__ __forceinline__ void refine_row(int member, int members) const
    {
        const int count =
            (int)min(__ldcg(&s.state->coarse_listed[group]), (uint32_t)CUDA_SCREEN_GROUP_COARSE);
        copy_planes();
        if (threadIdx.x == 0) {
            shared.queued = 0;
            shared.hidden_error = s.hidden_errors[row];
            shared.coarse_error = s.coarse_errors[row];
        }
        if (threadIdx.x == 32) /* at the same time */
            shared.draw = s.parameters_of(row);
        __syncthreads();
        for (int from = member; from < count; from += kRefineThreads * members) {
            enqueue_candidate(from + members * (int)threadIdx.x, count);
            ptx_copy_async_wait<0>(); /* the planes */
            __syncthreads();
            for (int i = threadIdx.x / 32; i < shared.queued; i += kRefineThreads / 32) {
                const plane_sums sums = multiply(place_of(shared.queue[i].x));
                if (lane == 0)
                    shared.sums[i] = sums;
            }
            __syncthreads(); /* all sums are known */
            if ((int)threadIdx.x < shared.queued)
                bound_score(shared.queue[threadIdx.x], shared.sums[threadIdx.x]);
            __syncthreads(); /* the queue has been read */
            if (threadIdx.x == 0)
                shared.queued = 0;
            __syncthreads();
        }
        ptx_copy_async_wait<0>();
    }

  private:
    /* Starts to copy the planes of the row, whose operand is swizzled. */
    __device__ __forceinline__ void copy_planes() const
    {
        constexpr int units = 2 * CUDA_SCREEN_TILE / 16; /* of 16 bytes, of both planes */
        for (int i = threadIdx.x; i < s.depths * units; i += kRefineThreads) {
            const int depth = i / units, unit = i % units, n = 2 * row + unit / (units / 2);
            const int8_t *from = s.planes + ((int64_t)depth * s.width + n) * CUDA_SCREEN_TILE +
                                 16 * (unit % (units / 2) ^ n % 8);
            ptx_copy_async<16>(shared.planes_at(depth) + 16 * unit, from);
        }
        ptx_copy_async_commit();
    }

    __device__ __forceinline__ uint64_t *threshold_word() const
    {
        return &s.call.row_thresholds[CUDA_THRESHOLD_WORDS * row];
    }

    /* Appends candidate number `at` of the group to the queue if it is of the row and may win. */
    __device__ __forceinline__ void enqueue_candidate(int at, int count) const
    {
        if (at >= count)
            return;
        const uint4 raw =
            __ldcg((const uint4 *)&s.coarse_entries[group * CUDA_SCREEN_GROUP_COARSE + at]);
        const float upper = __uint_as_float(raw.x);
        if ((int)raw.z == row && !(upper < unpack_threshold(load_threshold(threshold_word()))))
            shared.queue[atomicAdd(&shared.queued, 1)] = {raw.y, raw.w};
    }

    /* The row of a token in the screen. */
    __device__ __forceinline__ int place_of(uint32_t token) const
    {
        return (int)(token - (uint32_t)s.call.problem.first_token);
    }

    /* Bounds the score of a queued token, and lists the token if it can win. */
    __device__ __forceinline__ void bound_score(const uint2 &queued, const plane_sums &sums) const
    {
        const int place = place_of(queued.x);
        const gumbel_screen_hidden_error &error = shared.hidden_error,
                                         &coarse = shared.coarse_error;
        const gumbel_screen_block bound = s.bounds[place / GUMBEL_BLOCK];
        const float step = __ldg(&s.steps[place]), coarse_middle = __uint_as_float(queued.y);
        const float upper = (float)sums.upper, lower = (float)sums.lower;
        const float low = error.unit * fmaf(256.0f, upper, lower);
        const float low_size = error.unit * fmaf(256.0f, fabsf(upper), fabsf(lower));
        const float middle = fmaf(step, low + (coarse.shift - error.shift), coarse_middle);
        const float width =
            step * (gumbel_screen_error_width(&error, &bound) +
                    kMiddleError * (low_size + fabsf(coarse.shift) + fabsf(error.shift) +
                                    error_width(s, coarse, bound))) +
            kMiddleError * fabsf(coarse_middle) + CUDA_SCREEN_TINY;
        const gumbel_problem &q = s.call.problem;
        const sm90_draw &draw = shared.draw;
        float noise = 0.0f;
        if (!draw.greedy)
            noise = draw_token_noise({draw.seed, draw.position, draw.sample, q.sampling.domain},
                                     queued.x);
        keep_candidate(((middle - width) * q.scale) * draw.inverse_temperature + noise,
                       ((middle + width) * q.scale) * draw.inverse_temperature + noise, queued.x);
    }

    /* Raises the row's threshold by the lower bound of a score; lists the candidate if its upper
     * bound reaches it. */
    __device__ __forceinline__ void keep_candidate(float lower, float upper, uint32_t token) const
    {
        const float threshold = draw_threshold(lower);
        if (!(upper < INFINITY))
            s.state->again = 1;
        if (threshold > unpack_threshold(load_threshold(threshold_word())))
            atomicMax((unsigned long long *)threshold_word(),
                      (unsigned long long)s.call.tag << THRESHOLD_BITS | pack_threshold(threshold));
        if (upper < unpack_threshold(load_threshold(threshold_word())))
            return;
        const int list_max = min(max(s.header->list_max, 1), GUMBEL_SCREEN_LIST_MAX);
        const uint32_t at = atomicAdd(&s.state->listed[group], 1);
        if (at < CUDA_SCREEN_GROUP_CANDIDATES(list_max))
            s.entries[group * CUDA_SCREEN_GROUP_CANDIDATES_MAX + at] = {upper, token, (uint32_t)row,
                                                                        0};
        else
            s.state->again = 1;
    }

    /* The sums of the token at this place; by a warp. A lane takes 32 columns of every eighth tile.
     */
    __device__ __forceinline__ plane_sums multiply(int place) const
    {
        const int64_t tile = (int64_t)(place / CUDA_SCREEN_TILE) * s.depths;
        const int at = operand_row(place % CUDA_SCREEN_TILE), part = lane % kParts;
        constexpr int turn = 32 / kParts;
        plane_sums sums = {};
#pragma unroll 1
        for (int first = lane / kParts; first < s.depths; first += turn * kPartsAhead) {
            uint4 parts[kPartsAhead];
#pragma unroll
            for (int i = 0; i < kPartsAhead; i++) {
                const int64_t depth = min(first + turn * i, s.depths - 1);
                parts[i] = __ldg((const uint4 *)(s.low_nibbles +
                                                 ((tile + depth) * CUDA_SCREEN_TILE + at) *
                                                     (CUDA_SCREEN_TILE / 2) +
                                                 kPartBytes * part));
            }
#pragma unroll
            for (int i = 0; i < kPartsAhead; i++)
                if (first + turn * i < s.depths)
                    add_part(parts[i], shared.planes_at(first + turn * i) + 4 * part, sums);
        }
        return {(int32_t)__reduce_add_sync(~0u, (uint32_t)sums.upper),
                (int32_t)__reduce_add_sync(~0u, (uint32_t)sums.lower)};
    }

    /* Adds the products of a part of nibbles; `planes` points to its first column. */
    static __device__ __forceinline__ void add_part(const uint4 &part, const int8_t *planes,
                                                    plane_sums &sums)
    {
        add_word(part.x, planes, sums);
        add_word(part.y, planes + 16, sums);
        add_word(part.z, planes + 64, sums);
        add_word(part.w, planes + 80, sums);
    }

    /* Adds the products of a word of nibbles, whose high halves are 32 columns further. */
    static __device__ __forceinline__ void add_word(uint32_t word, const int8_t *planes,
                                                    plane_sums &sums)
    {
        const int low = (int)(word & 0x0f0f0f0fu), high = (int)(word >> 4 & 0x0f0f0f0fu);
        sums.upper = __dp4a(low, *(const int *)planes, sums.upper);
        sums.lower = __dp4a(low, *(const int *)(planes + CUDA_SCREEN_TILE), sums.lower);
        sums.upper = __dp4a(high, *(const int *)(planes + 32), sums.upper);
        sums.lower = __dp4a(high, *(const int *)(planes + 32 + CUDA_SCREEN_TILE), sums.lower);
    }
};

/* Refines the candidates that the launch before has listed. */
template <class call> __device__ __forceinline__ void run_refining(const call &s)
{
    extern __shared__ __align__(1024) unsigned char shared_memory[];
    const int row = blockIdx.x % s.draws, member = blockIdx.x / s.draws;
    ptx_wait_for_launch();
    ptx_allow_launch();
    if (__ldcg(&s.state->again))
        return;
    screen_refiner<call>(s, *(refine_shared *)shared_memory, row)
        .refine_row(member, ((int)gridDim.x - row + s.draws - 1) / s.draws);
}

} // namespace

#endif
