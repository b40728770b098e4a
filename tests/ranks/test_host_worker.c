/* SPDX-License-Identifier: Apache-2.0
 *
 * Host collectives, without a GPU. The worker of a rank serves many requested gathers. A failure is
 * an error on all ranks, with the transport's reason, and ends the workers; if one rank cannot run
 * a worker, no rank runs one. Calls that time out are abandoned, and free their argument later.
 */
#define _POSIX_C_SOURCE 200809L
#include "ranks/group.h"
#include "ranks/transports/clock.h"
#include "ranks/transports/timed_call.h"
#include "inputs.h"
#include "thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { WORDS = 1000, TURNS = 50 };

#define REFUSAL "the link is down"

typedef struct rank_member {
    gumbel_transport called, beside;
    int refuses;
} rank_member;

typedef struct shared_collectives {
    int32_t ranks;
    int32_t refuses; /* the rank whose last gather fails; -1: none */
    int32_t cannot;  /* the rank that cannot run a worker; -1: none */
    thread_ranks *called, *beside;
    _Atomic int wrong;
} shared_collectives;

static int all_gather(void *context, void *stream, const void *send, void *receive, size_t bytes,
                      int64_t timeout_ms, char *why)
{
    const gumbel_transport *t = &((rank_member *)context)->called;
    return t->all_gather(t->context, stream, send, receive, bytes, timeout_ms, why);
}

static int gather_blocking(void *context, void *stream, const void *send, void *receive,
                           size_t bytes, int64_t timeout_ms, char *why)
{
    const rank_member *m = context;
    const gumbel_transport *t = &m->beside;
    if (__atomic_load_n(&m->refuses, __ATOMIC_ACQUIRE)) {
        snprintf(why, GUMBEL_WHY_BYTES, "%s", REFUSAL);
        return 1;
    }
    return t->all_gather(t->context, stream, send, receive, bytes, timeout_ms, why);
}

static gumbel_status create_collective(gumbel_device *device, gumbel_host_collective **here,
                                       gumbel_host_collective **there, gumbel_error *error)
{
    (void)device, (void)error;
    *here = *there = make_zeroed(1, sizeof **here);
    return GUMBEL_OK;
}

static void free_collective(gumbel_device *device, gumbel_host_collective *here)
{
    (void)device;
    free(here);
}

/* Requests a gather as a GPU does; 0 on success. */
static int request_gather(gumbel_host_collective *e, const void *send, void *receive, size_t bytes)
{
    const struct timespec pause = {0, 10000};
    uint64_t number = e->requested + 1;
    e->send = (uint64_t)(uintptr_t)send;
    e->receive = (uint64_t)(uintptr_t)receive;
    e->bytes = bytes;
    __atomic_store_n(&e->requested, number, __ATOMIC_RELEASE);
    while (__atomic_load_n(&e->done, __ATOMIC_ACQUIRE) != number) {
        if (__atomic_load_n(&e->failed, __ATOMIC_ACQUIRE))
            return 1;
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Requests TURNS gathers of increasing size; returns how many words are wrong. */
static int request_repeatedly(gumbel_group *group, const shared_collectives *c, int32_t rank)
{
    uint32_t *own = make_zeroed(WORDS, sizeof *own), *all = make_zeroed(WORDS, 4 * sizeof *all);
    int wrong = 0;
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        const uint32_t words = turn * (WORDS / TURNS);
        for (uint32_t i = 0; i < words; i++)
            own[i] = turn << 20 | (uint32_t)rank << 16 | i;
        wrong += request_gather(group->worker.device, own, all, words * sizeof *own) != 0;
        for (uint32_t r = 0; r < (uint32_t)c->ranks; r++)
            for (uint32_t i = 0; i < words; i++)
                wrong += all[r * words + i] != (turn << 20 | r << 16 | i);
    }
    free(own);
    free(all);
    return wrong;
}

/* Requests a gather that fails on one rank at once, and on the others by their time limit. */
static int request_refused_gather(gumbel_group *group, rank_member *member, int refuses)
{
    uint32_t word = 0, all[4];
    gumbel_error error = {"", ""};
    group->timeout_ms = 300;
    __atomic_store_n(&member->refuses, refuses, __ATOMIC_RELEASE);
    int wrong = request_gather(group->worker.device, &word, all, sizeof word) == 0;
    wrong += ranks_check_host_worker(group, &error) != GUMBEL_ERROR_GROUP || !group->broken;
    /* The first rank whose limit passes ends the exchange of the others. */
    const char *reason = refuses ? "failed: " REFUSAL : "a thread did not call";
    wrong += !strstr(error.message, reason);
    return wrong;
}

static void run_rank(void *argument, int32_t rank)
{
    shared_collectives *c = argument;
    static const gumbel_rank_calls calls = {.create_host_collective = create_collective,
                                            .free_host_collective = free_collective};
    static const gumbel_backend backend = {.ranks = &calls};
    gumbel_device device = {.backend = &backend};
    rank_member member = {.called = thread_ranks_transport(c->called, rank),
                          .beside = thread_ranks_transport(c->beside, rank)};
    uint64_t frames[4];
    gumbel_error error = {"", ""};
    gumbel_group group = {.device = &device, .timeout_ms = 20000};
    group.frames = (unsigned char *)frames;
    group.transport = member.called;
    group.transport.all_gather = all_gather;
    group.transport.context = &member;
    group.transport.blocking_all_gather = rank == c->cannot ? NULL : gather_blocking;
    int wrong = ranks_start_host_worker(&group, &error) != GUMBEL_OK;
    wrong += group.worker.has_thread != (c->cannot < 0);
    if (!wrong && c->cannot < 0) {
        wrong += request_repeatedly(&group, c, rank);
        wrong += ranks_check_host_worker(&group, &error) != GUMBEL_OK;
    }
    if (!wrong && c->refuses >= 0)
        wrong += request_refused_gather(&group, &member, rank == c->refuses);
    ranks_stop_host_worker(&group);
    c->wrong += wrong;
}

static void run_ranks(int32_t ranks, int32_t refuses, int32_t cannot)
{
    shared_collectives c = {.ranks = ranks,
                            .refuses = refuses,
                            .cannot = cannot,
                            .called = thread_ranks_make(ranks),
                            .beside = thread_ranks_make(ranks)};
    thread_ranks_run(ranks, run_rank, &c);
    thread_ranks_free(c.called);
    thread_ranks_free(c.beside);
    assert_int_equal(c.wrong, 0);
}

static void gathered_words_arrive(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks++)
        run_ranks(ranks, -1, -1);
}

static void failures_reach_all_ranks(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks++)
        run_ranks(ranks, ranks - 1, -1);
}

/* Returns the message for a request that the GPU or the worker has marked as failed. */
static gumbel_error message_of_failure(int by_worker, int64_t elapsed_ms, const char *why)
{
    gumbel_host_collective request = {.failed = 1};
    gumbel_group group = {.timeout_ms = 300};
    gumbel_error error = {"", ""};
    group.worker = (ranks_host_worker){
        .host = &request, .has_thread = 1, .failed = (uint32_t)by_worker, .elapsed_ms = elapsed_ms};
    snprintf(group.worker.why, sizeof group.worker.why, "%s", why);
    assert_int_equal(ranks_check_host_worker(&group, &error), GUMBEL_ERROR_GROUP);
    assert_true(group.broken);
    return error;
}

static void messages_name_the_reason_and_a_passed_limit(void **state)
{
    (void)state;
    assert_string_equal(message_of_failure(1, 2, REFUSAL).message, "an exchange failed: " REFUSAL);
    assert_string_equal(message_of_failure(1, 300, REFUSAL).message,
                        "an exchange failed within 300 ms: " REFUSAL);
    assert_string_equal(message_of_failure(1, 2, "").message,
                        "an exchange failed: the transport gives no reason");
    assert_string_equal(message_of_failure(1, 301, "").message,
                        "an exchange failed within 300 ms: a rank does not answer");
    assert_string_equal(message_of_failure(0, 0, "").message,
                        "an exchange failed within 300 ms: a rank does not answer");
}

static void workers_run_on_all_ranks_or_none(void **state)
{
    (void)state;
    for (int32_t ranks = 1; ranks <= 4; ranks++)
        run_ranks(ranks, -1, ranks / 2);
}

/* Work that ends when it is released. */
typedef struct waiting_work {
    ranks_timed_call shared;
    _Atomic int go, done, freed;
} waiting_work;

static void wait_until_released(void *argument)
{
    const struct timespec pause = {0, 1000000};
    waiting_work *w = argument;
    while (!w->go)
        nanosleep(&pause, NULL);
    w->done = 1;
}

static void count_free(void *argument) { ((waiting_work *)argument)->freed++; }

static void timed_out_work_is_abandoned(void **state)
{
    const struct timespec pause = {0, 1000000};
    waiting_work w = {.go = 1};
    (void)state;
    assert_int_equal(ranks_call_within(&w.shared, 20000, wait_until_released, count_free, &w),
                     RANKS_CALL_DONE);
    assert_int_equal(w.done, 1);
    assert_int_equal(w.freed, 0);
    w = (waiting_work){.go = 0};
    int64_t begin = ranks_now_ms();
    assert_int_equal(ranks_call_within(&w.shared, 1050, wait_until_released, count_free, &w),
                     RANKS_CALL_ABANDONED);
    int64_t waited = ranks_now_ms() - begin;
    assert_true(waited >= 1049 && waited < 10000);
    assert_int_equal(w.done + w.freed, 0);
    w.go = 1;
    for (int i = 0; i < 20000 && !w.freed; i++)
        nanosleep(&pause, NULL);
    assert_int_equal(w.done, 1);
    assert_int_equal(w.freed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathered_words_arrive),
        cmocka_unit_test(failures_reach_all_ranks),
        cmocka_unit_test(messages_name_the_reason_and_a_passed_limit),
        cmocka_unit_test(workers_run_on_all_ranks_or_none),
        cmocka_unit_test(timed_out_work_is_abandoned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
