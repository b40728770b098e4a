/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies to rows of 128 bytes in shared memory, in the 128-byte swizzle that wgmma and ldmatrix
 * read without bank conflicts: unit u of 16 bytes of row r is at place u ^ (r % 8) of the row.
 */
#ifndef GUMBEL_CUDA_SWIZZLE_CUH
#define GUMBEL_CUDA_SWIZZLE_CUH

#include "cuda/common/ptx.cuh"

/* Starts a copy of 16 bytes to unit threadIdx.x % 8 of row number `row` of `rows` if `is_inside`;
 * otherwise zeroes the unit. */
static __device__ __forceinline__ void copy_swizzled_unit(unsigned char *rows, int row,
                                                          const uint16_t *from, bool is_inside)
{
    unsigned char *place = rows + row * 128 + ((threadIdx.x % 8) ^ (row % 8)) * 16;
    if (is_inside)
        ptx_copy_async<16>(place, from);
    else
        *(uint4 *)place = {0, 0, 0, 0};
}

#endif
