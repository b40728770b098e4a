/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws from the logits of a tile of allowed tokens, by the warps of a CTA that do not multiply.
 * Each of these warps serves one row of the group, and each lane two tokens of the tile. Over all
 * tiles of the CTA, lane s keeps the best token of sample s, and each lane sums the masses of some
 * blocks.
 */
#ifndef GUMBEL_CUDA_TILE_DRAW_CUH
#define GUMBEL_CUDA_TILE_DRAW_CUH

#include "cuda/common/block_mass.cuh"
#include "cuda/common/merge.cuh"
#include "cuda/common/widen.cuh"
#include "cuda/fused/allowed/token_tiles.cuh"

namespace
{

constexpr int kTokensOfLane = kTile / 32;
constexpr int kSamplesMax = CUDA_LOGITS_SAMPLES;
static_assert(kProductThreads + 32 * kRows == kCtaThreads, "a warp draws a row");
static_assert(kSamplesMax <= 32, "a lane has a sample");
static_assert(kTokensOfLane == 2 && GUMBEL_BLOCK == 64, "a lane has two tokens of a block");

/* The rows of a group. */
struct group_rows {
    gumbel_row rows[kRows]; /* streams of sample 0 */
    const uint16_t *hidden[kRows];
    float logits[kRows][kTile]; /* of the current tile */
};

/* The logit after scale and soft-cap. Not inlined: a lane has four calls. */
__device__ __noinline__ float transform_logit(const cuda_params &p, float logit)
{
    const gumbel_problem &q = p.problem;
    return gumbel_transform_logit(logit, q.scale, q.soft_cap, p.inverse_cap, 1.0f);
}

/* The draw of row `row` of a group, row `b` of the batch, by one warp. Threads that multiply
 * construct a tile_draw, too, and do not use it. */
class tile_draw
{
    const cuda_params &p;
    const token_tile &tile;
    group_rows &group;
    const int row, lane;
    const int64_t b;
    float noise[kTokensOfLane], bias[kTokensOfLane]; /* of the lane's tokens; noise of sample 0 */
    draw_winner best;
    gumbel_summary mass;
    uint32_t flags;

  public:
    __device__ __forceinline__ tile_draw(const cuda_params &params, const token_tile &tokens,
                                         group_rows &memory, int64_t first)
        : p(params), tile(tokens), group(memory), row((int)threadIdx.x / 32 - kProductThreads / 32),
          lane(threadIdx.x % 32), b(first + row), best(draw_winner_none()), flags(0)
    {
        gumbel_summary_empty(&mass);
    }

    /* Loads biases and computes noise of a tile, while its product is computed. */
    __device__ __forceinline__ void prepare_tile()
    {
        const gumbel_tensor &t = p.problem.bias;
#pragma unroll
        for (int half = 0; half < kTokensOfLane; half++) {
            const int at = lane + 32 * half;
            bias[half] = -0.0f;
            if (t.data && at < tile.count)
                bias[half] =
                    widen_element(t.data, t.dtype, tile.tokens[at] - p.problem.first_token);
            noise[half] = 0.0f;
            if (is_allowed(at))
                noise[half] = find_noise(at, 0);
        }
        __syncwarp();
    }

    /* Draws from the tile's logits, which it overwrites. */
    __device__ __forceinline__ void draw_tile()
    {
        float z[kTokensOfLane];
#pragma unroll
        for (int half = 0; half < kTokensOfLane; half++) {
            const int at = lane + 32 * half;
            z[half] = is_allowed(at) ? find_z(half, group.logits[row][at]) : -INFINITY;
        }
        __syncwarp();
        if (p.problem.with_mass)
            add_masses(z);
        for (int sample = 0; sample < p.problem.sampling.num_samples; sample++)
            draw_sample(sample, z);
    }

    /* Writes the summaries of the row to found[row of the group][sample]. */
    __device__ __forceinline__ void write_summaries(gumbel_summary *found)
    {
        const int samples = p.problem.sampling.num_samples;
        if (b >= p.problem.batch)
            return;
        if (p.problem.with_mass)
            merge_masses_of_lanes<32>(&mass);
        mass.flags = __reduce_or_sync(~0u, flags);
        mass.best_score = best.score;
        mass.best_z = best.z;
        mass.best_id = best.id;
        if (lane < samples)
            found[row * samples + lane] = mass;
        __syncwarp();
    }

  private:
    /* Whether the row allows token number `at` of the tile. */
    __device__ __forceinline__ bool is_allowed(int at) const
    {
        if (at >= tile.count)
            return false;
        const uint32_t token = (uint32_t)tile.tokens[at];
        return tile.blocks[tile.block_of[at]].allowed[row][token / 32 % 2] >> token % 32 & 1;
    }

    __device__ __forceinline__ float find_noise(int at, int sample) const
    {
        const gumbel_sampling &s = p.problem.sampling;
        const int64_t draw = b * s.num_samples + sample;
        if (group.rows[row].greedy)
            return 0.0f;
        if (s.noise)
            return s.noise[draw * s.noise_stride + tile.tokens[at] - p.problem.first_token];
        gumbel_stream stream = group.rows[row].stream;
        stream.sample += (uint32_t)sample;
        return draw_token_noise_noinline(stream, (uint32_t)tile.tokens[at]);
    }

    /* Returns z of an allowed token. If z is NaN or +inf, sets the row's flag, which reports that
     * no token can be drawn, and returns -inf. */
    __device__ __forceinline__ float find_z(int half, float logit)
    {
        const float z =
            transform_logit(p, logit + bias[half]) * group.rows[row].inverse_temperature;
        flags |= isnan(z) ? GUMBEL_FLAG_NAN : z == INFINITY ? GUMBEL_FLAG_INFINITE : 0;
        return z < INFINITY ? z : -INFINITY;
    }

    __device__ __forceinline__ void draw_sample(int sample, const float (&z)[kTokensOfLane])
    {
        const bool greedy = group.rows[row].greedy;
        draw_winner found = draw_winner_none();
#pragma unroll
        for (int half = 0; half < kTokensOfLane; half++)
            if (z[half] > -INFINITY) {
                const int at = lane + 32 * half;
                const float g = sample ? find_noise(at, sample) : noise[half];
                draw_winner_offer(found, greedy ? z[half] : z[half] + g, z[half], tile.tokens[at]);
            }
        __syncwarp();
        found = draw_winner_of_warp(found);
        if (lane == sample)
            draw_winner_offer(best, found.score, found.z, found.id);
    }

    /* Adds the masses of the tile's blocks: lane l those of blocks l, l + 32, ... */
    __device__ __forceinline__ void add_masses(const float (&z)[kTokensOfLane])
    {
        float *const row_z = group.logits[row];
#pragma unroll
        for (int half = 0; half < kTokensOfLane; half++)
            row_z[lane + 32 * half] = z[half];
        __syncwarp();
        for (int first = 0; first < tile.block_count; first += 32) {
            float largest = -INFINITY, sum = 1.0f; /* of a block with one token: exp(0) */
            int count = 0;
            if (first + lane < tile.block_count) {
                const tile_block &block = tile.blocks[first + lane];
                const uint32_t low = block.allowed[row][0], high = block.allowed[row][1];
                count = __popc(low) + __popc(high);
                if (count == 1)
                    largest = row_z[find_place(block, low ? __ffs(low) - 1 : 31 + __ffs(high))];
            }
            __syncwarp();
            for (uint32_t several = __ballot_sync(~0u, count > 1); several;
                 several &= several - 1) {
                const int owner = __ffs(several) - 1;
                const float2 found = sum_tile_block(tile.blocks[first + owner]);
                if (lane == owner) {
                    largest = found.x;
                    sum = found.y;
                }
            }
            if (largest > -INFINITY) {
                mass.max_z = fmaxf(mass.max_z, largest);
                gumbel_mass_add_block(&mass, largest, sum);
            }
            __syncwarp();
        }
        __syncwarp();
    }

    /* The index in the tile of token `bit`, 0..63, of a block. Some row allows the token. */
    static __device__ __forceinline__ int find_place(const tile_block &block, int bit)
    {
        const uint32_t below = (1u << bit % 32) - 1;
        return block.first + __popc(block.any[bit / 32] & below) +
               (bit < 32 ? 0 : __popc(block.any[0]));
    }

    /* The largest z of a block, and the sum of exp(z - largest), by a warp. */
    __device__ __forceinline__ float2 sum_tile_block(const tile_block &block) const
    {
        float z[2];
#pragma unroll
        for (int word = 0; word < 2; word++)
            z[word] = block.allowed[row][word] >> lane & 1
                          ? group.logits[row][find_place(block, lane + 32 * word)]
                          : -INFINITY;
        const float largest = find_block_largest(z[0], z[1]);
        if (largest == -INFINITY)
            return {largest, 0.0f};
        return {largest, sum_block(z[0], z[1], largest)};
    }
};

} // namespace

#endif
