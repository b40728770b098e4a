/* SPDX-License-Identifier: Apache-2.0
 *
 * Instructions of capability 8.0 that portable kernels use, for capability 7.5 (Turing).
 */
#ifndef GUMBEL_CUDA_PTX_SM75_CUH
#define GUMBEL_CUDA_PTX_SM75_CUH

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800

/* Copies 8 or 16 aligned bytes to shared memory. The copy has ended when this thread's next
 * instruction runs, so that no thread waits for its copies. */
template <int bytes> PTX void sm75_copy(void *to, const void *from)
{
    static_assert(bytes == 8 || bytes == 16, "a vector of words");
    if constexpr (bytes == 16)
        *(uint4 *)to = __ldcg((const uint4 *)from);
    else
        *(uint2 *)to = *(const uint2 *)from;
}

/* Reduces the values of the warp's lanes, for all lanes. */
template <class T, class F> PTX T sm75_reduce(T own, F join)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        own = join(own, (T)__shfl_xor_sync(~0u, own, step));
    return own;
}

/* The CUDA functions of these names, for all lanes of a warp: `lanes` is ~0. */
PTX unsigned __reduce_add_sync(unsigned, unsigned own)
{
    return sm75_reduce(own, [](unsigned a, unsigned b) { return a + b; });
}
PTX int __reduce_add_sync(unsigned, int own)
{
    return sm75_reduce(own, [](int a, int b) { return a + b; });
}
PTX unsigned __reduce_min_sync(unsigned, unsigned own)
{
    return sm75_reduce(own, [](unsigned a, unsigned b) { return min(a, b); });
}
PTX int __reduce_min_sync(unsigned, int own)
{
    return sm75_reduce(own, [](int a, int b) { return min(a, b); });
}
PTX unsigned __reduce_max_sync(unsigned, unsigned own)
{
    return sm75_reduce(own, [](unsigned a, unsigned b) { return max(a, b); });
}
PTX int __reduce_max_sync(unsigned, int own)
{
    return sm75_reduce(own, [](int a, int b) { return max(a, b); });
}
PTX unsigned __reduce_or_sync(unsigned, unsigned own)
{
    return sm75_reduce(own, [](unsigned a, unsigned b) { return a | b; });
}

#endif

#endif
