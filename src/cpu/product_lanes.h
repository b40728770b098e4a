/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   out[n][i] = dot(weight[i], hidden[n]) for a tile of weight rows and a panel of hidden states
 *        (eq. 1), on the sixteen lanes of cpu/lanes_*.h. The including file defines
 *        PRODUCT_ROWS(n): weight rows that a micro-kernel for a panel of n holds in registers.
 * COST   2 * D * element bytes a weight row from memory once a tile; D * n fused multiply-adds a row.
 *        A bfloat16 pair costs a shift and a mask, shared by the n rows of the panel.
 * MAP    accumulator (m, n) holds the 16 lanes of weight row m and hidden state n. A pass over at most
 *        PRODUCT_CHUNKS chunks keeps the panel in the first-level cache while all rows of the tile go
 *        by; accumulators rest in `lanes` between passes. Lanes are summed sixteen rows at a time.
 * NUMERICS  the order of every lane's sum is that of D, whatever the tile, panel or pass.
 */
#ifndef GUMBEL_CPU_PRODUCT_LANES_H
#define GUMBEL_CPU_PRODUCT_LANES_H

#include "cpu/cpu_kernels.h"

/* Two vectors that hold chunk elements in the packed order (cpu_pack_place()). */
typedef struct chunk_pair {
    v16f first, second;
} chunk_pair;

LANES chunk_pair load_chunk(const char *weight, gumbel_dtype dtype)
{
    if (dtype == GUMBEL_BFLOAT16) {
        v16u words = vu_load(weight);
        return (chunk_pair){vf_of_bits(vu_shift_left(words, 16)),
                            vf_of_bits(vu_and(words, vu_set(0xffff0000u)))};
    }
    if (dtype == GUMBEL_FLOAT16)
        return (chunk_pair){vf_load_half((const uint16_t *)weight),
                            vf_load_half((const uint16_t *)weight + 16)};
    return (chunk_pair){vf_load(weight), vf_load(weight + 64)};
}

/* A pass of the micro-kernel: `chunks` whole chunks, and where tail > 0 one of `tail` elements. */
typedef struct product_pass {
    const char *weight;
    int64_t stride_bytes;
    const float *panel;
    int64_t chunks;
    int tail;
    int element_bytes;
    float *lanes;        /* of row 0 and hidden state 0; row m at + 16 * m */
    int64_t panel_lanes; /* floats from one hidden state's lanes to the next's */
    int first;           /* lanes start at zero */
} product_pass;

LANES void multiply_chunk(const char *const weight[], int64_t at, const float *panel, int rows,
                          int batch, gumbel_dtype dtype, v16f sum[][CPU_PANEL_MOST])
{
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++) {
        chunk_pair w = load_chunk(weight[m] + at, dtype);
#pragma GCC unroll 8
        for (int n = 0; n < batch; n++) {
            sum[m][n] = vf_fma(w.first, vf_load(panel + 32 * n), sum[m][n]);
            sum[m][n] = vf_fma(w.second, vf_load(panel + 32 * n + 16), sum[m][n]);
        }
    }
}

/* rows, batch and dtype are constants of each instance. */
LANES void micro_kernel(const product_pass *p, int rows, int batch, gumbel_dtype dtype)
{
    v16f sum[8][CPU_PANEL_MOST];
    const char *weight[8];
    char padded[8][4 * CPU_CHUNK];
    const float *panel = p->panel;
    int64_t chunk_bytes = (int64_t)CPU_CHUNK * p->element_bytes, at = 0;
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++) {
        weight[m] = p->weight + m * p->stride_bytes;
#pragma GCC unroll 8
        for (int n = 0; n < batch; n++)
            sum[m][n] = p->first ? vf_set(0.0f) : vf_load(p->lanes + n * p->panel_lanes + 16 * m);
    }
    for (int64_t c = 0; c < p->chunks; c++, at += chunk_bytes, panel += CPU_CHUNK * batch)
        multiply_chunk(weight, at, panel, rows, batch, dtype, sum);
    if (p->tail > 0) {
        for (int m = 0; m < rows; m++) {
            memset(padded[m], 0, sizeof padded[m]);
            memcpy(padded[m], weight[m] + at, (size_t)p->tail * (size_t)p->element_bytes);
            weight[m] = padded[m];
        }
        multiply_chunk(weight, 0, panel, rows, batch, dtype, sum);
    }
#pragma GCC unroll 8
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 8
        for (int n = 0; n < batch; n++)
            vf_store(p->lanes + n * p->panel_lanes + 16 * m, sum[m][n]);
}

/* All rows of the tile for one pass: PRODUCT_ROWS at a time, the rest one by one. */
LANES void pass_rows(product_pass pass, int count, int batch, gumbel_dtype dtype)
{
    int rows = PRODUCT_ROWS(batch);
    for (; count >= rows; count -= rows) {
        micro_kernel(&pass, PRODUCT_ROWS(batch), batch, dtype);
        pass.weight += rows * pass.stride_bytes;
        pass.lanes += 16 * rows;
    }
    for (; count > 0; count--) {
        micro_kernel(&pass, 1, batch, dtype);
        pass.weight += pass.stride_bytes;
        pass.lanes += 16;
    }
}

/* One function a panel size and dtype, so that each has its accumulators in registers. */
#define PASS(batch, name, dtype)                                                                   \
    static __attribute__((noinline)) void pass_##name##_##batch(const product_pass *pass,         \
                                                                int count)                         \
    {                                                                                              \
        pass_rows(*pass, count, batch, dtype);                                                     \
    }
#define PASSES(batch)                                                                              \
    PASS(batch, float, GUMBEL_FLOAT32)                                                             \
    PASS(batch, half, GUMBEL_FLOAT16)                                                              \
    PASS(batch, bfloat, GUMBEL_BFLOAT16)
PASSES(1)
PASSES(2)
PASSES(3)
PASSES(4)
PASSES(5)
PASSES(6)
PASSES(7)
PASSES(8)

#define PASS_ROW(batch) [batch] = {pass_float_##batch, pass_half_##batch, pass_bfloat_##batch}
static void (*const passes[CPU_PANEL_MOST + 1][3])(const product_pass *, int) = {
    PASS_ROW(1), PASS_ROW(2), PASS_ROW(3), PASS_ROW(4),
    PASS_ROW(5), PASS_ROW(6), PASS_ROW(7), PASS_ROW(8)};

/* Chunks a pass: a panel of 8 hidden states then fills 16 KiB, half of a small first-level cache. */
#define PRODUCT_CHUNKS 16

static void product(const cpu_product *p)
{
    int64_t whole = p->hidden_size / CPU_CHUNK;
    int tail = (int)(p->hidden_size % CPU_CHUNK);
    int element_bytes = p->dtype == GUMBEL_FLOAT32 ? 4 : 2;
    int64_t step = p->batch == 1 ? whole : PRODUCT_CHUNKS;
    int64_t at = 0;
    do {
        int64_t chunks = whole - at < step ? whole - at : step;
        int last = at + chunks == whole;
        product_pass pass = {
            .weight = (const char *)p->weight + at * CPU_CHUNK * element_bytes,
            .stride_bytes = p->stride_bytes,
            .panel = p->panel + at * CPU_CHUNK * p->batch,
            .chunks = chunks,
            .tail = last ? tail : 0,
            .element_bytes = element_bytes,
            .lanes = p->lanes,
            .panel_lanes = (int64_t)CPU_LANES * p->tile,
            .first = at == 0,
        };
        passes[p->batch][p->dtype - GUMBEL_FLOAT32](&pass, p->count);
        at += chunks;
    } while (at < whole);
    for (int n = 0; n < p->batch; n++)
        for (int i = 0; i < p->count; i += 16)
            vf_store(p->out + n * p->tile + i,
                     vf_sums(p->lanes + ((int64_t)n * p->tile + i) * CPU_LANES));
}

#endif
