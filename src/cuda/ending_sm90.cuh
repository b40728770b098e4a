/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a plain call on Hopper, by its own kernel: CTAs raise a word a draw to the best token
 * that each has found, and the last one to end writes the outputs. Behind the last tile that waits
 * for two trips to the second-level cache, where a launch behind the kernel takes 1 to 2 us more to
 * start and to read what each CTA has left. Masses, of which a word is not enough, are merged there
 * faster than by atomics.
 *
 * A draw's words lie beside its floor (cuda/floor.cuh). The workspace starts undefined: whoever
 * finds another tag in a draw's state clears its words, then says that they are open. The first CTA
 * does so as it starts, the others as they have served their last tile, mostly in vain: all of them
 * at once would queue.
 */
#ifndef GUMBEL_CUDA_ENDING_SM90_CUH
#define GUMBEL_CUDA_ENDING_SM90_CUH

#include "cuda/merge.cuh"
#include "cuda/parts.cuh"
#include "cuda/shared_sm90.cuh"

namespace
{

/* What is known of a draw. */
struct ending_words {
    uint64_t floor;
    unsigned long long counter; /* merge_counter(): of CTAs, for the draws of a warp */
    unsigned long long best;    /* bits that order as the score does, above the complement of the
                                 * id; 0 for none */
    unsigned long long state;   /* the tag above PARTS_BITS bits: kOpen, and the row's flags */
};
static_assert(sizeof(ending_words) == CUDA_FLOOR_WORDS * sizeof(uint64_t), "as many words");

constexpr unsigned long long kOpen = 1ull << (PARTS_BITS - 1);

__device__ __forceinline__ ending_words *words_of_draw(const cuda_params &p, int i)
{
    return (ending_words *)&p.shared_floors[CUDA_FLOOR_WORDS * (int64_t)i];
}

/* Have a draw's words be open, by one thread. */
__device__ __forceinline__ void open_draw(ending_words *words, uint64_t tag)
{
    for (;;) {
        const unsigned long long seen = __ldcg(&words->state);
        if (seen >> PARTS_BITS != tag) {
            if (atomicCAS(&words->state, seen, (unsigned long long)tag << PARTS_BITS) != seen)
                continue;
            words->best = 0;
            __threadfence();
            atomicOr(&words->state, kOpen);
            return;
        }
        if (seen & kOpen)
            return;
        __nanosleep(100);
    }
}

/* Have all words of the call be open, by the threads that serve. */
__device__ __forceinline__ void open_call(const cuda_params &p, int thread)
{
    for (int i = thread; i < (int)p.problem.batch; i += SM90_SERVE_THREADS) {
        if (i % 32 == 0)
            parts_start(merge_counter(p, i), p.tag);
        open_draw(words_of_draw(p, i), p.tag);
    }
    __threadfence(); /* before this CTA raises what another one has cleared */
}

/* Raise draw i to what this CTA has found of it, by one thread. */
__device__ __forceinline__ void raise_draw(const cuda_params &p, int i, const sm90_best &own,
                                           uint32_t flags)
{
    ending_words *words = words_of_draw(p, i);
    if (own.id >= 0) /* -0 and +0 tie */
        atomicMax(&words->best,
                  (unsigned long long)ordered_bits(own.score + 0.0f) << 32 | (uint32_t)~own.id);
    if (flags)
        atomicOr(&words->state, (unsigned long long)flags);
}

/* Write draw i, by one thread, once all CTAs have raised it, and leave its words for a replay. */
__device__ __forceinline__ void write_best(const cuda_params &p, int i)
{
    ending_words *words = words_of_draw(p, i);
    const unsigned long long best = __ldcg(&words->best);
    gumbel_summary s;
    gumbel_summary_empty(&s);
    s.flags = (uint32_t)(__ldcg(&words->state) & (kOpen - 1));
    if (best > 0) {
        s.best_score = ordered_float((uint32_t)(best >> 32));
        s.best_id = (int32_t) ~(uint32_t)best;
    }
    write_draw(p, s, i);
    words->floor = words->state = 0;
}

/* End a CTA by the threads that draw, which alone have the registers; behind open_call(), and a
 * barrier that all draws come before. Warps end apart, each with its draws and the count of them,
 * so that nothing has to be told. */
template <int n>
__device__ __forceinline__ void end_call(const cuda_params &p, const shared_sm90<n> &shared)
{
    const int i = (int)threadIdx.x;
    const bool is_draw = i < (int)p.problem.batch;
    bool last = false;
    static_assert(CUDA_SM90_STATES <= SM90_DRAW_THREADS, "a draw a thread");
    if (is_draw)
        raise_draw(p, i, shared.best[i], shared.flags[i]);
    __syncwarp();
    if (i % 32 == 0 && is_draw)
        last = parts_end(merge_counter(p, i), p.tag, p.parts);
    if (__any_sync(~0u, last) && is_draw)
        write_best(p, i);
}

} // namespace

#endif
