/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock by which transports wait no longer than they may. Whoever includes it asks for POSIX of
 * 1993 or later first.
 */
#ifndef GUMBEL_DIST_CLOCK_H
#define GUMBEL_DIST_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t ranks_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#endif
