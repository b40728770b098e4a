/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma with its first operand in registers: a warpgroup's 64 x 8 x 16 product, with the second
 * operand and the accumulators of wgmma.cuh. A warp passes its sixteen rows.
 */
#ifndef GUMBEL_CUDA_WGMMA_REGISTERS_CUH
#define GUMBEL_CUDA_WGMMA_REGISTERS_CUH

#include "cuda/common/ptx.cuh"

/* Loads the operand of 16 columns from number 16 * `step` on; `chunk` has rows of 64 columns in
 * 128-byte swizzle. */
PTX void wgmma_load_rows(uint32_t (&a)[4], const unsigned char *chunk, int step)
{
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 16;
    const int unit = 2 * step + threadIdx.x % 32 / 16; /* of 16 bytes */
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(ptx_shared_address(chunk + row * 128 + (unit ^ row % 8) * 16))
                 : "memory");
}

/* Keeps the compiler from computing words later than here: an operand of wgmma must be ready before
 * ptx_wgmma_fence(), else products run one after the other. */
PTX void wgmma_settle(uint32_t (&a)[4])
{
    asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

/* sum += a * b^T. The words must not change until ptx_wgmma_wait(). */
template <bool half> PTX void wgmma_add_rows(float (&s)[4], const uint32_t (&a)[4], uint64_t b)
{
    if constexpr (half)
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
                     " {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
