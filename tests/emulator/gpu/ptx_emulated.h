/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for ptx.cuh, whose include guard it takes: the same functions, for fibers.
 *
 * Operations that the hardware may perform at any time happen at the most harmful one: a copy
 * writes shared memory as soon as it is issued, and a product (wgmma_emulated.h) reads it as late
 * as possible.
 */
#ifndef GUMBEL_CUDA_PTX_CUH
#define GUMBEL_CUDA_PTX_CUH

#include "cuda_emulated.h"

extern "C" {
#include "inputs.h"
}

#include "cuda/policy/cuda_policy.h"

#include <vector>

#define PTX static inline

namespace
{
/* Shared memory of the CTAs of a cluster, and of the running CTA (ctas.h). */
alignas(1024) unsigned char memories[FIBERS_CTAS][CUDA_SM90_SHARED_BYTES];
alignas(16) unsigned char (*cta_memory)[];
} // namespace

/* A kernel that declares an extern array of this name declares a pointer to an array that changes
 * with the CTA. */
#define shared_memory (*cta_memory)

/* A matrix of 16-bit elements, and the number of rows that a copy takes. */
struct CUtensorMap {
    const uint16_t *data;
    int64_t rows, cols, stride;
    int box;
};

/* An mbarrier in its 64 bits. */
struct mbarrier {
    int32_t bytes; /* expected minus arrived */
    uint32_t phase : 1, arrivals : 15, pending : 15;
};
static_assert(sizeof(mbarrier) == sizeof(uint64_t), "an mbarrier is a word of 64 bits");

PTX mbarrier mbarrier_load(const uint64_t *word) { return bits_as<mbarrier>(*word); }

PTX void mbarrier_change(uint64_t *word, int arrivals, int bytes)
{
    mbarrier b = mbarrier_load(word);
    if ((int)b.pending < arrivals)
        die("thread %u: an arrival too many at a barrier", threadIdx.x);
    b.pending -= arrivals;
    b.bytes += bytes;
    if (b.pending == 0 && b.bytes == 0) {
        b.phase ^= 1;
        b.pending = b.arrivals;
    }
    *word = bits_as<uint64_t>(b);
}

PTX void ptx_barrier_init(uint64_t *barrier, uint32_t arrivals)
{
    mbarrier created = {};
    created.arrivals = created.pending = arrivals & 0x7fff;
    *barrier = bits_as<uint64_t>(created);
}

PTX void ptx_fence_barrier_init() {}

PTX void ptx_barrier_arrive(uint64_t *barrier)
{
    fibers_yield();
    mbarrier_change(barrier, 1, 0);
    fibers_yield();
}

/* The address in the cluster's CTA `rank` that corresponds to `own`. */
template <class T> static T *place_in_cta(T *own, uint32_t rank)
{
    return (T *)(memories[rank] + ((unsigned char *)own - shared_memory));
}

PTX void ptx_barrier_arrive_at(uint64_t *barrier, uint32_t rank)
{
    ptx_barrier_arrive(place_in_cta(barrier, rank));
}

PTX void ptx_barrier_arrive_expect(uint64_t *barrier, uint32_t bytes)
{
    mbarrier_change(barrier, 1, (int)bytes);
}

PTX void ptx_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    mbarrier phase = {}, bits = {};
    phase.phase = 1;
    bits.phase = parity & 1;
    fibers_wait(barrier, bits_as<uint64_t>(phase), bits_as<uint64_t>(bits));
}

template <int id, int threads> PTX void ptx_named_barrier() { fibers_barrier(id, threads); }
template <int id, int threads> PTX void ptx_unaligned_barrier() { fibers_barrier(id, threads); }

PTX void ptx_cluster_sync()
{
    fibers_arrive();
    fibers_await();
}

/* ------------------------------------------------------------------------ tiles of copies ---- */

/* The address of column c of row r of a tile: rows of 128 bytes with 128-byte swizzle. */
PTX unsigned char *tile_at(void *tile, int r, int c)
{
    uintptr_t at = (uintptr_t)tile + 128 * r + 2 * c;
    return (unsigned char *)(at ^ (at >> 7 & 7) << 4);
}

/* Copies row r of a tile, from column x of a row of the matrix; zeros outside of it. */
PTX void copy_row(void *tile, int r, const CUtensorMap *map, int64_t row, int x)
{
    for (int c = 0; c < 64; c++) {
        bool inside = row < map->rows && x + c < map->cols;
        uint16_t element = inside ? map->data[row * map->stride + x + c] : 0;
        memcpy(tile_at(tile, r, c), &element, sizeof element);
    }
}

PTX void ptx_copy_2d(void *to, const CUtensorMap *map, int x, int y, uint64_t *barrier, uint64_t)
{
    for (int r = 0; r < map->box; r++)
        copy_row(to, r, map, y + r, x);
    mbarrier_change(barrier, 0, -128 * map->box);
}

PTX void ptx_copy_2d_to(uint16_t ranks, void *to, const CUtensorMap *map, int x, int y,
                        uint64_t *barrier, uint64_t policy)
{
    for (uint32_t rank = 0; rank < FIBERS_CTAS; rank++)
        if (ranks >> rank & 1)
            ptx_copy_2d(place_in_cta(to, rank), map, x, y, place_in_cta(barrier, rank), policy);
}

/* Weight row 16 d + 4 h + 2 l + f at (d, f, h, l): the order explained in the kernel's head. */
PTX void ptx_copy_5d(void *to, const CUtensorMap *map, int x, int, int, int, int d,
                     uint64_t *barrier, uint64_t)
{
    for (int r = 0; r < map->box; r++) {
        int l = r % 2, h = r / 2 % 4, f = r / 8 % 2;
        copy_row(to, r, map, 16 * (d + r / 16) + 4 * h + 2 * l + f, x);
    }
    mbarrier_change(barrier, 0, -128 * map->box);
}

PTX void ptx_copy_5d_to(uint16_t ranks, void *to, const CUtensorMap *map, int x, int a, int b,
                        int c, int d, uint64_t *barrier, uint64_t policy)
{
    for (uint32_t rank = 0; rank < FIBERS_CTAS; rank++)
        if (ranks >> rank & 1)
            ptx_copy_5d(place_in_cta(to, rank), map, x, a, b, c, d, place_in_cta(barrier, rank),
                        policy);
}

PTX uint64_t ptx_policy_evict_first() { return 0; }
PTX uint64_t ptx_policy_evict_last() { return 0; }
PTX void ptx_prefetch_map(const CUtensorMap *) {}
PTX void ptx_prefetch_5d(const CUtensorMap *, int, int, int, int, int) {}

/* ---------------------------------------------------------------------------------- others ---- */

PTX int ptx_zero() { return 0; }
template <int registers> PTX void ptx_increase_registers() {}
template <int registers> PTX void ptx_decrease_registers() {}
PTX uint64_t ptx_load_relaxed_8(const uint64_t *word)
{
    fibers_yield();
    return *word;
}
PTX float ptx_keep_branch(float x) { return x; }
PTX void ptx_store_relaxed_sys_8(uint64_t *at, uint64_t value) { *(volatile uint64_t *)at = value; }
PTX uint64_t ptx_load_relaxed_sys_8(const uint64_t *at)
{
    fibers_yield();
    return *(const volatile uint64_t *)at;
}
PTX uint64_t ptx_read_globaltimer() { return (uint64_t)(uint32_t)clock(); }
PTX void ptx_wait_for_launch() {}
PTX void ptx_allow_launch() {}
PTX void ptx_prefetch_line(const void *at) { (void)*(const volatile unsigned char *)at; }
PTX void ptx_prefetch_line_to_l1(const void *at) { ptx_prefetch_line(at); }

PTX uint64_t ptx_load_8(const void *at)
{
    uint64_t found;
    memcpy(&found, at, sizeof found);
    return found;
}

PTX ulonglong2 ptx_cas_shared_16(void *at, ulonglong2 seen, ulonglong2 next)
{
    ulonglong2 was;
    fibers_yield();
    memcpy(&was, at, sizeof was);
    if (was.x == seen.x && was.y == seen.y)
        memcpy(at, &next, sizeof next);
    fibers_yield();
    return was;
}

PTX ulonglong2 ptx_cas_global_16(void *at, ulonglong2 seen, ulonglong2 next)
{
    return ptx_cas_shared_16(at, seen, next);
}

PTX ulonglong2 ptx_load_relaxed_16(const void *at)
{
    fibers_yield();
    return *(const ulonglong2 *)at;
}

PTX int32_t ptx_load_acquire(const int32_t *word) { return *word; }
PTX uint64_t ptx_atomic_count(unsigned long long *word) { return (*word)++; }
PTX uint32_t ptx_atomic_add_if(bool chosen, uint32_t *word, uint32_t value)
{
    return chosen ? atomicAdd(word, value) : 0;
}
PTX uint32_t ptx_atomic_count_if(bool chosen, uint32_t *word)
{
    return ptx_atomic_add_if(chosen, word, 1);
}

/* ---------------------------------------------------------------------- copies by threads ---- */

/* A copy that happens as late as possible, in commit number `group`. */
struct late_copy {
    void *to;
    const void *from;
    int bytes;
    uint64_t group;
};
struct copy_list {
    std::vector<late_copy> pending;
    uint64_t committed;
};
static copy_list copies[FIBERS_MAX];

/* Copies at once, or as late as possible. */
template <int bytes> PTX void ptx_copy_async(void *to, const void *from)
{
    copy_list &own = copies[fibers_self()];
    if (fibers_random() % 2)
        memcpy(to, from, bytes);
    else
        own.pending.push_back({to, from, bytes, own.committed});
}

PTX void ptx_copy_async_commit() { copies[fibers_self()].committed++; }

template <int pending> PTX void ptx_copy_async_wait()
{
    copy_list &own = copies[fibers_self()];
    size_t done = 0;
    fibers_yield();
    for (; done < own.pending.size() && own.pending[done].group + pending < own.committed; done++)
        memcpy(own.pending[done].to, own.pending[done].from, (size_t)own.pending[done].bytes);
    own.pending.erase(own.pending.begin(), own.pending.begin() + (ptrdiff_t)done);
}

/* ---------------------------------------------------------------------------- arithmetic ---- */

/* Adds to a sum of three words. */
PTX void ptx_add_96(uint32_t (&sum)[3], uint32_t low, uint32_t high)
{
    uint64_t before = (uint64_t)sum[1] << 32 | sum[0], more = (uint64_t)high << 32 | low;
    sum[0] = (uint32_t)(before + more);
    sum[1] = (uint32_t)((before + more) >> 32);
    sum[2] += before + more < before;
}

/* x >> by; 0 for 64 or more. */
PTX uint64_t ptx_shift_right(uint64_t x, uint32_t by) { return by < 64 ? x >> by : 0; }

PTX float ptx_widen_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = (uint32_t)(bits & 0x7fff) << 13;
    if (rest >= 31u << 23) /* an infinity or a NaN */
        return __uint_as_float(sign | 255u << 23 | rest);
    return __uint_as_float(sign | rest) * 0x1p112f;
}

PTX float ptx_max_nan(float a, float b) { return isnan(a) || isnan(b) ? NAN : max(a, b); }
PTX float ptx_exp2(float x) { return exp2f(x); }
PTX float ptx_log2(float x) { return log2f(x); }

#endif
