/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws from the logits of tokens that masks allow, for rows that allow few, with
 *        penalties of a history and the mass of the row. Logits of other tokens are not read.
 * COST   V / 8 bytes of mask a row, and for each allowed token its logit and one or two Philox
 *        blocks a sample.
 * MAP    a CTA takes one row, up to 32 samples and a split of the vocabulary; a warp takes eight
 *        blocks of 64 tokens at a time, a lane two tokens of each. Lane s keeps the best token of
 *        sample s.
 * SMEM   the parameters of the row and a result a warp.
 * SYNC   no CTA waits for another: the last one of a row to increment a counter (cta_counter.cuh)
 *        merges the summaries of all.
 * NUMERICS  a block's mass is summed in the order of the CPU (docs/maths.md, section 5).
 */
#include "cuda/truncated/row/row_draw.cuh"
#include "cuda/common/cta_counter.cuh"
#include "cuda/common/merge.cuh"

namespace
{

constexpr int kBlocks = CUDA_ALLOWED_BLOCKS, kHalves = 2 * kBlocks;
constexpr int kSamples = CUDA_LOGITS_SAMPLES;
static_assert(kSamples <= 32 && kWarps <= 32 && kHalves <= 32,
              "a lane has a sample, a warp's result, or a word of the mask");

struct allowed_state {
    gumbel_row row; /* its stream is that of the CTA's first sample */
    row_edits edits;
    draw_winner best[kWarps][kSamples];
    gumbel_summary masses[kWarps];
    uint32_t flags[kWarps];
    bool is_last;
};
static_assert(sizeof(allowed_state) <= CUDA_ALLOWED_DRAW_BYTES, "the launch has this size");

/* z of an allowed token. Not inlined: a warp has sixteen calls. */
__device__ __noinline__ float find_z(const cuda_params &p, const allowed_state &state,
                                     int64_t token, float logit)
{
    const gumbel_problem &q = p.problem;
    float y = gumbel_transform_logit(logit, q.scale, q.soft_cap, p.inverse_cap, 1.0f);
    if (state.edits.act)
        y = penalise_by_history(q, state.edits, token, 0, y);
    return y * state.row.inverse_temperature;
}

/* A warp that draws from blocks of a row. */
struct allowed_warp {
    const cuda_params &p;
    const allowed_state &state;
    const int64_t b, end;
    const int samples, lane;
    const float *noise;  /* of the first sample, token 0; NULL: not given */
    draw_winner best;    /* of sample `lane` */
    gumbel_summary mass; /* lane 0 */
    uint32_t flags;

    /* Word number `lane` of the row's mask from token `base` on, without tokens that do not count;
     * 0 past the blocks. */
    __device__ __forceinline__ uint32_t load_word(int64_t base) const
    {
        const gumbel_problem &q = p.problem;
        const int64_t first = base + 32 * lane;
        if (lane >= kHalves || first >= end)
            return 0;
        const int64_t skipped = q.first_token - first, counted = end - first;
        uint32_t word = __ldcg(state.edits.mask + first / 32);
        if (skipped > 0)
            word = skipped < 32 ? word >> skipped << skipped : 0;
        return counted < 32 ? word & ((1u << counted) - 1) : word;
    }

    /* Draws from the blocks from token `base` on, a multiple of 64. */
    __device__ __forceinline__ void draw_blocks(int64_t base)
    {
        const uint32_t words = load_word(base);
        float z[kHalves];
        if (!__any_sync(~0u, words != 0))
            return;
#pragma unroll
        for (int i = 0; i < kHalves; i++)
            z[i] = __shfl_sync(~0u, words, i) >> lane & 1
                       ? raw_logit(p.problem, b, base + 32 * i + lane)
                       : -INFINITY;
#pragma unroll
        for (int i = 0; i < kHalves; i++) {
            const uint32_t word = __shfl_sync(~0u, words, i);
            if (word >> lane & 1) {
                z[i] = find_z(p, state, base + 32 * i + lane, z[i]);
                flags |= flags_of_z(z[i]);
                z[i] = z[i] < INFINITY ? z[i] : -INFINITY;
            }
        }
        __syncwarp();
        if (p.problem.with_mass)
#pragma unroll
            for (int i = 0; i < kHalves; i += 2)
                add_block(mass, z[i], z[i + 1]);
        for (int sample = 0; sample < samples; sample++)
            draw_sample(base, sample, words, z);
    }

    __device__ __forceinline__ void draw_sample(int64_t base, int sample, uint32_t words,
                                                const float (&z)[kHalves])
    {
        draw_winner found = draw_winner_none();
#pragma unroll
        for (int i = 0; i < kHalves; i++)
            if (__shfl_sync(~0u, words, i) && z[i] > -INFINITY) {
                const int64_t token = base + 32 * i + lane;
                draw_winner_offer(found, find_score(token, sample, z[i]), z[i], (int)token);
            }
        __syncwarp();
        found = draw_winner_of_warp(found);
        if (lane == sample)
            draw_winner_offer(best, found.score, found.z, found.id);
    }

    __device__ __forceinline__ float find_score(int64_t token, int sample, float z) const
    {
        gumbel_stream stream = state.row.stream;
        if (state.row.greedy)
            return z;
        stream.sample += (uint32_t)sample;
        return z + (noise ? noise[sample * p.problem.sampling.noise_stride + token]
                          : draw_token_noise_noinline(stream, (uint32_t)token));
    }
};

__device__ __forceinline__ void draw_split(const cuda_params &p)
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    allowed_state &state = *(allowed_state *)shared_memory;
    const gumbel_problem &q = p.problem;
    const int all = q.sampling.num_samples, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t split = blockIdx.x % p.splits, b = blockIdx.x / p.splits % q.batch;
    const int first = (int)(blockIdx.x / p.splits / q.batch) * kSamples;
    const int samples = all - first < kSamples ? all - first : kSamples;
    const int64_t draw = b * all + first, draws = q.batch * all;
    const int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + split * p.split_size;
    const float *noise = q.sampling.noise
                             ? q.sampling.noise + draw * q.sampling.noise_stride - q.first_token
                             : nullptr;
    ptx_wait_for_launch();
    ptx_allow_launch();
    if (threadIdx.x == 0) {
        state.row = gumbel_problem_row(&q, b);
        state.row.stream.sample += (uint32_t)first;
    }
    if (threadIdx.x == 32)
        state.edits = load_row_edits(q, b);
    if (threadIdx.x == 64)
        start_cta_counter(cta_counter_of_draw(p, draw), p.tag);
    const int64_t end =
        gumbel_problem_row_is_live(&q, b) ? min(begin + p.split_size, q.end_token) : begin;
    __syncthreads();
    allowed_warp own = {p, state, b, end, samples, lane, noise, draw_winner_none()};
    gumbel_summary_empty(&own.mass);
    for (int64_t base = begin + warp * kBlocks * GUMBEL_BLOCK; base < end;
         base += kWarps * kBlocks * GUMBEL_BLOCK)
        own.draw_blocks(base);
    own.flags = __reduce_or_sync(~0u, own.flags);
    state.best[warp][lane] = own.best;
    if (lane == 0) {
        state.masses[warp] = own.mass;
        state.flags[warp] = own.flags;
    }
    __syncthreads();
    if (warp == 0)
        write_summaries_of_warps(state, q.with_mass, &p.summaries[split * draws + draw], samples);
    __syncwarp();
    if (threadIdx.x == 0)
        state.is_last = count_cta_end(cta_counter_of_draw(p, draw), p.tag, p.splits);
    __syncthreads();
    if (state.is_last)
        for (int s = warp; s < samples; s += kWarps)
            finish_draw(p, draw + s, q.with_mass);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    gumbel_draw_allowed(const __grid_constant__ cuda_params p)
{
    draw_split(p);
}
