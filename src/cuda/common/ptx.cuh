/* SPDX-License-Identifier: Apache-2.0
 *
 * PTX instructions, one a function. Tensor-core products are in wgmma.cuh, mma_sm80.cuh and
 * screen_ptx.cuh.
 */
#ifndef GUMBEL_CUDA_PTX_CUH
#define GUMBEL_CUDA_PTX_CUH

#include <cuda.h>
#include <stdint.h>

#define PTX static __device__ __forceinline__

#include "cuda/common/ptx_sm75.cuh"

PTX uint32_t ptx_shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Zero, opaque to the compiler: values computed from it are recomputed rather than kept in
 * registers. */
PTX int ptx_zero()
{
    int zero;
    asm volatile("mov.u32 %0, 0;" : "=r"(zero));
    return zero;
}

/* Returns x, and keeps the compiler from turning a branch around it into a selection. */
PTX float ptx_keep_branch(float x)
{
    float same;
    asm volatile("mov.b32 %0, %1;" : "=f"(same) : "f"(x));
    return same;
}

PTX void ptx_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx_shared_address(barrier)),
                 "r"(arrivals));
}

/* Makes initialised barriers visible to the copy engine (none before Hopper). */
PTX void ptx_fence_barrier_init()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

PTX void ptx_barrier_arrive(uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ptx_shared_address(barrier))
                 : "memory");
#else
    asm volatile("{\n"
                 ".reg .b64 phase;\n"
                 "mbarrier.arrive.shared::cta.b64 phase, [%0];\n"
                 "}" ::"r"(ptx_shared_address(barrier))
                 : "memory");
#endif
}

/* Arrive at the same barrier of the cluster's rank-th CTA. This does not publish the thread's
 * writes: cluster scope would be a fence of the whole GPU, 0.7 us. */
PTX void ptx_barrier_arrive_at(uint64_t *barrier, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(ptx_shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

PTX void ptx_barrier_arrive_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx_shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

/* Waits for a phase: try_wait suspends the thread for a while; before Hopper there is no such
 * instruction, and the thread polls. */
#if __CUDA_ARCH__ >= 900
#define PTX_BARRIER_TEST "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define PTX_BARRIER_TEST "mbarrier.test_wait.parity.shared::cta.b64"
#endif

/* Return once the phase of parity `parity` has completed. */
PTX void ptx_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n" PTX_BARRIER_TEST " done, [%0], %1;\n"
                 "@done bra finished;\n"
                 "bra again;\n"
                 "finished:\n"
                 "}" ::"r"(ptx_shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Wait until `threads` threads arrive at barrier `id`; 0 is __syncthreads(). */
template <int id, int threads> PTX void ptx_named_barrier()
{
    asm volatile("bar.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

/* Wait as ptx_named_barrier(), by warps that may be at different instructions, which synccheck
 * reports at that barrier. */
template <int id, int threads> PTX void ptx_unaligned_barrier()
{
    asm volatile("barrier.sync %0, %1;" ::"n"(id), "n"(threads) : "memory");
}

/* Wait for all threads of the cluster's CTAs. */
PTX void ptx_cluster_sync()
{
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

/* L2 policies: weights are read once, hidden states by every CTA. */
PTX uint64_t ptx_policy_evict_first()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

PTX uint64_t ptx_policy_evict_last()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

PTX void ptx_copy_2d(void *to, const CUtensorMap *map, int x, int y, uint64_t *barrier,
                     uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(ptx_shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(ptx_shared_address(barrier)), "l"(policy)
                 : "memory");
}

/* ptx_copy_2d() to the same address of each CTA of the cluster whose bit is set in `ranks`; the
 * bytes count at their barriers. */
PTX void ptx_copy_2d_to(uint16_t ranks, void *to, const CUtensorMap *map, int x, int y,
                        uint64_t *barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
                     ptx_shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(ptx_shared_address(barrier)), "h"(ranks), "l"(policy)
                 : "memory");
}

PTX void ptx_copy_5d(void *to, const CUtensorMap *map, int x, int a, int b, int c, int d,
                     uint64_t *barrier, uint64_t policy)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(ptx_shared_address(to)),
        "l"(map), "r"(x), "r"(a), "r"(b), "r"(c), "r"(d), "r"(ptx_shared_address(barrier)),
        "l"(policy)
        : "memory");
}

/* ptx_copy_5d() to the same address of each CTA of the cluster whose bit is set in `ranks`; the
 * bytes count at their barriers. */
PTX void ptx_copy_5d_to(uint16_t ranks, void *to, const CUtensorMap *map, int x, int a, int b,
                        int c, int d, uint64_t *barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, "
                 "%9;" ::"r"(ptx_shared_address(to)),
                 "l"(map), "r"(x), "r"(a), "r"(b), "r"(c), "r"(d), "r"(ptx_shared_address(barrier)),
                 "h"(ranks), "l"(policy)
                 : "memory");
}

/* Prefetch the source of a copy into L2; nothing waits for it. */
PTX void ptx_prefetch_5d(const CUtensorMap *map, int x, int a, int b, int c, int d)
{
    asm volatile(
        "cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(x),
        "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

PTX void ptx_prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

PTX void ptx_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PTX void ptx_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending> PTX void ptx_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

template <int registers> PTX void ptx_increase_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> PTX void ptx_decrease_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* Writes of earlier launches on the stream are visible after this (programmatic dependent launch;
 * none before Hopper). */
PTX void ptx_wait_for_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Prefetch the line of an address into L2; nothing waits for it. An unused load would be dropped by
 * the assembler, volatile or not. */
PTX void ptx_prefetch_line(const void *at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

/* As ptx_prefetch_line(), into L1. */
PTX void ptx_prefetch_line_to_l1(const void *at)
{
    asm volatile("prefetch.global.L1 [%0];" ::"l"(at));
}

/* Load eight bytes by generic address, also of a kernel's parameters: constant loads at 32
 * different addresses would be serialised. */
PTX uint64_t ptx_load_8(const void *at)
{
    uint64_t found;
    asm volatile("ld.b64 %0, [%1];" : "=l"(found) : "l"(at));
    return found;
}

/* Let the next launch start, up to its ptx_wait_for_launch() (Hopper and later). */
PTX void ptx_allow_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Relaxed atomic load of 16 aligned bytes in global memory, which other CTAs may write. */
PTX ulonglong2 ptx_load_relaxed_16(const void *at)
{
    ulonglong2 found;
    asm volatile("{\n"
                 ".reg .b128 found;\n"
                 "ld.relaxed.gpu.global.b128 found, [%2];\n"
                 "mov.b128 {%0, %1}, found;\n"
                 "}"
                 : "=l"(found.x), "=l"(found.y)
                 : "l"(at)
                 : "memory");
    return found;
}

/* Compare and swap 16 bytes in global memory; returns the old bytes. */
PTX ulonglong2 ptx_cas_global_16(void *at, ulonglong2 seen, ulonglong2 next)
{
    ulonglong2 was;
    asm volatile("{\n"
                 ".reg .b128 was, seen, next;\n"
                 "mov.b128 seen, {%3, %4};\n"
                 "mov.b128 next, {%5, %6};\n"
                 "atom.relaxed.gpu.global.cas.b128 was, [%2], seen, next;\n"
                 "mov.b128 {%0, %1}, was;\n"
                 "}"
                 : "=l"(was.x), "=l"(was.y)
                 : "l"(at), "l"(seen.x), "l"(seen.y), "l"(next.x), "l"(next.y)
                 : "memory");
    return was;
}

/* Compare and swap 16 bytes in shared memory; returns the old bytes. */
PTX ulonglong2 ptx_cas_shared_16(void *at, ulonglong2 seen, ulonglong2 next)
{
    ulonglong2 was;
    asm volatile("{\n"
                 ".reg .b128 was, seen, next;\n"
                 "mov.b128 seen, {%3, %4};\n"
                 "mov.b128 next, {%5, %6};\n"
                 "atom.shared.cas.b128 was, [%2], seen, next;\n"
                 "mov.b128 {%0, %1}, was;\n"
                 "}"
                 : "=l"(was.x), "=l"(was.y)
                 : "r"(ptx_shared_address(at)), "l"(seen.x), "l"(seen.y), "l"(next.x), "l"(next.y)
                 : "memory");
    return was;
}

/* Copy 8 or 16 aligned bytes to shared memory, in this thread's current group. */
template <int bytes> PTX void ptx_copy_async(void *to, const void *from)
{
#if __CUDA_ARCH__ < 800
    sm75_copy<bytes>(to, from);
#else
    if constexpr (bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(ptx_shared_address(to)),
                     "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(ptx_shared_address(to)),
                     "l"(from), "n"(bytes)
                     : "memory");
#endif
}
PTX void ptx_copy_async_commit()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Wait until at most `pending` of this thread's groups are in flight. */
template <int pending> PTX void ptx_copy_async_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

/* Acquire load of a word in global memory. */
PTX int32_t ptx_load_acquire(const int32_t *word)
{
    int32_t found;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(word) : "memory");
    return found;
}

/* Relaxed load of a word in global memory, which other CTAs may write. */
PTX uint64_t ptx_load_relaxed_8(const uint64_t *word)
{
    uint64_t found;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(word) : "memory");
    return found;
}

/* Add 1 to a word in global memory (acquire, release); returns the old value. */
PTX uint64_t ptx_atomic_count(unsigned long long *word)
{
    uint64_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;"
                 : "=l"(before)
                 : "l"(word)
                 : "memory");
    return before;
}

/* If `chosen`, add to a word in shared memory; returns the old value, or 0. Predicated rather than
 * branched, so that independent instructions continue. */
PTX uint32_t ptx_atomic_add_if(bool chosen, uint32_t *word, uint32_t value)
{
    uint32_t before = 0;
    asm volatile("{\n"
                 ".reg .pred chosen;\n"
                 "setp.ne.u32 chosen, %1, 0;\n"
                 "@chosen atom.shared.add.u32 %0, [%2], %3;\n"
                 "}"
                 : "+r"(before)
                 : "r"((uint32_t)chosen), "r"(ptx_shared_address(word)), "r"(value)
                 : "memory");
    return before;
}

/* If `chosen`, increment a word in shared memory; returns the old value, or 0. A bounded increment:
 * the compiler would sum additions of 1 over the warp first, at three times the instructions. */
PTX uint32_t ptx_atomic_count_if(bool chosen, uint32_t *word)
{
    uint32_t before = 0;
    asm volatile("{\n"
                 ".reg .pred chosen;\n"
                 "setp.ne.u32 chosen, %1, 0;\n"
                 "@chosen atom.shared.inc.u32 %0, [%2], 0x7fffffff;\n"
                 "}"
                 : "+r"(before)
                 : "r"((uint32_t)chosen), "r"(ptx_shared_address(word))
                 : "memory");
    return before;
}

/* Exact. */
PTX float ptx_widen_f16(uint16_t bits)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(bits));
    return wide;
}

/* The larger one; NaN if either is. */
PTX float ptx_max_nan(float a, float b)
{
#if __CUDA_ARCH__ < 800
    return isnan(a) || isnan(b) ? NAN : fmaxf(a, b);
#else
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#endif
}

/* Add 64 bits to a sum of three words. */
PTX void ptx_add_96(uint32_t (&sum)[3], uint32_t low, uint32_t high)
{
    asm("add.cc.u32 %0, %0, %3;\n"
        "addc.cc.u32 %1, %1, %4;\n"
        "addc.u32 %2, %2, 0;"
        : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2])
        : "r"(low), "r"(high));
}

/* x >> by; 0 if `by` is 64 or more. */
PTX uint64_t ptx_shift_right(uint64_t x, uint32_t by)
{
    uint64_t y;
    asm("shr.b64 %0, %1, %2;" : "=l"(y) : "l"(x), "r"(by));
    return y;
}

PTX float ptx_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

PTX float ptx_log2(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Relaxed store of eight aligned bytes at system scope, to memory of this or another GPU that other
 * GPUs read. Earlier stores may become visible after it. */
PTX void ptx_store_relaxed_sys_8(uint64_t *at, uint64_t value)
{
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}

/* Relaxed load of eight aligned bytes, at system scope: other GPUs may write them. */
PTX uint64_t ptx_load_relaxed_sys_8(const uint64_t *at)
{
    uint64_t found;
    asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(found) : "l"(at) : "memory");
    return found;
}

/* The GPU's clock in nanoseconds. */
PTX uint64_t ptx_read_globaltimer()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}

#endif
