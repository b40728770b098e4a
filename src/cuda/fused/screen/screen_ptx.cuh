/* SPDX-License-Identifier: Apache-2.0
 *
 * What screens need of Hopper beyond ptx.cuh and wgmma.cuh: copies of bytes as they lie, and the
 * product of bytes, a warpgroup's 64 x N x 32, summed in int32, with operands and sums laid out as
 * wgmma.cuh has them.
 */
#ifndef GUMBEL_CUDA_SCREEN_PTX_CUH
#define GUMBEL_CUDA_SCREEN_PTX_CUH

#include "cuda/common/ptx.cuh"

/* Copy bytes, a multiple of 16, to shared memory, and count them at the barrier. */
PTX void screen_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(ptx_shared_address(to)),
                 "l"(from), "r"(bytes), "r"(ptx_shared_address(barrier)), "l"(policy)
                 : "memory");
}

/* Bring such bytes into the second-level cache; nothing waits for it. */
PTX void screen_fetch(const void *from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* What threads wrote to shared memory can be read by wgmma behind this and a barrier. */
PTX void screen_fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define SCREEN_FOUR(s, i)    "+r"(s[i]), "+r"(s[i + 1]), "+r"(s[i + 2]), "+r"(s[i + 3])
#define SCREEN_EIGHT(s, i)   SCREEN_FOUR(s, i), SCREEN_FOUR(s, i + 4)
#define SCREEN_SIXTEEN(s, i) SCREEN_EIGHT(s, i), SCREEN_EIGHT(s, i + 8)

/* sum += a * b^T. */
template <int n> struct screen_wgmma;

template <> struct screen_wgmma<8> {
    PTX void add(int32_t (&s)[4], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {"
                     "%0, %1, %2, %3"
                     "}, %4, %5, 1;"
                     : SCREEN_FOUR(s, 0)
                     : "l"(a), "l"(b));
    }
};

template <> struct screen_wgmma<16> {
    PTX void add(int32_t (&s)[8], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7"
                     "}, %8, %9, 1;"
                     : SCREEN_EIGHT(s, 0)
                     : "l"(a), "l"(b));
    }
};

template <> struct screen_wgmma<32> {
    PTX void add(int32_t (&s)[16], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15"
                     "}, %16, %17, 1;"
                     : SCREEN_SIXTEEN(s, 0)
                     : "l"(a), "l"(b));
    }
};

template <> struct screen_wgmma<64> {
    PTX void add(int32_t (&s)[32], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31"
                     "}, %32, %33, 1;"
                     : SCREEN_SIXTEEN(s, 0), SCREEN_SIXTEEN(s, 16)
                     : "l"(a), "l"(b));
    }
};

template <> struct screen_wgmma<128> {
    PTX void add(int32_t (&s)[64], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
                     "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
                     "%60, %61, %62, %63"
                     "}, %64, %65, 1;"
                     : SCREEN_SIXTEEN(s, 0), SCREEN_SIXTEEN(s, 16), SCREEN_SIXTEEN(s, 32),
                       SCREEN_SIXTEEN(s, 48)
                     : "l"(a), "l"(b));
    }
};

#endif
