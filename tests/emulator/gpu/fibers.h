/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of CTAs as fibers of one CPU thread, switched in a random order that a seed
 * reproduces: wherever a kernel waits, and wherever an emulated operation yields. For random
 * periods one warp or CTA is favoured and another is delayed, as by a GPU's scheduler.
 */
#ifndef TESTS_EMULATOR_FIBERS_H
#define TESTS_EMULATOR_FIBERS_H

#include <stdint.h>

/* Threads of a CTA, CTAs that run at the same time, and barriers of a CTA. */
enum { FIBERS_THREADS = 512, FIBERS_CTAS = 16, FIBERS_BARRIERS = 16 };
enum { FIBERS_MAX = FIBERS_THREADS * FIBERS_CTAS };

/* CUDA's own names, in one dimension; fibers_run() sets only threadIdx. */
typedef struct fibers_index {
    unsigned x;
} fibers_index;
extern fibers_index threadIdx, blockIdx, gridDim;

/* CTAs that run at the same time: a cluster, or those of a cooperative launch that hold a row. */
typedef struct fibers_shape {
    int ctas, threads;      /* of a CTA: a multiple of 32 */
    void (*enter)(int cta); /* before a fiber of another CTA continues */
    void (*leave)(int cta); /* when all threads of a CTA have returned */
} fibers_shape;

/* Runs body(argument) as the threads of the CTAs until all have returned, in an order determined by
 * `seed`. One call at a time. Returns the number of deadlocked threads; unless it is 0, fibers
 * cannot run again. */
int fibers_run(const fibers_shape *shape, uint64_t seed, void (*body)(const void *),
               const void *argument);

/* By a fiber: its index. */
int fibers_self(void);

/* By a fiber: 32 random bits of the run. */
uint32_t fibers_random(void);

/* By a fiber: lets others run. */
void fibers_yield(void);

/* By a fiber: waits while the bits of *word in `mask` equal `bits`. */
void fibers_wait(const uint64_t *word, uint64_t mask, uint64_t bits);

/* By a fiber: waits until `threads` threads of its CTA, 0 for all, have arrived at barrier `id`,
 * which then starts over. */
void fibers_barrier(int id, int threads);

/* By a fiber: waits for the whole CTA at barrier 0; returns the sum of the threads' values. */
int fibers_sum(int own);

/* By a fiber: arrives at the barrier of all CTAs, and waits until all fibers have arrived. Ends the
 * program unless calls alternate. */
void fibers_arrive(void);
void fibers_await(void);

/* By all 32 fibers of a warp: returns their values, valid until the warp's next exchange. */
const uint64_t *fibers_exchange(uint64_t own);

#endif
