/* SPDX-License-Identifier: Apache-2.0
 *
 * The last CTA of the Hopper kernel finishes a plain call: each CTA merges its best token of a draw
 * into a word of the draw by compare-and-swap, and the last CTA to end writes the outputs. After
 * the last tile this takes two round trips to L2; another launch would take 1 to 2 us more to start
 * and to read the results of each CTA. Masses do not fit a word: another launch merges them faster
 * than atomics would.
 *
 * A draw's words lie beside its shared threshold. The workspace starts undefined: a word with
 * another tag counts as empty. Since a word and its tag change as one, by a 128-bit
 * compare-and-swap, no CTA has to clear them or to wait for another. A CTA whose best token does
 * not win only reads; a swap fails only if another CTA's swap succeeded.
 */
#ifndef GUMBEL_CUDA_FINISH_SM90_CUH
#define GUMBEL_CUDA_FINISH_SM90_CUH

#include "cuda/common/merge.cuh"
#include "cuda/common/cta_counter.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

#include <stddef.h>

namespace
{

/* A draw, as the CTAs of a launch see it in global memory. */
struct finish_words {
    uint64_t threshold;
    unsigned long long counter; /* cta_counter_of_draw(): counts CTAs, for the draws of a warp */
    /* These two words change as one: */
    unsigned long long best;  /* ordered bits of the score, above ~id; 0: none */
    unsigned long long state; /* the tag above CTA_COUNTER_BITS bits of the row's flags */
};
static_assert(sizeof(finish_words) == CUDA_THRESHOLD_WORDS * sizeof(uint64_t),
              "the workspace has this many words a draw");
static_assert(offsetof(finish_words, best) % 16 == 0, "the two words are swapped as one");

__device__ __forceinline__ finish_words *words_of_draw(const cuda_params &p, int64_t i)
{
    return (finish_words *)&p.row_thresholds[CUDA_THRESHOLD_WORDS * i];
}

/* Gives the counters of this CTA's draws the tag of this launch; by the service warps. */
template <int n, class call>
__device__ __forceinline__ void start_counters(const call &p, int thread)
{
    if (32 * thread < p.template column_count<n>())
        start_cta_counter(cta_counter_of_draw(p, p.template draw_of<n>(32 * thread)), p.tag);
}

/* The word `best` of a token. -0 and +0 tie. */
__device__ __forceinline__ unsigned long long key_of_best(const sm90_best &own)
{
    return own.id < 0
               ? 0
               : (unsigned long long)ordered_bits(own.score + 0.0f) << 32 | (uint32_t)~own.id;
}

/* Merges the CTA's best token and flags into draw i; by one thread. */
__device__ __forceinline__ void merge_draw(const cuda_params &p, int64_t i, const sm90_best &own,
                                           uint32_t flags)
{
    finish_words *words = words_of_draw(p, i);
    const unsigned long long tag = (unsigned long long)p.tag << CTA_COUNTER_BITS;
    const unsigned long long best = key_of_best(own);
    for (ulonglong2 seen = ptx_load_relaxed_16(&words->best);;) {
        const bool current = seen.y >> CTA_COUNTER_BITS == p.tag;
        const ulonglong2 next = {max(best, current ? seen.x : 0), (current ? seen.y : tag) | flags};
        if (next.x == seen.x && next.y == seen.y)
            return;
        const ulonglong2 was = ptx_cas_global_16(&words->best, seen, next);
        if (was.x == seen.x && was.y == seen.y)
            return;
        seen = was;
    }
}

/* merge_draw() by atomics of 64 bits, for words that an earlier launch of the call has cleared;
 * write_best() does not check the tag. */
__device__ __forceinline__ void merge_cleared_draw(const cuda_params &p, int64_t i,
                                                   unsigned long long key, uint32_t flags)
{
    finish_words *words = words_of_draw(p, i);
    if (key != 0)
        atomicMax(&words->best, key);
    if (flags != 0)
        atomicOr(&words->state, (unsigned long long)flags);
}

/* Writes draw i once all CTAs have merged theirs, and clears its words for a replay; by one thread.
 */
__device__ __forceinline__ void write_best(const cuda_params &p, int64_t i)
{
    finish_words *words = words_of_draw(p, i);
    const unsigned long long best = __ldcg(&words->best);
    gumbel_summary s;
    gumbel_summary_empty(&s);
    s.flags = (uint32_t)__ldcg(&words->state) & ((1u << CTA_COUNTER_BITS) - 1);
    if (best > 0) {
        s.best_score = ordered_float((uint32_t)(best >> 32));
        s.best_id = (int32_t) ~(uint32_t)best;
    }
    write_draw(p, s, i);
    words->threshold = words->state = 0;
}

/* Finishes a CTA; by the consumers' threads, which have the registers, after start_counters() and a
 * barrier behind all draws. Each warp finishes its own draws by their own counter, so that warps
 * exchange nothing. */
template <int n, class call>
__device__ __forceinline__ void finish_call(const call &p, const shared_sm90<n> &shared)
{
    const int i = (int)threadIdx.x;
    const bool is_draw = i < p.template column_count<n>();
    const int64_t draw = p.template draw_of<n>(i);
    bool last = false;
    static_assert(CUDA_SM90_STATES <= SM90_DRAW_THREADS, "each thread finishes one draw");
    if (is_draw)
        merge_draw(p, draw, shared.best[i], shared.flags[i]);
    __syncwarp();
    if (i % 32 == 0 && is_draw)
        last = count_cta_end(cta_counter_of_draw(p, draw), p.tag, p.template cta_count<n>());
    if (__any_sync(~0u, last) && is_draw)
        write_best(p, draw);
}

} // namespace

#endif
