/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that make no call, or are late: the others return an error within the time-out, and two
 * groups of the same ranks draw at the same time.
 */
#define _POSIX_C_SOURCE 200809L
#include "rank_calls.h"
#include "thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* If a rank makes no call, the others return an error within the time-out, also at later calls. */
static void absent_rank_is_an_error_in_time(void **state)
{
    enum { TIMEOUT = 200 };
    rank_calls s;
    (void)state;
    rank_calls_open(&s, TIMEOUT);
    rank_calls_assert_equal(&s);
    s.absent = 1;
    for (int call = 0; call < 2; call++) {
        int64_t start = now_ms();
        thread_ranks_run(CALLS_RANKS, rank_calls_draw, &s);
        assert_true(now_ms() - start < 50 * TIMEOUT);
        assert_true(call == 0 || now_ms() - start < TIMEOUT);
        for (int r = 0; r < CALLS_RANKS; r++)
            if (r != CALLS_DEVIATING) {
                assert_int_equal(s.status[r], GUMBEL_ERROR_GROUP);
                assert_string_equal(s.error[r].field, "group");
            }
    }
    rank_calls_close(&s);
}

/* Two groups of the same ranks, whose calls alternate on each rank; some ranks are late. */
typedef struct pair {
    rank_calls *groups[2];
    int turns;
} pair;

static void draw_in_turns(void *argument, int32_t r)
{
    pair *p = argument;
    const struct timespec late = {0, 1000000 * (CALLS_RANKS - r)};
    for (int turn = 0; turn < p->turns; turn++) {
        if (turn % CALLS_RANKS == r)
            nanosleep(&late, NULL);
        rank_calls_draw(p->groups[turn % 2], r);
        if (p->groups[turn % 2]->status[r] != GUMBEL_OK)
            return;
    }
}

/* Runs one group of the pair on threads of its own, so that both run at once. */
static void draw_both(void *argument, int32_t which)
{
    pair *p = argument;
    for (int turn = 0; turn < p->turns; turn++)
        thread_ranks_run(CALLS_RANKS, rank_calls_draw, p->groups[which]);
}

static void two_groups_draw_concurrently(void **state)
{
    rank_calls one, other;
    int32_t expected[CALLS_BATCH];
    (void)state;
    rank_calls_open(&one, 20000);
    rank_calls_open(&other, 20000);
    rank_calls_assert_equal(&one);
    memcpy(expected, one.tokens[0], sizeof expected);
    pair p = {.groups = {&one, &other}, .turns = 20};
    for (int way = 0; way < 2; way++) {
        for (int r = 0; r < CALLS_RANKS; r++) {
            memset(one.tokens[r], 0x5A, sizeof expected);
            memset(other.tokens[r], 0x5A, sizeof expected);
        }
        thread_ranks_run(way == 0 ? CALLS_RANKS : 2, way == 0 ? draw_in_turns : draw_both, &p);
        for (int r = 0; r < CALLS_RANKS; r++) {
            assert_int_equal(one.status[r], GUMBEL_OK);
            assert_int_equal(other.status[r], GUMBEL_OK);
            assert_memory_equal(one.tokens[r], expected, sizeof expected);
            assert_memory_equal(other.tokens[r], expected, sizeof expected);
        }
    }
    rank_calls_close(&one);
    rank_calls_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_rank_is_an_error_in_time),
        cmocka_unit_test(two_groups_draw_concurrently),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
