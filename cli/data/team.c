/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "team.h"

#include <pthread.h>
#include <stdbool.h>

enum { MOST_MEMBERS = 1024 };

struct seat {
    team_member member;
    void *argument;
    int32_t index;
    int32_t size;
};

static void *sit(void *argument)
{
    const struct seat *seat = argument;

    seat->member(seat->argument, seat->index, seat->size);
    return NULL;
}

void team_run(int32_t size, team_member member, void *argument)
{
    static _Thread_local struct seat seats[MOST_MEMBERS];
    static _Thread_local pthread_t threads[MOST_MEMBERS];
    static _Thread_local bool started[MOST_MEMBERS];

    size = size < 1 ? 1 : size > MOST_MEMBERS ? MOST_MEMBERS : size;
    for (int32_t i = 1; i < size; i++) {
        seats[i] = (struct seat){member, argument, i, size};
        started[i] = pthread_create(&threads[i], NULL, sit, &seats[i]) == 0;
    }
    member(argument, 0, size);
    for (int32_t i = 1; i < size; i++) {
        if (started[i]) {
            pthread_join(threads[i], NULL);
        } else {
            sit(&seats[i]);
        }
    }
}

struct team_part team_share(int64_t count, int64_t grain, int32_t member, int32_t size)
{
    const int64_t grains = count / grain + (count % grain != 0);
    const int64_t each = grains / size;
    const int64_t extra = grains % size;
    const int64_t first = each * member + (member < extra ? member : extra);
    const int64_t last = first + each + (member < extra);

    return (struct team_part){
        .begin = first * grain < count ? first * grain : count,
        .end = last * grain < count ? last * grain : count,
    };
}
