/* SPDX-License-Identifier: Apache-2.0
 *
 * wgmma: a warpgroup's 64 x N x 16 product with both operands in shared memory, K-major with
 * 128-byte swizzle, accumulated in float32. Element 4 j + {0, 1, 2, 3} of a thread's accumulator is
 * row g, columns 8 j + 2 q + {0, 1}, then row g + 8 of its warp's sixteen, where g = lane / 4 and
 * q = lane % 4.
 */
#ifndef GUMBEL_CUDA_WGMMA_CUH
#define GUMBEL_CUDA_WGMMA_CUH

#include "cuda/common/ptx.cuh"

/* Address of a tile in shared memory, in units of 16 bytes, as in the lower word of a matrix
 * descriptor. Offsets are in the same units. */
PTX uint32_t wgmma_address(const void *tile)
{
    return (ptx_shared_address(tile) & 0x3ffffu) >> 4 | 1u << 16;
}

/* Matrix descriptor of a tile whose rows are 128 bytes: groups of 8 rows are 1024 bytes apart. The
 * upper word is the same for all tiles. */
PTX uint64_t wgmma_descriptor(uint32_t address)
{
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | address;
}

/* Accumulators s[i] and on as operands of an asm statement; `c` is their constraint. */
#define WGMMA_OPERANDS_4(c, s, i)  c(s[i]), c(s[i + 1]), c(s[i + 2]), c(s[i + 3])
#define WGMMA_OPERANDS_8(c, s, i)  WGMMA_OPERANDS_4(c, s, i), WGMMA_OPERANDS_4(c, s, i + 4)
#define WGMMA_OPERANDS_16(c, s, i) WGMMA_OPERANDS_8(c, s, i), WGMMA_OPERANDS_8(c, s, i + 8)
#define WGMMA_OPERANDS_32(c, s, i) WGMMA_OPERANDS_16(c, s, i), WGMMA_OPERANDS_16(c, s, i + 16)
#define WGMMA_OPERANDS_64(c, s, i) WGMMA_OPERANDS_32(c, s, i), WGMMA_OPERANDS_32(c, s, i + 32)

/* Names of these accumulators in the text of an asm statement. */
#define WGMMA_REGISTERS_4  "%0, %1, %2, %3"
#define WGMMA_REGISTERS_8  WGMMA_REGISTERS_4 ", %4, %5, %6, %7"
#define WGMMA_REGISTERS_16 WGMMA_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_REGISTERS_32                                                                         \
    WGMMA_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27"              \
                       ", %28, %29, %30, %31"
#define WGMMA_REGISTERS_64                                                                         \
    WGMMA_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43"              \
                       ", %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"              \
                       ", %56, %57, %58, %59, %60, %61, %62, %63"
/* sum += a * b^T; `half` chooses float16 over bfloat16. A thread has `count` accumulators, which
 * are the first operands; `a_at` and `b_at` name the next two. */
template <int n, bool half> struct wgmma;

#define WGMMA_OF(n, half, type, count, a_at, b_at)                                                 \
    template <> struct wgmma<n, half> {                                                            \
        PTX void add(float (&s)[count], uint64_t a, uint64_t b)                                    \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type           \
                         " {" WGMMA_REGISTERS_##count "}, " a_at ", " b_at ", 1, 1, 1, 0, 0;"      \
                         : WGMMA_OPERANDS_##count("+f", s, 0)                                      \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
    };
#define WGMMA(n, count, a_at, b_at)                                                                \
    WGMMA_OF(n, false, "bf16", count, a_at, b_at)                                                  \
    WGMMA_OF(n, true, "f16", count, a_at, b_at)
WGMMA(8, 4, "%4", "%5")
WGMMA(16, 8, "%8", "%9")
WGMMA(32, 16, "%16", "%17")
WGMMA(64, 32, "%32", "%33")
WGMMA(128, 64, "%64", "%65")
#undef WGMMA_OF
#undef WGMMA

#endif
