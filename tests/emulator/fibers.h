/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of a CTA as fibers of one CPU thread, switched in a random order that a seed repeats:
 * wherever a kernel waits, and wherever the stand-ins yield. Warps drift apart: for a while one of
 * them is favoured and another one neglected, as a GPU's scheduler may.
 */
#ifndef TESTS_EMULATOR_FIBERS_H
#define TESTS_EMULATOR_FIBERS_H

#include <stdint.h>

enum { FIBERS_MOST = 512, FIBERS_BARRIERS = 16 };

/* CUDA's own names, of the one dimension that is used: fibers_run() sets threadIdx alone. */
typedef struct fibers_index {
    unsigned x;
} fibers_index;
extern fibers_index threadIdx, blockIdx, gridDim;

/* Run body(argument) as `threads` threads, a multiple of 32 up to FIBERS_MOST, until all have
 * returned. The order is a function of `seed`. One call at a time. Returns how many threads wait
 * for ever, normally 0; after another number fibers cannot run again. */
int fibers_run(int threads, uint64_t seed, void (*body)(const void *), const void *argument);

/* By a fiber: let others run. */
void fibers_yield(void);

/* By a fiber: wait for as long as the bits of *word in `mask` are `bits`. */
void fibers_wait(const uint64_t *word, uint64_t mask, uint64_t bits);

/* By a fiber: wait until `threads` of them, 0 for all of the CTA, have come to barrier `id`, which
 * is then as new. */
void fibers_barrier(int id, int threads);

/* By a fiber: wait for all of the CTA at barrier 0; the sum of what each of them gives. */
int fibers_sum(int own);

/* By all 32 fibers of a warp: what each of them gives, valid until the warp's next exchange. */
const uint64_t *fibers_exchange(uint64_t own);

#endif
