/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   out[n][i] = dot(weight[i], hidden[n]) for a tile of weight rows and the packed hidden
 *        states (eq. 1), on the sixteen lanes of cpu/isa/lanes_*.h. The including file defines
 *        PRODUCT_PANEL, the maximum number of hidden states of a panel, and PRODUCT_ROWS(n), the
 *        weight rows that a micro-kernel keeps in registers beside a panel of n.
 * COST   D * element bytes a weight row from memory, once; D * B fused multiply-adds a row. A
 *        bfloat16 pair takes a shift and a mask, which the rows of the panel share.
 * MAP    Blocks of PRODUCT_BLOCK weight rows go through groups of PRODUCT_GROUP panels, in passes
 *        over as many k-tiles as stay in the first-level cache. Accumulator (m, n) holds the 16
 *        lanes of weight row m and hidden state n; between passes it is in `lanes`.
 * MEMORY Up to STREAMED_BATCH hidden states, the rows of a micro-kernel are separate long streams,
 *        each prefetched STREAM_AHEAD bytes ahead. For larger batches a pass prefetches the weights
 *        of the next one into the first-level cache, so that no multiply-add waits for a line fill
 *        buffer; the panels of a group take turns.
 * NUMERICS Every lane sums in the order of D, for any tile, block, panel or pass.
 */
#ifndef GUMBEL_CPU_PRODUCT_LANES_H
#define GUMBEL_CPU_PRODUCT_LANES_H

#include "cpu/cpu_kernels.h"
#include "cpu/cpu_policy.h"

/* Sixteen elements of a k-tile in the packed order (cpu_find_packed_place()). */
LANES v16f load_half_k_tile(const char *weight, gumbel_dtype dtype, int half)
{
    if (dtype == GUMBEL_FLOAT32)
        return vf_load(weight + 64 * half);
    if (dtype == GUMBEL_FLOAT16)
        return vf_load_half((const uint16_t *)weight + 16 * half);
    v16u words = vu_load(weight);
    return vf_of_bits(half ? vu_and(words, vu_set(0xffff0000u)) : vu_shift_left(words, 16));
}

/* A pass over whole k-tiles, for all rows of a block and one panel. */
typedef struct product_pass {
    const char *weight;
    int64_t stride_bytes;
    const float *panel;
    int64_t k_tiles;
    int64_t ahead; /* prefetch distance, bytes */
    int turn,
        turns;    /* this panel prefetches for every turns-th micro-kernel, from number `turn` on */
    int is_first; /* `lanes` is written, not added to */
    float *lanes; /* [panel rows][PRODUCT_ROOM][16] */
} product_pass;

/* For each half of a k-tile: loads the weights into registers and multiplies each hidden state. */
LANES void multiply_k_tile(const char *const weight[], int64_t at, const float *panel, int rows,
                           int batch, gumbel_dtype dtype, v16f sum[][CPU_PANEL_ROWS_MAX])
{
    UNROLLED
    for (int half = 0; half < 2; half++) {
        v16f w[8];
        UNROLLED
        for (int m = 0; m < rows; m++)
            w[m] = vf_hold(load_half_k_tile(weight[m] + at, dtype, half));
        UNROLLED
        for (int n = 0; n < batch; n++) {
            v16f h = vf_hold(vf_load(panel + CPU_K_TILE * n + CPU_LANES * half));
            UNROLLED
            for (int m = 0; m < rows; m++)
                sum[m][n] = vf_fma(w[m], h, sum[m][n]);
        }
    }
}

LANES void prefetch_k_tile(const char *const weight[], int64_t at, int rows, int64_t k_tile_bytes)
{
    UNROLLED
    for (int m = 0; m < rows; m++) {
        UNROLLED
        for (int64_t line = 0; line < k_tile_bytes; line += 64)
            __builtin_prefetch(weight[m] + at + line, 0, 3);
    }
}

/* `rows`, `batch` and `dtype` are constants of each instance. */
LANES void micro_kernel(const product_pass *p, int fetches, int rows, int batch, gumbel_dtype dtype)
{
    v16f sum[8][CPU_PANEL_ROWS_MAX];
    const char *weight[8];
    const float *panel = p->panel;
    int64_t k_tile_bytes = dtype == GUMBEL_FLOAT32 ? 4 * CPU_K_TILE : 2 * CPU_K_TILE;
    int64_t end = p->k_tiles * k_tile_bytes;
    UNROLLED
    for (int m = 0; m < rows; m++) {
        weight[m] = p->weight + m * p->stride_bytes;
        UNROLLED
        for (int n = 0; n < batch; n++)
            sum[m][n] =
                p->is_first ? vf_set(0.0f) : vf_load(p->lanes + (n * PRODUCT_ROOM + m) * CPU_LANES);
    }
    for (int64_t at = 0; at < end; at += k_tile_bytes, panel += CPU_K_TILE * batch) {
        if (fetches)
            prefetch_k_tile(weight, at + p->ahead, rows, k_tile_bytes);
        multiply_k_tile(weight, at, panel, rows, batch, dtype, sum);
    }
    UNROLLED
    for (int m = 0; m < rows; m++) {
        UNROLLED
        for (int n = 0; n < batch; n++)
            vf_store(p->lanes + (n * PRODUCT_ROOM + m) * CPU_LANES, sum[m][n]);
    }
}

/* All rows of the block: PRODUCT_ROWS at a time, the rest one by one. */
LANES void pass_rows(product_pass pass, int count, int batch, gumbel_dtype dtype)
{
    for (; count >= PRODUCT_ROWS(batch); count -= PRODUCT_ROWS(batch)) {
        micro_kernel(&pass, pass.turn == 0, PRODUCT_ROWS(batch), batch, dtype);
        pass.turn = (pass.turn + 1) % pass.turns;
        pass.weight += PRODUCT_ROWS(batch) * pass.stride_bytes;
        pass.lanes += PRODUCT_ROWS(batch) * CPU_LANES;
    }
    for (; count > 0; count--) {
        micro_kernel(&pass, 0, 1, batch, dtype);
        pass.weight += pass.stride_bytes;
        pass.lanes += CPU_LANES;
    }
}

/* One function for each panel size and dtype, so that each has its accumulators in registers. */
#define DEFINE_PASS(batch, name, dtype)                                                            \
    NOT_INLINED void pass_##name##_##batch(const product_pass *p, int count)                       \
    {                                                                                              \
        pass_rows(*p, count, batch, dtype);                                                        \
    }
#define DEFINE_PASSES(batch)                                                                       \
    DEFINE_PASS(batch, float, GUMBEL_FLOAT32)                                                      \
    DEFINE_PASS(batch, half, GUMBEL_FLOAT16)                                                       \
    DEFINE_PASS(batch, bfloat, GUMBEL_BFLOAT16)
DEFINE_PASSES(1)
DEFINE_PASSES(2)
DEFINE_PASSES(3)
DEFINE_PASSES(4)
DEFINE_PASSES(5)
DEFINE_PASSES(6)
DEFINE_PASSES(7)
DEFINE_PASSES(8)

#define PASS_ROW(batch) [batch] = {pass_float_##batch, pass_half_##batch, pass_bfloat_##batch}
static void (*const passes[CPU_PANEL_ROWS_MAX + 1][3])(const product_pass *, int) = {
    PASS_ROW(1), PASS_ROW(2), PASS_ROW(3), PASS_ROW(4),
    PASS_ROW(5), PASS_ROW(6), PASS_ROW(7), PASS_ROW(8)};

static int64_t get_minimum(int64_t x, int64_t y) { return x < y ? x : y; }

/* The last elements of each row, fewer than a k-tile, padded with zeros to a block of one
 * k-tile. */
static void pad_tail(char *block, const char *weight, int64_t stride_bytes, int rows,
                     int tail_bytes)
{
    memset(block, 0, (size_t)(rows * 4 * CPU_K_TILE));
    for (int m = 0; m < rows; m++)
        memcpy(block + m * 4 * CPU_K_TILE, weight + m * stride_bytes, (size_t)tail_bytes);
}

/* Rows of a block: row, row + distance, ... of the tile. */
typedef struct product_block {
    int row, distance, count;
} product_block;

/* Sums the lanes of a block into the dot products with hidden states b, b + 1, ... A row beyond the
 * block gets an undefined value. */
static void sum_block(const cpu_product *p, product_block block, int64_t b, int batch)
{
    for (int n = 0; n < batch; n++) {
        float *out = p->out + (b + n) * p->out_stride + block.row, sums[CPU_LANES];
        v16f sum = vf_sums(p->lanes + n * PRODUCT_ROOM * CPU_LANES);
        if (block.distance == 1) {
            vf_store(out, sum);
            continue;
        }
        vf_store(sums, sum);
        for (int i = 0; i < block.count; i++)
            out[i * block.distance] = sums[i];
    }
}

/* Whether memory alone bounds the product, and one panel holds the batch. */
static int is_streamed(const cpu_product *p)
{
    return p->batch <= STREAMED_BATCH && p->batch <= PRODUCT_PANEL;
}

/* Prefetch distance of a pass, which begins `offset` bytes into its rows: to the next pass of these
 * rows, the first one of the next group, or that of the next block. */
static int64_t distance_ahead(const cpu_product *p, int64_t offset, int64_t bytes, int is_last_pass,
                              int is_last_group)
{
    if (is_streamed(p))
        return STREAM_AHEAD;
    if (!is_last_pass)
        return bytes;
    return (is_last_group ? PRODUCT_BLOCK * p->stride_bytes : 0) - offset;
}

/* One pass over `count` rows, from `k_tile` on, for hidden states b .. b + batch - 1. */
static void pass_group(const cpu_product *p, product_pass pass, int count, int64_t b, int batch,
                       int64_t k_tile)
{
    int64_t k_tiles = (p->hidden_size + CPU_K_TILE - 1) / CPU_K_TILE;
    pass.turns = (batch + PRODUCT_PANEL - 1) / PRODUCT_PANEL;
    for (int i = 0; i < pass.turns; i++) {
        int start = i * PRODUCT_PANEL, rows = (int)get_minimum(batch - start, PRODUCT_PANEL);
        pass.turn = i;
        pass.panel = p->panels + ((b + start) * k_tiles + k_tile * rows) * CPU_K_TILE;
        pass.lanes = p->lanes + start * PRODUCT_ROOM * CPU_LANES;
        passes[rows][p->dtype - GUMBEL_FLOAT32](&pass, count);
    }
}

/* The dot products of a block with the hidden states of a group. */
static void product_group(const cpu_product *p, product_block block, int64_t b, int batch)
{
    char padded[PRODUCT_BLOCK * 4 * CPU_K_TILE];
    int64_t k_tile_bytes = CPU_K_TILE * (p->dtype == GUMBEL_FLOAT32 ? 4 : 2);
    int64_t k_tiles = p->hidden_size / CPU_K_TILE;
    int64_t max_k_tiles = is_streamed(p) ? STREAM_K_TILES(batch) : PASS_K_TILES;
    int tail_bytes = (int)(p->hidden_size % CPU_K_TILE * k_tile_bytes / CPU_K_TILE);
    product_pass pass = {.weight = (const char *)p->weight + block.row * p->stride_bytes,
                         .stride_bytes = block.distance * p->stride_bytes};
    for (int64_t k_tile = 0; k_tile < k_tiles; k_tile += pass.k_tiles) {
        pass.k_tiles = get_minimum(k_tiles - k_tile, max_k_tiles);
        pass.is_first = k_tile == 0;
        int64_t bytes = pass.k_tiles * k_tile_bytes;
        pass.ahead = distance_ahead(p, k_tile * k_tile_bytes, bytes,
                                    k_tile + pass.k_tiles == k_tiles, b + batch == p->batch);
        pass_group(p, pass, block.count, b, batch, k_tile);
        pass.weight += bytes;
    }
    if (tail_bytes > 0) {
        pad_tail(padded, pass.weight, pass.stride_bytes, block.count, tail_bytes);
        pass = (product_pass){.weight = padded,
                              .stride_bytes = 4 * CPU_K_TILE,
                              .k_tiles = 1,
                              .is_first = k_tiles == 0};
        pass_group(p, pass, block.count, b, batch, k_tiles);
    }
    sum_block(p, block, b, batch);
}

/* Chooses rows that are far apart for each micro-kernel, so that it reads several long streams at
 * once, which keep more of memory busy than one. Returns the number of rows done, from the first
 * on. */
static int product_streams(const cpu_product *p)
{
    if (!is_streamed(p))
        return 0;
    int batch = (int)p->batch, streams = PRODUCT_ROWS(batch), distance = p->count / streams;
    for (int row = 0; row < distance; row++)
        product_group(p, (product_block){row, distance, streams}, 0, batch);
    return distance * streams;
}

static void multiply_tile(const cpu_product *p)
{
    const int max_rows = PRODUCT_GROUP * PRODUCT_PANEL;
    for (int row = product_streams(p); row < p->count; row += PRODUCT_BLOCK)
        for (int64_t b = 0; b < p->batch; b += max_rows) {
            product_block block = {row, 1, (int)get_minimum(p->count - row, PRODUCT_BLOCK)};
            product_group(p, block, b, (int)get_minimum(p->batch - b, max_rows));
        }
}

#endif
