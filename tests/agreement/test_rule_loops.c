/* SPDX-License-Identifier: Apache-2.0
 *
 * Decode loops whose rules follow the drawn tokens: random programs, lists made from rings, and
 * updated row parameters. Each step has the same tokens, lists and parameters on every instruction
 * set and thread count, and in loops that run side by side on one device.
 */
#include "fixtures.h"
#include "requests.h"
#include "step_rules.h"
#include "test_scale.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 8, CALLERS = 4 };

static request_plan plan_loop(int index)
{
    request_plan plan = request_plan_at_random(50000 + index, 0);
    plan.truncation = 1;
    plan.programs = index % 8 ? 1 + index % GUMBEL_PROGRAMS_MAX : 0;
    plan.usual = index % 3 > 0;
    plan.cuts = REQUEST_TOP_K | REQUEST_TOP_P | REQUEST_MIN_P;
    plan.logprobs_of = GUMBEL_PROCESSED;
    plan.given_noise = 0;
    return plan;
}

/* The results of a loop's steps. */
typedef struct loop_log {
    outcome *steps[STEPS];
    char *arrays; /* those of step_rules after each step, one after the other */
    size_t bytes, rows_listed, rows_banned, rows_refused;
} loop_log;

static void count_lists(loop_log *log, const gumbel_row_lists *l, int64_t batch)
{
    for (int64_t b = 0; b < batch; b++) {
        log->rows_banned += l->banned[b * l->capacity] != INT32_MAX;
        log->rows_listed += l->late_ids[b * l->capacity] != INT32_MAX;
        log->rows_refused += l->status[b] == GUMBEL_ROW_LISTS;
    }
}

static void append_arrays(loop_log *log, const step_rules *s)
{
    step_array arrays[STEP_ARRAYS];
    step_rules_arrays(s, arrays);
    for (int i = 0; i < STEP_ARRAYS; i++) {
        char *more = realloc(log->arrays, log->bytes + arrays[i].bytes + 1);
        if (!more)
            die("no memory");
        if (arrays[i].bytes)
            memcpy(more + log->bytes, arrays[i].data, arrays[i].bytes);
        log->arrays = more;
        log->bytes += arrays[i].bytes;
    }
}

/* Runs the loop of a plan; returns 0 if a call fails. */
static int run_loop(gumbel_device *device, const request_plan *plan, loop_log *log)
{
    request *req = request_make(plan, device);
    step_rules *s = step_rules_make(&req->plan, &step_host_memory);
    gumbel_error error = {"", ""};
    int good = 1;
    step_rules_attach(s, req, plan->programs ? &req->programs : NULL);
    good &= step_rules_start(s, device, NULL, &error) == GUMBEL_OK;
    for (int step = 0; step < STEPS; step++) {
        outcome *drawn = log->steps[step] = request_outcome(req);
        gumbel_step next = {.struct_size = sizeof next,
                            .batch = plan->batch,
                            .num_samples = req->plan.samples,
                            .position = (uint64_t *)req->sampling.position.data};
        good &= step_rules_list(s, device, NULL, &error) == GUMBEL_OK &&
                request_draw(device, req, drawn) == GUMBEL_OK &&
                step_rules_follow(s, device, NULL, drawn->tokens, drawn->logprobs,
                                  req->plan.samples, &error) == GUMBEL_OK &&
                gumbel_advance(device, NULL, &next, &error) == GUMBEL_OK;
        append_arrays(log, s);
        count_lists(log, &s->lists, plan->batch);
    }
    if (!good)
        print_error("%s: %s: %s\n", request_describe(plan), error.field, error.message);
    step_rules_free(s);
    request_free(req);
    return good;
}

static int same_logs(const loop_log *a, const loop_log *b, const char *what)
{
    for (int step = 0; step < STEPS; step++)
        if (!outcome_same(a->steps[step], 0, b->steps[step], OUTCOME_ALL, what))
            return 0;
    return a->bytes == b->bytes && memcmp(a->arrays, b->arrays, a->bytes) == 0;
}

static void free_log(loop_log *log)
{
    for (int step = 0; step < STEPS; step++)
        outcome_free(log->steps[step]);
    free(log->arrays);
}

static void every_device_runs_the_same_loop(void **state)
{
    static const int32_t tiles[] = {64, 128, 1024, 4096};
    size_t rows = 0, listed = 0, banned = 0, refused = 0;
    gumbel_isa isas[4];
    const int count = list_isas(isas);
    for (int i = 0; i < limit_count(160, 8); i++) {
        const request_plan plan = plan_loop(i);
        loop_log expected = {.bytes = 0};
        assert_true(run_loop(*state, &plan, &expected));
        for (int k = 0; k < count; k++) {
            gumbel_device *device = open_device(isas[k], 1 + (i + k) % 4, tiles[i % 4]);
            loop_log found = {.bytes = 0};
            assert_true(run_loop(device, &plan, &found));
            if (!same_logs(&expected, &found, request_describe(&plan)))
                fail_msg("%s", request_describe(&plan));
            free_log(&found);
            gumbel_close(device);
        }
        rows += (size_t)(STEPS * plan.batch);
        listed += expected.rows_listed;
        banned += expected.rows_banned;
        refused += expected.rows_refused;
        free_log(&expected);
    }
    print_message("of %zu rows, %zu have late biases, %zu have banned tokens, %zu have no lists\n",
                  rows, listed, banned, refused);
    assert_true(listed > rows / 20 && banned > rows / 10 && refused > 0);
}

typedef struct caller {
    gumbel_device *device;
    int first, differences; /* the first of its loops */
} caller;

static void *run_loops(void *given)
{
    caller *me = given;
    for (int i = 0; i < limit_count(24, 8); i++) {
        const request_plan plan = plan_loop(me->first + i);
        loop_log alone = {.bytes = 0}, beside = {.bytes = 0};
        gumbel_device *own = open_device(GUMBEL_ISA_AUTO, 1, 0);
        me->differences += !run_loop(own, &plan, &alone) || !run_loop(me->device, &plan, &beside) ||
                           !same_logs(&alone, &beside, "a loop beside others");
        gumbel_close(own);
        free_log(&alone);
        free_log(&beside);
    }
    return NULL;
}

static void loops_side_by_side(void **state)
{
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 3, 0);
    pthread_t threads[CALLERS];
    caller callers[CALLERS];
    (void)state;
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){device, 1000 * (i + 1), 0};
        assert_int_equal(pthread_create(&threads[i], NULL, run_loops, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(callers[i].differences, 0);
    }
    gumbel_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_device_runs_the_same_loop),
        cmocka_unit_test(loops_side_by_side),
    };
    return cmocka_run_group_tests(tests, open_reference, close_device);
}
