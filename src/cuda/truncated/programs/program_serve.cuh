/* SPDX-License-Identifier: Apache-2.0
 *
 * Serves a row by one CTA from a list of the tokens that can matter to its program. If only draws
 * of one sample are requested, one warp runs the rules and draws, while the others compute noise;
 * otherwise the tokens that remain are packed, and drawn as a row without rules.
 */
#ifndef GUMBEL_CUDA_PROGRAM_SERVE_CUH
#define GUMBEL_CUDA_PROGRAM_SERVE_CUH

#include "cuda/truncated/programs/program_list.cuh"

namespace
{

/* Noise of the list's tokens, by index, in the memory of offers, which a list does not use. */
__device__ __forceinline__ float *noise_memory() { return (float *)shared_state().scratch.offers; }
static_assert(sizeof(float) * kShortlist <= sizeof(row_scratch::offers), "fits");

/* Stores the noise of all tokens in the first sample of row b, one per thread, from the last thread
 * on, since the first warp runs the rules meanwhile. */
__device__ __noinline__ void store_noise(int64_t b, int count)
{
    const gumbel_problem &q = shared_state().call.problem;
    const float *noise = q.sampling.noise;
    const int i = kThreads - 1 - (int)threadIdx.x;
    if (i >= count)
        return;
    const int32_t id = shared_state().scratch.list[i].id;
    noise_memory()[i] = noise ? noise[b * q.sampling.noise_stride - q.first_token + id]
                              : draw_token_noise_noinline(shared_state().row.draw.stream, id);
}

/* Draws the only sample of row b from the tokens that remain, by a warp. */
__device__ __forceinline__ void draw_remaining(int64_t b)
{
    const cuda_truncated_params &p = shared_state().call;
    const program_state &state = program_memory();
    gumbel_summary none;
    gumbel_summary_empty(&none);
    const row_result r = {none, NAN, state.end - state.begin, GUMBEL_ROW_OK};
    draw_winner best = draw_winner_none();
#pragma unroll 1
    for (int at = state.begin + (int)threadIdx.x % 32; at < state.end; at += 32) {
        const float z = value_at(at);
        draw_winner_offer(best, z + noise_memory()[shortlist_memory().order[at].token], z,
                          id_at(at));
    }
    best = draw_winner_of_warp(best);
    int32_t rank = 1;
    if (p.output.ranks) {
        uint32_t larger = 0;
#pragma unroll 1
        for (int at = state.begin + (int)threadIdx.x % 32; at < state.end; at += 32)
            larger += value_at(at) > best.z;
        rank += (int)__reduce_add_sync(~0u, larger);
    }
    write_draw(p, r, b, b, best, rank);
}

/* Whether outputs of the row's draw alone are requested, of one sample. */
__device__ __forceinline__ bool draws_alone()
{
    const cuda_truncated_params &p = shared_state().call;
    return p.problem.sampling.num_samples == 1 && !(p.problem.features & GUMBEL_FEATURE_TOP) &&
           !(p.problem.features & GUMBEL_FEATURE_KEPT_IDS) && !p.partials && !p.output.lse &&
           !p.output.logprobs && !p.output.top_logprobs && !needs_entropy(p);
}

/* Packs the tokens that remain, with their last values as y, the row's z; returns their number. For
 * all threads. */
__device__ __forceinline__ int pack_remaining()
{
    const program_state &state = program_memory();
    const int place = state.begin + (int)threadIdx.x, kept = state.end - state.begin;
    cuda_candidate own = {};
    if (place < state.end)
        own = {value_at(place), id_at(place)};
    if (threadIdx.x == 0)
        shared_state().row.draw.inverse_temperature = 1.0f;
    __syncthreads();
    if (place < state.begin + kept)
        shared_state().scratch.list[threadIdx.x] = own;
    return kept;
}

/* Runs the program of row b on the `count` tokens of the list, all of its largest ones that matter.
 * Ends with a barrier, after which the state has the result, and with `with_noise` the noise of all
 * tokens is stored. For all threads. */
__device__ __forceinline__ void run_program_on_list(int64_t b, int count, bool with_noise)
{
    program_state &state = program_memory();
    const logit_values values = program_values();
    sort_shortlist(values, count);
    if (threadIdx.x < 32) {
#pragma unroll 1
        for (int at = threadIdx.x; at < count; at += 32)
            value_at(at) = values.to_z(token_in_order(at).y);
        __syncwarp();
        program_list list = {state.program, b, 0, count};
        const uint32_t flags = list.run_rules(state.first);
        if (threadIdx.x == 0) {
            state.begin = list.begin;
            state.end = list.end;
            state.flags = flags;
        }
    }
    if (with_noise)
        store_noise(b, count);
    __syncthreads();
}

/* Serves row b from the `count` tokens of its list, after its program unless it is greedy; by the
 * threads of a CTA. `flags` are those of the row, `raw` as serve_shortlist() takes it. */
__device__ __forceinline__ void serve_program_list(int64_t b, int count, uint32_t flags,
                                                   const gumbel_summary &raw)
{
    const program_state &state = program_memory();
    if (state.runs && count > 0) {
        const bool alone = draws_alone();
        run_program_on_list(b, count, alone);
        flags |= state.flags;
        if (alone && !flags && state.begin < state.end) {
            if (threadIdx.x < 32)
                draw_remaining(b);
            return;
        }
        count = pack_remaining();
    }
    gumbel_summary seen;
    gumbel_summary_empty(&seen);
    seen.flags = flags;
    seen.best_id = count > 0 ? 0 : -1;
    serve_shortlist(b, count, seen, raw, nullptr);
}

} // namespace

#endif
