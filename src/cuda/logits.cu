/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   the draw from logits that are there already (eq. 2 to 4; FlashSampling, Algorithm B.1).
 * COST   reads B V elements once; a Philox block of ten rounds for every four tokens and sample.
 * MAP    a CTA takes one row, up to 32 samples and a chunk of the vocabulary, 1024 tokens a step: a
 *        thread holds the four tokens of a Philox block, 16 threads a block of 64.
 * SMEM   the draw's state of every sample; 256 summaries for the mass.
 * SYNC   thresholds are raised by the first step before anything is scored; masses meet at the end.
 * NUMERICS  a block's mass is summed in the order of the CPU (docs/maths.md, section 5), and adding
 *        blocks is exact: the same bits whatever the chunk.
 */
#include "cuda/cuda_policy.h"
#include "cuda/draw.cuh"
#include "cuda/widen.cuh"

namespace
{

constexpr int kThreads = CUDA_THREADS, kSamples = CUDA_LOGITS_SAMPLES;

struct four {
    float v[4];
};

/* Elements 0 to 3 at `from`, aligned to all four of them. */
template <gumbel_dtype dtype> __device__ __forceinline__ four load_four(const void *from)
{
    if (dtype == GUMBEL_FLOAT32) {
        float4 x = *(const float4 *)from;
        return {x.x, x.y, x.z, x.w};
    }
    uint2 x = *(const uint2 *)from;
    if (dtype == GUMBEL_BFLOAT16)
        return {widen_bf16(x.x & 0xffffu), widen_bf16(x.x >> 16), widen_bf16(x.y & 0xffffu),
                widen_bf16(x.y >> 16)};
    return {widen_f16(x.x & 0xffffu), widen_f16(x.x >> 16), widen_f16(x.y & 0xffffu),
            widen_f16(x.y >> 16)};
}

/* A row of logits by global token ids. */
template <gumbel_dtype dtype> struct row_reader {
    static constexpr int size = dtype == GUMBEL_FLOAT32 ? 4 : 2;
    const unsigned char *origin; /* where token 0 would be */
    int64_t first, end;          /* tokens that count */
    bool aligned;

    __device__ row_reader(const gumbel_problem &p, int64_t b, int64_t last)
        : origin((const unsigned char *)p.logits.data +
                 (b * p.logits.stride - p.first_token) * size),
          first(p.first_token), end(last), aligned((uintptr_t)origin % (4 * size) == 0)
    {
    }

    __device__ __forceinline__ bool counts(int64_t token) const
    {
        return token >= first && token < end;
    }

    /* Logits of the tokens from `token` on; anything for those that do not count. */
    __device__ __forceinline__ four load(int64_t token) const
    {
        four logits = {};
        if (aligned && token >= first && token + 4 <= end)
            return load_four<dtype>(origin + token * size);
        for (int i = 0; i < 4; i++)
            if (counts(token + i))
                logits.v[i] = widen_element(origin, dtype, token + i);
        return logits;
    }
};

/* Transformed logits; -inf for tokens that do not count. */
template <class reader>
__device__ __forceinline__ four transform(const cuda_params &p, const draw_state &s,
                                          const reader &row, int64_t token, four logits)
{
    if (p.problem.soft_cap != 0.0f)
        for (int i = 0; i < 4; i++)
            logits.v[i] = draw_capped(p, logits.v[i]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        logits.v[i] =
            row.counts(token + i) ? (logits.v[i] * s.scale) * s.inverse_temperature : -INFINITY;
    return logits;
}

/* ---------------------------------------------------------------------------------- mass ---- */

/* Blocks that 16 threads have measured, one a thread, until all are added at once. */
struct measured {
    float largest, sum;
};

/* Largest z and mass of the block of 64 that 16 threads hold: eq. 8 has lane j add tokens j,
 * j + 16, j + 32, j + 48, which are four threads apart. While they add, threads share the lanes
 * out. */
__device__ __forceinline__ measured measure(four z, int lane)
{
    float largest = fmaxf(fmaxf(z.v[0], z.v[1]), fmaxf(z.v[2], z.v[3]));
#pragma unroll
    for (int half = 8; half > 0; half /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, half));
    float e[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        e[i] = gumbel_exp(z.v[i] - largest);
    bool upper = lane & 4;
    float a = upper ? e[2] : e[0], b = upper ? e[3] : e[1];
    a += __shfl_xor_sync(~0u, upper ? e[0] : e[2], 4);
    b += __shfl_xor_sync(~0u, upper ? e[1] : e[3], 4);
    bool odd = lane & 8;
    float sum = (odd ? b : a) + __shfl_xor_sync(~0u, odd ? a : b, 8);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 4);
    sum += __shfl_xor_sync(~0u, sum, 8);
    return {largest, sum};
}

__device__ void add_measured(gumbel_summary &mass, measured &own)
{
    mass.max_z = fmaxf(mass.max_z, own.largest);
    gumbel_mass_add_block(&mass, own.largest, own.sum);
    own.largest = -INFINITY;
}

/* All threads' masses, in masses[0]. */
__device__ void merge_masses(gumbel_summary *masses, const gumbel_summary &own)
{
    masses[threadIdx.x] = own;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            gumbel_summary_merge(&masses[threadIdx.x], &masses[threadIdx.x + half]);
    }
    __syncthreads();
}

/* ---------------------------------------------------------------------------------- draw ---- */

/* Raise the threshold to what a warp's tokens surely reach. */
__device__ __forceinline__ void raise(draw_state *s, four z, uint32_t token)
{
    uint4 w = draw_words(s, token >> 2);
    float floor = fmaxf(fmaxf(draw_floor(s, z.v[0], w.x), draw_floor(s, z.v[1], w.y)),
                        fmaxf(draw_floor(s, z.v[2], w.z), draw_floor(s, z.v[3], w.w)));
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        floor = fmaxf(floor, __shfl_xor_sync(~0u, floor, half));
    if (threadIdx.x % 32 == 0)
        draw_raise(s, floor);
}

__device__ __forceinline__ void screen(const cuda_params &p, draw_state *s, four z, uint32_t token)
{
    uint4 w = draw_words(s, token >> 2);
    const uint32_t r[4] = {w.x, w.y, w.z, w.w};
    float offset = draw_offset(*(volatile const float *)&s->threshold);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (draw_screen(z.v[i], r[i], s->ones, offset))
            draw_offer(s, z.v[i], token + i);
}

template <gumbel_dtype dtype> __device__ void draw_row(const cuda_params &p)
{
    __shared__ draw_state states[kSamples];
    __shared__ draw_best bests[kSamples];
    __shared__ gumbel_summary masses[kThreads];
    const gumbel_problem &q = p.problem;
    int all = q.sampling.num_samples, lane = threadIdx.x % 32;
    int64_t part = blockIdx.x % p.parts, b = blockIdx.x / p.parts % q.batch;
    int first = (int)(blockIdx.x / p.parts / q.batch) * kSamples;
    int samples = all - first < kSamples ? all - first : kSamples;
    int64_t begin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK + part * p.chunk;
    int64_t end = begin + p.chunk < q.end_token ? begin + p.chunk : q.end_token;
    row_reader<dtype> row(q, b, end);
    gumbel_summary mass;
    measured own = {-INFINITY, 0.0f};

    int64_t token = begin + 4 * threadIdx.x;
    four logits = row.load(token);
    gumbel_summary_empty(&mass);
    if ((int)threadIdx.x < samples)
        draw_state_init(&states[threadIdx.x], &bests[threadIdx.x], &q, b, first + threadIdx.x);
    __syncthreads();
    four z = transform(p, states[0], row, token, logits);
    for (int s = 0; s < samples; s++)
        raise(&states[s], z, (uint32_t)token);
    __syncthreads();
    for (int step = 0; begin < end; step++, begin += 4 * kThreads, token += 4 * kThreads) {
        z = transform(p, states[0], row, token, logits);
        logits = row.load(token + 4 * kThreads);
        if (q.with_mass) {
            measured found = measure(z, lane);
            if (lane % 16 == step % 16)
                own = found;
            if (step % 16 == 15)
                add_measured(mass, own);
        }
        for (int s = 0; s < samples; s++)
            screen(p, &states[s], z, (uint32_t)token);
    }
    if (q.with_mass) {
        add_measured(mass, own);
        merge_masses(masses, mass);
    }
    __syncthreads();
    if ((int)threadIdx.x >= samples)
        return;
    const draw_best &best = bests[threadIdx.x];
    gumbel_summary_empty(&mass);
    if (q.with_mass)
        mass = masses[0];
    mass.best_score = best.score;
    mass.best_z = best.z;
    mass.best_id = best.id;
    mass.flags = best.flags;
    p.summaries[(part * q.batch + b) * all + first + threadIdx.x] = mass;
}

} // namespace

#define KERNEL(name, dtype)                                                                        \
    extern "C" __global__ void __launch_bounds__(kThreads)                                         \
        gumbel_draw_logits_##name(const __grid_constant__ cuda_params params)                      \
    {                                                                                              \
        draw_row<dtype>(params);                                                                   \
    }
KERNEL(f32, GUMBEL_FLOAT32)
KERNEL(bf16, GUMBEL_BFLOAT16)
KERNEL(f16, GUMBEL_FLOAT16)
