/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp's view of a row of logits: loads, and z (head: logits.cu).
 */
#ifndef GUMBEL_CUDA_LOGITS_ROW_CUH
#define GUMBEL_CUDA_LOGITS_ROW_CUH

#include "cuda/common/edits.cuh"
#include "cuda/common/logits_step.cuh"

namespace
{

constexpr int kThreads = CUDA_LOGITS_THREADS, kWarps = kThreads / 32;
constexpr int kSamples = CUDA_LOGITS_SAMPLES;

/* Capacity of a warp's list: a lane adds one token at a time, and 32 are scored at once. */
constexpr int kListed = 64;
/* A list entry encodes sample and token of a step. */
using list_entry = uint16_t;
static_assert(kSamples * kStep <= 1 << 16, "fits");

/* State of a CTA's row and samples. */
struct cta_state {
    int64_t draw, split; /* index of the first draw, and of the split */
    uint32_t end;        /* end of the split */
    float inverse_temperature;
    bool greedy;
    uint32_t next; /* next step of the window that no warp has taken */
    bool last;     /* this CTA is the last of the row to end */
    row_edits edits;
    bool raises;
    draw_philox philox[kSamples];
    uint32_t threshold[kSamples];       /* ordered bits: lower scores cannot win */
    draw_winner best[kWarps][kSamples]; /* per warp */
    uint32_t flags[kWarps];
    gumbel_summary masses[kWarps];
    list_entry lists[kWarps][kListed];
};
static_assert(sizeof(cta_state) <= CUDA_LOGITS_STATE_BYTES, "the launcher reserves that much");

/* y of four tokens after edits; out of line, as it is rare. */
__device__ __noinline__ four edit_four_noinline(const cuda_params &p, const cta_state &state,
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

/* A warp's columns of a row's window. The mask is applied to every logit. The history is read only
 * for tokens that are scored: penalties usually lower a token, so the bounds remain valid. If they
 * may raise tokens, all tokens that the history has seen are scored. */
template <gumbel_dtype dtype, bool edited> struct warp_row {
    using element = typename quad<dtype>::element;
    using step = quad<dtype>[kQuads]; /* a lane's columns of a step */

    const cuda_params &p;
    cta_state &state;
    const element *origin; /* address of token 0's logit, which need not exist */
    const int32_t *mask;   /* of the row; NULL: all tokens are allowed */
    uint32_t begin, end;   /* of the window; ids are below 2^31 */
    uint32_t place;        /* offset of this lane's first token in a step */
    int warp, lane;
    bool vectors; /* quads are aligned in memory */
    float inverse_temperature;

    __device__ __forceinline__ bool is_valid(uint32_t from, uint32_t to) const
    {
        return from >= (uint32_t)p.problem.first_token && to <= end;
    }

    __device__ __forceinline__ bool is_whole(uint32_t base) const
    {
        return is_valid(base, base + kStep);
    }

    /* The logit of one token; -inf if invalid. */
    __device__ __forceinline__ element read_one(uint32_t token) const
    {
        return is_valid(token, token + 1) ? origin[token] : quad<dtype>::minus_infinity();
    }

    /* Four logits from `token` on; -inf for invalid tokens. */
    __device__ __forceinline__ quad<dtype> read_four(uint32_t token) const
    {
        element e[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            e[i] = read_one(token + i);
        return quad<dtype>::from_elements(e);
    }

    /* Requests a step's logits. Rare code is rolled, here and below: registers cannot be indexed,
     * so quads rotate through the first one. */
    __device__ __forceinline__ void read_step(uint32_t base, step &logits) const
    {
        if (vectors && is_whole(base)) {
            const element *from = origin + (base + place);
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                logits[k] = quad<dtype>::read(from + kStride * k);
        } else {
#pragma unroll 1
            for (int k = 0; k < kQuads; k++) {
                logits[0] = logits[1], logits[1] = logits[2], logits[2] = logits[3];
                logits[3] = read_four(base + place + kStride * k);
            }
        }
    }
    static_assert(kQuads == 4, "four quads rotate");

    /* Requests the warp's first step of the window. */
    __device__ __forceinline__ void start(step &logits) const
    {
        if (begin + warp * kStep < end)
            read_step(begin + warp * kStep, logits);
    }

    /* The mask of a lane's block in a step, in words of 32 tokens; the lane's first two quads are
     * in the first word. */
    struct step_mask {
        uint32_t words[2];

        /* Quad k with masked tokens set to -inf. */
        __device__ __forceinline__ four apply(int lane, int k, four x) const
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

    /* z of quad k before edits; -inf for invalid tokens. */
    __device__ __forceinline__ four transform(uint32_t base, int k, four y) const
    {
        const gumbel_problem &q = p.problem;
        four z = {};
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const uint32_t token = base + place + kStride * k + i;
            z = {z.v[1], z.v[2], z.v[3],
                 is_valid(token, token + 1)
                     ? gumbel_transform_logit(y.v[0], q.scale, q.soft_cap, p.inverse_cap,
                                              inverse_temperature)
                     : -INFINITY};
            y = {y.v[1], y.v[2], y.v[3], 0.0f};
        }
        return z;
    }

    /* Whether z = logit / T, which keeps the order of logits. */
    __device__ __forceinline__ bool keeps_order() const
    {
        return p.problem.soft_cap == 0.0f && p.problem.scale == 1.0f;
    }

    /* z of a step before edits; -inf for invalid tokens. */
    __device__ __forceinline__ void find_z(uint32_t base, const step &logits,
                                           four (&z)[kQuads]) const
    {
#pragma unroll
        for (int k = 0; k < kQuads; k++)
            z[k] = logits[k].to_floats();
        if (keeps_order()) {
#pragma unroll
            for (int i = 0; i < 4 * kQuads; i++)
                z[i / 4].v[i % 4] *= inverse_temperature;
        } else {
            transform_step(base, z);
        }
    }

    /* Replaces the logits of a step by z before edits. */
    __device__ __forceinline__ void transform_step(uint32_t base, four (&x)[kQuads]) const
    {
#pragma unroll 1
        for (int k = 0; k < kQuads; k++) {
            const four z = transform(base, k, x[0]);
            x[0] = x[1], x[1] = x[2], x[2] = x[3], x[3] = z;
        }
    }

    /* Upper bounds of the z of a step's tokens, divided by `factor`; NaN if z is NaN. If z keeps
     * the order of logits, the logits serve: separate registers would cost as many moves as the
     * comparison. */
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
                x[k] = allowed.apply(lane, k, x[k]);
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

    /* z of one token; -inf if invalid. */
    __device__ __forceinline__ float transform(uint32_t token, element logit) const
    {
        const gumbel_problem &q = p.problem;
        float y = widen_element(&logit, dtype, 0);
        if (!is_valid(token, token + 1))
            return -INFINITY;
        y = q.soft_cap != 0.0f ? draw_soft_cap_logit(p, y) : y * q.scale;
        if constexpr (edited) {
            four all = edit_four_noinline(p, state, token & ~3u, end, {y, y, y, y});
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
