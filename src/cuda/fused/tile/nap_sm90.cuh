/* SPDX-License-Identifier: Apache-2.0
 *
 * How long the warps that serve a Hopper kernel's draws wait, behind one tile's product, before
 * they ask for floors and bound the next tile's blocks by them.
 */
#ifndef GUMBEL_CUDA_NAP_SM90_CUH
#define GUMBEL_CUDA_NAP_SM90_CUH

#include <stdint.h>

namespace
{

/* Cycles from the end of a tile that `took` so many until floors are asked for: long enough for
 * other CTAs to have told theirs, and never so long that a draw waits. The next tile may take half
 * as long, where few CTAs have one in the last turn and share the memory: naps to 20,000 cycles
 * before a tile's expected end took 8% of V = 75968, and 5% wherever D = 8192 (H100). */
__device__ __forceinline__ uint32_t nap_behind(uint32_t took) { return took / 4; }

} // namespace

#endif
