/* SPDX-License-Identifier: Apache-2.0
 *
 * What a score must reach to matter, draw by draw: the best score of this CTA, or of another one
 * that has told its floor (row_thresholds.cuh); and the bounds that follow. The warps that serve
 * raise thresholds, so that those that draw need not wait for global memory; each draw belongs to
 * one thread. Only in the first tile do those that draw raise them (seeds_sm90.cuh); barriers part
 * the two.
 */
#ifndef GUMBEL_CUDA_THRESHOLDS_SM90_CUH
#define GUMBEL_CUDA_THRESHOLDS_SM90_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

template <int n, class call> class thresholds
{
    const call &p;
    const shared_sm90<n> &shared;

  public:
    __device__ __forceinline__ thresholds(const call &params, const shared_sm90<n> &memory)
        : p(params), shared(memory)
    {
    }

    /* Draws that belong to one of so many threads, at most. */
    template <int threads>
    static constexpr int turns = (call::template states<n> + threads - 1) / threads;

    /* f(draw, which of this thread's) for each draw that belongs to the thread-th of `threads`, but
     * for those where there is nothing to draw. */
    template <int threads, class F> __device__ __forceinline__ void each(int thread, F f) const
    {
        const int all = n * p.samples();
#pragma unroll
        for (int k = 0; k < turns<threads>; k++) {
            int i = thread + k * threads;
            if (i < all && shared.draws[i].inverse_temperature != 0.0f)
                f(i, k);
        }
    }

    /* The same behind raising the draw's threshold to its floor; floors are asked for side by side.
     */
    template <int threads, class F>
    __device__ __forceinline__ void each_floor(int thread, F f) const
    {
        uint64_t floors[turns<threads>] = {};
        each<threads>(thread, [&](int i, int k) { floors[k] = load_floor(i); });
        each<threads>(thread, [&](int i, int k) {
            take_floor(i, floors[k]);
            f(i, k);
        });
    }

    __device__ __forceinline__ uint64_t load_floor(int i) const { return load_threshold(word(i)); }

    /* Whether that raises the threshold. */
    __device__ __forceinline__ bool take_floor(int i, uint64_t floor) const
    {
        const float threshold = unpack_threshold(floor);
        const bool raises = floor >> THRESHOLD_BITS == p.tag && threshold > shared.thresholds[i];
        if (raises)
            shared.thresholds[i] = threshold;
        return raises;
    }

    /* Tell the others, who at last sight knew of `floor`, if it is news. Whether none of them has
     * told of as much, which is a float's upper bits. */
    __device__ __forceinline__ bool give_floor(int i, uint64_t floor) const
    {
        const float threshold = shared.thresholds[i];
        const bool empty = floor >> THRESHOLD_BITS != p.tag;
        if (empty || pack_threshold(threshold) > floor % (1 << THRESHOLD_BITS))
            raise_threshold(word(i), threshold, p.tag);
        return threshold > (empty ? -INFINITY : unpack_threshold(floor));
    }

    /* Raise the thresholds to those of this CTA's best scores, which nobody changes meanwhile, and
     * tell the others what is news. */
    template <int threads> __device__ __forceinline__ void tell(int thread) const
    {
#pragma unroll 1
        for (int i = thread; i < n * p.samples(); i += threads) {
            float safe = draw_threshold(shared.best[i].score);
            if (safe > shared.thresholds[i]) {
                shared.thresholds[i] = safe;
                raise_threshold(word(i), safe, p.tag);
            }
        }
    }

    /* Bound the blocks of a tile, of such reaches, by the draw's threshold. A row that has shown a
     * NaN or +inf is done. Where tiles begin off a multiple of 16, the rows of a warp may be of two
     * blocks. */
    __device__ __forceinline__ void set_bounds(int i,
                                               const float (&reaches)[CUDA_SM90_BLOCKS]) const
    {
        const int all = n * p.samples();
        const bool off = p.problem.first_token % 16 != 0, done = shared.flags[i] != 0;
        const float unit = draw_bound_unit(shared.slope(p, i)), threshold = shared.thresholds[i];
        sm90_bound *own = shared.bounds + shared.first_bound_of(i);
#pragma unroll
        for (int b = 0; b < CUDA_SM90_BLOCKS; b++) {
            float reach = reaches[b];
            if (off && b + 1 < CUDA_SM90_BLOCKS)
                reach = fmaxf(reach, reaches[b + 1]);
            float bound = draw_bound(threshold, reach, unit);
            own[b * all].least = done ? INFINITY : fminf(fmaxf(bound, -FLT_MAX), FLT_MAX);
        }
    }

  private:
    __device__ __forceinline__ uint64_t *word(int i) const
    {
        int samples = p.samples();
        return &p.row_thresholds[CUDA_THRESHOLD_WORDS * (i % n * samples + i / n)];
    }
};

} // namespace

#endif
