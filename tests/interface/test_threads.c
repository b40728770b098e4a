/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads: a parallel-for of the engine that runs tasks in any order, and concurrent calls on one
 * device, have the results of a single call on one thread. Also run under ThreadSanitizer.
 */
#include "outcome.h"
#include "problem_plans.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Large enough that the library uses several threads. */
static const problem_plan large = {
    .batch = 4, .vocab = 6007, .hidden_size = 96, .samples = 2, .seed = 61, .temperature = -0.9f};

static problem *shared;
static outcome *expected;

/* ----------------------------------------------------------- an engine's own parallel-for ---- */

static void run_forwards(void *context, int32_t count, gumbel_task task, void *argument)
{
    ++*(int *)context;
    for (int32_t i = 0; i < count; i++)
        task(argument, i);
}

static void run_backwards(void *context, int32_t count, gumbel_task task, void *argument)
{
    ++*(int *)context;
    for (int32_t i = count - 1; i >= 0; i--)
        task(argument, i);
}

typedef struct one_task {
    gumbel_task task;
    void *argument;
    int32_t index;
} one_task;

static void *run_task(void *given)
{
    one_task *one = given;
    one->task(one->argument, one->index);
    return NULL;
}

/* Starts a thread for each index, odd indices first. */
static void run_odd_threads_first(void *context, int32_t count, gumbel_task task, void *argument)
{
    ++*(int *)context;
    pthread_t *threads = make_zeroed((size_t)count, sizeof *threads);
    one_task *tasks = make_zeroed((size_t)count, sizeof *tasks);
    int32_t started = 0;
    for (int32_t odd = 1; odd >= 0; odd--)
        for (int32_t i = odd; i < count; i += 2, started++) {
            tasks[started] = (one_task){task, argument, i};
            if (pthread_create(&threads[started], NULL, run_task, &tasks[started]) != 0)
                die("pthread_create() failed");
        }
    for (int32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    free(tasks);
}

static void every_engine_parallel_for_gives_the_same_bits(void **state)
{
    (void)state;
    const gumbel_parallel_for ways[] = {run_forwards, run_backwards, run_odd_threads_first};
    const char *names[] = {"forwards", "backwards", "odd threads first"};
    gumbel_isa isas[4];
    int known = list_isas(isas);
    for (int way = 0; way < 3; way++)
        for (int k = 0; k < known; k++)
            for (int32_t threads = 2; threads <= 7; threads += 5) {
                int calls = 0;
                gumbel_device *device;
                gumbel_device_options options = {.struct_size = sizeof options,
                                                 .isa = isas[k],
                                                 .threads = threads,
                                                 .parallel_for = ways[way],
                                                 .parallel_context = &calls};
                assert_int_equal(gumbel_open(&options, &device, NULL), GUMBEL_OK);
                outcome *found = outcome_make(large.batch, large.samples);
                assert_int_equal(draw(device, &shared->head, &shared->sampling, found), GUMBEL_OK);
                assert_true(outcome_same(expected, 0, found, OUTCOME_ALL, names[way]));
                assert_int_equal(calls, 1);
                outcome_free(found);
                gumbel_close(device);
            }
}

/* --------------------------------------------------------- several calls at once ---- */

#define CALLERS 4
#define ROUNDS  (TEST_SANITIZED ? 4 : 12)

typedef struct caller {
    gumbel_device *device;
    int64_t row; /* draws this row alone, then the whole batch, in turn */
    int differences;
} caller;

static void *call_again_and_again(void *given)
{
    caller *me = given;
    outcome *whole = outcome_make(large.batch, large.samples),
            *one = outcome_make(1, large.samples);
    gumbel_head head;
    gumbel_sampling sampling;
    problem_rows(shared, me->row, 1, &head, &sampling);
    for (int round = 0; round < ROUNDS; round++) {
        if (draw(me->device, &shared->head, &shared->sampling, whole) != GUMBEL_OK ||
            !outcome_same(expected, 0, whole, OUTCOME_ALL, "a batch beside other calls") ||
            draw(me->device, &head, &sampling, one) != GUMBEL_OK ||
            !outcome_same(expected, me->row, one, OUTCOME_ALL, "a row beside other calls"))
            me->differences++;
    }
    outcome_free(whole);
    outcome_free(one);
    return NULL;
}

static void concurrent_calls_give_the_same_bits(void **state)
{
    (void)state;
    for (int32_t threads = 1; threads <= 4; threads++) {
        gumbel_device *device = open_device(GUMBEL_ISA_AUTO, threads, 0);
        pthread_t started[CALLERS];
        caller callers[CALLERS];
        for (int i = 0; i < CALLERS; i++) {
            callers[i] = (caller){device, i % large.batch, 0};
            assert_int_equal(pthread_create(&started[i], NULL, call_again_and_again, &callers[i]),
                             0);
        }
        for (int i = 0; i < CALLERS; i++) {
            pthread_join(started[i], NULL);
            assert_int_equal(callers[i].differences, 0);
        }
        gumbel_close(device);
    }
}

/* Draws from logits with many tiles a row, so that threads share rows. */
static void threads_share_rows_from_logits(void **state)
{
    (void)state;
    enum { V = TEST_SANITIZED ? 20011 : 60013 };
    static float values[2 * V];
    uint64_t random = 62;
    for (int i = 0; i < 2 * V; i++)
        values[i] = 3 * random_normal(&random) - 40;
    gumbel_logits logits = {.struct_size = sizeof logits,
                            .logits = tensor_of(values, GUMBEL_FLOAT32, 2, V, 0)};
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .num_samples = 4};
    outcome *one = outcome_make(2, 4), *many = outcome_make(2, 4);
    gumbel_device *device = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
    assert_int_equal(draw_logits(device, &logits, &sampling, one), GUMBEL_OK);
    gumbel_close(device);
    gumbel_isa isas[4];
    int known = list_isas(isas);
    for (int k = 0; k < known; k++)
        for (int32_t threads = 1; threads <= 16; threads *= 2)
            for (int32_t tile = 0; tile <= 4096; tile = tile ? tile * 8 : 64) {
                device = open_device(isas[k], threads, tile);
                assert_int_equal(draw_logits(device, &logits, &sampling, many), GUMBEL_OK);
                assert_true(outcome_same(one, 0, many, OUTCOME_ALL, gumbel_isa_name(isas[k])));
                gumbel_close(device);
            }
    outcome_free(one);
    outcome_free(many);
}

/* Closing a device just after opening it also ends threads that have not started yet. */
static void open_and_close_leaves_no_thread(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++)
        gumbel_close(open_device(GUMBEL_ISA_AUTO, 1 + i % 8, 0));
}

static int make_shared(void **state)
{
    (void)state;
    shared = problem_make(&large);
    expected = outcome_make(large.batch, large.samples);
    gumbel_device *device = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
    gumbel_status status = draw(device, &shared->head, &shared->sampling, expected);
    gumbel_close(device);
    return status != GUMBEL_OK;
}

static int free_shared(void **state)
{
    (void)state;
    outcome_free(expected);
    problem_free(shared);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_engine_parallel_for_gives_the_same_bits),
        cmocka_unit_test(concurrent_calls_give_the_same_bits),
        cmocka_unit_test(threads_share_rows_from_logits),
        cmocka_unit_test(open_and_close_leaves_no_thread),
    };
    return cmocka_run_group_tests(tests, make_shared, free_shared);
}
