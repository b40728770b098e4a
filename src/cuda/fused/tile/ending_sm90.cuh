/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a plain call on Hopper, by its own kernel: CTAs raise a word a draw to the best token
 * that each has found, and the last one to end writes the outputs. Behind the last tile that waits
 * for two trips to the second-level cache, where a launch behind the kernel takes 1 to 2 us more to
 * start and to read what each CTA has left. Masses, of which a word is not enough, are merged there
 * faster than by atomics.
 *
 * A draw's words lie beside its floor (row_thresholds.cuh). The workspace starts undefined: words
 * with another tag tell of nothing. Since a word and its tag change as one, by a 128-bit
 * compare-and-swap, no CTA has to clear them, and none waits for another one that does. A CTA whose
 * best token does not win only looks; a swap fails only where another CTA's has not.
 */
#ifndef GUMBEL_CUDA_ENDING_SM90_CUH
#define GUMBEL_CUDA_ENDING_SM90_CUH

#include "cuda/common/merge.cuh"
#include "cuda/common/cta_counter.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

#include <stddef.h>

namespace
{

/* What is known of a draw. */
struct ending_words {
    uint64_t floor;
    unsigned long long counter; /* cta_counter_of_draw(): of CTAs, for the draws of a warp */
    /* Both at once: */
    unsigned long long best;  /* bits that order as the score does, above the complement of the id;
                               * 0 for none */
    unsigned long long state; /* the tag above CTA_COUNTER_BITS bits of the row's flags */
};
static_assert(sizeof(ending_words) == CUDA_THRESHOLD_WORDS * sizeof(uint64_t), "as many words");
static_assert(offsetof(ending_words, best) % 16 == 0, "16 bytes that are swapped at once");

__device__ __forceinline__ ending_words *words_of_draw(const cuda_params &p, int i)
{
    return (ending_words *)&p.row_thresholds[CUDA_THRESHOLD_WORDS * (int64_t)i];
}

/* Have the counters of the call be those of this launch, by the threads that serve. */
template <class call> __device__ __forceinline__ void start_counters(const call &p, int thread)
{
    if (32 * thread < p.columns())
        start_cta_counter(cta_counter_of_draw(p, 32 * thread), p.tag);
}

/* Raise draw i to what this CTA has found of it, by one thread. */
__device__ __forceinline__ void raise_draw(const cuda_params &p, int i, const sm90_best &own,
                                           uint32_t flags)
{
    ending_words *words = words_of_draw(p, i);
    const unsigned long long tag = (unsigned long long)p.tag << CTA_COUNTER_BITS;
    const unsigned long long best = /* -0 and +0 tie */
        own.id < 0 ? 0
                   : (unsigned long long)ordered_bits(own.score + 0.0f) << 32 | (uint32_t)~own.id;
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

/* Write draw i, by one thread, once all CTAs have raised it, and leave its words for a replay. */
__device__ __forceinline__ void write_best(const cuda_params &p, int i)
{
    ending_words *words = words_of_draw(p, i);
    const unsigned long long best = __ldcg(&words->best);
    gumbel_summary s;
    gumbel_summary_empty(&s);
    s.flags = (uint32_t)__ldcg(&words->state) & ((1u << CTA_COUNTER_BITS) - 1);
    if (best > 0) {
        s.best_score = ordered_float((uint32_t)(best >> 32));
        s.best_id = (int32_t) ~(uint32_t)best;
    }
    write_draw(p, s, i);
    words->floor = words->state = 0;
}

/* End a CTA by the threads that draw, which alone have the registers; behind start_counters(), and
 * a barrier that all draws come before. Warps end apart, each with its draws and the count of them,
 * so that nothing has to be told. */
template <int n, class call>
__device__ __forceinline__ void end_call(const call &p, const shared_sm90<n> &shared)
{
    const int i = (int)threadIdx.x;
    const bool is_draw = i < p.columns();
    bool last = false;
    static_assert(CUDA_SM90_STATES <= SM90_DRAW_THREADS, "a draw a thread");
    if (is_draw)
        raise_draw(p, i, shared.best[i], shared.flags[i]);
    __syncwarp();
    if (i % 32 == 0 && is_draw)
        last = count_cta_end(cta_counter_of_draw(p, i), p.tag, p.parts);
    if (__any_sync(~0u, last) && is_draw)
        write_best(p, i);
}

} // namespace

#endif
