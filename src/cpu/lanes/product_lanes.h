/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   out[n][i] = dot(weight[i], hidden[n]) for a tile of weight rows and the packed hidden
 *        states (eq. 1), on the sixteen lanes of cpu/lanes_*.h. The including file defines
 *        PRODUCT_PANEL, the hidden states a panel holds, and PRODUCT_ROWS(n), the weight rows that
 *        a micro-kernel holds in registers beside a panel of n.
 * COST   D * element bytes a weight row from memory, once; D * B fused multiply-adds a row. A
 *        bfloat16 pair costs a shift and a mask, shared by the rows of the panel.
 * MAP    blocks of PRODUCT_BLOCK weight rows go through groups of PRODUCT_GROUP panels, in passes
 *        over as many chunks as stay in the first-level cache. Accumulator (m, n) holds the 16
 *        lanes of weight row m and hidden state n; accumulators rest in `lanes` between passes.
 * MEMORY up to STREAMED_BATCH hidden states the rows of a micro-kernel are as many long streams,
 *        each fetched STREAM_AHEAD bytes before its use. Beyond, a pass fetches the weights of the
 *        next one into the first-level cache, where no multiply-add has to wait for one of the few
 *        line buffers that memory keeps busy; the panels of a group take turns at it.
 * NUMERICS  the order of every lane's sum is that of D, whatever the tile, block, panel or pass.
 */
#ifndef GUMBEL_CPU_PRODUCT_LANES_H
#define GUMBEL_CPU_PRODUCT_LANES_H

#include "cpu/cpu_kernels.h"
#include "cpu/cpu_policy.h"

/* Sixteen elements of a chunk in the packed order (cpu_pack_place()). */
LANES v16f load_half_chunk(const char *weight, gumbel_dtype dtype, int half)
{
    if (dtype == GUMBEL_FLOAT32)
        return vf_load(weight + 64 * half);
    if (dtype == GUMBEL_FLOAT16)
        return vf_load_half((const uint16_t *)weight + 16 * half);
    v16u words = vu_load(weight);
    return vf_of_bits(half ? vu_and(words, vu_set(0xffff0000u)) : vu_shift_left(words, 16));
}

/* A pass over whole chunks, for all rows of a block and one panel. */
typedef struct product_pass {
    const char *weight;
    int64_t stride_bytes;
    const float *panel;
    int64_t chunks;
    int64_t ahead;   /* from the weights that are read to those that are fetched meanwhile, bytes */
    int turn, turns; /* this panel fetches for every turns-th micro-kernel, from the turn-th on */
    int is_first;    /* `lanes` is written, not added to */
    float *lanes;    /* [panel rows][PRODUCT_ROOM][16] */
} product_pass;

/* Both halves of a chunk in turn: the weights into registers, each hidden state past them. */
LANES void multiply_chunk(const char *const weight[], int64_t at, const float *panel, int rows,
                          int batch, gumbel_dtype dtype, v16f sum[][CPU_PANEL_MOST])
{
    UNROLLED
    for (int half = 0; half < 2; half++) {
        v16f w[8];
        UNROLLED
        for (int m = 0; m < rows; m++)
            w[m] = vf_hold(load_half_chunk(weight[m] + at, dtype, half));
        UNROLLED
        for (int n = 0; n < batch; n++) {
            v16f h = vf_hold(vf_load(panel + CPU_CHUNK * n + CPU_LANES * half));
            UNROLLED
            for (int m = 0; m < rows; m++)
                sum[m][n] = vf_fma(w[m], h, sum[m][n]);
        }
    }
}

LANES void fetch_chunk(const char *const weight[], int64_t at, int rows, int64_t chunk_bytes)
{
    UNROLLED
    for (int m = 0; m < rows; m++) {
        UNROLLED
        for (int64_t line = 0; line < chunk_bytes; line += 64)
            __builtin_prefetch(weight[m] + at + line, 0, 3);
    }
}

/* rows, batch and dtype are constants of each instance. */
LANES void micro_kernel(const product_pass *p, int fetches, int rows, int batch, gumbel_dtype dtype)
{
    v16f sum[8][CPU_PANEL_MOST];
    const char *weight[8];
    const float *panel = p->panel;
    int64_t chunk_bytes = dtype == GUMBEL_FLOAT32 ? 4 * CPU_CHUNK : 2 * CPU_CHUNK;
    int64_t end = p->chunks * chunk_bytes;
    UNROLLED
    for (int m = 0; m < rows; m++) {
        weight[m] = p->weight + m * p->stride_bytes;
        UNROLLED
        for (int n = 0; n < batch; n++)
            sum[m][n] =
                p->is_first ? vf_set(0.0f) : vf_load(p->lanes + (n * PRODUCT_ROOM + m) * CPU_LANES);
    }
    for (int64_t at = 0; at < end; at += chunk_bytes, panel += CPU_CHUNK * batch) {
        if (fetches)
            fetch_chunk(weight, at + p->ahead, rows, chunk_bytes);
        multiply_chunk(weight, at, panel, rows, batch, dtype, sum);
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

/* One function a panel size and dtype, so that each has its accumulators in registers. */
#define PASS(batch, name, dtype)                                                                   \
    static __attribute__((noinline)) void pass_##name##_##batch(const product_pass *p, int count)  \
    {                                                                                              \
        pass_rows(*p, count, batch, dtype);                                                        \
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

static int64_t at_most(int64_t x, int64_t most) { return x < most ? x : most; }

/* The last `tail` < 32 elements of each row, zeros after them, as a block of one chunk. */
static void pad_tail(char *block, const char *weight, int64_t stride_bytes, int rows,
                     int tail_bytes)
{
    memset(block, 0, (size_t)(rows * 4 * CPU_CHUNK));
    for (int m = 0; m < rows; m++)
        memcpy(block + m * 4 * CPU_CHUNK, weight + m * stride_bytes, (size_t)tail_bytes);
}

/* Rows that a block holds: row, row + apart, ... of the tile. */
typedef struct product_block {
    int row, apart, count;
} product_block;

/* Sum the lanes of a block into the dot products with hidden states b, b + 1, ...; a row that it
 * does not hold spills whatever its lanes held. */
static void sum_block(const cpu_product *p, product_block block, int64_t b, int batch)
{
    for (int n = 0; n < batch; n++) {
        float *out = p->out + (b + n) * p->out_stride + block.row, sums[CPU_LANES];
        v16f sum = vf_sums(p->lanes + n * PRODUCT_ROOM * CPU_LANES);
        if (block.apart == 1) {
            vf_store(out, sum);
            continue;
        }
        vf_store(sums, sum);
        for (int i = 0; i < block.count; i++)
            out[i * block.apart] = sums[i];
    }
}

/* Memory alone bounds the product, and one panel holds the batch. */
static int is_streamed(const cpu_product *p)
{
    return p->batch <= STREAMED_BATCH && p->batch <= PRODUCT_PANEL;
}

/* From the weights of a pass, which begins `offset` bytes into its rows, to those that come next:
 * the next pass of these rows, the first one of the next group, or that of the next block. */
static int64_t distance_ahead(const cpu_product *p, int64_t offset, int64_t bytes, int is_last_pass,
                              int is_last_group)
{
    if (is_streamed(p))
        return STREAM_AHEAD;
    if (!is_last_pass)
        return bytes;
    return (is_last_group ? PRODUCT_BLOCK * p->stride_bytes : 0) - offset;
}

/* One pass over `count` rows, from the given chunk on, for hidden states b .. b + batch - 1. */
static void pass_group(const cpu_product *p, product_pass pass, int count, int64_t b, int batch,
                       int64_t chunk)
{
    int64_t chunks = (p->hidden_size + CPU_CHUNK - 1) / CPU_CHUNK;
    pass.turns = (batch + PRODUCT_PANEL - 1) / PRODUCT_PANEL;
    for (int i = 0; i < pass.turns; i++) {
        int start = i * PRODUCT_PANEL, rows = (int)at_most(batch - start, PRODUCT_PANEL);
        pass.turn = i;
        pass.panel = p->panels + ((b + start) * chunks + chunk * rows) * CPU_CHUNK;
        pass.lanes = p->lanes + start * PRODUCT_ROOM * CPU_LANES;
        passes[rows][p->dtype - GUMBEL_FLOAT32](&pass, count);
    }
}

/* The dot products of a block with the hidden states of a group. */
static void product_group(const cpu_product *p, product_block block, int64_t b, int batch)
{
    char padded[PRODUCT_BLOCK * 4 * CPU_CHUNK];
    int64_t chunk_bytes = CPU_CHUNK * (p->dtype == GUMBEL_FLOAT32 ? 4 : 2);
    int64_t chunks = p->hidden_size / CPU_CHUNK;
    int64_t most = is_streamed(p) ? STREAM_CHUNKS(batch) : PASS_CHUNKS;
    int tail_bytes = (int)(p->hidden_size % CPU_CHUNK * chunk_bytes / CPU_CHUNK);
    product_pass pass = {.weight = (const char *)p->weight + block.row * p->stride_bytes,
                         .stride_bytes = block.apart * p->stride_bytes};
    for (int64_t chunk = 0; chunk < chunks; chunk += pass.chunks) {
        pass.chunks = at_most(chunks - chunk, most);
        pass.is_first = chunk == 0;
        int64_t bytes = pass.chunks * chunk_bytes;
        pass.ahead = distance_ahead(p, chunk * chunk_bytes, bytes, chunk + pass.chunks == chunks,
                                    b + batch == p->batch);
        pass_group(p, pass, block.count, b, batch, chunk);
        pass.weight += bytes;
    }
    if (tail_bytes > 0) {
        pad_tail(padded, pass.weight, pass.stride_bytes, block.count, tail_bytes);
        pass = (product_pass){
            .weight = padded, .stride_bytes = 4 * CPU_CHUNK, .chunks = 1, .is_first = chunks == 0};
        pass_group(p, pass, block.count, b, batch, chunks);
    }
    sum_block(p, block, b, batch);
}

/* The rows of a micro-kernel stand far apart, so that each reads one long stream, and several
 * streams at once keep more of memory busy than one does. Returns the rows done, from the first
 * on. */
static int product_streams(const cpu_product *p)
{
    if (!is_streamed(p))
        return 0;
    int batch = (int)p->batch, streams = PRODUCT_ROWS(batch), apart = p->count / streams;
    for (int row = 0; row < apart; row++)
        product_group(p, (product_block){row, apart, streams}, 0, batch);
    return apart * streams;
}

static void product(const cpu_product *p)
{
    const int most = PRODUCT_GROUP * PRODUCT_PANEL;
    for (int row = product_streams(p); row < p->count; row += PRODUCT_BLOCK)
        for (int64_t b = 0; b < p->batch; b += most) {
            product_block block = {row, 1, (int)at_most(p->count - row, PRODUCT_BLOCK)};
            product_group(p, block, b, (int)at_most(p->batch - b, most));
        }
}

#endif
