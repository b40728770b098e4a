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

/* Where a tile in shared memory is, in units of 16 bytes, as a descriptor's lower word has it. What
 * is added to it is in these units too. */
PTX uint32_t wgmma_address(const void *tile)
{
    return (ptx_shared_address(tile) & 0x3ffffu) >> 4 | 1u << 16;
}

/* Descriptor of a tile whose rows are 128 bytes: groups of 8 rows are 1024 bytes apart. The upper
 * word is the same for all. */
PTX uint64_t wgmma_descriptor(uint32_t address)
{
    return (uint64_t)(1u << 30 | 1024 >> 4) << 32 | address;
}

/* Eight accumulators as operands of an asm statement. */
#define WGMMA_OPERANDS(s, i)                                                                       \
    "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]),    \
        "+f"(s[i + 6]), "+f"(s[i + 7])

/* sum += a * b^T; `half` chooses float16 over bfloat16. */
template <int n, bool half> struct wgmma;

template <> struct wgmma<8, false> {
    PTX void add(float (&s)[4], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3"
                     "}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<8, true> {
    PTX void add(float (&s)[4], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
                     "%0, %1, %2, %3"
                     "}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<16, false> {
    PTX void add(float (&s)[8], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7"
                     "}, %8, %9, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<16, true> {
    PTX void add(float (&s)[8], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7"
                     "}, %8, %9, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<32, false> {
    PTX void add(float (&s)[16], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15"
                     "}, %16, %17, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0), WGMMA_OPERANDS(s, 8)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<32, true> {
    PTX void add(float (&s)[16], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15"
                     "}, %16, %17, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0), WGMMA_OPERANDS(s, 8)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<64, false> {
    PTX void add(float (&s)[32], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31"
                     "}, %32, %33, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0), WGMMA_OPERANDS(s, 8), WGMMA_OPERANDS(s, 16),
                       WGMMA_OPERANDS(s, 24)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<64, true> {
    PTX void add(float (&s)[32], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31"
                     "}, %32, %33, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0), WGMMA_OPERANDS(s, 8), WGMMA_OPERANDS(s, 16),
                       WGMMA_OPERANDS(s, 24)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<128, false> {
    PTX void add(float (&s)[64], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
                     "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
                     "%60, %61, %62, %63"
                     "}, %64, %65, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0), WGMMA_OPERANDS(s, 8), WGMMA_OPERANDS(s, 16),
                       WGMMA_OPERANDS(s, 24), WGMMA_OPERANDS(s, 32), WGMMA_OPERANDS(s, 40),
                       WGMMA_OPERANDS(s, 48), WGMMA_OPERANDS(s, 56)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<128, true> {
    PTX void add(float (&s)[64], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
                     "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
                     "%60, %61, %62, %63"
                     "}, %64, %65, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0), WGMMA_OPERANDS(s, 8), WGMMA_OPERANDS(s, 16),
                       WGMMA_OPERANDS(s, 24), WGMMA_OPERANDS(s, 32), WGMMA_OPERANDS(s, 40),
                       WGMMA_OPERANDS(s, 48), WGMMA_OPERANDS(s, 56)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<256, false> {
    PTX void add(float (&s)[128], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
                     "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
                     "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
                     "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "
                     "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                     "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "
                     "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "
                     "%120, %121, %122, %123, %124, %125, %126, %127"
                     "}, %128, %129, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0), WGMMA_OPERANDS(s, 8), WGMMA_OPERANDS(s, 16),
                       WGMMA_OPERANDS(s, 24), WGMMA_OPERANDS(s, 32), WGMMA_OPERANDS(s, 40),
                       WGMMA_OPERANDS(s, 48), WGMMA_OPERANDS(s, 56), WGMMA_OPERANDS(s, 64),
                       WGMMA_OPERANDS(s, 72), WGMMA_OPERANDS(s, 80), WGMMA_OPERANDS(s, 88),
                       WGMMA_OPERANDS(s, 96), WGMMA_OPERANDS(s, 104), WGMMA_OPERANDS(s, 112),
                       WGMMA_OPERANDS(s, 120)
                     : "l"(a), "l"(b));
    }
};

template <> struct wgmma<256, true> {
    PTX void add(float (&s)[128], uint64_t a, uint64_t b)
    {
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
                     "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
                     "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
                     "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                     "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
                     "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
                     "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "
                     "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                     "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "
                     "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, "
                     "%120, %121, %122, %123, %124, %125, %126, %127"
                     "}, %128, %129, 1, 1, 1, 0, 0;"
                     : WGMMA_OPERANDS(s, 0), WGMMA_OPERANDS(s, 8), WGMMA_OPERANDS(s, 16),
                       WGMMA_OPERANDS(s, 24), WGMMA_OPERANDS(s, 32), WGMMA_OPERANDS(s, 40),
                       WGMMA_OPERANDS(s, 48), WGMMA_OPERANDS(s, 56), WGMMA_OPERANDS(s, 64),
                       WGMMA_OPERANDS(s, 72), WGMMA_OPERANDS(s, 80), WGMMA_OPERANDS(s, 88),
                       WGMMA_OPERANDS(s, 96), WGMMA_OPERANDS(s, 104), WGMMA_OPERANDS(s, 112),
                       WGMMA_OPERANDS(s, 120)
                     : "l"(a), "l"(b));
    }
};

#endif
