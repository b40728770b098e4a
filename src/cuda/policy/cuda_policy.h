/* SPDX-License-Identifier: Apache-2.0
 *
 * Every choice of kernel and size that the CUDA backend makes; kernels and launcher only receive
 * the numbers. Read by C and by CUDA.
 */
#ifndef GUMBEL_CUDA_POLICY_H
#define GUMBEL_CUDA_POLICY_H

#include "core/problem.h"

/* The oldest GPUs that the portable kernels are compiled for. */
#define CUDA_CAPABILITY_MIN 80

/* ---------------------------------------------------------------- the fused way on Hopper ---- */

#define CUDA_SM90_CAPABILITY 90
#define CUDA_SM90_THREADS    384
#define CUDA_SM90_TILE       128
/* All that a CTA may have: there is one a multiprocessor anyhow. */
#define CUDA_SM90_SHARED_BYTES (227 * 1024)
/* Batch columns times samples that one launch draws: a consumer thread each. */
#define CUDA_SM90_STATES     256
#define CUDA_SM90_STAGES_MAX 12

/* 64-bit words of a row and sample, of which the first is its floor (row_thresholds.cuh), the second
 * counts CTAs (cta_counter.cuh), and the others are for the end of a call (ending_sm90.cuh): a
 * 32-byte sector, so that the second-level cache can take neighbours side by side. */
#define CUDA_THRESHOLD_WORDS 4

/* Batch columns of the kernels that exist. */
#define CUDA_SM90_WIDTHS 6
static const int cuda_sm90_widths[CUDA_SM90_WIDTHS] = {8, 16, 32, 64, 128, 256};

/* Whether the copy engine can read the rows of a [.., D] matrix: aligned to 16 bytes. */
static inline int cuda_sm90_can_copy(const gumbel_tensor *t)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride % 8 == 0;
}

/* What a call asks of the Hopper kernel. Each case has kernels of its own, without the code of what
 * it rules out (case_sm90.cuh). */
typedef enum cuda_sm90_case {
    CUDA_SM90_PLAIN,      /* a draw a row, from logits as the product leaves them */
    CUDA_SM90_PLAIN_MASS, /* that, with masses */
    CUDA_SM90_STORED,     /* no draw: the logits themselves */
    CUDA_SM90_BOTH,       /* such a draw, with a bias or not, and the logits */
    CUDA_SM90_ANY,        /* any draw, or none */
    CUDA_SM90_CASES,
} cuda_sm90_case;

/* Whether a draw a row is asked for, from logits as the product leaves them, but for a bias. */
static inline int cuda_sm90_is_plain(const gumbel_problem *p)
{
    return p->soft_cap == 0.0f && p->scale >= 0.0f && p->sampling.num_samples == 1;
}

/* The case that serves a call, which stores its logits, with or without a draw, or drops them, or
 * draws. */
static inline cuda_sm90_case cuda_sm90_case_of(const gumbel_problem *p, int stores, int draws,
                                               int drops)
{
    if (stores)
        return draws ? CUDA_SM90_BOTH : CUDA_SM90_STORED;
    if (drops || p->bias.data || !cuda_sm90_is_plain(p))
        return CUDA_SM90_ANY;
    return p->with_mass ? CUDA_SM90_PLAIN_MASS : CUDA_SM90_PLAIN;
}

/* Whether the kernel of n columns starts while the launch before it ends, and asks for weights.
 * With more columns that gains nothing, and behind another library's launch costs up to 1%. */
#define CUDA_SM90_OVERLAPS(n) ((n) <= 64)
/* Draws of such a kernel behind which the next launch may start early: what merges more of them
 * would crowd the few multiprocessors that end first, and take 9 us more at 128. */
#define CUDA_SM90_DRAWS_OVERLAPPED 64

/* Whether there are kernels of n columns that draw and store: with more, a draw from the logits
 * takes less than one beside the product. */
#define CUDA_SM90_HAS_BOTH(n) ((n) <= 64)

/* Whether the Hopper kernel writes the outputs: else a launch behind it merges what its CTAs
 * found. */
#define CUDA_SM90_WRITES_OUTPUT(kind, partials)                                                    \
    (((kind) == CUDA_SM90_PLAIN || (kind) == CUDA_SM90_BOTH) && !(partials))

/* The narrowest kernel, by its place in the table, that holds `rows` rows; the last for more. */
static inline int cuda_sm90_width_for(int64_t rows)
{
    int i = 0;
    while (i < CUDA_SM90_WIDTHS - 1 && cuda_sm90_widths[i] < rows)
        i++;
    return i;
}

/* Rows a launch takes at most. */
static inline int cuda_sm90_max_rows(int num_samples)
{
    int i = CUDA_SM90_WIDTHS - 1;
    while (i > 0 && cuda_sm90_widths[i] * num_samples > CUDA_SM90_STATES)
        i--;
    return cuda_sm90_widths[i];
}

/* Whether a warpgroup takes a whole tile of n columns. */
#define CUDA_SM90_WARPGROUP_PER_TILE(n) ((n) <= 64)

/* CTAs of a cluster, which copy hidden states for each other: at 128 columns these are as many
 * bytes as a tile's weights. With fewer that gains nothing, with 256 nothing where the GPU is hot.
 */
#define CUDA_SM90_CLUSTER(n)  ((n) == 128 ? CUDA_SM90_CLUSTER_MAX : 1)
#define CUDA_SM90_CLUSTER_MAX 2

/* Multiprocessors that take tiles. An odd one stays idle at all widths: which CTA takes a tile must
 * not depend on the batch. */
static inline int cuda_sm90_processors(int multiprocessors)
{
    return multiprocessors / CUDA_SM90_CLUSTER_MAX * CUDA_SM90_CLUSTER_MAX;
}

/* CTAs of a launch: one for each of so many multiprocessors, or for each tile, in whole clusters.
 * The last one may have no tile. */
static inline int cuda_sm90_ctas(int width, int tiles, int processors)
{
    int cluster = CUDA_SM90_CLUSTER(width), ctas = tiles < processors ? tiles : processors;
    return (ctas + cluster - 1) / cluster * cluster;
}

/* Whether the kernel of n columns can store logits by bounds (bound_sm90.cuh). */
#define CUDA_SM90_HAS_BOUNDS(n) ((n) <= 128)

/* Blocks of GUMBEL_BLOCK tokens that a tile touches at most. */
#define CUDA_SM90_BLOCKS (CUDA_SM90_TILE / GUMBEL_BLOCK + 1)

/* What shared_sm90.cuh lays out beside the ring: of a draw; the barriers; of a column, its masses,
 * or with stored logits its peaks, threshold, flags and bits; and for so many draws, at least, the
 * list of what passes their bounds, where first the sums of a token of each block lie. With more
 * than CUDA_SM90_LIST_MAX tokens those that score would be later than those that multiply. */
#define CUDA_SM90_DRAW_BYTES        (48 + 4 * CUDA_SM90_BLOCKS)
#define CUDA_SM90_BARRIER_BYTES     272
#define CUDA_SM90_MASS_BYTES        64
#define CUDA_SM90_STORED_BYTES(n)   (96 * (CUDA_SM90_WARPGROUP_PER_TILE(n) ? 2 : 1) + 8)
#define CUDA_SM90_LIST_BYTES(draws) ((draws) > 170 ? 4 * CUDA_SM90_BLOCKS * (draws) : 2048)
#define CUDA_SM90_LIST_MAX          1024

/* Stages of the ring that fit. `stores` is for a kernel that does nothing else. */
static inline int cuda_sm90_stages(int width, int num_samples, int with_mass, int stores)
{
    const int draws = width * num_samples;
    int beside = CUDA_SM90_BARRIER_BYTES;
    if (stores)
        beside += CUDA_SM90_STORED_BYTES(width) * width;
    else
        beside += CUDA_SM90_DRAW_BYTES * draws + CUDA_SM90_LIST_BYTES(draws) +
                  (with_mass ? CUDA_SM90_MASS_BYTES * width : 0);
    int stages = (CUDA_SM90_SHARED_BYTES - beside) / (128 * (CUDA_SM90_TILE + width));
    return stages < CUDA_SM90_STAGES_MAX ? stages : CUDA_SM90_STAGES_MAX;
}

/* ----------------------------------------------------------------- the fused way elsewhere ---- */

#define CUDA_SM80_THREADS 128
#define CUDA_SM80_TILE    128
/* Tokens that a warp takes of a tile, and that the vocabulary is shared out in. */
#define CUDA_SM80_SLAB 32
/* CTAs of n columns a multiprocessor at most, where its shared memory holds as many. */
#define CUDA_SM80_CTAS(n)  ((n) <= 8 ? 3 : 2)
#define CUDA_SM80_CTAS_MAX CUDA_SM80_CTAS(8)
/* Batch columns times samples of a launch at most. */
#define CUDA_SM80_STATES 128
/* Stages of the ring for n columns: what leaves room, in the 99 KiB that a CTA has on the smallest
 * of these GPUs, for CUDA_SM80_STATES columns and samples and for the masses. */
#define CUDA_SM80_STAGES(n)   ((n) <= 32 ? 4 : 3)
#define CUDA_SM80_STATE_BYTES 104 /* a column and sample */
#define CUDA_SM80_MASS_BYTES  192 /* a column */
/* Shared memory that CUDA keeps to itself, a CTA. */
#define CUDA_RESERVED_BYTES 1024

#define CUDA_SM80_WIDTHS 4
static const int cuda_sm80_widths[CUDA_SM80_WIDTHS] = {8, 16, 32, 64};

/* Whether every row of a [.., D] matrix can be copied 16 bytes at a time. */
static inline int cuda_sm80_can_copy(const gumbel_tensor *t, int64_t size)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride * size % 16 == 0;
}

/* 16-bit weights with float32 hidden states: eight columns alone, each with sixteen sums, so that
 * registers leave room for two CTAs. */
#define CUDA_SM80_MIXED_CTAS 2
static inline int cuda_sm80_is_mixed(const gumbel_problem *p)
{
    return p->weight.dtype != p->hidden.dtype;
}

/* The narrowest kernel, by its place in the table, that holds `rows` rows; the last for more. */
static inline int cuda_sm80_width_for(int64_t rows)
{
    int i = 0;
    while (i < CUDA_SM80_WIDTHS - 1 && cuda_sm80_widths[i] < rows)
        i++;
    return i;
}

/* Rows a launch takes at most. */
static inline int cuda_sm80_max_rows(int num_samples, int mixed)
{
    int i = mixed ? 0 : CUDA_SM80_WIDTHS - 1;
    while (i > 0 && cuda_sm80_widths[i] * num_samples > CUDA_SM80_STATES)
        i--;
    return cuda_sm80_widths[i];
}

/* Of a CTA of n columns. */
static inline int cuda_sm80_shared_bytes(int n, int num_samples, int with_mass, int mixed)
{
    int stage = 128 * (CUDA_SM80_TILE + (mixed ? 2 * n : n));
    return CUDA_SM80_STAGES(n) * stage + n * num_samples * CUDA_SM80_STATE_BYTES +
           (with_mass ? n * CUDA_SM80_MASS_BYTES : 0);
}

/* CTAs of n columns and so much shared memory that a multiprocessor with `available` bytes has. */
static inline int cuda_sm80_ctas(int n, int available, int shared_bytes, int mixed)
{
    int fit = available / (shared_bytes + CUDA_RESERVED_BYTES);
    int most = mixed ? CUDA_SM80_MIXED_CTAS : CUDA_SM80_CTAS(n);
    return fit < 1 ? 1 : fit < most ? fit : most;
}

/* ---------------------------------------------------------------------- the simple kernels ---- */

#define CUDA_THREADS 256
/* A warp merges a draw's summaries. */
#define CUDA_FINISH_THREADS 32
/* Batch rows that a CTA of the naive kernel takes side by side. */
#define CUDA_NAIVE_ROWS 4
/* Samples of a row that a CTA draws from logits side by side. */
#define CUDA_LOGITS_SAMPLES 32
/* Threads of a CTA that draws from logits. */
#define CUDA_LOGITS_THREADS 384
/* Tokens that a warp takes from logits at a time. */
#define CUDA_LOGITS_STEP 512
/* Tokens of logits that a CTA takes at least: fewer would leave more to merge than to draw. */
#define CUDA_LOGITS_CHUNK 3072
/* Shared memory for the draws of a CTA. */
#define CUDA_LOGITS_STATE_BYTES 8192
/* Bounds of blocks in one sample that a CTA keeps at most, four bytes each; and tokens of a row
 * that it has bounds of at once, whole steps of all its warps, where it draws so many samples. */
#define CUDA_LOGITS_BOUNDS 6144
#define CUDA_LOGITS_UNIT   (CUDA_LOGITS_THREADS / 32 * CUDA_LOGITS_STEP)
#define CUDA_LOGITS_WINDOW(samples)                                                                \
    (CUDA_LOGITS_BOUNDS / (samples)*64 / CUDA_LOGITS_UNIT * CUDA_LOGITS_UNIT)
/* CTAs a multiprocessor that keep it busy; of those from logits it holds just as many. */
#define CUDA_NAIVE_CTAS  16
#define CUDA_LOGITS_CTAS 2

/* Tokens of a row that a CTA makes noise for at a time, and CTAs a multiprocessor that do. */
#define CUDA_NOISE_SLICE 4096
#define CUDA_NOISE_CTAS  8

/* Threads of a CTA that serves a row of a request, and tokens that it edits by lists at a time. */
#define CUDA_REQUEST_THREADS 512
#define CUDA_REQUEST_TILE    4096
/* Blocks of 64 whose logits a warp asks for at once. */
#define CUDA_REQUEST_AHEAD 4
/* Shared memory for such a piece: y, counts and bits of its tokens, and a list's finds. */
#define CUDA_REQUEST_STAGE_BYTES (9 * CUDA_REQUEST_TILE + 9 * CUDA_REQUEST_THREADS)

/* Candidates that a CTA keeps; the largest top_k and num_top that it keeps them for; and CTAs a
 * multiprocessor that keep it busy, of which it holds two. */
#define CUDA_REQUEST_CANDIDATES   4096
#define CUDA_REQUEST_TOP_MAX      256
#define CUDA_REQUEST_CTAS         2
#define CUDA_REQUEST_SHARED_BYTES (8 * CUDA_REQUEST_CANDIDATES + 64 + CUDA_REQUEST_STAGE_BYTES)

/* Threads of a CTA that makes probabilities, and CTAs that a multiprocessor holds of them. */
#define CUDA_SOFTMAX_THREADS 128
#define CUDA_SOFTMAX_CTAS    8

/* CTAs of a cluster that holds a row of a request, and what each needs beside its share. */
#define CUDA_REQUEST_CLUSTER      8
#define CUDA_CLUSTER_SHARED_BYTES (33 * 1024)
/* Words of 32 tokens that the largest share has: 227 KB hold no more. */
#define CUDA_REQUEST_WORDS 1616

/* Clusters that look for rows that are left: enough to take turns if all are. Behind the product of
 * up to 64 rows three quarters of those that run at once, since there mostly none is left, and what
 * has more CTAs ends later. */
static inline int64_t cuda_fallback_clusters(int64_t batch, int multiprocessors,
                                             int has_block_maxima)
{
    int64_t most = CUDA_REQUEST_CTAS * multiprocessors;
    if (has_block_maxima && batch <= 64)
        most = most / CUDA_REQUEST_CLUSTER * 3 / 4;
    return batch < most ? batch : most < 1 ? 1 : most;
}

/* Tokens of a share, where the row has `range`. */
static inline int64_t cuda_cluster_slice(int64_t range)
{
    int64_t least = (range + CUDA_REQUEST_CLUSTER - 1) / CUDA_REQUEST_CLUSTER;
    return (least + 127) / 128 * 128;
}

/* Shared memory that a CTA of a cluster may have, of what a multiprocessor has. */
static inline int cuda_cluster_max_bytes(int shared_bytes)
{
    return shared_bytes - CUDA_RESERVED_BYTES;
}

/* Tokens of a block whose largest logit tells whether any of them can matter; blocks that a warp
 * reads side by side to find those, and blocks that a CTA looks into at most; rows of a batch from
 * which on that pays where the product does not leave the largest logits; and turns of the GPU that
 * a large batch takes, so that rows end while others are read. */
#define CUDA_REQUEST_BLOCK           128
#define CUDA_REQUEST_WARP_BLOCKS     8
#define CUDA_REQUEST_SELECTED_BLOCKS 1024
#define CUDA_REQUEST_BLOCKS_ROWS_MIN 17
#define CUDA_REQUEST_TURNS           4

/* Neighbouring tokens whose logits of a row the product stores, or leaves out, as one: 64 bytes, of
 * one warp. A block's strips are the bits of a byte, from the lowest on. */
#define CUDA_REQUEST_SUBTILE      16
#define CUDA_REQUEST_SUBTILES     (CUDA_REQUEST_BLOCK / CUDA_REQUEST_SUBTILE)
#define CUDA_REQUEST_ALL_SUBTILES ((1 << CUDA_REQUEST_SUBTILES) - 1)

/* Rows of a batch for which the product stores by bounds: fewer have little to store, and more keep
 * the tensor cores busy, behind which stores cost nothing. And tiles of each multiprocessor. */
#define CUDA_REQUEST_BOUND_ROWS_MIN  5
#define CUDA_REQUEST_BOUND_ROWS_MAX  128
#define CUDA_REQUEST_BOUND_TILES_MIN 3

static inline int cuda_bounds_are_faster(int64_t batch, int64_t tiles)
{
    return batch >= CUDA_REQUEST_BOUND_ROWS_MIN && batch <= CUDA_REQUEST_BOUND_ROWS_MAX &&
           tiles >= CUDA_REQUEST_BOUND_TILES_MIN;
}

/* Of rows that are drawn before they are cut (request_pivots.cu): tokens that a CTA holds, its
 * threads and shared memory, and CTAs that a multiprocessor holds. */
#define CUDA_REQUEST_PIVOT_SLICE   8192
#define CUDA_REQUEST_PIVOT_THREADS 256
#define CUDA_REQUEST_PIVOT_BYTES   (4 * CUDA_REQUEST_PIVOT_SLICE + 512)
#define CUDA_REQUEST_PIVOT_CTAS    6

/* CTAs that share such a row, which has `range` tokens. */
static inline int64_t cuda_request_pivot_parts(int64_t range)
{
    return (range + CUDA_REQUEST_PIVOT_SLICE - 1) / CUDA_REQUEST_PIVOT_SLICE;
}

/* Words by which a CTA of these tells the others of its row of a step; and all of a call: one of
 * each row that is given up, and those of two steps that take turns. */
#define CUDA_REQUEST_EXCHANGE_WORDS 8
static inline int64_t cuda_request_exchange_words(int64_t batch, int64_t parts)
{
    return batch * (2 * parts * CUDA_REQUEST_EXCHANGE_WORDS + 1);
}

/* The token that a row's first block begins at. */
#define CUDA_REQUEST_ORIGIN(first_token) ((first_token) / 4 * 4)

/* The token that the mask of allowed tokens begins at: no kernel looks at words before. */
#define CUDA_ALLOWED_ORIGIN(first_token) ((first_token) / 128 * 128)

/* Shared memory of a CTA that serves a row from its blocks, and the most that it may be. */
#define CUDA_REQUEST_BLOCKS_BYTES (96 * 1024)
#define CUDA_REQUEST_BLOCKS_BYTES_OF(blocks)                                                       \
    (CUDA_CLUSTER_SHARED_BYTES + 4 * (CUDA_REQUEST_SELECTED_BLOCKS + 1) + 5 * (blocks))
static inline int64_t cuda_request_blocks_bytes(int64_t blocks)
{
    return CUDA_REQUEST_BLOCKS_BYTES_OF(blocks);
}

/* Blocks of a part. */
static inline int64_t cuda_blocks_per_part(int64_t blocks, int64_t batch, int multiprocessors)
{
    int64_t step = CUDA_REQUEST_WARP_BLOCKS * CUDA_REQUEST_THREADS / 32;
    int64_t steps = (blocks + step - 1) / step;
    int64_t parts = (int64_t)multiprocessors * CUDA_REQUEST_CTAS * CUDA_REQUEST_TURNS / batch;
    parts = parts < 1 ? 1 : parts < steps ? parts : steps;
    return (steps + parts - 1) / parts * step;
}

/* Tokens of a row that a CTA starts the history of. */
#define CUDA_HISTORY_SLICE 16384

/* Shared memory of a CTA that lists the best scores of a draw (best.cu). */
#define CUDA_BEST_BYTES 16640

/* Threads that accept the drafts of a request by the coupled rule. */
#define CUDA_DRAFT_THREADS 32

/* By a rule that weighs probabilities: threads of a CTA that takes a part of a row, CTAs that a
 * multiprocessor holds of them, tokens that one takes at a time, and its shared memory beside the
 * nodes of a request. */
#define CUDA_MASS_THREADS  128
#define CUDA_MASS_CTAS     8
#define CUDA_RESIDUAL_CTAS 4 /* of those that race */
#define CUDA_MASS_UNIT     (CUDA_MASS_THREADS / 32 * CUDA_LOGITS_STEP)
#define CUDA_MASS_BYTES    6400

/* CTAs of an exchange, which all must run at once on every GPU, and threads of each; rows of which
 * some can be chosen. */
#define CUDA_EXCHANGE_CTAS     64
#define CUDA_EXCHANGE_THREADS  256
#define CUDA_EXCHANGE_ROWS_MAX 1024
/* CTAs that lay gathered rows side by side, at most, and words that one lays at a time. */
#define CUDA_SCATTER_CTAS  2048
#define CUDA_SCATTER_SLICE 4096
/* First tokens that a rank lists of a row; and in the shared memory of a CTA that serves a row from
 * its blocks, or has none, where it keeps those of all ranks, and how many bytes they take. */
#define CUDA_TOP64                  64 /* GUMBEL_RANK_LISTED */
#define CUDA_TOP64_OFFSET(blocks)   ((CUDA_REQUEST_BLOCKS_BYTES_OF(blocks) + 15) / 16 * 16)
#define CUDA_TOP64_BYTES            (12 * 1024 + 128)
#define CUDA_TOP64_BYTES_OF(blocks) (CUDA_TOP64_OFFSET(blocks) + CUDA_TOP64_BYTES)
#define CUDA_TOP64_BYTES_MAX        CUDA_REQUEST_BLOCKS_BYTES
/* Threads that put a row of outputs in its place. */
#define CUDA_SCATTER_OUTPUTS_THREADS 128

/* Threads of a CTA that draws parts by their masses. */
#define CUDA_PARTS_THREADS 128

/* Rows whose tokens a CTA stores at the end of a step. */
#define CUDA_ADVANCE_ROWS 256

/* Parts that the vocabulary is cut into so that `wanted` CTAs have work: few where there are many
 * rows. parts * B * S is then at most max(wanted * min(S, 32), B * S). */
static inline int64_t cuda_max_parts(int64_t wanted, int64_t batch, int32_t num_samples)
{
    int64_t side = num_samples < CUDA_LOGITS_SAMPLES ? num_samples : CUDA_LOGITS_SAMPLES;
    int64_t parts = wanted * side / (batch * num_samples);
    return parts > 1 ? parts : 1;
}

/* Tokens a part, a multiple of `unit`, where `range` tokens go to at most `parts` parts. */
static inline int64_t cuda_chunk(int64_t range, int64_t parts, int64_t unit)
{
    int64_t least = (range + parts - 1) / parts;
    return (least + unit - 1) / unit * unit;
}

/* Shared memory of a CTA that draws from a chunk of logits. */
static inline int cuda_logits_shared_bytes(int with_mass, int64_t chunk, int32_t num_samples)
{
    int masses = with_mass ? CUDA_LOGITS_THREADS * (int)sizeof(gumbel_summary) : 0;
    int64_t side = num_samples < CUDA_LOGITS_SAMPLES ? num_samples : CUDA_LOGITS_SAMPLES;
    int64_t window = CUDA_LOGITS_WINDOW(side);
    int64_t blocks = (chunk < window ? chunk : window) / GUMBEL_BLOCK;
    return CUDA_LOGITS_STATE_BYTES + masses + (int)(blocks * side * (int64_t)sizeof(float));
}

#endif
