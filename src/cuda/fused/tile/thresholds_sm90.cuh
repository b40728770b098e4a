/* SPDX-License-Identifier: Apache-2.0
 *
 * Thresholds: for each draw a lower bound on the winning score, from the best score of this CTA or
 * the shared thresholds of other CTAs; and the bounds of blocks that follow from them. The service
 * warps raise thresholds, so that consumers need not wait for global memory; one thread owns each
 * draw. Only in the first tile the consumers raise them (initial_thresholds_sm90.cuh); barriers
 * separate the two.
 */
#ifndef GUMBEL_CUDA_THRESHOLDS_SM90_CUH
#define GUMBEL_CUDA_THRESHOLDS_SM90_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Cycles that the service warps wait, after a tile that took `took`, before they read the shared
 * thresholds: long enough for other CTAs to publish, and never so long that a draw waits. The next
 * tile may take half as long, when few CTAs have one in the last turn and memory is less loaded:
 * waits until 20,000 cycles before a tile's expected end cost 8% of V = 75968, and 5% wherever
 * D = 8192 (H100). */
__device__ __forceinline__ uint32_t backoff_cycles(uint32_t took) { return took / 4; }

template <int n, class call> class draw_thresholds
{
    const call &p;
    const shared_sm90<n> &shared;

  public:
    __device__ __forceinline__ draw_thresholds(const call &params, const shared_sm90<n> &memory)
        : p(params), shared(memory)
    {
    }

    /* The largest number of draws that one of `threads` threads owns. */
    template <int threads>
    static constexpr int turns = (call::template states<n> + threads - 1) / threads;

    /* Calls f(draw, index among this thread's draws) for each draw of thread number `thread` of
     * `threads`, except for draws with nothing to draw. */
    template <int threads, class F> __device__ __forceinline__ void each(int thread, F f) const
    {
        const int all = n * p.sample_count();
#pragma unroll
        for (int k = 0; k < turns<threads>; k++) {
            int i = thread + k * threads;
            if (i < all && shared.draws[i].inverse_temperature != 0.0f)
                f(i, k);
        }
    }

    /* each() after raising the draw's threshold to the shared one; the loads are in flight
     * together. */
    template <int threads, class F>
    __device__ __forceinline__ void each_updated(int thread, F f) const
    {
        uint64_t words[turns<threads>] = {};
        each<threads>(thread, [&](int i, int k) { words[k] = load_shared(i); });
        each<threads>(thread, [&](int i, int k) {
            raise_to_shared(i, words[k]);
            f(i, k);
        });
    }

    __device__ __forceinline__ uint64_t load_shared(int i) const
    {
        return load_threshold(shared_word(i));
    }

    /* Raises the threshold of draw i to the shared one; returns whether it was higher. */
    __device__ __forceinline__ bool raise_to_shared(int i, uint64_t word) const
    {
        const float threshold = unpack_threshold(word);
        const bool raises = word >> THRESHOLD_BITS == p.tag && threshold > shared.thresholds[i];
        if (raises)
            shared.thresholds[i] = threshold;
        return raises;
    }

    /* Publishes the threshold of draw i if it exceeds the shared one, last read as `word`. Returns
     * whether this CTA leads: no other CTA had published as much, to the precision of a shared
     * threshold. */
    __device__ __forceinline__ bool publish_threshold(int i, uint64_t word) const
    {
        const float threshold = shared.thresholds[i];
        const bool empty = word >> THRESHOLD_BITS != p.tag;
        if (empty || pack_threshold(threshold) > word % (1 << THRESHOLD_BITS))
            raise_threshold(shared_word(i), threshold, p.tag);
        return threshold > (empty ? -INFINITY : unpack_threshold(word));
    }

    /* Raises the thresholds to this CTA's best scores, which no thread changes meanwhile, and
     * publishes those that rose. */
    template <int threads> __device__ __forceinline__ void publish_scores(int thread) const
    {
#pragma unroll 1
        for (int i = thread; i < n * p.sample_count(); i += threads) {
            float safe = draw_threshold(shared.best[i].score);
            if (safe > shared.thresholds[i]) {
                shared.thresholds[i] = safe;
                raise_threshold(shared_word(i), safe, p.tag);
            }
        }
    }

    /* Sets the bounds of a tile's blocks from the draw's threshold and the blocks' noise bounds. A
     * row with a NaN or +inf has nothing left to draw. Where tiles do not begin at a multiple of
     * 16, the 16 tokens of a warp may lie in two blocks, and the bound covers both. */
    __device__ __forceinline__ void set_bounds(int i,
                                               const float (&reaches)[CUDA_SM90_BLOCKS]) const
    {
        const int all = n * p.sample_count();
        const bool off = p.problem.first_token % 16 != 0, done = shared.flags[i] != 0;
        const float unit = draw_bound_unit(shared.slope_of(p, i)), threshold = shared.thresholds[i];
        float top_bound = INFINITY;
        if (p.finds_tops())
            top_bound = draw_bound(shared.top_thresholds[i], 0.0f, unit);
        sm90_bound *own = shared.bounds + shared.first_bound_of(i);
#pragma unroll
        for (int b = 0; b < CUDA_SM90_BLOCKS; b++) {
            float reach = reaches[b];
            if (off && b + 1 < CUDA_SM90_BLOCKS)
                reach = fmaxf(reach, reaches[b + 1]);
            const float bound = fminf(draw_bound(threshold, reach, unit), top_bound);
            own[b * all].min_sum = done ? INFINITY : fminf(fmaxf(bound, -FLT_MAX), FLT_MAX);
        }
    }

  private:
    __device__ __forceinline__ uint64_t *shared_word(int i) const
    {
        return &p.row_thresholds[CUDA_THRESHOLD_WORDS * (p.template draw_of<n>(i % n) + i / n)];
    }
};

} // namespace

#endif
