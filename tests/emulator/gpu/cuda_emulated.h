/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA C++ for a CPU, as far as the kernels use it: warp intrinsics are exchanges between fibers,
 * and atomics are plain operations, as no other fiber runs meanwhile.
 */
#ifndef TESTS_EMULATOR_CUDA_EMULATED_H
#define TESTS_EMULATOR_CUDA_EMULATED_H

#include <cmath>
#include <math.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include "fibers.h"
}

using std::isnan;

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
/* A kernel does not use all functions of its headers. */
#define __noinline__ __attribute__((noinline, unused))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

struct uint2 {
    uint32_t x, y;
};
struct __align__(16) uint4 { uint32_t x, y, z, w; };
struct float2 {
    float x, y;
};
struct __align__(16) float4 { float x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
struct ulonglong2 {
    unsigned long long x, y;
};

/* ------------------------------------------------------------------------------ arithmetic ---- */

/* The low bytes of `from`, extended by zeros. */
template <class To, class From> static inline To bits_as(From from)
{
    To to = {};
    memcpy(&to, &from, sizeof to < sizeof from ? sizeof to : sizeof from);
    return to;
}

static inline uint32_t __float_as_uint(float x) { return bits_as<uint32_t>(x); }
static inline int __float_as_int(float x) { return bits_as<int>(x); }
static inline float __uint_as_float(uint32_t bits) { return bits_as<float>(bits); }
static inline long long __double_as_longlong(double x) { return bits_as<long long>(x); }
static inline double __longlong_as_double(long long bits) { return bits_as<double>(bits); }

/* Rounds towards zero: drops the bits that a float does not hold. */
static inline float __uint2float_rz(uint32_t x)
{
    int drop = x >> 24 ? 8 - __builtin_clz(x) : 0;
    return (float)(x >> drop << drop);
}

static inline int __dp4a(int a, int b, int sum)
{
    for (int shift = 0; shift < 32; shift += 8)
        sum += (int8_t)(a >> shift) * (int8_t)(b >> shift);
    return sum;
}
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __clz(uint32_t x) { return x ? __builtin_clz(x) : 32; }
static inline int __ffs(uint32_t x) { return __builtin_ffs((int)x); }

/* Byte i of the result is the byte of a (0 .. 3) or b (4 .. 7) selected by nibble i. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t nibbles)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t chosen = 0;
    for (int i = 0; i < 4; i++)
        chosen |= (uint32_t)(both >> 8 * (nibbles >> 4 * i & 7) & 0xff) << 8 * i;
    return chosen;
}

template <class T> static inline T max(T a, T b) { return a > b ? a : b; }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }

/* ---------------------------------------------------------------------------------- memory ---- */

template <class T> static inline T __ldcg(const T *from) { return *from; }
template <class T> static inline T __ldcs(const T *from) { return *from; }
template <class T> static inline T __ldg(const T *from) { return *from; }

template <class T, class Change> static inline T atomic(T *word, Change change)
{
    fibers_yield();
    T before = *word;
    *word = change(before);
    fibers_yield();
    return before;
}

template <class T, class U> static inline T atomicAdd(T *word, U more)
{
    return atomic(word, [=](T x) { return x + (T)more; });
}
template <class T, class U> static inline T atomicOr(T *word, U bits)
{
    return atomic(word, [=](T x) { return x | (T)bits; });
}
template <class T, class U> static inline T atomicMax(T *word, U least)
{
    return atomic(word, [=](T x) { return max(x, (T)least); });
}
template <class T, class U> static inline T atomicMin(T *word, U most)
{
    return atomic(word, [=](T x) { return x < (T)most ? x : (T)most; });
}
template <class T, class U, class V> static inline T atomicCAS(T *word, U seen, V next)
{
    return atomic(word, [=](T x) { return x == (T)seen ? (T)next : x; });
}

/* --------------------------------------------------------------------------- other threads ---- */

static inline void __nanosleep(unsigned) { fibers_yield(); }
/* Time advances in leaps: a thread that waits for some cycles polls once or many times. */
static inline int clock()
{
    static uint32_t now = 0;
    return (int)(now += 1 + (now * 2654435761u >> 19));
}
static inline void __syncthreads() { fibers_barrier(0, 0); }
static inline int __syncthreads_count(bool own) { return fibers_sum(own); }
static inline bool __syncthreads_or(bool own) { return fibers_sum(own) > 0; }
static inline void __syncwarp() { fibers_exchange(0); }
static inline void __threadfence() {}
static inline void __threadfence_system() {}

template <class T> static inline T __shfl_sync(unsigned, T own, int lane)
{
    return bits_as<T>(fibers_exchange(bits_as<uint64_t>(own))[lane]);
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T own, int lanes)
{
    return __shfl_sync(mask, own, (int)threadIdx.x % 32 ^ lanes);
}

/* The value of the lane `lanes` higher; its own value if there is none. */
template <class T> static inline T __shfl_down_sync(unsigned mask, T own, int lanes)
{
    int lane = (int)threadIdx.x % 32;
    return __shfl_sync(mask, own, lane + lanes < 32 ? lane + lanes : lane);
}

/* The value of the lane `lanes` lower among `width` neighbours; its own value if there is none. */
template <class T> static inline T __shfl_up_sync(unsigned mask, T own, int lanes, int width)
{
    int lane = (int)threadIdx.x % 32;
    return __shfl_sync(mask, own, lane % width >= lanes ? lane - lanes : lane);
}

/* Reduces the values of all lanes. */
template <class T, class F> static inline T over_warp(T own, F join)
{
    const uint64_t *all = fibers_exchange(bits_as<uint64_t>(own));
    T joined = bits_as<T>(all[0]);
    for (int lane = 1; lane < 32; lane++)
        joined = join(joined, bits_as<T>(all[lane]));
    return joined;
}

static inline uint32_t __reduce_add_sync(unsigned, uint32_t own)
{
    return over_warp(own, [](uint32_t a, uint32_t b) { return a + b; });
}
template <class T> static inline T __reduce_max_sync(unsigned, T own)
{
    return over_warp(own, max<T>);
}
template <class T> static inline T __reduce_min_sync(unsigned, T own)
{
    return over_warp(own, min<T>);
}
static inline uint32_t __reduce_or_sync(unsigned, uint32_t own)
{
    return over_warp(own, [](uint32_t a, uint32_t b) { return a | b; });
}
static inline uint32_t __ballot_sync(unsigned mask, bool own)
{
    return __reduce_or_sync(mask, (uint32_t)own << threadIdx.x % 32);
}
static inline bool __any_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) != 0; }

#endif
