/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for mma_sm80.cuh, whose include guard it takes: copies by threads, which write at once
 * or as late as possible, and loads and products of a warp, whose fibers exchange addresses and
 * operands.
 */
#ifndef GUMBEL_CUDA_MMA_SM80_CUH
#define GUMBEL_CUDA_MMA_SM80_CUH

#include "ptx_emulated.h"

PTX uint32_t ptx_shared_address(const void *p)
{
    return (uint32_t)((const unsigned char *)p - *cta_memory);
}

namespace
{
struct padded_copy {
    uint32_t to;
    const void *from;
    uint32_t bytes;
    uint64_t group; /* number of the commit */
};
struct padded_copies {
    std::vector<padded_copy> pending;
    uint64_t committed;
} padded[FIBERS_MAX];
} // namespace

/* Writes 16 bytes: `bytes` that are read, then zeros. */
PTX void perform_padded_copy(const padded_copy &copy)
{
    memset(*cta_memory + copy.to, 0, 16);
    if (copy.bytes > 0)
        memcpy(*cta_memory + copy.to, copy.from, copy.bytes);
}

PTX void sm80_copy(uint32_t to, const void *from, uint32_t bytes)
{
    padded_copies &own = padded[fibers_self()];
    if (to % 16 || (bytes > 0 && (uintptr_t)from % 16))
        die("a copy that is not aligned to 16 bytes");
    if (fibers_random() % 2)
        perform_padded_copy({to, from, bytes, 0});
    else
        own.pending.push_back({to, from, bytes, own.committed});
}

/* Writes at once, or when the thread arrives. */
PTX void sm80_copy_vector(uint32_t to, const void *from) { sm80_copy(to, from, 16); }

PTX void sm80_copy_arrive(uint64_t *barrier)
{
    padded_copies &own = padded[fibers_self()];
    fibers_yield();
    for (const padded_copy &copy : own.pending)
        perform_padded_copy(copy);
    own.pending.clear();
    mbarrier_change(barrier, 1, 0);
}

PTX void sm80_copy_or_zero(uint32_t to, const void *from, bool copies)
{
    sm80_copy(to, from, copies ? 16 : 0);
}

PTX void sm80_copy_commit() { padded[fibers_self()].committed++; }

template <int pending> PTX void sm80_copy_wait()
{
    padded_copies &own = padded[fibers_self()];
    size_t done = 0;
    fibers_yield();
    for (; done < own.pending.size() && own.pending[done].group + pending < own.committed; done++)
        perform_padded_copy(own.pending[done]);
    own.pending.erase(own.pending.begin(), own.pending.begin() + (ptrdiff_t)done);
}

PTX void sm80_load_matrices(uint32_t (&r)[4], uint32_t row)
{
    const int lane = (int)threadIdx.x % 32;
    const uint64_t *rows = fibers_exchange(row);
    for (int matrix = 0; matrix < 4; matrix++)
        memcpy(&r[matrix], *cta_memory + rows[8 * matrix + lane / 4] + 4 * (lane % 4), 4);
}

PTX float4 sm80_load_four(uint32_t from)
{
    float4 x;
    memcpy(&x, *cta_memory + from, sizeof x);
    return x;
}

/* Element `at` (0 or 1) of a register. */
template <bool half> PTX float operand_element(uint32_t bits, int at)
{
    const uint16_t element = (uint16_t)(bits >> 16 * at);
    return half ? ptx_widen_f16(element) : __uint_as_float((uint32_t)element << 16);
}

template <bool half>
PTX void sm80_multiply(float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, k = lane % 4;
    const uint64_t own[3] = {(uint64_t)a[1] << 32 | a[0], (uint64_t)a[3] << 32 | a[2],
                             (uint64_t)b1 << 32 | b0};
    uint64_t words[3][32]; /* rows g and g + 8 of 8 elements of D each, then both of columns */
    for (int i = 0; i < 3; i++)
        memcpy(words[i], fibers_exchange(own[i]), sizeof words[i]);
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < 16; d++) {
            const uint32_t weight = (uint32_t)(words[d / 8][4 * g + d % 8 / 2] >> 32 * (i / 2));
            const uint32_t hidden =
                (uint32_t)(words[2][4 * (2 * k + i % 2) + d % 8 / 2] >> 32 * (d / 8));
            sum[i] += operand_element<half>(weight, d % 2) * operand_element<half>(hidden, d % 2);
        }
}

/* Byte `at` of a row or column of 32 bytes, from the registers of the four lanes that hold it. */
PTX int operand_byte_of(const uint64_t *first, const uint64_t *second, int row, int at)
{
    const int lane = 4 * row + at % 16 / 4;
    return (int8_t)((uint32_t)(at < 16 ? first : second)[lane] >> 8 * (at % 4));
}

PTX void sm80_multiply_bytes(int32_t *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, k = lane % 4;
    const uint32_t own[6] = {a[0], a[1], a[2], a[3], b0, b1};
    uint64_t words[6][32];
    for (int i = 0; i < 6; i++)
        memcpy(words[i], fibers_exchange(own[i]), sizeof words[i]);
    for (int i = 0; i < 4; i++)
        for (int at = 0; at < 32; at++)
            sum[i] += operand_byte_of(words[i / 2], words[i / 2 + 2], g, at) *
                      operand_byte_of(words[4], words[5], 2 * k + i % 2, at);
}

#endif
