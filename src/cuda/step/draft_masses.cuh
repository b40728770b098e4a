/* SPDX-License-Identifier: Apache-2.0
 *
 * Verification of drafts by the rules REJECTION and BLOCK, on a GPU: the masses of the rows of the
 * target and of the draft model, and the verdicts on the nodes of a request (drafts/rules.h).
 */
#ifndef GUMBEL_CUDA_DRAFT_MASSES_CUH
#define GUMBEL_CUDA_DRAFT_MASSES_CUH

#include "cuda/common/merge.cuh"
#include "cuda/common/cta_counter.cuh"
#include "cuda/step/model_row.cuh"

namespace
{

constexpr int kDraftThreads = CUDA_MASS_THREADS, kDraftWarps = kDraftThreads / 32;

/* Shared memory of a CTA; the nodes follow it. */
struct draft_shared {
    union {
        gumbel_summary thread_summaries[kDraftThreads];
        unsigned long long warp_residuals[kDraftWarps];
        gumbel_contender warp_best[kDraftWarps];
    };
    gumbel_summary warp_summaries[kDraftWarps];
    uint32_t best_score; /* best score of a residual so far, as ordered bits */
    int is_last;         /* result of is_last_cta(), for all threads */
    int32_t emitted;     /* number of tokens, for all threads */
    int32_t redraw_node; /* node whose residual is empty, to draw from the target; -1: none */
};
static_assert(sizeof(draft_shared) <= CUDA_MASS_BYTES, "the launcher reserves that much");
static_assert(sizeof(gumbel_rule_params) <= 4000, "the limit of kernel parameters");

__device__ __forceinline__ draft_shared &draft_state()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return *(draft_shared *)shared_memory;
}

__device__ __forceinline__ gumbel_node *shared_draft_nodes()
{
    return (gumbel_node *)((unsigned char *)&draft_state() + CUDA_MASS_BYTES);
}

/* Token range of a split of a row, in whole blocks of 64. */
struct split_tokens {
    int begin, end;

    __device__ __forceinline__ split_tokens(const gumbel_rule_params &p, int64_t split)
    {
        const gumbel_problem &q = p.proposal.target;
        const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
        begin = (int)min(origin + split * p.split_size, q.end_token);
        end = (int)min(origin + (split + 1) * p.split_size, q.end_token);
    }
};

__device__ __forceinline__ gumbel_chain chain_of(const gumbel_rule_params &p, int64_t r)
{
    const gumbel_span span = gumbel_draft_span(&p.verification, r);
    return {&p.proposal, &p.verification, r, span.first, span.count};
}

__device__ __forceinline__ unsigned long long *word_at(uint64_t *words, int64_t i)
{
    return (unsigned long long *)&words[i];
}

/* Counts this CTA as finished in words[i], and returns whether it is the last of `num_ctas` CTAs.
 * All threads call it, after the CTA's last write. */
__device__ __forceinline__ bool is_last_cta(const gumbel_rule_params &p, uint64_t *words, int64_t i,
                                            int32_t num_ctas)
{
    __syncthreads();
    if (threadIdx.x == 0)
        draft_state().is_last = count_cta_end(word_at(words, i), p.tag, num_ctas);
    __syncthreads();
    return draft_state().is_last;
}

/* ------------------------------------------------------------------------------ verdicts ---- */

/* Stores the range [first, end) of a chain's nodes that require a draw, from their verdicts. One
 * thread calls it. */
__device__ void store_draw_range(const gumbel_rule_params &p, const gumbel_chain &c)
{
    const gumbel_rule_node *rule_nodes = p.proposal.rule_nodes + c.first;
    int32_t first = c.count, end = 0;
    for (int32_t j = 0; j < c.count && rule_nodes[j].verdict != GUMBEL_VERDICT_NONE; j++)
        if (rule_nodes[j].verdict != GUMBEL_VERDICT_DRAFT &&
            rule_nodes[j].status == GUMBEL_ROW_OK) {
            first = min(first, j);
            end = j + 1;
        }
    p.proposal.residual_nodes[c.r].first = first;
    p.proposal.residual_nodes[c.r].end = end;
}

/* Determines the verdicts on the nodes of request r, whose masses are complete. All threads call
 * it. For the rule BLOCK with several drafts it only zeroes the residual sums;
 * gumbel_sum_draft_residuals adds the sums and then determines the verdicts. */
__device__ void determine_verdicts(const gumbel_rule_params &p, int64_t r)
{
    const gumbel_chain c = chain_of(p, r);
    gumbel_rule_node *rule_nodes = p.proposal.rule_nodes + c.first;
    for (int32_t j = threadIdx.x; j < c.count; j += kDraftThreads)
        rule_nodes[j] = gumbel_evaluate_node(&c, j);
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (p.verification.draft.rule == GUMBEL_RULE_BLOCK) {
        const int32_t drafts = gumbel_evaluate_block(rule_nodes, c.count);
        p.proposal.residual_nodes[r].drafts = drafts;
        for (int32_t j = 1; j < drafts; j++)
            p.proposal.sums[c.first + j] = 0;
        if (drafts > 1)
            return;
        gumbel_determine_block_verdicts(rule_nodes, c.count, drafts, p.proposal.sums + c.first);
    } else {
        gumbel_determine_rejection_verdicts(rule_nodes, c.count);
    }
    store_draw_range(p, c);
}

/* -------------------------------------------------------------------------------- masses ---- */

/* Returns the summary of a split of a row. All threads call it; the result is valid in thread 0.
 * Without `with_mass` the summary has only the largest z and the flags. */
__device__ __forceinline__ gumbel_summary sum_split(const model_row &row, split_tokens split,
                                                    bool with_mass)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    gumbel_summary *thread_summary = &draft_state().thread_summaries[threadIdx.x];
    uint32_t flags = 0;
    gumbel_summary_empty(thread_summary);
    mass_accumulator mass = {thread_summary, lane, false};
    for (int base = split.begin + warp * kStep; base < split.end; base += kDraftWarps * kStep) {
        four z[kQuads];
        row.load<kStride>(base + lane / 4 * GUMBEL_BLOCK + lane % 4 * 4, z);
        flags |= flags_of_step(z);
        if (with_mass)
            mass.add(z);
        else
            thread_summary->max_z = fmaxf(thread_summary->max_z, largest_of_step(z));
    }
    mass.flush();
    gumbel_summary sum = *thread_summary;
    merge_masses_of_lanes<32>(&sum);
    sum.flags = __reduce_or_sync(~0u, flags);
    if (lane == 0)
        draft_state().warp_summaries[warp] = sum;
    __syncthreads();
    for (int i = 1; i < kDraftWarps && threadIdx.x == 0; i++)
        gumbel_summary_merge(&sum, &draft_state().warp_summaries[i]);
    return sum;
}

/* Writes the results of a whole row: its log-normaliser, the log-probability of the drafted token
 * that follows it, and for the target its status. One thread calls it. */
__device__ void finish_row(const gumbel_rule_params &p, bool draft, int64_t b, gumbel_summary sum)
{
    const gumbel_verification &v = p.verification;
    const gumbel_problem &q = draft ? p.proposal.draft : p.proposal.target;
    const int32_t drafted = p.proposal.rule_nodes[b].drafted;
    sum.flags |= gumbel_problem_row_flags(&q, b);
    sum.best_id = sum.max_z > -INFINITY ? 0 : -1;
    const gumbel_row_status status = gumbel_summary_status(&sum);
    const bool ok = status == GUMBEL_ROW_OK;
    const float lse = ok ? gumbel_summary_lse(&sum) : NAN;
    (draft ? p.proposal.draft_lse : p.proposal.target_lse)[b] = lse;
    (draft ? p.proposal.draft_logprobs : p.proposal.target_logprobs)[b] =
        ok && drafted >= 0
            ? gumbel_logprob_of(model_row::from_params(p, draft, b).z_of_token(drafted), lse)
            : NAN;
    if (!draft && !p.proposal.drawn)
        v.drawn.status[b] = (int32_t)status;
}

} // namespace

#endif
