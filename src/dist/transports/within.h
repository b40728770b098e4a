/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of other libraries' that may wait for ever, made on a thread that can be left behind.
 */
#ifndef GUMBEL_DIST_WITHIN_H
#define GUMBEL_DIST_WITHIN_H

#include <stdint.h>

typedef enum dist_ended {
    DIST_ENDED,     /* the work is done, and what it wrote can be read */
    DIST_LEFT,      /* it goes on: its argument is the thread's, which drops it in the end */
    DIST_NOT_BEGUN, /* there is no thread */
} dist_ended;

/* Run `work` on a thread that gets no signals of the program's, and wait for it `timeout_ms` at
 * most. Work that is left calls `drop` with its argument when it is done, and never touches what the
 * caller has. */
dist_ended dist_within(int64_t timeout_ms, void (*work)(void *), void (*drop)(void *),
                       void *argument);

#endif
