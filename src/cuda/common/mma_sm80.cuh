/* SPDX-License-Identifier: Apache-2.0
 *
 * PTX instructions from compute capability 8.0 on, one a function: cp.async, ldmatrix and mma.sync.
 */
#ifndef GUMBEL_CUDA_MMA_SM80_CUH
#define GUMBEL_CUDA_MMA_SM80_CUH

#include "cuda/common/ptx.cuh"

/* Copies 16 bytes to the shared address `to`: the first `bytes` are read, the others are zeros. */
PTX void sm80_copy(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(bytes)
                 : "memory");
}

/* Copies 16 bytes to the shared address `to`. */
PTX void sm80_copy_vector(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Arrives at a barrier once this thread's copies so far are complete; the arrival is one of those
 * that the barrier expects. */
PTX void sm80_copy_arrive(uint64_t *barrier)
{
    asm volatile(
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ptx_shared_address(barrier))
        : "memory");
}

/* Copies 16 bytes to the shared address `to`, or writes zeros. */
PTX void sm80_copy_or_zero(uint32_t to, const void *from, bool copies)
{
    asm volatile("{\n"
                 ".reg .pred zero;\n"
                 "setp.eq.u32 zero, %2, 0;\n"
                 "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, zero;\n"
                 "}" ::"r"(to),
                 "l"(from), "r"((uint32_t)copies)
                 : "memory");
}

PTX void sm80_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most the last `pending` groups of this thread's copies are incomplete. */
template <int pending> PTX void sm80_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* Loads four 8 x 8 matrices of 16-bit elements: lane 8 m + i holds the shared address of row i of
 * matrix m; register m of lane 4 i + k gets elements 2 k and 2 k + 1 of that row. */
PTX void sm80_load_matrices(uint32_t (&r)[4], uint32_t row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

PTX float4 sm80_load_four(uint32_t from)
{
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(from)
                 : "memory");
    return x;
}

/* sum[0 .. 3] += a * b, 16 x 8 x 16, in float32. With g = lane / 4 and k = lane % 4 the sums are
 * row g, columns 2 k and 2 k + 1, then row g + 8 (PTX ISA, matrix fragments for mma.m16n8k16). */
template <bool half>
PTX void sm80_multiply(float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (half)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* sum[0 .. 3] += a * b of bytes, 16 x 8 x 32, exactly in int32. The sums are those of
 * sm80_multiply(); register i of a has bytes 4 k to 4 k + 3 of row g + 8 (i % 2), from byte
 * 16 (i / 2) on (PTX ISA, matrix fragments for mma.m16n8k32). */
PTX void sm80_multiply_bytes(int32_t *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
