/* SPDX-License-Identifier: Apache-2.0
 *
 * Run one function on several threads at once, for measuring and for filling large buffers.
 */
#ifndef GUMBEL_CLI_TEAM_H
#define GUMBEL_CLI_TEAM_H

#include <stdint.h>

typedef void (*team_member)(void *argument, int32_t member, int32_t size);

/* Call member(argument, i, size) for each i in [0, size), each on a thread of its own (0 on the
 * caller's), and return when all have returned. A thread that cannot be started is run in turn on
 * the caller's. Starting one takes about 20 microseconds. */
void team_run(int32_t size, team_member member, void *argument);

/* The part [begin, end) of [0, count) that member `member` of `size` works on: parts differ by at
 * most `grain` and begin at multiples of it. */
struct team_part {
    int64_t begin;
    int64_t end;
};
struct team_part team_share(int64_t count, int64_t grain, int32_t member, int32_t size);

#endif
