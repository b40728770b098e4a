/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of CTAs as fibers of one CPU thread, switched in a random order that a seed repeats:
 * wherever a kernel waits, and wherever the stand-ins yield. Warps and CTAs drift apart: for a
 * while one of them is favoured and another one neglected, as a GPU's scheduler may.
 */
#ifndef TESTS_EMULATOR_FIBERS_H
#define TESTS_EMULATOR_FIBERS_H

#include <stdint.h>

/* Threads of a CTA, CTAs that run side by side, and barriers of a CTA. */
enum { FIBERS_THREADS = 512, FIBERS_CTAS = 8, FIBERS_BARRIERS = 16 };
enum { FIBERS_MOST = FIBERS_THREADS * FIBERS_CTAS };

/* CUDA's own names, of the one dimension that is used: fibers_run() sets threadIdx alone. */
typedef struct fibers_index {
    unsigned x;
} fibers_index;
extern fibers_index threadIdx, blockIdx, gridDim;

/* CTAs that run side by side: a cluster. */
typedef struct fibers_shape {
    int ctas, threads;      /* of a CTA: a multiple of 32 */
    void (*enter)(int cta); /* before a fiber of another CTA than the last one goes on */
    void (*leave)(int cta); /* when all of a CTA have returned */
} fibers_shape;

/* Run body(argument) as the threads of some CTAs until all have returned. The order is a function
 * of `seed`. One call at a time. Returns how many threads wait for ever, normally 0; after another
 * number fibers cannot run again. */
int fibers_run(const fibers_shape *shape, uint64_t seed, void (*body)(const void *),
               const void *argument);

/* By a fiber: which one of all it is. */
int fibers_self(void);

/* By a fiber: 32 random bits of the run. */
uint32_t fibers_random(void);

/* By a fiber: let others run. */
void fibers_yield(void);

/* By a fiber: wait for as long as the bits of *word in `mask` are `bits`. */
void fibers_wait(const uint64_t *word, uint64_t mask, uint64_t bits);

/* By a fiber: wait until `threads` of its CTA, 0 for all of them, have come to barrier `id`, which
 * is then as new. */
void fibers_barrier(int id, int threads);

/* By a fiber: wait for all of the CTA at barrier 0; the sum of what each of them gives. */
int fibers_sum(int own);

/* By a fiber: come to the barrier of all CTAs, and later wait until all fibers have come. Ends the
 * program where these do not take turns. */
void fibers_arrive(void);
void fibers_await(void);

/* By all 32 fibers of a warp: what each of them gives, valid until the warp's next exchange. */
const uint64_t *fibers_exchange(uint64_t own);

#endif
