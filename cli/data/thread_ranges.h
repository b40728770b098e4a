/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a function on several threads, to measure and to fill large buffers.
 */
#ifndef GUMBEL_CLI_THREAD_RANGES_H
#define GUMBEL_CLI_THREAD_RANGES_H

#include <stdint.h>

typedef void (*thread_function)(void *argument, int32_t index, int32_t threads);

/* Calls function(argument, i, threads) for each i in [0, threads), each on its own thread (0 on the
 * caller's), and returns when all have returned. If a thread cannot be started, the caller runs its
 * call. Starting a thread takes about 20 microseconds. */
void run_on_threads(int32_t threads, thread_function function, void *argument);

/* The range [begin, end) of [0, count) for thread `index` of `threads`: ranges begin at multiples
 * of `grain`, and their lengths differ by at most `grain`. */
struct item_range {
    int64_t begin;
    int64_t end;
};
struct item_range find_thread_range(int64_t count, int64_t grain, int32_t index, int32_t threads);

#endif
