/* SPDX-License-Identifier: Apache-2.0
 *
 * The two largest z of each row, for calls with statistics. A CTA keeps the two best tokens of its
 * tiles in shared memory. A token below a lower bound on the row's second largest z is not offered.
 * The smaller z of two tokens from different CTAs is such a bound. In global memory, each row
 * therefore has two words (row_thresholds.cuh), one for each half of the CTAs: the largest z that
 * this half has published.
 */
#ifndef GUMBEL_CUDA_TOPS_SM90_CUH
#define GUMBEL_CUDA_TOPS_SM90_CUH

#include "cuda/common/row_thresholds.cuh"
#include "cuda/common/top_tokens.cuh"
#include "cuda/fused/tile/shared_sm90.cuh"

namespace
{

/* Inserts a token that no thread has offered before into *tops; several threads may call this. */
__device__ __forceinline__ void offer_top(sm90_tops *tops, float z, int id)
{
    const sm90_tops none = {{-INFINITY, -INFINITY}, {-1, -1}};
    if (!(z > -INFINITY))
        return;
    for (ulonglong2 seen = none.to_bits();;) { /* the first swap reads *tops unless it is `none` */
        sm90_tops next = sm90_tops::of_bits(seen);
        insert_top(next.z, next.id, z, id);
        const ulonglong2 bits = next.to_bits();
        if (bits.x == seen.x && bits.y == seen.y)
            return;
        const ulonglong2 was = ptx_cas_shared_16(tops, seen, bits);
        if (was.x == seen.x && was.y == seen.y)
            return;
        seen = was;
    }
}

template <int n, class call> class top_thresholds
{
    const call &p;
    const shared_sm90<n> &shared;

  public:
    __device__ __forceinline__ top_thresholds(const call &params, const shared_sm90<n> &memory)
        : p(params), shared(memory)
    {
    }

    /* Loads the two words of row i. */
    __device__ __forceinline__ ulonglong2 load_words(int i) const
    {
        return __ldcg((const ulonglong2 *)words_of_row(i));
    }

    /* Raises the bound of row i to the smaller of its words, if this launch has set both. */
    __device__ __forceinline__ void raise_to_words(int i, ulonglong2 words) const
    {
        if (words.x >> THRESHOLD_BITS == p.tag && words.y >> THRESHOLD_BITS == p.tag)
            raise_bound(i, fminf(unpack_threshold(words.x), unpack_threshold(words.y)));
    }

    /* Publishes the largest z of this CTA's tokens if it exceeds this CTA's word of `words`. */
    __device__ __forceinline__ void publish_largest(int i, float largest, ulonglong2 words) const
    {
        const int own = own_word();
        const uint64_t word = own ? words.y : words.x;
        const float bound = draw_threshold(largest);
        if (largest > -INFINITY && (word >> THRESHOLD_BITS != p.tag ||
                                    pack_threshold(bound) > word % (1 << THRESHOLD_BITS)))
            raise_threshold(words_of_row(i) + own, bound, p.tag);
    }

    /* Raises the bound of row i. */
    __device__ __forceinline__ void raise_bound(int i, float bound) const
    {
        if (bound > shared.top_thresholds[i])
            shared.top_thresholds[i] = bound;
    }

  private:
    /* The index of this CTA's word. The index differs between neighbouring CTAs, and between
     * CTAs 8 apart, which publish at the same time (initial_thresholds_sm90.cuh). */
    __device__ __forceinline__ int own_word() const
    {
        const int cta = p.template cta_index<n>();
        return (cta + cta / 8) & 1;
    }

    __device__ __forceinline__ uint64_t *words_of_row(int i) const
    {
        return &p.row_thresholds[CUDA_THRESHOLD_WORDS * p.template draw_of<n>(i) + 2];
    }
};

} // namespace

#endif
