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
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* Makes this thread's writes to shared memory visible to wgmma, after a barrier. */
PTX void screen_fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* sum += a * b^T; the macro's arguments are those of WGMMA_OF(). */
template <int n> struct screen_wgmma;

#define SCREEN_WGMMA(n, count, a_at, b_at)                                                         \
    template <> struct screen_wgmma<n> {                                                           \
        PTX void add(int32_t (&s)[count], uint64_t a, uint64_t b)                                  \
        {                                                                                          \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k32.s32.s8.s8"                    \
                         " {" WGMMA_REGISTERS_##count "}, " a_at ", " b_at ", 1;"                  \
                         : WGMMA_OPERANDS_##count("+r", s, 0)                                      \
                         : "l"(a), "l"(b));                                                        \
        }                                                                                          \
    };
SCREEN_WGMMA(8, 4, "%4", "%5")
SCREEN_WGMMA(16, 8, "%8", "%9")
SCREEN_WGMMA(32, 16, "%16", "%17")
SCREEN_WGMMA(64, 32, "%32", "%33")
SCREEN_WGMMA(128, 64, "%64", "%65")
#undef SCREEN_WGMMA

#endif
