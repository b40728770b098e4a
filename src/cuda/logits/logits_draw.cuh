/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp that draws from a chunk of a row of logits, step after step (head: logits.cu).
 */
#ifndef GUMBEL_CUDA_LOGITS_DRAW_CUH
#define GUMBEL_CUDA_LOGITS_DRAW_CUH

#include "cuda/logits/logits_score.cuh"

namespace
{

template <gumbel_dtype dtype, bool given, bool edited>
struct warp_draw : warp_scores<dtype, given, edited> {
    using row = warp_row<dtype, edited>;
    using scores = warp_scores<dtype, given, edited>;
    using row::plain, row::read_step, row::find_z;
    using row::state, row::begin, row::end, row::place, row::warp, row::lane;
    using scores::ask, scores::score_listed, scores::reach_of, scores::add_noise, scores::samples;
    using typename row::step;

    /* Samples, as bits, in which a token of that value may win, the largest of this lane's; lane s
     * has the threshold of sample s. */
    __device__ __forceinline__ uint32_t find_passing(uint32_t base, float top, float factor,
                                                     float thresholds) const
    {
        uint32_t passing = 0;
        int s = 0;
#pragma unroll 1
        do {
            const float threshold = __shfl_sync(~0u, thresholds, s);
            passing |= (uint32_t)draw_passes_bound(fmaf(top, factor, reach_of(base, s)), threshold)
                       << s;
        } while (++s < samples);
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
            passing |= (uint32_t)draw_passes_bound(largest_of_step(scores), threshold) << s;
        }
        return passing;
    }

    /* The same of a step, whose mass is added. */
    template <bool with_mass>
    __device__ __forceinline__ uint32_t sweep(uint32_t base, step &logits, uint32_t asked,
                                              warp_mass &mass) const
    {
        float factor = 1.0f, top;
        four x[kQuads];
        if constexpr (with_mass || given) {
            find_z(base, logits, x);
            if constexpr (holds_z<with_mass>)
#pragma unroll
                for (int k = 0; k < kQuads; k++)
                    logits[k] = quad<dtype>::from_elements(x[k].v);
            if (with_mass)
                mass.add(x);
            if constexpr (given)
                return find_passing(base, x, ordered_float(asked));
            top = largest_of_step(x);
        } else if (plain()) {
            row::template find_values<true>(base, logits, x, factor);
            top = largest_of_step(x);
        } else {
            row::template find_values<false>(base, logits, x, factor);
            top = largest_of_step(x);
        }
        return find_passing(base, top, factor, ordered_float(asked));
    }

    /* Whether a step's z take the place of its logits: registers have no room for both. */
    template <bool with_mass>
    static constexpr bool holds_z = (with_mass || given) && dtype == GUMBEL_FLOAT32;

    /* Which of this lane's tokens may win in a sample, as bits. */
    template <bool with_mass>
    __device__ __forceinline__ uint32_t find_tokens(uint32_t base, int sample, const step &logits,
                                                    float thresholds) const
    {
        four x[kQuads];
        float factor = 1.0f, reach = 0.0f;
        if constexpr (holds_z<with_mass>) {
#pragma unroll
            for (int k = 0; k < kQuads; k++)
                x[k] = logits[k].to_floats();
        } else if constexpr (given || with_mass) {
            find_z(base, logits, x);
        } else {
            if (plain())
                row::template find_values<true>(base, logits, x, factor);
            else
                row::template find_values<false>(base, logits, x, factor);
        }
        if constexpr (given)
            add_noise(base, sample, x);
        else
            reach = reach_of(base, sample);
        const float threshold = __shfl_sync(~0u, thresholds, sample);
        uint32_t tokens = 0;
#pragma unroll
        for (int i = 0; i < 4 * kQuads; i++)
            tokens |= (uint32_t)draw_passes_bound(fmaf(x[i / 4].v[i % 4], factor, reach), threshold)
                      << i;
        return tokens;
    }

    /* What of a step is still to be listed: samples, those of all lanes, and tokens of the lane in
     * the sample that has begun. */
    struct left_over {
        uint32_t samples, tokens;
        int sample;
    };

    /* List tokens that may win up to 32 and more, or all there are; how many there are then. */
    template <bool with_mass>
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
                left.tokens = find_tokens<with_mass>(base, left.sample, logits, thresholds);
            } else {
                break;
            }
        }
        __syncwarp();
        return count;
    }

    /* Score what may win of a step, in these samples; and ask for the next step, if there is one,
     * as soon as the logits are done with: registers cannot hold both. */
    template <bool with_mass>
    __device__ __forceinline__ void draw(uint32_t base, uint32_t next, uint32_t passing,
                                         float thresholds, step &logits) const
    {
        left_over left = {__reduce_or_sync(~0u, passing), 0, 0};
        bool more = left.samples != 0, asked = false;
        int count = 0;
        do {
            if (more) {
                count = list<with_mass>(base, logits, thresholds, left, count);
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
            draw<with_mass>(base, next, passing, thresholds, logits);
            base = next;
        }
    }

    /* Take the next step that no warp has; taken() tells where it begins, past the end if there is
     * none. */
    __device__ __forceinline__ uint32_t take() const
    {
        return ptx_atomic_count_if(lane == 0, &state.next);
    }

    __device__ __forceinline__ uint32_t taken(uint32_t ticket) const
    {
        return begin + __reduce_max_sync(~0u, ticket) * kStep;
    }
};

} // namespace

#endif
