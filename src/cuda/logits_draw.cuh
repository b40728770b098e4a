/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp that draws from a chunk of a row of logits, step after step, and what it shares with the
 * other warps of its CTA (head: cuda/logits.cu).
 */
#ifndef GUMBEL_CUDA_LOGITS_DRAW_CUH
#define GUMBEL_CUDA_LOGITS_DRAW_CUH

#include "cuda/logits_step.cuh"

namespace
{

constexpr int kThreads = CUDA_LOGITS_THREADS, kWarps = kThreads / 32;
constexpr int kSamples = CUDA_LOGITS_SAMPLES, kStages = CUDA_LOGITS_STAGES;
static_assert(kStages == 2, "steps alternate between two stages");

/* What a CTA knows of its row and samples. */
struct cta_state {
    float inverse_temperature;
    uint32_t ones; /* DRAW_ONES for a greedy row */
    uint32_t next; /* step that no warp has taken yet */
    bool last;     /* of the row's CTAs to end */
    draw_philox philox[kSamples];
    uint32_t threshold[kSamples];       /* ordered bits: no score below can win */
    draw_winner best[kWarps][kSamples]; /* each warp's own */
    uint32_t flags[kWarps];
    gumbel_summary masses[kWarps];
};
static_assert(sizeof(cta_state) <= CUDA_LOGITS_STATE_BYTES, "the launcher reserves that much");

/* A warp and the chunk that its CTA draws from. */
template <gumbel_dtype dtype, bool given> struct warp_draw {
    using element = typename quad<dtype>::element;

    const cuda_params &p;
    cta_state &state;
    quad<dtype> *ring;     /* [kStages][kQuads][kThreads], from this thread's place on */
    const element *origin; /* where the logit of token 0 would be */
    const float *noise;    /* where the noise of token 0 in the first sample would be */
    uint32_t begin, end;   /* of the chunk: ids are below 2^31 */
    uint32_t place;        /* of this lane's first token in a step */
    int samples, warp, lane;
    float inverse_temperature;
    uint32_t key0, key1; /* of all samples: the same for all lanes, so in uniform registers */

    __device__ __forceinline__ bool counts(uint32_t from, uint32_t to) const
    {
        return from >= (uint32_t)p.problem.first_token && to <= end;
    }

    /* Start to copy a step, which may be past the end. */
    __device__ __forceinline__ void fetch(uint32_t base, int stage) const
    {
        quad<dtype> *to = ring + stage * kQuads * kThreads;
        bool aligned = (uintptr_t)origin % sizeof(quad<dtype>) == 0;
        if (base < end && aligned && whole(base)) {
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                ptx_copy_async<sizeof(quad<dtype>)>(to + k * kThreads,
                                                    origin + base + place + kStride * k);
        } else if (base < end) {
#pragma unroll 1
            for (int i = 0; i < 4 * kQuads; i++) {
                uint32_t token = base + place + kStride * (i / 4) + i % 4;
                if (counts(token, token + 1))
                    to[i / 4 * kThreads].v[i % 4] = origin[token];
            }
        }
        ptx_copy_async_commit();
    }

    /* Whether all of a step counts. */
    __device__ __forceinline__ bool whole(uint32_t base) const
    {
        return counts(base, base + kStep);
    }

    /* Transformed logits of quad k; -inf for tokens that do not count. */
    __device__ __forceinline__ four load(uint32_t base, int stage, int k) const
    {
        const gumbel_problem &q = p.problem;
        four z = ring[(stage * kQuads + k) * kThreads].widen();
        if (q.soft_cap != 0.0f) {
#pragma unroll 1
            for (int i = 0; i < 4; i++)
                z = {z.v[1], z.v[2], z.v[3],
                     gumbel_transform(z.v[0], q.scale, q.soft_cap, p.inverse_cap, 1.0f)};
        } else if (q.scale != 1.0f) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                z.v[i] *= q.scale;
        }
        if (inverse_temperature != 1.0f)
#pragma unroll
            for (int i = 0; i < 4; i++)
                z.v[i] *= inverse_temperature;
        if (!whole(base))
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t token = base + place + kStride * k + i;
                z.v[i] = counts(token, token + 1) ? z.v[i] : -INFINITY;
            }
        return z;
    }

    /* The largest transformed logit of each quad; NaN where there is one. Where the transform is a
     * product with 1 / T, which keeps order, one product a quad will do. */
    __device__ __forceinline__ void load_tops(uint32_t base, int stage, float (&tops)[kQuads]) const
    {
        if (p.problem.soft_cap == 0.0f && p.problem.scale == 1.0f && whole(base))
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                tops[k] =
                    largest_of(ring[(stage * kQuads + k) * kThreads].widen()) * inverse_temperature;
        else
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                tops[k] = largest_of(load(base, stage, k));
    }

    __device__ __forceinline__ draw_philox philox(int sample) const
    {
        draw_philox f = state.philox[sample];
        f.key0 = key0;
        f.key1 = key1;
        return f;
    }

    /* Given noise of four tokens; anything for those that do not count. */
    __device__ __forceinline__ four load_noise(uint32_t token, int sample) const
    {
        const float *from = noise + sample * p.problem.sampling.noise_stride;
        four g;
#pragma unroll
        for (int i = 0; i < 4; i++)
            g.v[i] =
                counts(token + i, token + i + 1) && !state.ones ? __ldg(from + token + i) : 0.0f;
        return g;
    }

    /* Scores of a quad, which takes the noise that is given. */
    __device__ __forceinline__ four add_noise(four z, uint32_t token, int sample) const
    {
        four g = load_noise(token, sample);
#pragma unroll
        for (int i = 0; i < 4; i++)
            z.v[i] += g.v[i];
        return z;
    }

    /* ------------------------------------------------------------------------ thresholds ---- */

    /* Ask for a sample's threshold; known() has the answer, which is some 50 cycles away. */
    __device__ __forceinline__ uint32_t ask(int sample) const
    {
        return ptx_add_if(lane == 0, &state.threshold[sample], 0);
    }

    static __device__ __forceinline__ float known(uint32_t asked)
    {
        return ordered_float(__reduce_max_sync(~0u, asked));
    }

    __device__ __forceinline__ void raise(int sample, float threshold) const
    {
        if (lane == 0)
            atomicMax(&state.threshold[sample], ordered_bits(threshold));
    }

    /* Without a threshold every token would be scored: find one, from a quad of each lane. */
    __device__ __forceinline__ void seed(uint32_t base, int stage) const
    {
        uint32_t token = base + place;
        four z = load(base, stage, 0);
#pragma unroll 1
        for (int s = 0; s < samples; s++) {
            float floor;
            if constexpr (given) {
                floor = largest_of(add_noise(z, token, s));
            } else {
                bool greedy = state.ones != 0;
                uint4 w = draw_words(philox(s), token >> 2);
                floor =
                    fmaxf(fmaxf(draw_floor(greedy, z.v[0], w.x), draw_floor(greedy, z.v[1], w.y)),
                          fmaxf(draw_floor(greedy, z.v[2], w.z), draw_floor(greedy, z.v[3], w.w)));
            }
            raise(s, draw_floor_of_warp(floor));
        }
    }

    /* ----------------------------------------------------------------------------- score ---- */

    /* Score the tokens of quad k that pass the screen by themselves. */
    __device__ __forceinline__ void score(uint32_t base, int stage, int k, int sample,
                                          float threshold, draw_winner &best, uint32_t &flags) const
    {
        uint32_t token = base + place + kStride * k, ones = state.ones, passing = 0;
        four z = load(base, stage, k), scores = z;
        uint4 w = {};
        if constexpr (given)
            scores = add_noise(z, token, sample);
        else
            w = draw_words(philox(sample), token >> 2);
        const uint32_t r[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool pass = given ? !(scores.v[i] < threshold)
                              : draw_screen(z.v[i], r[i], ones, draw_offset(threshold));
            passing |= (uint32_t)(pass && z.v[i] != -INFINITY) << i;
        }
#pragma unroll 1
        for (; passing != 0; passing &= passing - 1) {
            int i = __ffs(passing) - 1;
            float own = i & 2 ? (i & 1 ? z.v[3] : z.v[2]) : (i & 1 ? z.v[1] : z.v[0]), s;
            if (!(own < INFINITY)) {
                flags |= isnan(own) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE;
                continue;
            }
            if constexpr (given)
                s = i & 2 ? (i & 1 ? scores.v[3] : scores.v[2])
                          : (i & 1 ? scores.v[1] : scores.v[0]);
            else
                s = draw_score(philox(sample), ones != 0, own,
                               i & 2 ? (i & 1 ? r[3] : r[2]) : (i & 1 ? r[1] : r[0]), token + i);
            draw_winner_offer(best, s, own, (int)(token + i));
        }
    }

    /* Score the quads that passed, each lane its own, and keep the warp's best. */
    __device__ __forceinline__ void offer(uint32_t base, int stage, int sample, uint32_t passing,
                                          float threshold) const
    {
        uint32_t flags = 0;
        draw_winner best = draw_winner_none();
#pragma unroll 1
        for (; passing != 0; passing &= passing - 1)
            score(base, stage, __ffs(passing) - 1, sample, threshold, best, flags);
        __syncwarp();
        best = draw_winner_of_warp(best);
        flags = __reduce_or_sync(~0u, flags);
        if (lane == 0) {
            draw_winner all = state.best[warp][sample];
            draw_winner_offer(all, best.score, best.z, best.id);
            state.best[warp][sample] = all;
            state.flags[warp] |= flags;
            raise(sample, draw_threshold(all.score));
        }
        __syncwarp();
    }

    /* ------------------------------------------------------------------------------ draw ---- */

    /* Draw every sample from a step whose quads have these largest z. */
    __device__ __forceinline__ void draw(uint32_t base, int stage,
                                         const float (&tops)[kQuads]) const
    {
#pragma unroll 1
        for (int s = 0; s < samples; s++) {
            uint32_t asked = ask(s), least[kQuads], passing = 0, ones = state.ones;
            float best[kQuads];
#pragma unroll
            for (int k = 0; k < kQuads; k++) {
                uint32_t token = base + place + kStride * k;
                if constexpr (given) {
                    best[k] = largest_of(add_noise(load(base, stage, k), token, s));
                } else {
                    uint4 w = draw_words(philox(s), token >> 2);
                    least[k] = min(min(w.x, w.y), min(w.z, w.w));
                }
            }
            float threshold = known(asked), offset = draw_offset(threshold);
#pragma unroll
            for (int k = 0; k < kQuads; k++) {
                bool pass =
                    given ? !(best[k] < threshold) : draw_screen(tops[k], least[k], ones, offset);
                passing |= (uint32_t)(pass && tops[k] != -INFINITY) << k;
            }
            if (__any_sync(~0u, passing))
                offer(base, stage, s, passing, threshold);
        }
    }

    /* Take all steps that come to this warp, of which its first is on its way. */
    template <bool with_mass> __device__ __forceinline__ void run(warp_mass &mass) const
    {
        uint32_t base = begin + warp * kStep, following = taken(take());
        for (int stage = 0; base < end; stage ^= 1) {
            uint32_t after = take();
            float tops[kQuads];
            fetch(following, stage ^ 1);
            ptx_copy_async_wait<kStages - 1>();
            if constexpr (with_mass) {
                four z[kQuads];
#pragma unroll
                for (int k = 0; k < kQuads; k++) {
                    z[k] = load(base, stage, k);
                    tops[k] = largest_of(z[k]);
                }
                mass.add(z);
            } else {
                load_tops(base, stage, tops);
            }
            draw(base, stage, tops);
            base = following;
            following = taken(after);
        }
    }

    /* Take the next step that no warp has; taken() tells where it begins, past the end if there is
     * none. */
    __device__ __forceinline__ uint32_t take() const
    {
        return ptx_add_if(lane == 0, &state.next, 1);
    }

    __device__ __forceinline__ uint32_t taken(uint32_t ticket) const
    {
        return begin + __reduce_max_sync(~0u, ticket) * kStep;
    }
};
} // namespace

#endif
