/* SPDX-License-Identifier: Apache-2.0
 *
 * Hopper instructions of screens beyond ptx.cuh and wgmma.cuh: bulk copies without a tensor map,
 * and the product of bytes, a warpgroup's 64 x N x 32, summed in int32, with the operand and
 * accumulator layouts of wgmma.cuh.
 */
#ifndef GUMBEL_CUDA_SCREEN_PTX_CUH
#define GUMBEL_CUDA_SCREEN_PTX_CUH

#include "cuda/common/ptx.cuh"
#include "cuda/fused/hopper/wgmma.cuh"

/* Copies bytes, a multiple of 16, to shared memory, and counts them at the barrier. */
PTX void screen_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(ptx_shared_address(to)),
                 "l"(from), "r"(bytes), "r"(ptx_shared_address(barrier)), "l"(policy)
                 : "memory");
}

/* Prefetches bytes, a multiple of 16, to L2. */
PTX void screen_fetch(const void *from, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
    for (uint32_t at = 0; at < bytes; at += 128)
        ptx_prefetch_line((const char *)from + at);
#endif
}

/* The bytes of the low and of the high halves of four bytes of nibbles: the upper half is that of
 * `upper`, the lower half that of `lower`. */
PTX uint32_t screen_low_half(uint32_t upper, uint32_t lower)
{
    return (upper << 4 & 0xf0f0f0f0u) | (lower & 0x0f0f0f0fu);
}
PTX uint32_t screen_high_half(uint32_t upper, uint32_t lower)
{
    return (upper & 0xf0f0f0f0u) | (lower >> 4 & 0x0f0f0f0fu);
}

/* Keeps the compiler from computing words later than here: an operand of wgmma must be ready before
 * ptx_wgmma_fence(), else products run one after the other. */
PTX void screen_settle(uint32_t (&words)[4])
{
    asm volatile("" : "+r"(words[0]), "+r"(words[1]), "+r"(words[2]), "+r"(words[3])::"memory");
}

/* Makes this thread's writes to shared memory visible to wgmma, after a barrier. */
PTX void screen_fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* sum += a * b^T. add() reads both operands from shared memory; the macro's arguments are those of
 * WGMMA_OF(). add_registers() reads a from the threads' registers, which must not change until
 * ptx_wgmma_wait(): thread 32 w + 4 g + t of the warpgroup holds, of row 16 w + g + 8 f, columns
 * 4 t to 4 t + 3 in a[f], and columns 16 + 4 t to 19 + 4 t in a[f + 2]. */
template <int n> struct screen_wgmma;

#define SCREEN_WGMMA(n, count, a_at, b_at, words_at, last_at)                                      \
    template <> struct screen_wgmma<n> {                                                           \
        PTX void add(int32_t (&s)[count], uint64_t a, uint64_t b)                                  \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8.s8"                    \
                         " {" WGMMA_REGISTERS_##count "}, " a_at ", " b_at ", 1;"                  \
                         : WGMMA_OPERANDS_##count("+r", s, 0)                                      \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
        PTX void add_registers(int32_t (&s)[count], const uint32_t (&a)[4], uint64_t b)            \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8.s8"                    \
                         " {" WGMMA_REGISTERS_##count "}, {" words_at "}, " last_at ", 1;"         \
                         : WGMMA_OPERANDS_##count("+r", s, 0)                                      \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                    \
        }                                                                                          \
    };
SCREEN_WGMMA(8, 4, "%4", "%5", "%4, %5, %6, %7", "%8")
SCREEN_WGMMA(16, 8, "%8", "%9", "%8, %9, %10, %11", "%12")
SCREEN_WGMMA(32, 16, "%16", "%17", "%16, %17, %18, %19", "%20")
SCREEN_WGMMA(64, 32, "%32", "%33", "%32, %33, %34, %35", "%36")
SCREEN_WGMMA(128, 64, "%64", "%65", "%64, %65, %66, %67", "%68")
#undef SCREEN_WGMMA

#endif
