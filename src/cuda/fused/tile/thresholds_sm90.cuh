/* SPDX-License-Identifier: Apache-2.0
 *
 * What a score must reach to matter, draw by draw: the best score of this CTA, or of another one
 * that has told its floor (floor.cuh). The warps that make noise raise thresholds too, so that
 * those that draw need not wait for global memory; each draw belongs to one thread.
 */
#ifndef GUMBEL_CUDA_THRESHOLDS_SM90_CUH
#define GUMBEL_CUDA_THRESHOLDS_SM90_CUH

#include "cuda/common/floor.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

/* What rounding may take from a screened value: of the origin's unit, and of the threshold. */
#define SM90_SCREEN_SLACK 2.0f

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

    /* f(draw, which of this thread's) for each draw that belongs to the thread-th of `threads`. */
    template <int threads, class F> __device__ __forceinline__ void each(int thread, F f) const
    {
        int columns = (int)p.problem.batch, all = n * p.samples();
#pragma unroll
        for (int k = 0; k < turns<threads>; k++) {
            int i = thread + k * threads;
            if (i < all && i % n < columns)
                f(i, k);
        }
    }

    __device__ __forceinline__ uint64_t load_floor(int i) const { return floor_load(word(i)); }

    /* Raise the thresholds to this CTA's best scores, and tell the other CTAs. */
    template <int threads> __device__ __forceinline__ void tell(int thread) const
    {
        each_floor<threads>(thread, [&](int i, uint64_t floor) {
            take_best(i);
            give_floor(i, floor);
        });
    }

    /* Raise the thresholds to what other CTAs have told too, and set the screens. */
    template <int threads>
    __device__ __forceinline__ void ask(int thread, sm90_screen *screens) const
    {
        each_floor<threads>(thread, [&](int i, uint64_t) {
            take_best(i);
            set_screen(i, &screens[i]);
        });
    }

    /* A floor that some CTA has given by now, or soon, and a look later, since they do not all end
     * their first tiles at once; none for a row whose first tiles are empty. */
    __device__ __forceinline__ uint64_t wait_for_floor(int i) const
    {
        uint64_t floor = load_floor(i);
        for (int tries = 0; tries == 0 || (tries < 8 && floor >> FLOOR_BITS != p.tag); tries++) {
            __nanosleep(200);
            floor = load_floor(i);
        }
        return floor;
    }

    __device__ __forceinline__ void take_floor(int i, uint64_t floor) const
    {
        float threshold = floor_unpack(floor);
        if (floor >> FLOOR_BITS == p.tag && threshold > shared.reaches[i].threshold)
            shared.reaches[i].threshold = threshold;
    }

    /* Tell the others, who at last sight knew of `floor`. */
    __device__ __forceinline__ void give_floor(int i, uint64_t floor) const
    {
        float threshold = shared.reaches[i].threshold;
        if (floor >> FLOOR_BITS != p.tag || floor_pack(threshold) > floor % (1 << FLOOR_BITS))
            floor_give(word(i), threshold, p.tag);
    }

    /* Raise the threshold to that of this CTA's best score. */
    __device__ __forceinline__ void take_best(int i) const
    {
        sm90_best none = {}; /* never found, so that the swap only reads */
        float safe = draw_threshold(swap_best(&shared.best[i], none, none).score);
        if (safe > shared.reaches[i].threshold)
            shared.reaches[i].threshold = safe;
    }

    /* Screen by the threshold. One that leaves no room for rounding lets everything pass; a row
     * that has shown a NaN or +inf is done. */
    __device__ __forceinline__ void set_screen(int i, sm90_screen *screen) const
    {
        float t = shared.reaches[i].threshold * SM90_UNITS;
        float slack = fmaf(fabsf(t), 0x1p-20f, SM90_SCREEN_ORIGIN + SM90_SCREEN_SLACK);
        if (atomicOr(&shared.flags[i], 0))
            *screen = {0.0f, -INFINITY};
        else
            *screen = {shared.slope(p, i), fabsf(t) < 1e37f ? slack - t : INFINITY};
    }

  private:
    /* f(draw, its floor) as each() does, with the threshold raised to it; floors are asked for side
     * by side. */
    template <int threads, class F>
    __device__ __forceinline__ void each_floor(int thread, F f) const
    {
        uint64_t floors[turns<threads>] = {};
        each<threads>(thread, [&](int i, int k) { floors[k] = load_floor(i); });
        each<threads>(thread, [&](int i, int k) {
            take_floor(i, floors[k]);
            f(i, floors[k]);
        });
    }

    __device__ __forceinline__ uint64_t *word(int i) const
    {
        int samples = p.samples();
        return &p.shared_floors[CUDA_FLOOR_WORDS * (i % n * samples + i / n)];
    }
};

} // namespace

#endif
