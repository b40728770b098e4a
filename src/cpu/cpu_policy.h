/* SPDX-License-Identifier: Apache-2.0
 *
 * All tuning constants of the CPU backend. A claim is the work that a thread takes at a time.
 */
#ifndef GUMBEL_CPU_POLICY_H
#define GUMBEL_CPU_POLICY_H

#include "core/problem.h"

#define CPU_THREADS_MAX 1024
#define CPU_TILE_MAX    4096

/* Vocabulary rows of a tile from hidden states. The lanes of a panel of 8 fill 32 KiB and stay in
 * the second-level cache; a weight row is long, so one claim reads 64 KiB or more. */
#define CPU_FUSED_TILE 192

/* Tokens of a tile from logits: 16 KiB of float32, which stay in the first-level cache. */
#define CPU_LOGITS_TILE 4096

/* Prefetch distance of a sweep over logits, in bytes. */
#define CPU_DRAW_AHEAD 8192

/* Tokens of noise of one claim, a multiple of GUMBEL_BLOCK: about 20 us. */
#define CPU_NOISE_TILE 16384

/* Ids of a table whose noise is one claim: about 10 us if the table is sorted. */
#define CPU_TABLE_TILE 1024
/* The fewest ids of a block for which the noise of the whole block is computed. With vectors it
 * takes about 140 ns, as a single token does without. */
#define CPU_TABLE_RUN 2

/* Blocks of a whole row that one claim draws: bits of a word. */
#define CPU_DRAW_BLOCKS 64

/* Bins of a histogram: 16 KiB of sums, which stay in the first-level cache. */
#define CPU_BIN_BITS 10
#define CPU_BINS     (1 << CPU_BIN_BITS)

/* Number of block maxima that are sampled to guess a threshold for top_k if CPU_GROUPS are too few.
 */
#define CPU_MAXIMA_SAMPLED 64

/* The largest values of a row are copied for further selections if they fit. A call with top_k = 40
 * and top_p then takes 21 us instead of 25. */
#define CPU_COLLECTED 512

/* Groups of blocks whose maxima give a threshold for top_k, at most a fifth of their number; fewer
 * with less than twice as many blocks. With these, and with selections by sorting, a call with k =
 * 40, p = .95, min_p = .05 and 151,936 tokens takes 23 us instead of 29. */
#define CPU_GROUPS 512

/* Up to this many values are sorted for a selection; more are counted in a histogram. */
#define CPU_FEW 96

/* With this many tokens or more, a threshold for top_p is guessed from every 16th block. The sample
 * costs about as much as a histogram of a tenth of the tokens. */
#define CPU_SAMPLE_STEP   16
#define CPU_SAMPLE_TOKENS 8192

/* Panels that one pass over the weights serves, so that their arithmetic hides memory latency. */
#define PRODUCT_GROUP 2
/* Weight rows of a block: a multiple of every micro-kernel's rows. More rows would prefetch the
 * next pass's weights too early, and evict them from the first-level cache. */
#define PRODUCT_BLOCK 12
/* Scratch rows of a block: sixteen dot products are summed at a time. */
#define PRODUCT_ROOM 16

/* Batches up to this size are bound by memory alone. */
#define STREAMED_BATCH 4
/* Prefetch distance of a weight stream. The hardware prefetcher restarts at each page, which costs
 * a sixth of the bandwidth; 3 KiB of each stream keep memory busy. */
#define STREAM_AHEAD 3072
/* Chunks of a pass. Streamed passes are as long as the first-level cache allows: their hidden
 * states fill 32 KiB. In other passes 8 k-tiles of two panels take 16 KiB, beside the weights of
 * this pass and the next; longer passes would prefetch too early. */
#define STREAM_K_TILES(batch) (256 / (batch))
#define PASS_K_TILES          8

/* Smallest work for which more than one thread is used; less is done before a second thread wakes
 * up. Units: multiply-adds (fused), tokens (logits), tiles of noise, rows whose token lists are
 * sorted. */
#define CPU_PARALLEL_PRODUCTS INT64_C(1000000)
#define CPU_PARALLEL_TOKENS   INT64_C(50000)
#define CPU_PARALLEL_TILES    2
#define CPU_PARALLEL_LISTS    4

/* Lengths of matches that DRY keeps on the stack; a longer match is compared token by token. */
#define CPU_DRY_LENGTHS 4096

/* Maximum draws of a call that uses a screen: a candidate list takes 3 KiB per draw and thread. */
#define CPU_SCREEN_DRAWS_MAX 64
/* A row becomes a fallback row once 1/64 of its vocabulary has been scored, because weights of
 * scattered candidates are read at a few GB/s only. */
#define CPU_SCREEN_SCORED_FRACTION 64
/* Truncation of a row by a screen, on one thread. At most 256 tokens plus 1/8 of the vocabulary are
 * scored. After the first pass over the row 32 tokens are scored, or 8 in the search for the
 * largest value; after each further pass twice as many. A draw restarts at most 32 times. */
#define CPU_SCREEN_TRUNCATION_FRACTION 8
#define CPU_SCREEN_TRUNCATION_MIN      256
#define CPU_SCREEN_CHUNK               32
#define CPU_SCREEN_LARGEST             8
#define CPU_SCREEN_TRIES               32

/* A call reads the high nibbles of a screen first if it has at most this many draws, or from 512
 * columns on at most D / 32 draws. Beside reading both halves this takes .46 to .63 of the time at
 * D = 4096 and 1 to 32 draws, .87 at D = 576 and 16 draws, and 1.12 at D = 256 and 8 draws. */
#define CPU_SCREEN_COARSE_DRAWS    2
#define CPU_SCREEN_COARSE_COLUMNS  512
#define CPU_SCREEN_COARSE_FRACTION 32
/* Coarse lists of calls with at most 16 draws are four times as long. At D = 4096 and T = 0.8 some
 * 1,000 coarse bounds of a Gaussian row reach the winning score. */
#define CPU_SCREEN_LONG_LISTS      4
#define CPU_SCREEN_LONG_LIST_DRAWS 16
/* A thread bounds tokens by both halves after it has refined 512 coarse bounds a draw and one for
 * every 8 tokens. */
#define CPU_SCREEN_REFINED_MIN      512
#define CPU_SCREEN_REFINED_FRACTION 8

/* If all rows together read at most this fraction of a tile's logits, only their weights are
 * multiplied. Runs of one token are multiplied at a third of the usual rate: 21% of the tokens of a
 * head, at random, take .69 of the time of all at 1 row, .36 at 8 and .51 at 64 (D = 1024). */
#define CPU_SPARSE_FRACTION 4

/* Maximum biases of a row that are sorted, per block of 64 tokens: 9496 in all for V = 151,936. */
#define CPU_BIASES 4

static inline int cpu_is_worth_threads(const gumbel_problem *p)
{
    int64_t tokens = p->batch > INT64_MAX / p->vocab ? INT64_MAX : p->batch * p->vocab;
    if (p->hidden_size == 0)
        return tokens >= CPU_PARALLEL_TOKENS / p->sampling.num_samples;
    return tokens >= CPU_PARALLEL_PRODUCTS / p->hidden_size;
}

#endif
