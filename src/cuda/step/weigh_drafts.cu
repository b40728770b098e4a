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
 * SYNC   CTAs count themselves (parts.cuh), and none waits for another. Within a CTA
 *        __syncthreads() around what one thread does for all.
 * NUMERICS  masses by summary.h, residuals in whole units: nothing depends on how rows are cut.
 */
#include "cuda/common/merge.cuh"
#include "cuda/common/parts.cuh"
#include "cuda/step/draft_nodes.cuh"
#include "cuda/step/draft_race.cuh"

namespace
{

constexpr int kWeighThreads = CUDA_WEIGH_THREADS, kWeighWarps = kWeighThreads / 32;

/* Nodes lie behind it. */
struct weigh_shared {
    union {
        gumbel_summary own[kWeighThreads];
        unsigned long long sums[kWeighWarps];
        float dots[kWeighWarps];
        gumbel_contender best[kWeighWarps];
    };
    gumbel_summary of_warp[kWeighWarps];
    int last;            /* whether this CTA ends what it counts for */
    int32_t emitted;     /* how many tokens, for all threads */
    int32_t drawn_again; /* a node whose residual holds no token; -1: none */
};
static_assert(sizeof(weigh_shared) <= CUDA_WEIGH_BYTES, "the launcher reserves that much");
static_assert(sizeof(gumbel_weighing) <= 4000, "what a kernel is handed");

__device__ __forceinline__ weigh_shared &weigh_state()
{
    extern __shared__ __align__(16) unsigned char shared_memory[];
    return *(weigh_shared *)shared_memory;
}

__device__ __forceinline__ gumbel_node *weigh_nodes()
{
    return (gumbel_node *)((unsigned char *)&weigh_state() + CUDA_WEIGH_BYTES);
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
        weigh_state().last = parts_end(word_at(words, i), p.tag, all);
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

extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
    gumbel_expand_weighed(const __grid_constant__ gumbel_weighing p)
{
    const gumbel_verification &v = p.verification;
    const int64_t i = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x;
    ptx_wait_for_launch();
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

extern "C" __global__ void __launch_bounds__(kWeighThreads, CUDA_WEIGH_CTAS)
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
        parts_start(word_at(p.row_counters, row), p.tag);
        parts_start(word_at(p.counters, r), p.tag);
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

extern "C" __global__ void __launch_bounds__(kWeighThreads, CUDA_WEIGH_CTAS)
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
        parts_start(word_at(p.counters, c.r), p.tag);
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

/* ------------------------------------------------------------------------------- the race ---- */

namespace
{

/* Whether a node is drawn, one of those between the first and the last. */
__device__ __forceinline__ bool is_drawn(const gumbel_weighed &w)
{
    return w.verdict == GUMBEL_VERDICT_DRAW || w.verdict == GUMBEL_VERDICT_RESIDUAL;
}

/* The best of all threads', by all of them. */
__device__ __forceinline__ gumbel_contender best_of_cta(const gumbel_contender &own)
{
    const gumbel_contender of_warp = best_of_warp(own);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        weigh_state().best[threadIdx.x / 32] = of_warp;
    __syncthreads();
    gumbel_contender best = weigh_state().best[0];
    for (int i = 1; i < kWeighWarps; i++)
        gumbel_contend_all(&best, &weigh_state().best[i]);
    return best;
}

/* Of a part the tokens that are a warp's, which are neighbours. */
__device__ __forceinline__ tokens_of_part tokens_of_warp(tokens_of_part tokens)
{
    const int steps =
        (tokens.end - tokens.begin + kWeighWarps * kStep - 1) / (kWeighWarps * kStep) * kStep;
    tokens.begin += threadIdx.x / 32 * steps;
    tokens.end = min(tokens.begin + steps, tokens.end);
    return tokens;
}

/* The best of a race among some tokens. */
__device__ __forceinline__ gumbel_contender race_of_cta(const draft_race &race,
                                                        tokens_of_part tokens)
{
    float second = -INFINITY;
    tokens = tokens_of_warp(tokens);
    return best_of_cta(race.run<false>(tokens.begin, tokens.end, &second));
}

__device__ __forceinline__ tokens_of_part all_tokens(const gumbel_weighing &p)
{
    tokens_of_part all(p, 0);
    all.end = (int)p.by.target.end_token;
    return all;
}

/* Whether a node is drawn by the lists of its parts. */
__device__ __forceinline__ bool is_listed(const gumbel_weighing &p, const gumbel_weighed &w)
{
    return p.by.dots && w.verdict == GUMBEL_VERDICT_RESIDUAL;
}

/* Race for node j in a part of its row. */
__device__ __forceinline__ void race_part(const gumbel_weighing &p, const gumbel_chain &c,
                                          int32_t j, bool residual, int64_t part)
{
    const gumbel_contender best =
        race_of_cta(draft_race::of(p, c, j, residual), tokens_of_part(p, part));
    if (threadIdx.x == 0)
        p.contenders[(c.first + j) * p.parts + part] = best;
}

/* Make what the parts of node j found what it emits, by a warp. */
__device__ void end_race(const gumbel_weighing &p, const gumbel_chain &c, int32_t j)
{
    const gumbel_contender *from = p.contenders + (c.first + j) * p.parts;
    gumbel_contender own = gumbel_contender_none();
    for (int i = threadIdx.x % 32; i < p.parts; i += 32)
        gumbel_contend_all(&own, &from[i]);
    own = best_of_warp(own);
    if (threadIdx.x % 32 != 0)
        return;
    if (p.by.weighed[c.first + j].verdict == GUMBEL_VERDICT_DRAW)
        gumbel_chain_emit(&c, weigh_nodes(), j, &own);
    else if (own.id >= 0)
        gumbel_chain_replace(&c, weigh_nodes(), j, &own);
    else
        weigh_state().drawn_again = j;
}

/* Where rounding has left nothing of max(r p - q, 0), p and q are the same, and the target's draw
 * stands. So rare that one CTA may make it. */
__device__ __noinline__ void draw_again(const gumbel_weighing &p, const gumbel_chain &c, int32_t j)
{
    const gumbel_contender best = race_of_cta(draft_race::of(p, c, j, false), all_tokens(p));
    if (threadIdx.x == 0)
        gumbel_chain_replace(&c, weigh_nodes(), j, &best);
    __syncthreads();
}

/* q of a token of row b by the draft's head, by all threads. */
__device__ __forceinline__ float draft_logprob(const gumbel_weighing &p, int64_t b, int token)
{
    float sum = dot_of_lane(p.by.draft, b, token, threadIdx.x, kWeighThreads);
#pragma unroll
    for (int half = 16; half > 0; half /= 2)
        sum += __shfl_xor_sync(~0u, sum, half);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        weigh_state().dots[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = weigh_state().dots[0];
    for (int i = 1; i < kWeighWarps; i++)
        sum += weigh_state().dots[i];
    return gumbel_logprob_of(z_of_dot(p, b, token, sum), p.by.draft_lse[b]);
}

/* Draw behind node j by max(p - q, 0) from what its parts have listed, the likeliest first; where
 * these do not settle it, by a race in the whole row, of which one in some thousands is. */
__device__ __noinline__ void draw_from_lists(const gumbel_weighing &p, const gumbel_chain &c,
                                             int32_t j)
{
    const int64_t b = c.first + j;
    const gumbel_short_list *lists = p.lists + c.r * p.parts * kWeighWarps;
    gumbel_contender best = gumbel_contender_none();
    float bound = -INFINITY, after = INFINITY;
    int32_t behind = -1; /* of equal scores ids from here on are left */
    for (int i = threadIdx.x; i < p.parts * kWeighWarps; i += kWeighThreads)
        bound = fmaxf(bound, __ldcg(&lists[i].bound));
    bound = best_of_cta({(int32_t)threadIdx.x, bound, 0.0f}).score;
    while (true) {
        gumbel_contender own = gumbel_contender_none();
        for (int i = threadIdx.x; i < p.parts * kWeighWarps * GUMBEL_LISTED; i += kWeighThreads) {
            const gumbel_contender *at = &lists[i / GUMBEL_LISTED].of[i % GUMBEL_LISTED];
            const gumbel_contender next = {__ldcg(&at->id), __ldcg(&at->score),
                                           __ldcg(&at->logprob)};
            if (next.score < after || (next.score == after && next.id > behind))
                gumbel_contend_all(&own, &next);
        }
        own = best_of_cta(own);
        if (own.id < 0 || own.score < best.score)
            break;
        gumbel_offer(&best, own.id, own.score, own.logprob, draft_logprob(p, b, own.id), 1.0f);
        after = own.score;
        behind = own.id;
    }
    if (bound > -INFINITY && !(best.id >= 0 && best.score > bound))
        best = race_of_cta(draft_race::of(p, c, j, true), all_tokens(p));
    if (threadIdx.x == 0 && best.id >= 0)
        gumbel_chain_replace(&c, weigh_nodes(), j, &best);
    else if (threadIdx.x == 0)
        weigh_state().drawn_again = j;
    __syncthreads();
}

/* Emit and walk, once all parts have raced. */
__device__ gumbel_walked end_chain(const gumbel_weighing &p, const gumbel_chain &c,
                                   const gumbel_judged &judged)
{
    const gumbel_verification &v = p.verification;
    gumbel_node *nodes = weigh_nodes();
    const gumbel_weighed *weighed = p.by.weighed + c.first;
    gumbel_walked w = gumbel_walked_not(GUMBEL_ROW_DRAFT);
    const gumbel_span span = {c.first, c.count, 1};
    if (threadIdx.x == 0)
        weigh_state().drawn_again = -1;
    if (__syncthreads_or(!read_nodes(v, c.r, span, nodes, kWeighThreads)))
        return w;
    for (int32_t j = threadIdx.x; j < c.count; j += kWeighThreads)
        if (weighed[j].verdict == GUMBEL_VERDICT_DRAFT)
            gumbel_chain_accept(&c, nodes, j);
    for (int32_t j = judged.first + threadIdx.x / 32; j < judged.end; j += kWeighWarps)
        if (is_drawn(weighed[j]) && !is_listed(p, weighed[j]))
            end_race(p, c, j);
    __syncthreads();
    if (judged.end > 0 &&
        is_listed(p, weighed[judged.end - 1])) /* what is behind a residual is not met */
        draw_from_lists(p, c, judged.end - 1);
    if (weigh_state().drawn_again >= 0)
        draw_again(p, c, weigh_state().drawn_again);
    if (threadIdx.x == 0)
        w = gumbel_draft_walk(&v, c.r, c.first, nodes, c.count);
    return w;
}

} // namespace

extern "C" __global__ void __launch_bounds__(kWeighThreads, CUDA_RACE_CTAS)
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
            parts_start(word_at(p.counters, r), p.tag);
        for (int32_t j = judged.first; j < judged.end; j++) {
            const gumbel_weighed w = p.by.weighed[c.first + j];
            if (is_listed(p, w)) {
                const tokens_of_part own = tokens_of_warp(tokens_of_part(p, part));
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
