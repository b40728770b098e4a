/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp and the row of logits that it goes through: what it reads, and z of it (head: logits.cu).
 */
#ifndef GUMBEL_CUDA_LOGITS_ROW_CUH
#define GUMBEL_CUDA_LOGITS_ROW_CUH

#include "cuda/common/edits.cuh"
#include "cuda/common/logits_step.cuh"

namespace
{

constexpr int kThreads = CUDA_LOGITS_THREADS, kWarps = kThreads / 32;
constexpr int kSamples = CUDA_LOGITS_SAMPLES;

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

/* A warp and the window of a row that its CTA draws from. Where a mask and a history edit the row,
 * the mask is looked up with every logit, and the history for the few tokens alone that are scored:
 * mostly penalties lower a token, so that the bounds let through what they must. Of a row where
 * they may raise one, all that were seen are scored. */
template <gumbel_dtype dtype, bool edited> struct warp_row {
    using element = typename quad<dtype>::element;
    using step = quad<dtype>[kQuads]; /* what a lane holds of a step */

    const cuda_params &p;
    cta_state &state;
    const element *origin; /* where the logit of token 0 would be */
    const int32_t *mask;   /* of the row; or NULL: it leaves all */
    uint32_t begin, end;   /* of the window: ids are below 2^31 */
    uint32_t place;        /* of this lane's first token in a step */
    int warp, lane;
    bool vectors; /* quads are aligned in memory */
    float inverse_temperature;

    __device__ __forceinline__ bool counts(uint32_t from, uint32_t to) const
    {
        return from >= (uint32_t)p.problem.first_token && to <= end;
    }

    /* Whether all of a step counts. */
    __device__ __forceinline__ bool whole(uint32_t base) const
    {
        return counts(base, base + kStep);
    }

    /* The logit of one token; -inf if it does not count. */
    __device__ __forceinline__ element read_one(uint32_t token) const
    {
        return counts(token, token + 1) ? origin[token] : quad<dtype>::minus_infinity();
    }

    /* Four logits from `token` on; -inf for those that do not count. */
    __device__ __forceinline__ quad<dtype> read_shortlist(uint32_t token) const
    {
        element e[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            e[i] = read_one(token + i);
        return quad<dtype>::from_elements(e);
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
            z[k] = logits[k].to_floats();
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
     * is plain the logits will do: registers of their own would cost as many moves as the look at
     * them costs. */
    template <bool is_plain>
    __device__ __forceinline__ void find_values(uint32_t base, const step &logits,
                                                four (&x)[kQuads], float &factor) const
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++)
            x[k] = logits[k].to_floats();
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
    __device__ __forceinline__ float transform(uint32_t token, element logit) const
    {
        const gumbel_problem &q = p.problem;
        float y = widen_element(&logit, dtype, 0);
        if (!counts(token, token + 1))
            return -INFINITY;
        y = q.soft_cap != 0.0f ? draw_soft_cap_logit(p, y) : y * q.scale;
        if constexpr (edited) {
            four all = edit_apart(p, state, token & ~3u, end, {y, y, y, y});
            y = token & 2 ? (token & 1 ? all.v[3] : all.v[2]) : (token & 1 ? all.v[1] : all.v[0]);
        }
        return y * inverse_temperature;
    }

    __device__ __forceinline__ float transform(uint32_t token) const
    {
        return transform(token, read_one(token));
    }
};

} // namespace

#endif
