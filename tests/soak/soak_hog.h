/* SPDX-License-Identifier: Apache-2.0
 *
 * Hogs: kernels that hold multiprocessors, as another program's work would, so that what is tested
 * runs on those that are left and its CTAs start at odd times.
 */
#ifndef TESTS_SOAK_HOG_H
#define TESTS_SOAK_HOG_H

#include "cuda_support.h"

/* Hogs that can run side by side, each on a stream of its own: 0 .. HOGS - 1. */
enum { HOGS = 4 };

void hogs_open(void);
void hogs_close(void);

/* Multiprocessors of the GPU. */
int hogs_most(void);

/* Queue an idle hog of `ctas` CTAs. Each holds a multiprocessor for a random time of least to most
 * seconds, at most until the hog is released. If least equals most, all end together. */
void hog_queue(int hog, int ctas, uint64_t seed, double least, double most);

/* Release a hog at once, or as work of a stream. */
void hog_release(int hog);
void hog_release_queue(int hog, CUstream stream);

/* CTAs that hold their multiprocessor, or did. */
int hog_begun(int hog);
/* 0 once all CTAs have ended. */
int hog_runs(int hog);

#endif
