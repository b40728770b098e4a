/* SPDX-License-Identifier: Apache-2.0
 *
 * Every choice of size that the CPU backend makes; kernels and driver only receive the numbers.
 */
#ifndef GUMBEL_CPU_POLICY_H
#define GUMBEL_CPU_POLICY_H

#include "core/problem.h"

#define CPU_THREADS_MOST 1024
#define CPU_TILE_MOST    4096

/* Vocabulary rows a tile of the fused way in: one draw block. Its lanes of a panel of 8 fill 32 KiB
 * and stay in the second-level cache; a row of weights is long, so a claim is 64 KiB or more. */
#define CPU_FUSED_TILE 192

/* Tokens a tile from logits: 16 KiB of float32, which stay in the first-level cache. */
#define CPU_LOGITS_TILE 4096

/* How far ahead, in bytes, a sweep over logits fetches them. */
#define CPU_DRAW_AHEAD 8192

/* Tokens of noise that a thread makes at a time, a multiple of GUMBEL_BLOCK: about 20 us. */
#define CPU_NOISE_PIECE 16384

/* Blocks of a whole row that a claim draws. */
#define CPU_DRAW_BLOCKS 64

/* Bins a step of a descent: 16 KiB of sums, which stay in the first-level cache. */
#define CPU_BIN_BITS 10
#define CPU_BINS     (1 << CPU_BIN_BITS)

/* Blocks whose largest values tell how low a search for top_k begins: 40 of 151,936 tokens are then
 * found in 24 us, the whole call, instead of 27. */
#define CPU_PEAKS_SAMPLED 64

/* A bound for top_p is guessed from every 16th block where this many tokens are left, which takes
 * about as long as summing a tenth of them into bins. */
#define CPU_SAMPLE_STEP   16
#define CPU_SAMPLE_TOKENS 8192

/* Panels that a pass over weights serves, so that memory has their arithmetic's time to answer. */
#define PRODUCT_GROUP 2
/* Weight rows a block: a multiple of every micro-kernel's rows. More would fetch the next pass's
 * weights too far ahead, and crowd the first-level cache. */
#define PRODUCT_BLOCK 12
/* Rows of scratch a block takes: a vector of dot products is summed at a time. */
#define PRODUCT_ROOM 16

/* Batches up to here are bound by memory alone. */
#define STREAMED_BATCH 4
/* How far before its use a stream is fetched: the processor's own prefetching starts anew at each
 * page and leaves a sixth of the bandwidth idle; 3 KiB of each stream keep memory busy. */
#define STREAM_AHEAD 3072
/* Chunks a pass. A stream is left as seldom as the first-level cache allows: its hidden states fill
 * 32 KiB of it. Otherwise 8 chunks of two panels take 16 KiB, beside the weights of this pass and
 * the next; longer passes fetch too far ahead. */
#define STREAM_CHUNKS(batch) (256 / (batch))
#define PASS_CHUNKS          8

/* Below this many multiply-adds (fused), tokens (logits) or pieces of noise one thread is done
 * before a second one has woken up. */
#define CPU_PARALLEL_PRODUCTS INT64_C(1000000)
#define CPU_PARALLEL_TOKENS   INT64_C(50000)
#define CPU_PARALLEL_PIECES   2
/* The same for rows whose lists are sorted into bits: some us each. */
#define CPU_PARALLEL_LISTS 4

/* Draws of a call by a screen: lists of candidates take 3 KiB each and thread. */
#define CPU_SCREEN_DRAWS_MOST 64
/* A row whose candidates are this share of the vocabulary takes the full pass: one by one they are
 * read at some GB/s. */
#define CPU_SCREEN_SCORED_SHARE 64
/* The same for what decides a row's truncation, which one thread reads, and how many are read of a
 * small vocabulary; how many are read before passes over the row look again, twice as many each
 * time, and of the largest for the largest; how often a draw begins anew. */
#define CPU_SCREEN_CUT_SHARE 8
#define CPU_SCREEN_CUT_LEAST 256
#define CPU_SCREEN_CHUNK     32
#define CPU_SCREEN_LARGEST   8
#define CPU_SCREEN_TRIES     32

/* Biases a block of 64 tokens, on average, that a row is sorted for: 9496 of V = 151936. */
#define CPU_BIASES 4

static inline int cpu_worth_threads(const gumbel_problem *p)
{
    int64_t tokens = p->batch > INT64_MAX / p->vocab ? INT64_MAX : p->batch * p->vocab;
    if (p->hidden_size == 0)
        return tokens >= CPU_PARALLEL_TOKENS / p->sampling.num_samples;
    return tokens >= CPU_PARALLEL_PRODUCTS / p->hidden_size;
}

#endif
