/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   draws from precomputed logits (eq. 2 to 4; FlashSampling, Algorithm B.1), or from y if
 *        masks and histories are the only edits (docs/maths.md, section 8).
 * COST   reads B V elements once. Four tokens take about 30 instructions, and 4 for each further
 *        sample. A sample's noise takes a Philox block every 128 tokens, and one or two for each
 *        token that may win. findings/cuda_logits.md has the cost of the log-normaliser, and the
 *        limit of the kernel. A mask adds a bit a token and four selections; the history is read
 *        only for tokens that are scored.
 * MAP    a CTA takes one row, up to 32 samples and a split of the vocabulary, in windows whose
 *        block bounds it computes at once; most splits have one window. Warps take steps of 512
 *        tokens, eight blocks of 64, dynamically. Four lanes hold a block: lane j has the quads
 *        (four tokens, one Philox block) j, j + 4, j + 8 and j + 12, and with them all terms of
 *        four of eq. 8's lanes. The block's largest value determines whether any of its tokens may
 *        win in a sample. Such tokens are listed, and scored 32 at a time, one per lane, while the
 *        next step's logits are loaded.
 * SMEM   the draw's state (cta_state); with the mass, a summary a thread; four bytes a sample and
 *        block of the window.
 * SYNC   the warps of a CTA wait for each other after loading the row's parameters, after computing
 *        bounds and first thresholds, before each further window, and at the end. Best tokens and
 *        lists belong to a warp; thresholds and the next step are accessed by atomics only. No CTA
 *        waits for another: the last one of a row to increment a counter (cta_counter.cuh) merges
 *        the summaries of all.
 * NUMERICS  a block's mass is summed in the order of the CPU (docs/maths.md, section 5), and adding
 *        blocks is exact: the bits do not depend on the split.
 */
#include "cuda/logits/logits_draw.cuh"
#include "cuda/common/merge.cuh"
#include "cuda/common/cta_counter.cuh"

namespace
{

static_assert(kSamples <= 32 && kWarps <= 32, "the first warp summarizes samples and warps");

/* Initializes the state of a row; sums start after a barrier. */
template <bool edited>
__device__ __forceinline__ void start_state(const gumbel_problem &q, cta_state &state, int64_t b,
                                            int first, int samples)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if ((int)threadIdx.x < samples) {
        gumbel_row row = gumbel_problem_row(&q, b);
        row.stream.sample += (uint32_t)(first + (int)threadIdx.x);
        state.philox[threadIdx.x] = draw_philox_of(row.stream);
        state.threshold[threadIdx.x] = ordered_bits(-FLT_MAX); /* only -inf is lower */
        if (threadIdx.x == 0) {
            state.inverse_temperature = row.inverse_temperature;
            state.greedy = row.greedy;
            state.next = kWarps;
        }
    }
    if (edited && (int)threadIdx.x == kThreads - 2) {
        state.edits = load_row_edits(q, b);
        state.raises = state.edits.act && !penalties_lower(state.edits.penalties);
    }
    if (lane < samples)
        state.best[warp][lane] = draw_winner_none();
    if (lane == 0)
        state.flags[warp] = 0;
}

/* Merges the masses of a warp's lanes. */
__device__ __forceinline__ void end_mass(cta_state &state, mass_accumulator &mass)
{
    mass.flush();
    gumbel_summary sum = *mass.thread_sum;
    merge_masses_of_lanes<32>(&sum);
    if (threadIdx.x % 32 == 0)
        state.masses[threadIdx.x / 32] = sum;
}

/* clear_words() by all threads; out of line as it is rare. */
__device__ __noinline__ void clear_words_noinline(const cuda_params &p)
{
    clear_words(p, threadIdx.x, kThreads);
}

/* Draws from the split, window by window; the bounds of a window are computed before its steps. The
 * logits of the first steps are already requested. */
template <bool with_mass, gumbel_dtype dtype, bool given, bool edited>
__device__ __forceinline__ void draw_windows(warp_draw<dtype, given, edited> &own,
                                             typename warp_draw<dtype, given, edited>::step &logits,
                                             mass_accumulator &mass)
{
    bool first = true;
#pragma unroll 1
    while (own.begin < own.end) {
        own.blocks = (int)((own.end - own.begin + kStep - 1) / kStep * (kStep / GUMBEL_BLOCK));
        if (!given)
            own.make_window_bounds(first);
        else if (first)
            own.raise_by_given_noise();
        __syncthreads();
        own.template draw_window<with_mass>(logits, mass);
        const uint32_t end = own.state.end;
        own.begin = own.end;
        own.end = min(own.begin + CUDA_LOGITS_WINDOW(own.samples), end);
        if (own.begin == end)
            break;
        own.start(logits);
        __syncthreads();
        if (threadIdx.x == 0)
            own.state.next = kWarps;
        first = false;
    }
}

/* Summarizes the split; the last CTA of a row merges it. */
__device__ __forceinline__ void finish_split(const cuda_params &p, cta_state &state, bool with_mass,
                                             int samples)
{
    const int64_t draws = p.problem.batch * p.problem.sampling.num_samples;
    __syncthreads();
    const int64_t draw = state.draw;
    if (threadIdx.x < 32)
        write_summaries_of_warps(state, with_mass, &p.summaries[state.split * draws + draw],
                                 samples);
    __syncwarp();
    if (threadIdx.x == 0)
        state.last = count_cta_end(cta_counter_of_draw(p, draw), p.tag, p.splits);
    __syncthreads();
    if (state.last)
        for (int s = threadIdx.x / 32; s < samples; s += kWarps)
            finish_draw(p, draw + s, with_mass);
}

template <gumbel_dtype dtype, bool with_mass, bool given, bool edited>
__device__ __forceinline__ void draw_split(const cuda_params &p)
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    cta_state &state = *(cta_state *)shared_memory;
    gumbel_summary *masses = (gumbel_summary *)(shared_memory + CUDA_LOGITS_STATE_BYTES);
    const gumbel_problem &q = p.problem;
    const int all = q.sampling.num_samples, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t split = blockIdx.x % p.splits, b = blockIdx.x / p.splits % q.batch;
    const int first = (int)(blockIdx.x / p.splits / q.batch) * kSamples;
    const int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + split * p.split_size;
    const int64_t draw = b * all + first;
    const float *noise =
        given ? q.sampling.noise + draw * q.sampling.noise_stride - q.first_token : nullptr;
    const typename quad<dtype>::element *origin =
        (const typename quad<dtype>::element *)q.logits.data + b * q.logits.stride - q.first_token;
    const bool masked = edited && (q.features & GUMBEL_FEATURE_MASK);
    uint32_t end =
        (uint32_t)(begin + p.split_size < q.end_token ? begin + p.split_size : q.end_token);
    warp_draw<dtype, given, edited> own = {
        {{p, state, origin, nullptr, (uint32_t)begin, (uint32_t)begin,
          (uint32_t)(lane / 4 * GUMBEL_BLOCK + lane % 4 * 4), warp, lane,
          (uintptr_t)origin % sizeof(quad<dtype>) == 0},
         noise,
         (float *)(masses + (with_mass ? kThreads : 0)),
         0,
         all - first < kSamples ? all - first : kSamples}};
    mass_accumulator mass = {masses + threadIdx.x, lane};

    ptx_wait_for_launch();
    if (q.position_by_row) /* the next launch walks over drafts, a warp per request */
        ptx_allow_launch();
    if (p.zero_after_draw)
        clear_words_noinline(p);
    if (!gumbel_problem_row_is_live(&q, b))
        end = own.begin;
    own.end = min(own.begin + CUDA_LOGITS_WINDOW(own.samples), end);
    typename warp_draw<dtype, given, edited>::step logits;
    own.start(logits);
    if (masked)
        own.mask = gumbel_problem_mask(&q, b);
    start_state<edited>(q, state, b, first, own.samples);
    if (threadIdx.x == kThreads - 1) {
        start_cta_counter(cta_counter_of_draw(p, draw), p.tag);
        state.draw = draw;
        state.split = split;
        state.end = end;
    }
    if (with_mass)
        gumbel_summary_empty(mass.thread_sum);
    __syncthreads();
    own.inverse_temperature = state.inverse_temperature;
    draw_windows<with_mass>(own, logits, mass);
    if (with_mass)
        end_mass(state, mass);
    finish_split(p, state, with_mass, own.samples);
}

} // namespace

#define KERNEL(name, dtype, with_mass, given, edited)                                              \
    extern "C" __global__ void __launch_bounds__(kThreads, CUDA_LOGITS_CTAS)                       \
        gumbel_draw_logits_##name(const __grid_constant__ cuda_params params)                      \
    {                                                                                              \
        draw_split<dtype, with_mass, given, edited>(params);                                       \
    }
#define KERNELS(name, dtype)                                                                       \
    KERNEL(name, dtype, false, false, false)                                                       \
    KERNEL(name##_mass, dtype, true, false, false)                                                 \
    KERNEL(name##_noise, dtype, false, true, false)                                                \
    KERNEL(name##_noise_mass, dtype, true, true, false)                                            \
    KERNEL(name##_edited, dtype, false, false, true)
KERNELS(f32, GUMBEL_FLOAT32)
KERNELS(bf16, GUMBEL_BFLOAT16)
KERNELS(f16, GUMBEL_FLOAT16)
