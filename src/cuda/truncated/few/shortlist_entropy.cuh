/* SPDX-License-Identifier: Apache-2.0
 *
 * The entropy of a row that is served from a sorted list, by one warp.
 */
#ifndef GUMBEL_CUDA_SHORTLIST_ENTROPY_CUH
#define GUMBEL_CUDA_SHORTLIST_ENTROPY_CUH

#include "cuda/common/facts.cuh"
#include "cuda/truncated/few/shortlist_sort.cuh"

namespace
{

/* The warp that writes entropies: a warp that does not draw. */
constexpr int kEntropyWarp = kWarps - 1;
static_assert(kEntropyWarp > 0 && kShortlist / 32 <= kNarrowValues, "one of several warps");

/* Writes the entropy of row b, of z over the first `kept` sorted tokens; NaN if there are none. By
 * a warp. The sums are of integers, so that they have the bits of every other backend. */
__device__ __noinline__ void write_entropy_of_shortlist(logit_values values, int64_t b, int kept)
{
    const auto z_in_order = [=](int place) {
        const int token = shortlist_memory().order[place].token;
        return values.to_z(shared_state().scratch.list[token].y);
    };
    const int lane = threadIdx.x % 32;
    narrow_sums sums = {};
    if (kept > 0) {
        const float largest = z_in_order(0);
#pragma unroll 1
        for (int at = lane; at < kept; at += 32)
            sums.add(z_in_order(at), largest);
    }
    gumbel_facts facts = {};
    sums.add_to(facts);
    facts.mass = sum_wide_of_warp(facts.mass);
    facts.weighted = sum_wide_of_warp(facts.weighted);
    if (lane == 0)
        shared_state().call.output.entropy[b] = kept > 0 ? gumbel_facts_entropy(&facts) : NAN;
}

} // namespace

#endif
