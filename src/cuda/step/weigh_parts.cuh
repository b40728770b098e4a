/* SPDX-License-Identifier: Apache-2.0
 *
 * What CTAs that weigh drafts share, what a part of a row weighs, and the verdicts of a request.
 */
#ifndef GUMBEL_CUDA_WEIGH_PARTS_CUH
#define GUMBEL_CUDA_WEIGH_PARTS_CUH

#include "cuda/common/merge.cuh"
#include "cuda/common/cta_counter.cuh"
#include "cuda/step/weighed_row.cuh"

namespace
{

constexpr int kWeighThreads = CUDA_MASS_THREADS, kWeighWarps = kWeighThreads / 32;

/* Nodes lie behind it. */
struct weigh_shared {
    union {
        gumbel_summary own[kWeighThreads];
        unsigned long long sums[kWeighWarps];
        gumbel_contender best[kWeighWarps];
    };
    gumbel_summary of_warp[kWeighWarps];
    uint32_t floor;      /* the best score by a residual so far, as ordered bits */
    int last;            /* whether this CTA ends what it counts for */
    int32_t emitted;     /* how many tokens, for all threads */
    int32_t drawn_again; /* a node whose residual holds no token; -1: none */
};
static_assert(sizeof(weigh_shared) <= CUDA_MASS_BYTES, "the launcher reserves that much");
static_assert(sizeof(gumbel_weighing) <= 4000, "what a kernel is handed");

__device__ __forceinline__ weigh_shared &weigh_state()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return *(weigh_shared *)shared_memory;
}

__device__ __forceinline__ gumbel_node *weigh_nodes()
{
    return (gumbel_node *)((unsigned char *)&weigh_state() + CUDA_MASS_BYTES);
}

/* Tokens of a part of a row, in whole blocks of noise. */
struct tokens_of_part {
    int begin, end;

    __device__ __forceinline__ tokens_of_part(const gumbel_weighing &p, int64_t part)
    {
        const gumbel_problem &q = p.by.target;
        const int64_t origin = q.first_token / GUMBEL_BLOCK * GUMBEL_BLOCK;
        begin = (int)min(origin + part * p.chunk, q.end_token);
        end = (int)min(origin + (part + 1) * p.chunk, q.end_token);
    }
};

__device__ __forceinline__ gumbel_chain chain_of(const gumbel_weighing &p, int64_t r)
{
    const gumbel_span span = gumbel_draft_span(&p.verification, r);
    return {&p.by, &p.verification, r, span.first, span.count};
}

__device__ __forceinline__ unsigned long long *word_at(uint64_t *words, int64_t i)
{
    return (unsigned long long *)&words[i];
}

/* Count this CTA behind what it has written, by all threads: whether it is the last of `all`. */
__device__ __forceinline__ bool ends(const gumbel_weighing &p, uint64_t *words, int64_t i,
                                     int32_t all)
{
    __syncthreads();
    if (threadIdx.x == 0)
        weigh_state().last = count_cta_end(word_at(words, i), p.tag, all);
    __syncthreads();
    return weigh_state().last;
}

/* -------------------------------------------------------------------------------- judging ---- */

/* Tell which nodes of a chain are drawn, once it has its verdicts, by one thread. */
__device__ void end_judging(const gumbel_weighing &p, const gumbel_chain &c)
{
    const gumbel_weighed *weighed = p.by.weighed + c.first;
    int32_t first = c.count, end = 0;
    for (int32_t j = 0; j < c.count && weighed[j].verdict != GUMBEL_VERDICT_NONE; j++)
        if (weighed[j].verdict != GUMBEL_VERDICT_DRAFT && weighed[j].status == GUMBEL_ROW_OK) {
            first = min(first, j);
            end = j + 1;
        }
    p.by.judged[c.r].first = first;
    p.by.judged[c.r].end = end;
}

/* Judge the chain of a request whose rows are all weighed; a block whose rows have sums is left to
 * these. By all threads. */
__device__ void judge(const gumbel_weighing &p, int64_t r)
{
    const gumbel_chain c = chain_of(p, r);
    gumbel_weighed *weighed = p.by.weighed + c.first;
    for (int32_t j = threadIdx.x; j < c.count; j += kWeighThreads)
        weighed[j] = gumbel_weigh_node(&c, j);
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    if (p.verification.draft.rule == GUMBEL_RULE_BLOCK) {
        const int32_t drafts = gumbel_weigh_block(weighed, c.count);
        p.by.judged[r].drafts = drafts;
        for (int32_t j = 1; j < drafts; j++)
            p.by.sums[c.first + j] = 0;
        if (drafts > 1)
            return;
        gumbel_judge_block(weighed, c.count, drafts, p.by.sums + c.first);
    } else {
        gumbel_judge_rejection(weighed, c.count);
    }
    end_judging(p, c);
}

/* ------------------------------------------------------------------------------- weighing ---- */

/* The summary of a part of a row, by all threads; thread 0 has it. */
__device__ __forceinline__ gumbel_summary weigh_part(const weighed_row &row, tokens_of_part part,
                                                     bool with_mass)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    gumbel_summary *own = &weigh_state().own[threadIdx.x];
    uint32_t flags = 0;
    gumbel_summary_empty(own);
    warp_mass mass = {own, lane, false};
    for (int base = part.begin + warp * kStep; base < part.end; base += kWeighWarps * kStep) {
        four z[kQuads];
        row.load<kStride>(base + lane / 4 * GUMBEL_BLOCK + lane % 4 * 4, z);
        flags |= flags_of_step(z);
        if (with_mass)
            mass.add(z);
        else
            own->max_z = fmaxf(own->max_z, largest_of_step(z));
    }
    mass.flush();
    gumbel_summary sum = *own;
    merge_masses_of_lanes<32>(&sum);
    sum.flags = __reduce_or_sync(~0u, flags);
    if (lane == 0)
        weigh_state().of_warp[warp] = sum;
    __syncthreads();
    for (int i = 1; i < kWeighWarps && threadIdx.x == 0; i++)
        gumbel_summary_merge(&sum, &weigh_state().of_warp[i]);
    return sum;
}

/* Write what a whole row comes to, by one thread: how likely the draft behind it is, and of the
 * target's row what keeps it from being drawn. */
__device__ void end_row(const gumbel_weighing &p, bool draft, int64_t b, gumbel_summary sum)
{
    const gumbel_verification &v = p.verification;
    const gumbel_problem &q = draft ? p.by.draft : p.by.target;
    const int32_t drafted = p.by.weighed[b].drafted;
    sum.flags |= gumbel_problem_row_flags(&q, b);
    sum.best_id = sum.max_z > -INFINITY ? 0 : -1;
    const gumbel_row_status status = gumbel_summary_status(&sum);
    const bool ok = status == GUMBEL_ROW_OK;
    const float lse = ok ? gumbel_summary_lse(&sum) : NAN;
    (draft ? p.by.draft_lse : p.by.target_lse)[b] = lse;
    (draft ? p.by.draft_logprobs : p.by.target_logprobs)[b] =
        ok && drafted >= 0 ? gumbel_logprob_of(weighed_row::of(p, draft, b).at(drafted), lse) : NAN;
    if (!draft && !p.by.drawn)
        v.drawn.status[b] = (int32_t)status;
}

} // namespace

#endif
