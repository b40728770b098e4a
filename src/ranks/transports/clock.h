/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock of time-outs. A file that includes it defines _POSIX_C_SOURCE as 199309L or later.
 */
#ifndef GUMBEL_RANKS_CLOCK_H
#define GUMBEL_RANKS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t ranks_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#endif
