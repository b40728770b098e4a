/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   verifies drafts by a rule that compares probabilities (drafts/rules.h), in consecutive
 *        launches. expand: as in drafts.cu. masses: sums the rows of both models and determines
 *        verdicts. residuals, for the block rule: sums max(r p - q, 0) of the rows after drafts,
 *        and determines its verdicts. draw: draws where a verdict requires it, and walks.
 * COST   masses reads 2 n V logits, with an exponential for each row that has a draft after it;
 *        residuals reads as many, with two exponentials; draw reads one row a request in most
 *        cases, and computes the noise of the few tokens that can reach the best score so far.
 * MAP masses, residuals: a CTA a split of a row, a warp 512 tokens at a time. draw: a CTA a split
 *        of a request's rows, a warp a range of tokens. The last CTA of a row merges it; the last
 *        CTA of a request determines verdicts, a thread a node, or walks, by one thread.
 * SMEM   masses: a summary a thread; draw: nodes, 20 bytes each.
 * SYNC   no CTA waits for another: the last one of a row or request to increment a counter
 *        (cta_counter.cuh) continues. Within a CTA, all threads wait before and after the work of a
 *        single thread.
 * NUMERICS  masses by summary.h, residuals in integers: the bits do not depend on the splits.
 */
#include "cuda/step/node_splits.cuh"

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_expand_rule_drafts(const __grid_constant__ gumbel_rule_params p)
{
    const gumbel_verification &v = p.verification;
    const int64_t i = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    ptx_wait_for_launch();
    ptx_allow_launch();
    if (i == 0 && v.of_row.path_offsets)
        v.of_row.path_offsets[0] = 0;
    if (i < v.draft.requests)
        p.proposal.residual_nodes[i] = {0, -1, 0};
    if (i >= v.rows)
        return;
    gumbel_draft_expand_row(&v, i);
    p.proposal.rule_nodes[i].drafted = gumbel_draft_token_after(&v, i);
    v.drawn.tokens[i] = -1;
    v.drawn.status[i] = GUMBEL_ROW_UNUSED;
}

extern "C" __global__ void __launch_bounds__(kDraftThreads, CUDA_MASS_CTAS)
    gumbel_sum_draft_masses(const __grid_constant__ gumbel_rule_params p)
{
    const gumbel_verification &v = p.verification;
    const int64_t split = blockIdx.x % p.splits, row = blockIdx.x / p.splits;
    const bool draft = row >= v.rows;
    const int64_t b = draft ? row - v.rows : row;
    ptx_wait_for_launch();
    if (v.of_row.slot[b] == GUMBEL_SLOT_UNUSED)
        return;
    const int64_t r = v.of_row.request[b];
    const bool drafted = p.proposal.rule_nodes[b].drafted >= 0;
    if (threadIdx.x == 0) {
        start_cta_counter(word_at(p.row_counters, row), p.tag);
        start_cta_counter(word_at(p.counters, r), p.tag);
    }
    if (drafted || !draft) {
        const gumbel_summary split_sum = sum_split(model_row::from_params(p, draft, b),
                                                   split_tokens(p, split), drafted || v.logprobs);
        if (threadIdx.x == 0)
            p.masses[row * p.splits + split] = split_sum;
        if (!is_last_cta(p, p.row_counters, row, p.splits))
            return;
        if (threadIdx.x < 32) {
            const gumbel_summary whole =
                merge_summaries(&p.masses[row * p.splits], p.splits, 1, true);
            if (threadIdx.x == 0)
                finish_row(p, draft, b, whole);
        }
    } else if (split > 0) {
        return;
    }
    if (is_last_cta(p, p.counters, r,
                    (p.proposal.supplied ? 1 : 2) * gumbel_draft_span(&v, r).count))
        determine_verdicts(p, r);
}

/* ----------------------------------------------------------------------------- residuals ---- */

extern "C" __global__ void __launch_bounds__(kDraftThreads, CUDA_MASS_CTAS)
    gumbel_sum_draft_residuals(const __grid_constant__ gumbel_rule_params p)
{
    const gumbel_verification &v = p.verification;
    const int64_t split = blockIdx.x % p.splits, b = blockIdx.x / p.splits;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ptx_wait_for_launch();
    if (v.of_row.slot[b] == GUMBEL_SLOT_UNUSED)
        return;
    const gumbel_chain c = chain_of(p, v.of_row.request[b]);
    const int32_t drafts = p.proposal.residual_nodes[c.r].drafts;
    if (b <= c.first || b >= c.first + drafts)
        return;
    if (threadIdx.x == 0)
        start_cta_counter(word_at(p.counters, c.r), p.tag);
    const model_row target = model_row::from_params(p, false, b),
                    draft = model_row::from_params(p, true, b);
    const float target_lse = p.proposal.target_lse[b], draft_lse = p.proposal.draft_lse[b];
    const float rest = p.proposal.rule_nodes[b - 1].rest;
    const split_tokens tokens(p, split);
    unsigned long long sum = 0;
    for (int base = tokens.begin + warp * kStep; base < tokens.end; base += kDraftWarps * kStep) {
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
        draft_state().warp_residuals[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < kDraftWarps; i++)
            sum += draft_state().warp_residuals[i];
        atomicAdd(word_at(p.proposal.sums, b), sum);
    }
    if (is_last_cta(p, p.counters, c.r, (drafts - 1) * p.splits) && threadIdx.x == 0) {
        gumbel_determine_block_verdicts(p.proposal.rule_nodes + c.first, c.count, drafts,
                                        p.proposal.sums + c.first);
        store_draw_range(p, c);
    }
}

extern "C" __global__ void __launch_bounds__(kDraftThreads, CUDA_RESIDUAL_CTAS)
    gumbel_draw_residuals(const __grid_constant__ gumbel_rule_params p)
{
    const gumbel_verification &v = p.verification;
    const int64_t split = blockIdx.x % p.splits, r = blockIdx.x / p.splits;
    ptx_wait_for_launch();
    const gumbel_chain c = chain_of(p, r);
    const gumbel_span span = gumbel_draft_span(&v, r);
    const gumbel_residual_nodes residual_nodes = p.proposal.residual_nodes[r];
    gumbel_walk_result w = gumbel_walk_result_none(GUMBEL_ROW_UNUSED);
    if (has_nodes(v, r, span) && span.sound && residual_nodes.end >= 0) {
        if (threadIdx.x == 0)
            start_cta_counter(word_at(p.counters, r), p.tag);
        for (int32_t j = residual_nodes.first; j < residual_nodes.end; j++) {
            const gumbel_rule_node w = p.proposal.rule_nodes[c.first + j];
            if (is_listed(p, w)) {
                const split_tokens warp_tokens =
                    find_warp_tokens(split_tokens(p, split), threadIdx.x / 32);
                list_best(node_argmax::from_chain(p, c, j, false), warp_tokens.begin,
                          warp_tokens.end,
                          &p.lists[(r * p.splits + split) * kDraftWarps + threadIdx.x / 32]);
            } else if (is_drawn(w)) {
                store_split_argmax(p, c, j, w.verdict == GUMBEL_VERDICT_RESIDUAL, split);
            }
        }
        if (!is_last_cta(p, p.counters, r, p.splits))
            return;
        w = finish_chain(p, c, residual_nodes);
    } else if (split > 0) {
        return;
    } else if (has_nodes(v, r, span)) {
        w.status = GUMBEL_ROW_DRAFT;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        draft_state().emitted = w.emitted;
    __syncthreads();
    w.emitted = draft_state().emitted;
    finish_request(v, r, w, kDraftThreads);
}
