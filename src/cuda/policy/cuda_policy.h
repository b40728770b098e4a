/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes of launches, tiles and shared memory that host and kernels must agree on. Read by C and by
 * CUDA.
 */
#ifndef GUMBEL_CUDA_POLICY_H
#define GUMBEL_CUDA_POLICY_H

#include "core/problem.h"

/* The oldest GPUs that the portable kernels are compiled for. */
#define CUDA_CAPABILITY_MIN 75

/* ------------------------------------------------------------ the fused kernels on Hopper ---- */

#define CUDA_SM90_CAPABILITY 90
#define CUDA_SM90_THREADS    384
#define CUDA_SM90_TILE       128
/* The maximum of a CTA: one CTA runs on a multiprocessor anyway. */
#define CUDA_SM90_SHARED_BYTES (227 * 1024)
/* Batch columns times samples of one launch: a consumer thread each. */
#define CUDA_SM90_STATES     256
#define CUDA_SM90_STAGES_MAX 12

/* 64-bit words of a row and sample: its threshold (row_thresholds.cuh), a counter of CTAs
 * (cta_counter.cuh), and two for the end of a call (finish_sm90.cuh). Together a 32-byte sector, so
 * that the L2 cache serves neighbouring rows in parallel. */
#define CUDA_THRESHOLD_WORDS 4

/* Widths in batch columns that kernels are compiled for. */
#define CUDA_SM90_WIDTHS 5
static const int cuda_sm90_widths[CUDA_SM90_WIDTHS] = {8, 16, 32, 64, 128};

/* Whether TMA can read the rows of a [.., D] matrix: they are aligned to 16 bytes. */
static inline int cuda_sm90_can_copy(const gumbel_tensor *t)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride % 8 == 0;
}

/* Specialisations of the Hopper kernel: each omits the code that its case cannot reach
 * (case_sm90.cuh). */
typedef enum cuda_sm90_case {
    CUDA_SM90_PLAIN,      /* one draw a row, from the product's logits unchanged */
    CUDA_SM90_PLAIN_MASS, /* CUDA_SM90_PLAIN with masses */
    CUDA_SM90_STORED,     /* no draw: logits are stored */
    CUDA_SM90_BOTH,       /* CUDA_SM90_PLAIN, also with a bias, and logits are stored */
    CUDA_SM90_ANY,        /* any draw, or none */
    CUDA_SM90_STATISTICS, /* CUDA_SM90_PLAIN_MASS that also excludes banned tokens, and computes
                           * entropies and the two likeliest tokens */
    CUDA_SM90_CASES,
} cuda_sm90_case;

/* Whether the call requests one draw a row, and its logits need at most a bias. */
static inline int cuda_sm90_is_plain(const gumbel_problem *p)
{
    return p->soft_cap == 0.0f && p->scale >= 0.0f && p->sampling.num_samples == 1;
}

/* The case that serves a call. `stores`: logits are stored, and with `draws` also drawn from.
 * `drops`: logits are discarded. Neither: tokens are drawn. */
static inline cuda_sm90_case cuda_sm90_case_of(const gumbel_problem *p, int stores, int draws,
                                               int drops)
{
    if (stores)
        return draws ? CUDA_SM90_BOTH : CUDA_SM90_STORED;
    if (drops || p->bias.data || !cuda_sm90_is_plain(p))
        return CUDA_SM90_ANY;
    if (p->features)
        return CUDA_SM90_STATISTICS;
    return p->with_mass ? CUDA_SM90_PLAIN_MASS : CUDA_SM90_PLAIN;
}

/* Whether the kernel of n columns starts while the previous launch ends (programmatic dependent
 * launch), to prefetch weights. Wider kernels gain nothing, and lose up to 1% after a launch of
 * another library. */
#define CUDA_SM90_OVERLAPS(n) ((n) <= 64)
/* Draws up to which the launch after a fused kernel may start early. CTAs that merge more draws
 * would crowd the few multiprocessors that end first: 9 us slower at 128. */
#define CUDA_SM90_DRAWS_OVERLAPPED 64

/* Whether kernels of n columns exist that draw and store. With more columns, a separate draw from
 * the stored logits is faster. */
#define CUDA_SM90_HAS_BOTH(n) ((n) <= 64)

/* Whether the Hopper kernel writes the outputs; otherwise the next launch merges its summaries. */
#define CUDA_SM90_WRITES_OUTPUT(kind, partials)                                                    \
    (((kind) == CUDA_SM90_PLAIN || (kind) == CUDA_SM90_BOTH) && !(partials))

/* Index of the narrowest width that holds `rows` rows; the last index for more. */
static inline int cuda_sm90_width_for(int64_t rows)
{
    int i = 0;
    while (i < CUDA_SM90_WIDTHS - 1 && cuda_sm90_widths[i] < rows)
        i++;
    return i;
}

/* Rows of the widest kernel, and of a launch in which two CTAs of a cluster share a tile. */
#define CUDA_SM90_WIDEST    128
#define CUDA_SM90_PAIR_ROWS (2 * CUDA_SM90_WIDEST)

/* Maximum rows of a launch. */
static inline int cuda_sm90_max_rows(int num_samples)
{
    int i = CUDA_SM90_WIDTHS - 1;
    if (num_samples == 1)
        return CUDA_SM90_PAIR_ROWS;
    while (i > 0 && cuda_sm90_widths[i] * num_samples > CUDA_SM90_STATES)
        i--;
    return cuda_sm90_widths[i];
}

/* CTAs of a cluster. Up to 128 rows they have neighbouring tiles and multicast hidden states, which
 * are as many bytes as a tile's weights; narrower kernels gain nothing. With more rows, they are a
 * pair: they have 128 rows each of one tile, and multicast its weights. */
#define CUDA_SM90_CLUSTER(n)  ((n) == 128 ? CUDA_SM90_CLUSTER_MAX : 1)
#define CUDA_SM90_CLUSTER_MAX 2

/* Multiprocessors that compute tiles. If their number is odd, one stays idle at all widths, so that
 * the assignment of tiles to CTAs does not depend on the batch. */
static inline int cuda_sm90_processors(int multiprocessors)
{
    return multiprocessors / CUDA_SM90_CLUSTER_MAX * CUDA_SM90_CLUSTER_MAX;
}

/* CTAs of a launch: one for each of `processors` or for each tile, whichever is less, in whole
 * clusters; paired: two for each tile, if these are fewer. The last CTA may have no tile. These are
 * also the summaries of a row: paired CTAs write one for each consumer. */
static inline int cuda_sm90_ctas(int width, int tiles, int processors, int paired)
{
    const int cluster = CUDA_SM90_CLUSTER(width), wanted = paired ? cluster * tiles : tiles;
    const int ctas = wanted < processors ? wanted : processors;
    return (ctas + cluster - 1) / cluster * cluster;
}

/* Maximum blocks of GUMBEL_BLOCK tokens that a tile overlaps. */
#define CUDA_SM90_BLOCKS (CUDA_SM90_TILE / GUMBEL_BLOCK + 1)

/* Shared memory beside the ring (shared_sm90.cuh): bytes of a draw; of the barriers; of a column's
 * masses; of a column's block maxima, threshold, flags and bits where logits are stored; and of the
 * list of tokens that pass their bounds, which first holds one logit of each block. A list of more
 * than CUDA_SM90_LIST_MAX tokens would let scoring fall behind the product. */
#define CUDA_SM90_DRAW_BYTES          (48 + 4 * CUDA_SM90_BLOCKS)
#define CUDA_SM90_BARRIER_BYTES       280
#define CUDA_SM90_MASS_BYTES(n)       (CUDA_SM90_CLUSTER(n) > 1 ? 64 : 32)
#define CUDA_SM90_STORED_BYTES        200
#define CUDA_SM90_STATISTICS_BYTES(n) (52 + CUDA_SM90_MASS_BYTES(n) / 2)
#define CUDA_SM90_LIST_BYTES(draws)   ((draws) > 170 ? 4 * CUDA_SM90_BLOCKS * (draws) : 2048)
#define CUDA_SM90_LIST_MAX            1024

/* Stages of the ring of a kernel that fit. */
static inline int cuda_sm90_stages(int width, int num_samples, int with_mass, cuda_sm90_case kind)
{
    const int draws = width * num_samples;
    int beside = CUDA_SM90_BARRIER_BYTES;
    if (kind == CUDA_SM90_STORED)
        beside += CUDA_SM90_STORED_BYTES * width;
    else
        beside += CUDA_SM90_DRAW_BYTES * draws + CUDA_SM90_LIST_BYTES(draws) +
                  (with_mass ? CUDA_SM90_MASS_BYTES(width) * width : 0);
    if (kind == CUDA_SM90_STATISTICS)
        beside += CUDA_SM90_STATISTICS_BYTES(width) * width;
    int stages = (CUDA_SM90_SHARED_BYTES - beside) / (128 * (CUDA_SM90_TILE + width));
    return stages < CUDA_SM90_STAGES_MAX ? stages : CUDA_SM90_STAGES_MAX;
}

/* -------------------------------------------------------- the fused kernels on other GPUs ---- */

#define CUDA_SM80_THREADS 128
#define CUDA_SM80_TILE    128
/* Tokens of a tile that a warp computes; the vocabulary is split among CTAs in this unit. */
#define CUDA_SM80_WARP_TILE 32
/* Maximum CTAs of n columns on a multiprocessor whose shared memory suffices. */
#define CUDA_SM80_CTAS(n)  ((n) <= 8 ? 3 : 2)
#define CUDA_SM80_CTAS_MAX CUDA_SM80_CTAS(8)
/* Maximum batch columns times samples of a launch. */
#define CUDA_SM80_STATES 128
/* Stages of the ring for n columns. They leave room for CUDA_SM80_STATES states and for masses in
 * the 99 KiB of shared memory that a CTA has on the smallest of these GPUs. Only n = 32 with four
 * samples and masses exceeds it; see cuda_sm80_rows_of(). */
#define CUDA_SM80_STAGES(n)   ((n) <= 32 ? 4 : 3)
#define CUDA_SM80_STATE_BYTES 104 /* a column and sample */
#define CUDA_SM80_MASS_BYTES  192 /* a column */
/* Places of a warp for tokens that wait to be scored: as many as fit there beside 64 columns. */
#define CUDA_SM80_PASSING       24
#define CUDA_SM80_PASSING_BYTES (20 * CUDA_SM80_PASSING)
/* Shared memory that CUDA reserves in every CTA. */
#define CUDA_RESERVED_BYTES 1024
/* Dynamic shared memory that a launch can have unless its kernel was given more. */
#define CUDA_DEFAULT_SHARED_BYTES (48 * 1024)

#define CUDA_SM80_WIDTHS 4
static const int cuda_sm80_widths[CUDA_SM80_WIDTHS] = {8, 16, 32, 64};

/* Whether every row of a [.., D] matrix can be copied 16 bytes at a time. */
static inline int cuda_sm80_can_copy(const gumbel_tensor *t, int64_t size)
{
    return (uintptr_t)t->data % 16 == 0 && t->stride * size % 16 == 0;
}

/* 16-bit weights with float32 hidden states: only eight columns, with sixteen sums each, so that
 * registers suffice for two CTAs. */
#define CUDA_SM80_MIXED_CTAS 2
static inline int cuda_sm80_is_mixed(const gumbel_problem *p)
{
    return p->weight.dtype != p->hidden.dtype;
}

/* Index of the narrowest width that holds `rows` rows; the last index for more. */
static inline int cuda_sm80_width_for(int64_t rows)
{
    int i = 0;
    while (i < CUDA_SM80_WIDTHS - 1 && cuda_sm80_widths[i] < rows)
        i++;
    return i;
}

/* Maximum rows of a launch, by its states. */
static inline int cuda_sm80_max_rows(int num_samples, int mixed)
{
    int i = mixed ? 0 : CUDA_SM80_WIDTHS - 1;
    while (i > 0 && cuda_sm80_widths[i] * num_samples > CUDA_SM80_STATES)
        i--;
    return cuda_sm80_widths[i];
}

/* Dynamic shared memory of a CTA of n columns. */
static inline int cuda_sm80_shared_bytes(int n, int num_samples, int with_mass, int mixed)
{
    int stage = 128 * (CUDA_SM80_TILE + (mixed ? 2 * n : n));
    return CUDA_SM80_STAGES(n) * stage + CUDA_SM80_THREADS / 32 * CUDA_SM80_PASSING_BYTES +
           n * num_samples * CUDA_SM80_STATE_BYTES + (with_mass ? n * CUDA_SM80_MASS_BYTES : 0);
}

/* CTAs of n columns and `shared_bytes` that fit a multiprocessor with `available` bytes. */
static inline int cuda_sm80_ctas(int n, int available, int shared_bytes, int mixed)
{
    int fit = available / (shared_bytes + CUDA_RESERVED_BYTES);
    int max_ctas = mixed ? CUDA_SM80_MIXED_CTAS : CUDA_SM80_CTAS(n);
    return fit < 1 ? 1 : fit < max_ctas ? fit : max_ctas;
}

/* --------------------------------------------------------------------- the simple kernels ---- */

#define CUDA_THREADS 256
/* One warp merges the summaries of a draw. */
#define CUDA_FINISH_THREADS 32
/* Batch rows that a CTA of the naive kernel computes together. */
#define CUDA_NAIVE_ROWS 4
/* Samples of a row that a CTA draws from logits together. */
#define CUDA_LOGITS_SAMPLES 32
/* Threads of a CTA that draws from logits. */
#define CUDA_LOGITS_THREADS 384
/* Logits that a warp loads at a time. */
#define CUDA_LOGITS_STEP 512
/* Splits of a row of logits are multiples of this: with fewer tokens, the merge would take longer
 * than the draw. */
#define CUDA_LOGITS_SPLIT_UNIT 3072
/* Shared memory for the states of a CTA's draws. */
#define CUDA_LOGITS_STATE_BYTES 8192
/* Maximum block bounds of a CTA, four bytes each; and tokens of a row whose bounds it holds at once
 * while it draws `samples` samples, in whole steps of all its warps. */
#define CUDA_LOGITS_BOUNDS 6144
#define CUDA_LOGITS_UNIT   (CUDA_LOGITS_THREADS / 32 * CUDA_LOGITS_STEP)
#define CUDA_LOGITS_WINDOW(samples)                                                                \
    (CUDA_LOGITS_BOUNDS / (samples)*64 / CUDA_LOGITS_UNIT * CUDA_LOGITS_UNIT)
/* CTAs that keep a multiprocessor busy; of the logits kernel no more fit. */
#define CUDA_NAIVE_CTAS  16
#define CUDA_LOGITS_CTAS 2

/* Tokens of a row whose noise a CTA computes at a time, and CTAs on a multiprocessor. */
#define CUDA_NOISE_TILE 4096
#define CUDA_TABLE_TILE 1024 /* rows of a table of token ids */
#define CUDA_NOISE_CTAS 8

/* Threads of a CTA that transforms and truncates a row, and tokens that it edits at a time. */
#define CUDA_TRUNCATED_THREADS 512
#define CUDA_TRUNCATED_TILE    4096
/* Blocks of 64 logits that a warp loads at once. */
#define CUDA_TRUNCATED_AHEAD 4
/* Shared memory of such a tile: y, counts and bits of its tokens, and matches of a token list. */
#define CUDA_EDIT_BYTES (9 * CUDA_TRUNCATED_TILE + 9 * CUDA_TRUNCATED_THREADS)

/* Candidates that a CTA holds; the largest top_k and num_top that they suffice for; and CTAs on a
 * multiprocessor, which fits two. */
#define CUDA_TRUNCATED_CANDIDATES 4096
#define CUDA_TRUNCATED_TOP_MAX    256
#define CUDA_TRUNCATED_CTAS       2
#define CUDA_TWO_PASS_BYTES       (8 * CUDA_TRUNCATED_CANDIDATES + 64 + CUDA_EDIT_BYTES)

/* Threads of a CTA of the softmax kernels, and CTAs on a multiprocessor. */
#define CUDA_SOFTMAX_THREADS 128
#define CUDA_SOFTMAX_CTAS    8

/* CTAs of a cluster that holds a row, and shared memory of each beside its slice. */
#define CUDA_CLUSTER_CTAS         8
#define CUDA_CLUSTER_SHARED_BYTES (33 * 1024)
/* 32-token words of the largest slice that fits 227 KB. */
#define CUDA_CLUSTER_WORDS 1616

/* Clusters that poll for fallback rows: enough to take turns if all rows fall back. After the
 * product of up to 64 rows, three quarters of the clusters that run at once: usually no row falls
 * back, and a larger launch ends later. */
static inline int64_t cuda_fallback_clusters(int64_t batch, int multiprocessors,
                                             int has_block_maxima)
{
    int64_t max_clusters = CUDA_TRUNCATED_CTAS * multiprocessors;
    if (has_block_maxima && batch <= 64)
        max_clusters = max_clusters / CUDA_CLUSTER_CTAS * 3 / 4;
    return batch < max_clusters ? batch : max_clusters < 1 ? 1 : max_clusters;
}

/* Tokens of a CTA's slice of a row of `range` tokens. */
static inline int64_t cuda_cluster_slice(int64_t range)
{
    int64_t tokens = (range + CUDA_CLUSTER_CTAS - 1) / CUDA_CLUSTER_CTAS;
    return (tokens + 127) / 128 * 128;
}

/* Maximum shared memory of a CTA of a cluster on a multiprocessor with `shared_bytes`. */
static inline int cuda_cluster_max_bytes(int shared_bytes)
{
    return shared_bytes - CUDA_RESERVED_BYTES;
}

/* Tokens of a block, which is read only if its maximum is large enough; blocks that a warp reduces
 * together; maximum blocks that a CTA reads; minimum rows of a batch where the product does not
 * store block maxima; and waves of CTAs that a large batch is split into, so that some rows end
 * while others are read. */
#define CUDA_MAXIMA_BLOCK        128
#define CUDA_BLOCKS_PER_WARP     8
#define CUDA_SELECTED_BLOCKS_MAX 1024
#define CUDA_BLOCKS_ROWS_MIN     17
#define CUDA_BLOCKS_WAVES        4

/* Subtile: 16 neighbouring tokens (64 bytes of float32) whose logits of a row the product stores or
 * skips together, in one warp. A byte holds the subtiles of a block, the lowest bit first. */
#define CUDA_SUBTILE      16
#define CUDA_SUBTILES     (CUDA_MAXIMA_BLOCK / CUDA_SUBTILE)
#define CUDA_ALL_SUBTILES ((1 << CUDA_SUBTILES) - 1)

/* Rows of a batch, and tiles of a multiprocessor, for which the product stores only logits that
 * reach a bound. Fewer rows have little to store; with more rows, stores hide behind the tensor
 * cores. */
#define CUDA_BOUND_ROWS_MIN  5
#define CUDA_BOUND_ROWS_MAX  128
#define CUDA_BOUND_TILES_MIN 3

static inline int cuda_bounds_are_faster(int64_t batch, int64_t tiles)
{
    return batch >= CUDA_BOUND_ROWS_MIN && batch <= CUDA_BOUND_ROWS_MAX &&
           tiles >= CUDA_BOUND_TILES_MIN;
}

/* Rows that are drawn before they are truncated (truncated_pivots.cu, program_pivots.cu): tokens,
 * threads and shared memory of a CTA, and CTAs on a multiprocessor. */
#define CUDA_PIVOT_SPLIT   8192
#define CUDA_PIVOT_THREADS 256
#define CUDA_PIVOT_BYTES   (4 * CUDA_PIVOT_SPLIT + 512)
#define CUDA_PIVOT_CTAS    6
/* CTAs on a multiprocessor for programs, whose code takes more registers; and rows from which on
 * these CTAs are faster than a cluster a row, unless the product has drawn. */
#define CUDA_PROGRAM_PIVOT_CTAS     5
#define CUDA_PROGRAM_PIVOT_ROWS_MIN 8

/* CTAs of such a row of `range` tokens. */
static inline int64_t cuda_pivot_splits(int64_t range)
{
    return (range + CUDA_PIVOT_SPLIT - 1) / CUDA_PIVOT_SPLIT;
}

/* Words that a CTA exchanges with the other CTAs of its row in a step. A call has one abort word a
 * row, and slots for two steps (double-buffered). */
#define CUDA_PIVOT_EXCHANGE_WORDS 8
static inline int64_t cuda_pivot_exchange_words(int64_t batch, int64_t splits)
{
    return batch * (2 * splits * CUDA_PIVOT_EXCHANGE_WORDS + 1);
}

/* First token of a row's first block. */
#define CUDA_MAXIMA_ORIGIN(first_token) ((first_token) / 4 * 4)

/* First token of the mask of allowed tokens: no kernel reads words before it. */
#define CUDA_ALLOWED_ORIGIN(first_token) ((first_token) / 128 * 128)

/* Rows that allow few tokens: blocks of 64 tokens that a warp draws from at a time; tokens of a CTA
 * that draws, in whole steps of its warps; its shared memory. */
#define CUDA_ALLOWED_BLOCKS     8
#define CUDA_ALLOWED_SPLIT_UNIT (CUDA_TRUNCATED_THREADS / 32 * CUDA_ALLOWED_BLOCKS * GUMBEL_BLOCK)
#define CUDA_ALLOWED_DRAW_BYTES 7168
/* Most ids of the lists of a call that a product reads itself, eight a multiprocessor. */
#define CUDA_ALLOWED_LISTED_MAX 1056

/* Maximum shared memory of a CTA that serves a row from its blocks, and bytes for `blocks`. */
#define CUDA_BLOCKS_BYTES_MAX (96 * 1024)
#define CUDA_BLOCKS_BYTES_OF(blocks)                                                               \
    (CUDA_CLUSTER_SHARED_BYTES + 4 * (CUDA_SELECTED_BLOCKS_MAX + 1) + 5 * (blocks))
static inline int64_t cuda_blocks_bytes(int64_t blocks) { return CUDA_BLOCKS_BYTES_OF(blocks); }

/* Blocks of a split of a row. */
static inline int64_t cuda_blocks_per_split(int64_t blocks, int64_t batch, int multiprocessors)
{
    int64_t step = CUDA_BLOCKS_PER_WARP * CUDA_TRUNCATED_THREADS / 32;
    int64_t steps = (blocks + step - 1) / step;
    int64_t splits = (int64_t)multiprocessors * CUDA_TRUNCATED_CTAS * CUDA_BLOCKS_WAVES / batch;
    splits = splits < 1 ? 1 : splits < steps ? splits : steps;
    return (steps + splits - 1) / splits * step;
}

/* Tokens of a row whose history a CTA initialises. */
#define CUDA_HISTORY_TILE 16384

/* Threads of a CTA that makes a row's lists, and its shared memory: a table with `places` places,
 * and the ids of a list. */
#define CUDA_LISTS_THREADS                 512
#define CUDA_LISTS_FIRST_IDS               256 /* of a row's breakers, in shared memory */
#define CUDA_LISTS_STATE_BYTES             (32 + 4 * CUDA_LISTS_FIRST_IDS)
#define CUDA_LISTS_BYTES(places, capacity) (CUDA_LISTS_STATE_BYTES + 8 * ((places) + (capacity)))
#define CUDA_LISTS_BYTES_MAX               CUDA_LISTS_BYTES(2 * GUMBEL_LIST_MAX, GUMBEL_LIST_MAX)

/* Threads and shared memory of a CTA that computes the entropy of a row. */
#define CUDA_ENTROPY_THREADS 512
#define CUDA_ENTROPY_BYTES   896

/* Shared memory of a CTA that finds the best scores of a draw (best.cu). */
#define CUDA_BEST_BYTES 16640

/* Threads that accept drafts of a request by the coupled rule. */
#define CUDA_DRAFT_THREADS 32

/* A CTA a draw (watermark.cu). */
#define CUDA_WATERMARK_THREADS 256

/* Rules that compare probabilities: threads of a CTA that sums a split of a row, such CTAs on a
 * multiprocessor, tokens that one loads at a time, and its shared memory beside a request's nodes.
 */
#define CUDA_MASS_THREADS  128
#define CUDA_MASS_CTAS     8
#define CUDA_RESIDUAL_CTAS 4 /* CTAs of the residual argmax */
#define CUDA_MASS_UNIT     (CUDA_MASS_THREADS / 32 * CUDA_LOGITS_STEP)
#define CUDA_MASS_BYTES    6400

/* CTAs of an exchange, which all must run at once on every GPU; threads of each; and maximum rows
 * where a subset is exchanged. */
#define CUDA_EXCHANGE_CTAS     64
#define CUDA_EXCHANGE_THREADS  256
#define CUDA_EXCHANGE_ROWS_MAX 1024
/* Maximum CTAs that scatter gathered rows, and words that one scatters at a time. */
#define CUDA_SCATTER_CTAS 2048
#define CUDA_SCATTER_TILE 4096
/* Local candidates that a rank reports of a row. A CTA holds the candidates of all ranks in shared
 * memory behind its blocks: their offset and bytes. */
#define CUDA_TOP64                  64 /* GUMBEL_RANK_TOP */
#define CUDA_TOP64_OFFSET(blocks)   ((CUDA_BLOCKS_BYTES_OF(blocks) + 15) / 16 * 16)
#define CUDA_TOP64_BYTES            (12 * 1024 + 128)
#define CUDA_TOP64_BYTES_OF(blocks) (CUDA_TOP64_OFFSET(blocks) + CUDA_TOP64_BYTES)
#define CUDA_TOP64_BYTES_MAX        CUDA_BLOCKS_BYTES_MAX
/* Threads that scatter a row of outputs. */
#define CUDA_SCATTER_OUTPUTS_THREADS 128

/* Threads of a CTA that draws among parts of a vocabulary by their masses (group_tokens.cu). */
#define CUDA_PARTS_THREADS 128

/* Rows whose tokens a CTA stores at the end of a step. */
#define CUDA_ADVANCE_ROWS 256

/* Maximum splits of a row, so that about `wanted` CTAs have work; many rows need few splits. splits
 * * B * S <= max(wanted * min(S, 32), B * S). */
static inline int64_t cuda_max_splits(int64_t wanted, int64_t batch, int32_t num_samples)
{
    int64_t side = num_samples < CUDA_LOGITS_SAMPLES ? num_samples : CUDA_LOGITS_SAMPLES;
    int64_t splits = wanted * side / (batch * num_samples);
    return splits > 1 ? splits : 1;
}

/* Tokens of a split, a multiple of `unit`, if `range` tokens are divided into at most `splits`. */
static inline int64_t cuda_split_size(int64_t range, int64_t splits, int64_t unit)
{
    int64_t tokens = (range + splits - 1) / splits;
    return (tokens + unit - 1) / unit * unit;
}

/* Shared memory of a CTA that draws from a split of logits. */
static inline int cuda_logits_shared_bytes(int with_mass, int64_t split_size, int32_t num_samples)
{
    int masses = with_mass ? CUDA_LOGITS_THREADS * (int)sizeof(gumbel_summary) : 0;
    int64_t side = num_samples < CUDA_LOGITS_SAMPLES ? num_samples : CUDA_LOGITS_SAMPLES;
    int64_t window = CUDA_LOGITS_WINDOW(side);
    int64_t blocks = (split_size < window ? split_size : window) / GUMBEL_BLOCK;
    return CUDA_LOGITS_STATE_BYTES + masses + (int)(blocks * side * (int64_t)sizeof(float));
}

#endif
