/* SPDX-License-Identifier: Apache-2.0
 *
 * A warp that draws from a split of a row of logits, step by step (head: logits.cu).
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
    using row::keeps_order, row::read_step, row::find_z;
    using row::state, row::begin, row::end, row::place, row::warp, row::lane;
    using scores::read_threshold, scores::score_listed, scores::reach_of, scores::add_noise,
        scores::samples;
    using typename row::step;

    /* Bit mask of the samples in which a token with the value `top`, the largest of this lane, may
     * win. Lane s has the threshold of sample s. */
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

    /* As above, with given noise. */
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

    /* As above, for a step; adds the step's mass. */
    template <bool with_mass>
    __device__ __forceinline__ uint32_t find_passing_samples(uint32_t base, step &logits,
                                                             uint32_t requested,
                                                             mass_accumulator &mass) const
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
                return find_passing(base, x, ordered_float(requested));
            top = largest_of_step(x);
        } else if (keeps_order()) {
            row::template find_values<true>(base, logits, x, factor);
            top = largest_of_step(x);
        } else {
            row::template find_values<false>(base, logits, x, factor);
            top = largest_of_step(x);
        }
        return find_passing(base, top, factor, ordered_float(requested));
    }

    /* Whether a step's z replace its logits, since registers cannot hold both. */
    template <bool with_mass>
    static constexpr bool holds_z = (with_mass || given) && dtype == GUMBEL_FLOAT32;

    /* Bit mask of this lane's tokens that may win in a sample. */
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
            if (keeps_order())
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

    /* Tokens of a step that are not listed yet: samples of the warp, and this lane's tokens of the
     * current sample. */
    struct pending_tokens {
        uint32_t samples, tokens;
        int sample;
    };

    /* Lists tokens that may win, until there are 32 or more, or none is left; returns their number.
     */
    template <bool with_mass>
    __device__ __forceinline__ int list_tokens(uint32_t base, const step &logits, float thresholds,
                                               pending_tokens &pending, int count) const
    {
        list_entry *out = state.lists[warp];
#pragma unroll 1
        while (count < 32) {
            uint32_t some = __ballot_sync(~0u, pending.tokens != 0);
            if (some) {
                if (pending.tokens) {
                    int i = __ffs(pending.tokens) - 1;
                    out[count + __popc(some & ((1u << lane) - 1))] =
                        (list_entry)(pending.sample * kStep + place + kStride * (i / 4) + i % 4);
                    pending.tokens &= pending.tokens - 1;
                }
                count += __popc(some);
            } else if (pending.samples) {
                pending.sample = __ffs(pending.samples) - 1;
                pending.samples &= pending.samples - 1;
                pending.tokens = find_tokens<with_mass>(base, pending.sample, logits, thresholds);
            } else {
                break;
            }
        }
        __syncwarp();
        return count;
    }

    /* Scores the tokens of a step that may win in the samples `passing`. Requests the next step as
     * soon as the logits are no longer needed: registers cannot hold both. */
    template <bool with_mass>
    __device__ __forceinline__ void draw_step(uint32_t base, uint32_t next, uint32_t passing,
                                              float thresholds, step &logits) const
    {
        pending_tokens pending = {__reduce_or_sync(~0u, passing), 0, 0};
        bool more = pending.samples != 0, requested = false;
        int count = 0;
        do {
            if (more) {
                count = list_tokens<with_mass>(base, logits, thresholds, pending, count);
                more = pending.samples || __any_sync(~0u, pending.tokens);
            }
            if (!more && !requested && next < end)
                read_step(next, logits);
            requested = !more;
            if (count) {
                score_listed(base, min(count, 32));
                count = drop_scored(count);
            }
        } while (more || count);
    }

    /* Removes the first 32 tokens from the warp's list; returns the remaining number. */
    __device__ __forceinline__ int drop_scored(int count) const
    {
        list_entry *list = state.lists[warp];
        const bool stays = lane + 32 < count;
        const list_entry moved = stays ? list[lane + 32] : 0;
        __syncwarp();
        if (stays)
            list[lane] = moved;
        __syncwarp();
        return max(count - 32, 0);
    }

    /* Draws from the steps of the window that this warp takes; the logits of the first one are
     * already requested. */
    template <bool with_mass>
    __device__ __forceinline__ void draw_window(step &logits, mass_accumulator &mass) const
    {
        uint32_t base = begin + warp * kStep;
#pragma unroll 1
        while (base < end) {
            const uint32_t ticket = take_step(), requested = read_threshold(lane < samples, lane);
            const uint32_t passing = find_passing_samples<with_mass>(base, logits, requested, mass);
            const float thresholds = ordered_float(requested);
            const uint32_t next = begin_of_step(ticket);
            draw_step<with_mass>(base, next, passing, thresholds, logits);
            base = next;
        }
    }

    /* Takes the next step; begin_of_step() converts the ticket to its first token, past the end if
     * no step is left. */
    __device__ __forceinline__ uint32_t take_step() const
    {
        return ptx_atomic_count_if(lane == 0, &state.next);
    }

    __device__ __forceinline__ uint32_t begin_of_step(uint32_t ticket) const
    {
        return begin + __reduce_max_sync(~0u, ticket) * kStep;
    }
};

} // namespace

#endif
