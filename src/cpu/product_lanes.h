/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   out[n][i] = dot(weight[i], hidden[n]) for a tile of weight rows and the packed hidden
 *        states (eq. 1), on the sixteen lanes of cpu/lanes_*.h. The including file defines
 *        PRODUCT_PANEL, the hidden states a panel holds, and PRODUCT_ROWS(n), the weight rows that
 *        a micro-kernel holds in registers beside a panel of n.
 * COST   D * element bytes a weight row from memory, once; D * B fused multiply-adds a row. A
 *        bfloat16 pair costs a shift and a mask, shared by the rows of the panel.
 * MAP    blocks of PRODUCT_BLOCK weight rows go through all panels, each panel in passes over as
 *        many chunks as stay in the first-level cache. Accumulator (m, n) holds the 16 lanes of
 *        weight row m and hidden state n; accumulators rest in `lanes` between passes.
 * MEMORY up to STREAMED_BATCH hidden states the rows of a micro-kernel are as many long streams,
 *        each fetched STREAM_AHEAD bytes before its use. Beyond, arithmetic would alternate with
 *        waiting, so the block after this one is fetched meanwhile; panels take turns at it.
 * NUMERICS  the order of every lane's sum is that of D, whatever the tile, block, panel or pass.
 */
#ifndef GUMBEL_CPU_PRODUCT_LANES_H
#define GUMBEL_CPU_PRODUCT_LANES_H

#include "cpu/cpu_kernels.h"

/* Batches up to here are bound by memory alone. */
#define STREAMED_BATCH 4
/* How far before its use a stream is fetched: the processor's own prefetching starts anew at each
 * page and leaves a sixth of the bandwidth idle; 3 KiB of each stream keep memory busy. */
#define STREAM_AHEAD 3072
/* Bytes of a panel that a pass keeps in the first-level cache: longer runs of each weight row where
 * the processor has to see a stream in them, shorter ones where rows come from the second level. */
#define PASS_BYTES(batch) ((batch) <= STREAMED_BATCH ? 32768 : 16384)

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
    const char *ahead; /* weights of the next block, to prefetch meanwhile; NULL: none */
    int turn, turns;   /* this panel prefetches every turns-th piece, from the turn-th on */
    float *lanes;      /* [panel rows][PRODUCT_ROOM][16], added to */
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

LANES void prefetch_chunk(const char *const weight[], int64_t at, int rows, int64_t chunk_bytes)
{
    UNROLLED
    for (int m = 0; m < rows; m++) {
        UNROLLED
        for (int64_t line = 0; line < chunk_bytes; line += 64)
            __builtin_prefetch(weight[m] + at + line, 0, 2);
    }
}

/* rows, batch and dtype are constants of each instance. `ahead` is NULL or as many bytes to
 * prefetch as the weights that are read. */
LANES void micro_kernel(const product_pass *p, const char *ahead, int rows, int batch,
                        gumbel_dtype dtype)
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
            sum[m][n] = vf_load(p->lanes + (n * PRODUCT_ROOM + m) * CPU_LANES);
    }
    for (int64_t at = 0; at < end; at += chunk_bytes, panel += CPU_CHUNK * batch) {
        if (ahead) {
            UNROLLED
            for (int line = 0; line < rows * chunk_bytes / 64; line++, ahead += 64)
                __builtin_prefetch(ahead, 0, 2);
        }
        if (batch <= STREAMED_BATCH)
            prefetch_chunk(weight, at + STREAM_AHEAD, rows, chunk_bytes);
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
    int64_t row_bytes = pass.chunks * CPU_CHUNK * (dtype == GUMBEL_FLOAT32 ? 4 : 2);
    for (; count >= PRODUCT_ROWS(batch); count -= PRODUCT_ROWS(batch)) {
        const char *ahead = pass.turn == 0 ? pass.ahead : NULL;
        micro_kernel(&pass, ahead, PRODUCT_ROWS(batch), batch, dtype);
        pass.turn = (pass.turn + 1) % pass.turns;
        pass.weight += PRODUCT_ROWS(batch) * pass.stride_bytes;
        pass.ahead += pass.ahead ? PRODUCT_ROWS(batch) * row_bytes : 0;
        pass.lanes += PRODUCT_ROWS(batch) * CPU_LANES;
    }
    for (; count > 0; count--) {
        micro_kernel(&pass, NULL, 1, batch, dtype);
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

/* The weights of a block as one pass sees them from its start. */
static product_pass start_pass(const cpu_product *p, product_block block, int64_t b, int batch)
{
    int64_t chunks = (p->hidden_size + CPU_CHUNK - 1) / CPU_CHUNK;
    const char *weight = (const char *)p->weight + block.row * p->stride_bytes;
    return (product_pass){
        .weight = weight,
        .stride_bytes = block.apart * p->stride_bytes,
        .panel = p->panels + b * chunks * CPU_CHUNK,
        .ahead = batch > STREAMED_BATCH ? weight + PRODUCT_BLOCK * p->stride_bytes : NULL,
        .turn = (int)(b / PRODUCT_PANEL),
        .turns = (int)((p->batch + PRODUCT_PANEL - 1) / PRODUCT_PANEL),
        .lanes = p->lanes,
    };
}

/* Sum the lanes of a block into the dot products. */
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

/* One panel's dot products with the rows of a block. */
static void product_panel(const cpu_product *p, product_block block, int64_t b, int batch)
{
    char padded[PRODUCT_BLOCK * 4 * CPU_CHUNK];
    void (*run)(const product_pass *, int) = passes[batch][p->dtype - GUMBEL_FLOAT32];
    int tail = (int)(p->hidden_size % CPU_CHUNK);
    int element_bytes = p->dtype == GUMBEL_FLOAT32 ? 4 : 2;
    int64_t most = PASS_BYTES(batch) / (4 * CPU_CHUNK * batch);
    product_pass pass = start_pass(p, block, b, batch);
    memset(p->lanes, 0, (size_t)batch * PRODUCT_ROOM * CPU_LANES * sizeof(float));
    for (int64_t left = p->hidden_size / CPU_CHUNK; left > 0; left -= pass.chunks) {
        pass.chunks = at_most(left, most);
        run(&pass, block.count);
        int64_t row_bytes = pass.chunks * CPU_CHUNK * element_bytes;
        pass.weight += row_bytes;
        pass.panel += pass.chunks * CPU_CHUNK * batch;
        pass.ahead += pass.ahead ? block.count * row_bytes : 0;
    }
    if (tail > 0) {
        pad_tail(padded, pass.weight, pass.stride_bytes, block.count, tail * element_bytes);
        pass = (product_pass){.weight = padded,
                              .stride_bytes = 4 * CPU_CHUNK,
                              .panel = pass.panel,
                              .chunks = 1,
                              .turns = 1,
                              .lanes = p->lanes};
        run(&pass, block.count);
    }
    sum_block(p, block, b, batch);
}

/* Batches of one panel that memory alone bounds: the rows of a micro-kernel stand far apart, so
 * that each reads one long stream, and several streams at once keep more of memory busy than one
 * does. Returns the rows done, from the first on. */
static int product_streams(const cpu_product *p)
{
    if (p->batch > PRODUCT_PANEL || p->batch > STREAMED_BATCH)
        return 0;
    int batch = (int)p->batch, streams = PRODUCT_ROWS(batch), apart = p->count / streams;
    for (int row = 0; row < apart; row++)
        product_panel(p, (product_block){row, apart, streams}, 0, batch);
    return apart * streams;
}

static void product(const cpu_product *p)
{
    for (int row = product_streams(p); row < p->count; row += PRODUCT_BLOCK)
        for (int64_t b = 0; b < p->batch; b += PRODUCT_PANEL) {
            product_block block = {row, 1, (int)at_most(p->count - row, PRODUCT_BLOCK)};
            product_panel(p, block, b, (int)at_most(p->batch - b, PRODUCT_PANEL));
        }
}

#endif
