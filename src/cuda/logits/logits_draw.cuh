/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp that draws from a chunk of a row of logits, step after step, and what it shares with the
 * other warps of its CTA (head: logits.cu).
 */
#ifndef GUMBEL_CUDA_LOGITS_DRAW_CUH
#define GUMBEL_CUDA_LOGITS_DRAW_CUH

#include "cuda/common/edits.cuh"
#include "cuda/common/logits_step.cuh"

namespace
{

constexpr int kThreads = CUDA_LOGITS_THREADS, kWarps = kThreads / 32;
constexpr int kSamples = CUDA_LOGITS_SAMPLES;

/* What a CTA knows of its row and samples. */
struct cta_state {
    float inverse_temperature;
    uint32_t ones; /* DRAW_ONES for a greedy row */
    uint32_t next; /* step that no warp has taken yet */
    bool last;     /* of the row's CTAs to end */
    row_edits edits;
    bool raises; /* penalties may raise a token */
    draw_philox philox[kSamples];
    uint32_t threshold[kSamples];       /* ordered bits: no score below can win */
    draw_winner best[kWarps][kSamples]; /* each warp's own */
    uint32_t flags[kWarps];
    gumbel_summary masses[kWarps];
};
static_assert(sizeof(cta_state) <= CUDA_LOGITS_STATE_BYTES, "the launcher reserves that much");

/* What the draw of a sample needs of a step before its logits: the smallest word of each quad, all
 * ones for a greedy row, and the threshold as it was asked for. */
struct step_noise {
    uint32_t asked, least[kQuads];
};

/* y of four tokens after edits; out of line, as few are looked at. */
__device__ __noinline__ four edit_apart(const cuda_params &p, const cta_state &state,
                                        uint32_t token, uint32_t end, four y)
{
    edit_four(p.problem, state.edits, token, end, y.v);
    return y;
}

/* Whether the history has seen any of four tokens. */
__device__ __noinline__ bool has_seen(const cuda_params &p, const cta_state &state, uint32_t token)
{
    return seen_of_four(p.problem, state.edits, token) != 0;
}

/* A warp and the chunk that its CTA draws from. Where a mask and a history edit the row, the mask
 * is looked up with every logit, and the history for the few tokens alone that are scored: mostly
 * penalties lower a token, so that the screen lets through what it must. Of a row where they may
 * raise one, all that were seen are scored. */
template <gumbel_dtype dtype, bool given, bool edited> struct warp_draw {
    using element = typename quad<dtype>::element;
    using step = quad<dtype>[kQuads]; /* what a lane holds of a step */

    const cuda_params &p;
    cta_state &state;
    const element *origin; /* where the logit of token 0 would be */
    const float *noise;    /* where the noise of token 0 in the first sample would be */
    const int32_t *mask;   /* of the row; or NULL: it leaves all */
    int64_t b;             /* the row */
    uint32_t begin, end;   /* of the chunk: ids are below 2^31 */
    uint32_t place;        /* of this lane's first token in a step */
    int samples, warp, lane;
    bool vectors; /* quads are aligned in memory */
    float inverse_temperature;
    uint32_t key0, key1; /* of all samples: the same for all lanes, so in uniform registers */

    __device__ __forceinline__ bool counts(uint32_t from, uint32_t to) const
    {
        return from >= (uint32_t)p.problem.first_token && to <= end;
    }

    /* Whether all of a step counts. */
    __device__ __forceinline__ bool whole(uint32_t base) const
    {
        return counts(base, base + kStep);
    }

    /* Four logits from `token` on; anything for those that do not count. */
    __device__ __forceinline__ quad<dtype> read_shortlist(uint32_t token) const
    {
        element e[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            e[i] = counts(token + i, token + i + 1) ? origin[token + i] : element();
        return quad<dtype>::of(e);
    }

    __device__ __forceinline__ quad<dtype> read(uint32_t base, int k) const
    {
        uint32_t token = base + place + kStride * k;
        return vectors && whole(base) ? quad<dtype>::read(origin + token) : read_shortlist(token);
    }

    /* Ask for a step, which the multiplier's work on its noise then hides. */
    __device__ __forceinline__ void read_step(uint32_t base, step &logits) const
    {
        if (vectors && whole(base)) {
            const element *from = origin + (base + place);
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                logits[k] = quad<dtype>::read(from + kStride * k);
        } else {
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                logits[k] = read_shortlist(base + place + kStride * k);
        }
    }

    /* The mask of a step, in words of 32 tokens: this lane's first two quads are in the first. */
    struct step_mask {
        uint32_t words[2];

        /* Quad k without what the mask takes. */
        __device__ __forceinline__ four drop(int lane, int k, four x) const
        {
            if (!edited)
                return x;
            uint32_t own = words[kStride * k / 32] >> (4 * (lane % 4) + kStride * k % 32);
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.v[i] = own >> i & 1 ? x.v[i] : -INFINITY;
            return x;
        }
    };
    static_assert(kQuads * kStride == 64, "a lane's block has two words");

    __device__ __forceinline__ step_mask read_mask(uint32_t base) const
    {
        step_mask found = {{~0u, ~0u}};
        const uint32_t block = base + lane / 4 * GUMBEL_BLOCK;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (edited && mask && block + 32 * i < end)
                found.words[i] = (uint32_t)__ldg(mask + block / 32 + i);
        return found;
    }

    /* y of a quad before edits. */
    __device__ __forceinline__ four scale(const quad<dtype> &logits) const
    {
        const gumbel_problem &q = p.problem;
        four y = logits.widen();
        if (q.soft_cap != 0.0f) {
#pragma unroll 1
            for (int i = 0; i < 4; i++)
                y = {y.v[1], y.v[2], y.v[3],
                     gumbel_transform(y.v[0], q.scale, q.soft_cap, p.inverse_cap, 1.0f)};
        } else if (q.scale != 1.0f) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                y.v[i] *= q.scale;
        }
        return y;
    }

    /* z of quad k, whose y are these; -inf for tokens that do not count. */
    __device__ __forceinline__ four temper(uint32_t base, int k, four z) const
    {
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

    /* Transformed logits of quad k; -inf for tokens that do not count. */
    __device__ __forceinline__ four transform(uint32_t base, int k, const quad<dtype> &logits) const
    {
        four y = scale(logits);
        if constexpr (edited)
            y = edit_apart(p, state, base + place + kStride * k, end, y);
        return temper(base, k, y);
    }

    /* What no transformed logit of each quad is above; NaN where there is one. Where the transform
     * is a product with 1 / T, which keeps order, one product a quad will do. */
    __device__ __forceinline__ void find_tops(uint32_t base, const step &logits,
                                              const step_mask &allowed, float (&tops)[kQuads]) const
    {
        if (p.problem.soft_cap == 0.0f && p.problem.scale == 1.0f && whole(base)) {
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                tops[k] =
                    largest_of(allowed.drop(lane, k, logits[k].widen())) * inverse_temperature;
        } else {
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                tops[k] = largest_of(allowed.drop(lane, k, temper(base, k, scale(logits[k]))));
        }
        if (edited && state.raises)
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                tops[k] = has_seen(p, state, base + place + kStride * k) ? INFINITY : tops[k];
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
    __device__ __forceinline__ void seed(uint32_t base, const quad<dtype> &logits) const
    {
        uint32_t token = base + place;
        four z = transform(base, 0, logits);
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
    __device__ __forceinline__ void score(uint32_t base, int k, int sample, float threshold,
                                          draw_winner &best, uint32_t &flags) const
    {
        uint32_t token = base + place + kStride * k, ones = state.ones, passing = 0;
        four z = transform(base, k, read(base, k)), scores = z;
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
    __device__ __forceinline__ void offer(uint32_t base, int sample, uint32_t passing,
                                          float threshold) const
    {
        uint32_t flags = 0;
        draw_winner best = draw_winner_none();
#pragma unroll 1
        for (; passing != 0; passing &= passing - 1)
            score(base, __ffs(passing) - 1, sample, threshold, best, flags);
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

    /* Ask for a sample's threshold, and make its noise for a step unless that is given. */
    __device__ __forceinline__ void make_noise(uint32_t base, int sample, step_noise &noise) const
    {
        noise.asked = ask(sample);
        if constexpr (!given) {
            draw_philox f = philox(sample);
            uint32_t ones = state.ones ? ~0u : 0;
#pragma unroll
            for (int k = 0; k < kQuads; k++) {
                uint4 w = draw_words(f, (base + place + kStride * k) >> 2);
                noise.least[k] = min(min(w.x, w.y), min(w.z, w.w)) | ones;
            }
        }
    }

    /* Screen a step whose quads have these largest z, and score what passes. */
    __device__ __forceinline__ void draw(uint32_t base, int sample, const float (&tops)[kQuads],
                                         const step_noise &noise) const
    {
        bool pass[kQuads], any = false;
        float best[kQuads];
        if constexpr (given)
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                best[k] = largest_of(add_noise(transform(base, k, read(base, k)),
                                               base + place + kStride * k, sample));
        float threshold = known(noise.asked), offset = draw_offset(threshold);
#pragma unroll
        for (int k = 0; k < kQuads; k++) {
            pass[k] =
                given ? !(best[k] < threshold) : draw_screen_quad(tops[k], noise.least[k], offset);
            any |= pass[k];
        }
        if (__any_sync(~0u, any)) {
            uint32_t passing = 0;
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                passing |= (uint32_t)(pass[k] && tops[k] != -INFINITY) << k;
            if (__any_sync(~0u, passing))
                offer(base, sample, passing, threshold);
        }
    }

    /* Take all steps that come to this warp. The first sample's noise is made while the logits are
     * on their way. */
    template <bool with_mass> __device__ __forceinline__ void run(warp_mass &mass) const
    {
        uint32_t base = begin + warp * kStep;
        while (base < end) {
            uint32_t ticket = take();
            step logits;
            float tops[kQuads];
            step_noise noise;
            read_step(base, logits);
            const step_mask allowed = read_mask(base);
            make_noise(base, 0, noise);
            if constexpr (with_mass) {
                four z[kQuads];
#pragma unroll
                for (int k = 0; k < kQuads; k++) {
                    z[k] = transform(base, k, logits[k]);
                    tops[k] = largest_of(z[k]);
                }
                mass.add(z);
            } else {
                find_tops(base, logits, allowed, tops);
            }
#pragma unroll 1
            for (int s = 0;; make_noise(base, s, noise)) {
                draw(base, s, tops, noise);
                if (++s == samples)
                    break;
            }
            base = taken(ticket);
        }
    }

    /* Take the next step that no warp has; taken() tells where it begins, past the end if there is
     * none. */
    __device__ __forceinline__ uint32_t take() const
    {
        return ptx_count_if(lane == 0, &state.next);
    }

    __device__ __forceinline__ uint32_t taken(uint32_t ticket) const
    {
        return begin + __reduce_max_sync(~0u, ticket) * kStep;
    }
};
} // namespace

#endif
