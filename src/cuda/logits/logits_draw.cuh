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
/* Groups of 64 blocks at a row's beginning whose J raise its first threshold: more would read the
 * row twice. */
constexpr int kSeeds = 4;

/* Tokens of a warp's list at most: a lane adds one at a time, and 32 are scored at once. */
constexpr int kListed = 64;
/* Samples and tokens of a step, as a list has them. */
using listed = uint16_t;
static_assert(kSamples * kStep <= 1 << 16, "fits");

/* What a CTA knows of its row and samples. */
struct cta_state {
    int64_t draw, part; /* the first of its draws, and its part of the row */
    uint32_t end;       /* of its chunk */
    float inverse_temperature;
    bool greedy;
    uint32_t next; /* step of the window that no warp has taken yet */
    bool last;     /* of the row's CTAs to end */
    row_edits edits;
    bool raises; /* penalties may raise a token */
    draw_philox philox[kSamples];
    uint32_t threshold[kSamples];       /* ordered bits: no score below can win */
    draw_winner best[kWarps][kSamples]; /* each warp's own */
    uint32_t flags[kWarps];
    gumbel_summary masses[kWarps];
    listed lists[kWarps][kListed];
};
static_assert(sizeof(cta_state) <= CUDA_LOGITS_STATE_BYTES, "the launcher reserves that much");

/* y of four tokens after edits; out of line, as few are looked at. */
__device__ __noinline__ four edit_apart(const cuda_params &p, const cta_state &state,
                                        uint32_t token, uint32_t end, four y)
{
    edit_four(p.problem, state.edits, token, end, y.v);
    return y;
}

/* Which of four tokens the history has seen. */
__device__ __noinline__ uint32_t find_seen(const cuda_params &p, const cta_state &state,
                                           uint32_t token)
{
    return seen_of_four(p.problem, state.edits, token);
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
    const element *origin;           /* where the logit of token 0 would be */
    const float *noise;              /* where the noise of token 0 in the first sample would be */
    const int32_t *mask;             /* of the row; or NULL: it leaves all */
    float *reaches;                  /* [sample][block] of the window, packed */
    uint32_t begin, end;             /* of the window: ids are below 2^31 */
    uint32_t place;                  /* of this lane's first token in a step */
    int blocks, samples, warp, lane; /* a window's blocks; samples of this CTA */
    bool vectors;                    /* quads are aligned in memory */
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

    /* Four logits from `token` on; -inf for those that do not count. */
    __device__ __forceinline__ quad<dtype> read_shortlist(uint32_t token) const
    {
        element e[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            e[i] = counts(token + i, token + i + 1) ? origin[token + i] : quad<dtype>::nothing();
        return quad<dtype>::of(e);
    }

    /* Ask for a step. What is rare is rolled up, here and below: registers cannot be indexed, so
     * that quads move on from turn to turn. */
    __device__ __forceinline__ void read_step(uint32_t base, step &logits) const
    {
        if (vectors && whole(base)) {
            const element *from = origin + (base + place);
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                logits[k] = quad<dtype>::read(from + kStride * k);
        } else {
#pragma unroll 1
            for (int k = 0; k < kQuads; k++) {
                logits[0] = logits[1], logits[1] = logits[2], logits[2] = logits[3];
                logits[3] = read_shortlist(base + place + kStride * k);
            }
        }
    }
    static_assert(kQuads == 4, "that many move on");

    /* Ask for the warp's first step of the window. */
    __device__ __forceinline__ void start(step &logits) const
    {
        if (begin + warp * kStep < end)
            read_step(begin + warp * kStep, logits);
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

    /* z of quad k before edits, -inf for tokens that do not count; rolled up. */
    __device__ __forceinline__ four transform(uint32_t base, int k, four y) const
    {
        const gumbel_problem &q = p.problem;
        four z = {};
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const uint32_t token = base + place + kStride * k + i;
            z = {z.v[1], z.v[2], z.v[3],
                 counts(token, token + 1) ? gumbel_transform(y.v[0], q.scale, q.soft_cap,
                                                             p.inverse_cap, inverse_temperature)
                                          : -INFINITY};
            y = {y.v[1], y.v[2], y.v[3], 0.0f};
        }
        return z;
    }

    /* Whether z is a product of logit and 1 / T, which keeps order. */
    __device__ __forceinline__ bool plain() const
    {
        return p.problem.soft_cap == 0.0f && p.problem.scale == 1.0f;
    }

    /* z of a step before edits, -inf for tokens that do not count. */
    __device__ __forceinline__ void find_z(uint32_t base, const step &logits,
                                           four (&z)[kQuads]) const
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++)
            z[k] = logits[k].widen();
        if (plain()) {
#pragma unroll
            for (int i = 0; i < 4 * kQuads; i++)
                z[i / 4].v[i % 4] *= inverse_temperature;
        } else {
            transform_step(base, z);
        }
    }

    /* From logits to z of a step, rolled up. */
    __device__ __forceinline__ void transform_step(uint32_t base, four (&x)[kQuads]) const
    {
#pragma unroll 1
        for (int k = 0; k < kQuads; k++) {
            const four z = transform(base, k, x[0]);
            x[0] = x[1], x[1] = x[2], x[2] = x[3], x[3] = z;
        }
    }

    /* What of each token of a step no z is above, by `factor`; NaN where that is so of z. Where z
     * is plain the logits will do: registers of their own would cost as many moves as the
     * screen. */
    template <bool is_plain>
    __device__ __forceinline__ void find_values(uint32_t base, const step &logits,
                                                four (&x)[kQuads], float &factor) const
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++)
            x[k] = logits[k].widen();
        if (!is_plain)
            transform_step(base, x);
        factor = is_plain ? inverse_temperature : 1.0f;
        if (edited && mask) {
            const step_mask allowed = read_mask(base);
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                x[k] = allowed.drop(lane, k, x[k]);
        }
        if (edited && state.raises)
#pragma unroll 1
            for (int k = 0; k < kQuads; k++) {
                const uint32_t seen = find_seen(p, state, base + place + kStride * k);
                four raised = x[0];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    raised.v[i] = seen >> i & 1 ? INFINITY : raised.v[i];
                x[0] = x[1], x[1] = x[2], x[2] = x[3], x[3] = raised;
            }
    }

    /* z of one token; -inf if it does not count. */
    __device__ __forceinline__ float transform(uint32_t token) const
    {
        const gumbel_problem &q = p.problem;
        if (!counts(token, token + 1))
            return -INFINITY;
        float y = widen_element(origin, dtype, token);
        y = q.soft_cap != 0.0f ? draw_capped(p, y) : y * q.scale;
        if constexpr (edited) {
            four all = edit_apart(p, state, token & ~3u, end, {y, y, y, y});
            y = token & 2 ? (token & 1 ? all.v[3] : all.v[2]) : (token & 1 ? all.v[1] : all.v[0]);
        }
        return y * inverse_temperature;
    }

    __device__ __forceinline__ draw_philox philox(int sample) const
    {
        draw_philox f = state.philox[sample];
        f.key0 = key0;
        f.key1 = key1;
        return f;
    }

    /* From z to scores by noise that is given. */
    __device__ __forceinline__ void add_noise(uint32_t base, int sample, four (&x)[kQuads]) const
    {
        const float *from = noise + sample * p.problem.sampling.noise_stride;
#pragma unroll 1
        for (int k = 0; k < kQuads; k++) {
            four next = x[0];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t token = base + place + kStride * k + i;
                bool has = counts(token, token + 1) && !state.greedy;
                next.v[i] += has ? __ldg(from + token) : 0.0f;
            }
            x[0] = x[1], x[1] = x[2], x[2] = x[3], x[3] = next;
        }
    }

    /* What is kept of the noise of this lane's block of a step. */
    __device__ __forceinline__ float reach_of(uint32_t base, int sample) const
    {
        return reaches[sample * blocks + (base - begin) / GUMBEL_BLOCK + lane / 4];
    }

    /* -------------------------------------------------------------------------- thresholds ---- */

    /* Ask for a sample's threshold, each lane for one or none; it is some 50 cycles away. */
    __device__ __forceinline__ uint32_t ask(bool asks, int sample) const
    {
        return ptx_add_if(asks, &state.threshold[sample], 0);
    }

    /* Raise a sample's threshold to the largest of all lanes. */
    __device__ __forceinline__ void raise(int sample, float floor) const
    {
        floor = draw_floor_of_warp(floor);
        if (lane == 0)
            atomicMax(&state.threshold[sample], ordered_bits(floor));
    }

    /* Make the window's reaches of 64 blocks, two a lane, in a sample; of the first ones J raise
     * its threshold. */
    __device__ __forceinline__ void make_reaches(int sample, uint32_t pair, bool seeds) const
    {
        const bool greedy = state.greedy;
        const uint4 words = draw_words(philox(sample), pair, GUMBEL_BLOCK_DOMAIN);
        float floor = -INFINITY;
#pragma unroll 1
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t first = (2 * pair + half) * GUMBEL_BLOCK;
            const draw_block block = draw_block_in(words, first);
            const uint32_t at = (first - begin) / GUMBEL_BLOCK;
            if (first < begin || at >= (uint32_t)blocks)
                continue;
            reaches[sample * blocks + at] =
                draw_pack_reach(draw_reach(greedy, block.r), block.place());
            if (seeds)
                floor = fmaxf(floor, draw_floor(greedy, transform(first + block.place()), block.r));
        }
        if (seeds)
            raise(sample, floor);
    }

    /* Those of all blocks and samples of the window, by all warps. */
    __device__ __forceinline__ void make_window(bool seeds) const
    {
        const uint32_t first = begin / (2 * GUMBEL_BLOCK);
        const int groups = (blocks + 1 + 63) / 64; /* the first half of a pair may lie outside */
#pragma unroll 1
        for (int i = warp; i < samples * groups; i += kWarps) {
            int group = i % groups;
            make_reaches(i / groups, first + 32 * group + lane, seeds && group < kSeeds);
        }
    }

    /* By given noise a threshold comes from a token of each lane. */
    __device__ __forceinline__ void seed_given() const
    {
        const uint32_t token = begin + warp * kStep + place;
        const float z = transform(token);
#pragma unroll 1
        for (int s = 0; s < samples; s++) {
            bool adds = z > -INFINITY && !state.greedy;
            raise(s, adds ? z + noise[s * p.problem.sampling.noise_stride + token] : z);
        }
    }

    /* ------------------------------------------------------------------------------- score ---- */

    /* The score of a token of that z, and NaN where it surely cannot come to the threshold. */
    __device__ __forceinline__ float score(int sample, uint32_t token, float z,
                                           float threshold) const
    {
        if (state.greedy)
            return z;
        if constexpr (given)
            return z + noise[sample * p.problem.sampling.noise_stride + token];
        const float reach = reaches[sample * blocks + (token - begin) / GUMBEL_BLOCK];
        const draw_philox f = philox(sample);
        uint32_t r = 0;
        if (token % GUMBEL_BLOCK != draw_place_of_reach(reach)) {
            r = draw_word(draw_words(f, token / 4, 0), token);
            if (!draw_screen(z, draw_least_of_reach(reach), r, draw_offset(threshold)))
                return NAN;
        }
        return z + draw_noise(draw_block_of(f, token), token, r);
    }

    /* Keep the best that lanes have scored, of any samples, and raise thresholds. */
    __device__ __forceinline__ void keep(int sample, const draw_winner &own) const
    {
        uint32_t left = __ballot_sync(~0u, own.id >= 0);
#pragma unroll 1
        while (left) {
            const int s = __shfl_sync(~0u, sample, __ffs(left) - 1);
            const bool mine = own.id >= 0 && sample == s;
            const draw_winner found = draw_winner_of_warp(mine ? own : draw_winner_none());
            left &= ~__ballot_sync(~0u, mine);
            if (lane == 0) {
                draw_winner all = state.best[warp][s];
                draw_winner_offer(all, found.score, found.z, found.id);
                state.best[warp][s] = all;
                atomicMax(&state.threshold[s], ordered_bits(draw_threshold(all.score)));
            }
        }
    }

    /* Score the first 32 tokens of the warp's list, one a lane. */
    __device__ __forceinline__ void score_listed(uint32_t base, int count) const
    {
        const bool has = lane < count;
        const uint32_t own = has ? state.lists[warp][lane] : 0;
        const int sample = own / kStep;
        const uint32_t token = base + own % kStep;
        const float threshold = ordered_float(ask(has, sample));
        draw_winner best = draw_winner_none();
        uint32_t flags = 0;
        if (has) {
            const float z = transform(token);
            if (!(z < INFINITY))
                flags = isnan(z) ? GUMBEL_FLAG_NAN : GUMBEL_FLAG_INFINITE;
            else if (z > -INFINITY)
                draw_winner_offer(best, score(sample, token, z, threshold), z, (int)token);
        }
        __syncwarp();
        keep(sample, best);
        if (__any_sync(~0u, flags)) {
            flags = __reduce_or_sync(~0u, flags);
            if (lane == 0)
                state.flags[warp] |= flags;
        }
    }

    /* -------------------------------------------------------------------------------- draw ---- */

    /* Samples, as bits, in which a token of that value may win, the largest of this lane's; lane s
     * has the threshold of sample s. */
    __device__ __forceinline__ uint32_t find_passing(uint32_t base, float top, float factor,
                                                     float thresholds) const
    {
        uint32_t passing = 0;
#pragma unroll 1
        for (int s = 0; s < samples; s++) {
            const float threshold = __shfl_sync(~0u, thresholds, s);
            passing |= (uint32_t)draw_passes(fmaf(top, factor, reach_of(base, s)), threshold) << s;
        }
        return passing;
    }

    /* The same by given noise, of these z. */
    __device__ __forceinline__ uint32_t find_passing(uint32_t base, const four (&z)[kQuads],
                                                     float thresholds) const
    {
        uint32_t passing = 0;
#pragma unroll 1
        for (int s = 0; s < samples; s++) {
            four scores[kQuads];
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                scores[k] = z[k];
            add_noise(base, s, scores);
            const float threshold = __shfl_sync(~0u, thresholds, s);
            passing |= (uint32_t)draw_passes(largest_of_step(scores), threshold) << s;
        }
        return passing;
    }

    /* The same of a step, whose mass is added. */
    template <bool with_mass>
    __device__ __forceinline__ uint32_t sweep(uint32_t base, const step &logits, uint32_t asked,
                                              warp_mass &mass) const
    {
        float factor = 1.0f, top;
        four x[kQuads];
        if constexpr (with_mass || given) {
            find_z(base, logits, x);
            if (with_mass)
                mass.add(x);
            if constexpr (given)
                return find_passing(base, x, ordered_float(asked));
            top = largest_of_step(x);
        } else if (plain()) {
            find_values<true>(base, logits, x, factor);
            top = largest_of_step(x);
        } else {
            find_values<false>(base, logits, x, factor);
            top = largest_of_step(x);
        }
        return find_passing(base, top, factor, ordered_float(asked));
    }

    /* Which of this lane's tokens may win in a sample, as bits. */
    __device__ __forceinline__ uint32_t find_tokens(uint32_t base, int sample, const step &logits,
                                                    float thresholds) const
    {
        four x[kQuads];
        float factor = 1.0f, reach = 0.0f;
        if constexpr (given) {
            find_z(base, logits, x);
            add_noise(base, sample, x);
        } else {
            if (plain())
                find_values<true>(base, logits, x, factor);
            else
                find_values<false>(base, logits, x, factor);
            reach = reach_of(base, sample);
        }
        const float threshold = __shfl_sync(~0u, thresholds, sample);
        uint32_t tokens = 0;
#pragma unroll
        for (int i = 0; i < 4 * kQuads; i++)
            tokens |= (uint32_t)draw_passes(fmaf(x[i / 4].v[i % 4], factor, reach), threshold) << i;
        return tokens;
    }

    /* What of a step is still to be listed: samples, those of all lanes, and tokens of the lane in
     * the sample that has begun. */
    struct left_over {
        uint32_t samples, tokens;
        int sample;
    };

    /* List tokens that may win up to 32 and more, or all there are; how many there are then. */
    __device__ __forceinline__ int list(uint32_t base, const step &logits, float thresholds,
                                        left_over &left, int count) const
    {
        listed *out = state.lists[warp];
#pragma unroll 1
        while (count < 32) {
            uint32_t some = __ballot_sync(~0u, left.tokens != 0);
            if (some) {
                if (left.tokens) {
                    int i = __ffs(left.tokens) - 1;
                    out[count + __popc(some & ((1u << lane) - 1))] =
                        (listed)(left.sample * kStep + place + kStride * (i / 4) + i % 4);
                    left.tokens &= left.tokens - 1;
                }
                count += __popc(some);
            } else if (left.samples) {
                left.sample = __ffs(left.samples) - 1;
                left.samples &= left.samples - 1;
                left.tokens = find_tokens(base, left.sample, logits, thresholds);
            } else {
                break;
            }
        }
        __syncwarp();
        return count;
    }

    /* Score what may win of a step, in these samples; and ask for the next step, if there is one,
     * as soon as the logits are done with: registers cannot hold both. */
    __device__ __forceinline__ void draw(uint32_t base, uint32_t next, uint32_t passing,
                                         float thresholds, step &logits) const
    {
        left_over left = {__reduce_or_sync(~0u, passing), 0, 0};
        bool more = left.samples != 0, asked = false;
        int count = 0;
        do {
            if (more) {
                count = list(base, logits, thresholds, left, count);
                more = left.samples || __any_sync(~0u, left.tokens);
            }
            if (!more && !asked && next < end)
                read_step(next, logits);
            asked = !more;
            if (count) {
                score_listed(base, min(count, 32));
                count = forget_scored(count);
            }
        } while (more || count);
    }

    /* Take the first 32 tokens off the warp's list; how many are left. */
    __device__ __forceinline__ int forget_scored(int count) const
    {
        listed *list = state.lists[warp];
        const bool stays = lane + 32 < count;
        const listed moved = stays ? list[lane + 32] : 0;
        __syncwarp();
        if (stays)
            list[lane] = moved;
        __syncwarp();
        return max(count - 32, 0);
    }

    /* Take all steps of the window that come to this warp, of whose first one the logits are asked
     * for already. */
    template <bool with_mass>
    __device__ __forceinline__ void run(step &logits, warp_mass &mass) const
    {
        uint32_t base = begin + warp * kStep;
#pragma unroll 1
        while (base < end) {
            const uint32_t ticket = take(), asked = ask(lane < samples, lane);
            const uint32_t passing = sweep<with_mass>(base, logits, asked, mass);
            const float thresholds = ordered_float(asked);
            const uint32_t next = taken(ticket);
            draw(base, next, passing, thresholds, logits);
            base = next;
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
