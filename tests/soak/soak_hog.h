/* SPDX-License-Identifier: Apache-2.0
 *
 * Hogs: kernels that occupy multiprocessors, as the work of another program would. The tested
 * kernels run on the remaining ones, and their CTAs start at different times.
 */
#ifndef TESTS_SOAK_HOG_H
#define TESTS_SOAK_HOG_H

#include "cuda_support.h"

/* Number of hogs, which can run concurrently, each on its own stream; numbered from 0. */
enum { HOGS = 4 };

void hogs_open(void);
void hogs_close(void);

/* Multiprocessors of the GPU. */
int hogs_most(void);

/* Queues hog number `hog`, which must not be running, with `ctas` CTAs. Each CTA occupies a
 * multiprocessor for a random time of `least` to `most` seconds, or until the hog is released. If
 * `least` equals `most`, all CTAs end together. */
void hog_queue(int hog, int ctas, uint64_t seed, double least, double most);

/* Release a hog at once, or when a stream reaches this point. */
void hog_release(int hog);
void hog_release_queue(int hog, CUstream stream);

/* CTAs of a hog that have started, including those that have ended. */
int hog_begun(int hog);
/* 0 once all CTAs have ended. */
int hog_runs(int hog);

#endif
