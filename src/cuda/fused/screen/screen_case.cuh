/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of a draw with a screen, as a type for each case of a call (cuda_screen_case_of()). A
 * case fixes some parameters at compile time, so that the kernels of a plain call contain no code
 * for masks, samples, penalties and truncation.
 */
#ifndef GUMBEL_CUDA_SCREEN_CASE_CUH
#define GUMBEL_CUDA_SCREEN_CASE_CUH

#include "cuda/common/edits.cuh"
#include "cuda/fused/screen/screen_params.h"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Row of the operand that holds a token of the tile: the inverse of the map in screen_draw.cu. */
__device__ __forceinline__ int operand_row(int token)
{
    const int half = token / 64, warp = token % 64 / 16, g = token % 16 / 2, f = token % 2;
    return 64 * half + 16 * warp + 8 * f + g;
}

/* The penalties of a row, which lower the logits of tokens in its history. */
struct screen_penalties {
    gumbel_penalties penalties;
    int64_t slot; /* of the history; -1: no penalty changes a logit */
};

/* The words of a slot in a history mask [slots][words]. */
__device__ __forceinline__ const uint32_t *words_of_slot(const gumbel_history &h,
                                                         const uint32_t *masks, int64_t slot)
{
    return masks + slot * gumbel_mask_words_of(h.vocab_size);
}

/* A token's logit, or a bound of it, after penalties. The scale is 1. Not inlined, so that rows
 * without penalties do not load its instructions. */
__device__ __noinline__ float penalise_logit(const gumbel_problem &q, const screen_penalties &row,
                                             uint32_t token, float logit)
{
    const gumbel_history &h = q.history;
    const uint32_t *prompt = words_of_slot(h, h.prompt, row.slot);
    const uint32_t *output = words_of_slot(h, h.output, row.slot);
    const row_edits edits = {row.penalties, true, nullptr, prompt, output, row.slot};
    return penalise_by_history(q, edits, token, 0, logit);
}

/* `swaps_wide`: the GPU compares and swaps 128 bits, from capability 9.0 on. */
template <cuda_screen_case kind, bool swaps_wide = true> struct screen_call : cuda_screen_params {
    static constexpr bool has_wide_swaps = swaps_wide;
    static constexpr bool nibbles = kind >= CUDA_SCREEN_NESTED, /* of a copy of nibbles */
        coarse = kind == CUDA_SCREEN_NESTED;                    /* of the high ones alone */
    static constexpr bool sampled = kind == CUDA_SCREEN_ANY || kind == CUDA_SCREEN_NESTED_ANY,
                          truncates =
                              kind == CUDA_SCREEN_TRUNCATED || kind == CUDA_SCREEN_NESTED_TRUNCATED;
    static constexpr bool masked = sampled || truncates;
    /* Service threads that score candidates; for truncated rows the other service threads raise
     * shared thresholds. */
    static constexpr int servers = truncates ? 64 : SM90_SERVE_THREADS;

    /* The batch row of a draw. */
    __device__ __forceinline__ int row_of(int draw) const
    {
        const int samples = sampled ? call.problem.sampling.num_samples : 1;
        return samples == 1 ? draw : draw / samples; /* one sample needs no division */
    }
    __device__ __forceinline__ bool is_live(int draw) const
    {
        return truncates ? gumbel_problem_row_flags(&call.problem, draw) == 0
                         : gumbel_problem_row_is_live(&call.problem, row_of(draw));
    }
    /* Parameters of a draw. */
    __device__ __forceinline__ sm90_draw parameters_of(int draw) const
    {
        const int of = row_of(draw);
        const gumbel_row row = gumbel_problem_row(&call.problem, of);
        const int sample = sampled ? draw - of * call.problem.sampling.num_samples : 0;
        return {row.stream.seed, row.stream.position, row.stream.sample + (uint32_t)sample,
                row.inverse_temperature, row.greedy};
    }
    /* The mask of a draw's row; NULL: none. */
    __device__ __forceinline__ const int32_t *mask_of(int draw) const
    {
        return masked && call.problem.features & GUMBEL_FEATURE_MASK
                   ? gumbel_problem_mask(&call.problem, row_of(draw))
                   : NULL;
    }
    /* The penalties of a draw's row. */
    __device__ __forceinline__ screen_penalties penalties_of(int draw) const
    {
        const gumbel_problem &q = call.problem;
        screen_penalties found = {{1.0f, 0.0f, 0.0f}, -1};
        if (!truncates || !(q.features & GUMBEL_FEATURE_PENALTIES))
            return found;
        found.penalties = gumbel_problem_penalties(&q, draw);
        if (q.history.vocab_size > 0 && gumbel_penalties_are_active(&found.penalties))
            found.slot = gumbel_problem_slot(&q, draw);
        return found;
    }
    /* penalise_logit(), unless the row has no penalties. */
    __device__ __forceinline__ float apply_penalties(const screen_penalties &row, uint32_t token,
                                                     float logit) const
    {
        return row.slot < 0 ? logit : penalise_logit(call.problem, row, token, logit);
    }
    /* The hidden state of a draw. */
    __device__ __forceinline__ const uint16_t *hidden_of(int draw) const
    {
        const gumbel_tensor &t = call.problem.hidden;
        return (const uint16_t *)t.data + row_of(draw) * t.stride;
    }
};

} // namespace

#endif
