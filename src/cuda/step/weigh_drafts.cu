/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   drafts verified by a rule that weighs probabilities (drafts/rules.h), in launches one
 *        behind the other: expand; weigh, which sums up both models' rows and makes verdicts; for a
 *        block sum, max(r p - q, 0) of the rows behind its drafts, and the verdicts by that; race,
 *        which draws where a verdict asks for it, and walks.
 * COST   weigh reads 2 n V logits, and makes an exponential of each that a draft is behind; sum
 *        reads as many, with two each; race reads one row a request, mostly, and makes noise of the
 *        few tokens that can come to the best so far.
 * MAP    weigh, sum: a CTA a part of a row, a warp 512 tokens at a time. race: a CTA a part of a
 *        request's rows, a warp a run of tokens that are neighbours. The last CTA of a row merges
 *        it, that of a request judges or walks: a thread a node, then one thread.
 * SMEM   weigh: a summary a thread; race: nodes, 20 bytes each.
 * SYNC   CTAs count themselves (cta_counter.cuh), and none waits for another. Within a CTA
 *        __syncthreads() around what one thread does for all.
 * NUMERICS  masses by summary.h, residuals in whole units: nothing depends on how rows are cut.
 */
#include "cuda/step/race_parts.cuh"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_expand_weighed(const __grid_constant__ gumbel_weighing p)
{
    const gumbel_verification &v = p.verification;
    const int64_t i = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    ptx_wait_for_launch();
    ptx_allow_launch();
    if (i == 0 && v.of_row.path_offsets)
        v.of_row.path_offsets[0] = 0;
    if (i < v.draft.requests)
        p.by.judged[i] = {0, -1, 0};
    if (i >= v.rows)
        return;
    gumbel_draft_row(&v, i);
    p.by.weighed[i].drafted = gumbel_draft_behind(&v, i);
    v.drawn.tokens[i] = -1;
    v.drawn.status[i] = GUMBEL_ROW_UNUSED;
}

extern "C" __global__ void __launch_bounds__(kWeighThreads, CUDA_MASS_CTAS)
    gumbel_weigh_drafts(const __grid_constant__ gumbel_weighing p)
{
    const gumbel_verification &v = p.verification;
    const int64_t part = blockIdx.x % p.parts, row = blockIdx.x / p.parts;
    const bool draft = row >= v.rows;
    const int64_t b = draft ? row - v.rows : row;
    ptx_wait_for_launch();
    if (v.of_row.slot[b] == GUMBEL_SLOT_UNUSED)
        return;
    const int64_t r = v.of_row.request[b];
    const bool drafted = p.by.weighed[b].drafted >= 0;
    if (threadIdx.x == 0) {
        start_cta_counter(word_at(p.row_counters, row), p.tag);
        start_cta_counter(word_at(p.counters, r), p.tag);
    }
    if (drafted || !draft) {
        const gumbel_summary own = weigh_part(weighed_row::of(p, draft, b), tokens_of_part(p, part),
                                              drafted || v.logprobs);
        if (threadIdx.x == 0)
            p.masses[row * p.parts + part] = own;
        if (!ends(p, p.row_counters, row, p.parts))
            return;
        if (threadIdx.x < 32) {
            const gumbel_summary whole = merge_parts(&p.masses[row * p.parts], p.parts, 1, true);
            if (threadIdx.x == 0)
                end_row(p, draft, b, whole);
        }
    } else if (part > 0) {
        return;
    }
    if (ends(p, p.counters, r, (p.by.told ? 1 : 2) * gumbel_draft_span(&v, r).count))
        judge(p, r);
}

/* ------------------------------------------------------------------------------- the sums ---- */

extern "C" __global__ void __launch_bounds__(kWeighThreads, CUDA_MASS_CTAS)
    gumbel_sum_drafts(const __grid_constant__ gumbel_weighing p)
{
    const gumbel_verification &v = p.verification;
    const int64_t part = blockIdx.x % p.parts, b = blockIdx.x / p.parts;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ptx_wait_for_launch();
    if (v.of_row.slot[b] == GUMBEL_SLOT_UNUSED)
        return;
    const gumbel_chain c = chain_of(p, v.of_row.request[b]);
    const int32_t drafts = p.by.judged[c.r].drafts;
    if (b <= c.first || b >= c.first + drafts)
        return;
    if (threadIdx.x == 0)
        start_cta_counter(word_at(p.counters, c.r), p.tag);
    const weighed_row target = weighed_row::of(p, false, b), draft = weighed_row::of(p, true, b);
    const float target_lse = p.by.target_lse[b], draft_lse = p.by.draft_lse[b];
    const float rest = p.by.weighed[b - 1].rest;
    const tokens_of_part tokens(p, part);
    unsigned long long sum = 0;
    for (int base = tokens.begin + warp * kStep; base < tokens.end; base += kWeighWarps * kStep) {
        four z[kQuads], w[kQuads];
        target.load<kTurn>(base + 4 * lane, z);
        draft.load<kTurn>(base + 4 * lane, w);
#pragma unroll
        for (int i = 0; i < 4 * kQuads; i++)
            sum += gumbel_residual_of(z[i / 4].v[i % 4], target_lse, w[i / 4].v[i % 4], draft_lse,
                                      rest);
    }
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        sum += __shfl_xor_sync(~0u, sum, half);
    if (lane == 0)
        weigh_state().sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < kWeighWarps; i++)
            sum += weigh_state().sums[i];
        atomicAdd(word_at(p.by.sums, b), sum);
    }
    if (ends(p, p.counters, c.r, (drafts - 1) * p.parts) && threadIdx.x == 0) {
        gumbel_judge_block(p.by.weighed + c.first, c.count, drafts, p.by.sums + c.first);
        end_judging(p, c);
    }
}

extern "C" __global__ void __launch_bounds__(kWeighThreads, CUDA_RESIDUAL_CTAS)
    gumbel_race_drafts(const __grid_constant__ gumbel_weighing p)
{
    const gumbel_verification &v = p.verification;
    const int64_t part = blockIdx.x % p.parts, r = blockIdx.x / p.parts;
    ptx_wait_for_launch();
    const gumbel_chain c = chain_of(p, r);
    const gumbel_span span = gumbel_draft_span(&v, r);
    const gumbel_judged judged = p.by.judged[r];
    gumbel_walked w = gumbel_walked_not(GUMBEL_ROW_UNUSED);
    if (is_asked(v, r, span) && span.sound && judged.end >= 0) {
        if (threadIdx.x == 0)
            start_cta_counter(word_at(p.counters, r), p.tag);
        for (int32_t j = judged.first; j < judged.end; j++) {
            const gumbel_weighed w = p.by.weighed[c.first + j];
            if (is_listed(p, w)) {
                const tokens_of_part own =
                    tokens_of_warp(tokens_of_part(p, part), threadIdx.x / 32);
                list_best(draft_race::of(p, c, j, false), own.begin, own.end,
                          &p.lists[(r * p.parts + part) * kWeighWarps + threadIdx.x / 32]);
            } else if (is_drawn(w)) {
                race_part(p, c, j, w.verdict == GUMBEL_VERDICT_RESIDUAL, part);
            }
        }
        if (!ends(p, p.counters, r, p.parts))
            return;
        w = end_chain(p, c, judged);
    } else if (part > 0) {
        return;
    } else if (is_asked(v, r, span)) {
        w.status = GUMBEL_ROW_DRAFT;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        weigh_state().emitted = w.emitted;
    __syncthreads();
    w.emitted = weigh_state().emitted;
    end_request(v, r, w, kWeighThreads);
}
