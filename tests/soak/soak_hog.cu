/* SPDX-License-Identifier: Apache-2.0
 *
 * CTAs that hold a multiprocessor each and do nothing: launched with all shared memory that a CTA
 * may have, they leave no room for another one beside.
 */
#include <cstdint>

static __device__ uint64_t now_in_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

static __device__ uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* Each CTA reports that it has started, and holds its multiprocessor for a log-uniform time of
 * `least` to `most` nanoseconds, or until *released is set. */
extern "C" __global__ void soak_hog(const volatile uint32_t *released, volatile uint32_t *begun,
                                    uint64_t seed, uint64_t least, uint64_t most)
{
    uint64_t start = now_in_ns(), bits = mix(seed + 0x9E3779B97F4A7C15ull * (blockIdx.x + 1));
    uint64_t span = most >> (bits % 11);
    span -= span / 2 * (bits >> 32) >> 32;
    span = span < least ? least : span;
    if (threadIdx.x != 0)
        return;
    begun[blockIdx.x] = 1;
    __threadfence_system();
    while (now_in_ns() - start < span && *released == 0)
        __nanosleep(1000);
}

/* Releases other hogs, from the middle of other work. */
extern "C" __global__ void soak_release(volatile uint32_t *released) { *released = 1; }
