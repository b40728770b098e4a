/* SPDX-License-Identifier: Apache-2.0
 *
 * Children of fork() use a device that the parent opened: every outcome has the same bits, and the
 * child can close the device, whatever the parent's threads do at the fork. The parent is not
 * affected.
 */
#include "requests.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A child is killed after this time. */
#define CHILD_SECONDS 20
#define THREADS       4

/* Large enough that the library uses several threads. */
static const problem_plan large = {
    .batch = 4, .vocab = 6007, .hidden_size = 96, .samples = 2, .seed = 71, .temperature = -0.9f};

enum { ROWS = 2, COLUMNS = 60013 };

static problem *shared;
static gumbel_logits logits;

/* The results of the problem by every call that uses threads. */
typedef struct results {
    outcome *fused, *from_logits, *requested;
    float *processed, *probabilities, *noise; /* [ROWS, COLUMNS] */
} results;

static results expected;

static results make_results(void)
{
    results r = {.fused = outcome_make(large.batch, large.samples),
                 .from_logits = outcome_make(ROWS, 1),
                 .requested = outcome_make(ROWS, 1)};
    outcome_widen(r.requested, 5, GUMBEL_RAW);
    r.processed = make_zeroed(ROWS * COLUMNS, sizeof(float));
    r.probabilities = make_zeroed(ROWS * COLUMNS, sizeof(float));
    r.noise = make_zeroed(ROWS * COLUMNS, sizeof(float));
    return r;
}

static void free_results(results *r)
{
    outcome_free(r->fused);
    outcome_free(r->from_logits);
    outcome_free(r->requested);
    free(r->processed);
    free(r->probabilities);
    free(r->noise);
}

/* Computes every result; returns 1 if all calls succeed. */
static int compute_results(gumbel_device *device, results *r)
{
    static const float top_p = 0.9f;
    const gumbel_truncation truncation = {.struct_size = sizeof truncation,
                                          .top_p = {&top_p, GUMBEL_SAME}};
    const gumbel_sampling sampling = {.struct_size = sizeof sampling, .truncation = &truncation};
    size_t bytes;
    void *workspace =
        call_workspace(device, NULL, &logits, &sampling, &r->requested->output, &bytes);
    int all =
        draw(device, &shared->head, &shared->sampling, r->fused) == GUMBEL_OK &&
        draw_logits(device, &logits, NULL, r->from_logits) == GUMBEL_OK &&
        gumbel_sample_logits(device, NULL, &logits, &sampling, &r->requested->output, workspace,
                             bytes, NULL) == GUMBEL_OK &&
        gumbel_process_logits(device, NULL, &logits, &sampling, r->processed, 0, workspace, bytes,
                              NULL) == GUMBEL_OK &&
        gumbel_softmax(device, NULL, &logits, &sampling, r->probabilities, 0, workspace, bytes,
                       NULL) == GUMBEL_OK &&
        gumbel_prepare_noise(device, NULL, NULL, ROWS, 0, COLUMNS, r->noise, 0, NULL) == GUMBEL_OK;
    free(workspace);
    return all;
}

/* Whether the device computes the expected results. */
static int has_expected_results(gumbel_device *device)
{
    size_t bytes = ROWS * COLUMNS * sizeof(float);
    results r = make_results();
    int same = compute_results(device, &r) &&
               outcome_same(expected.fused, 0, r.fused, OUTCOME_ALL, "") &&
               outcome_same(expected.from_logits, 0, r.from_logits, OUTCOME_ALL, "") &&
               outcome_same(expected.requested, 0, r.requested, OUTCOME_ALL, "") &&
               memcmp(expected.processed, r.processed, bytes) == 0 &&
               memcmp(expected.probabilities, r.probabilities, bytes) == 0 &&
               memcmp(expected.noise, r.noise, bytes) == 0;
    free_results(&r);
    return same;
}

/* ------------------------------------------------------------------------------- children ---- */

/* The work of a child process, which exits with 0 if this returns 1. */
typedef int (*child_work)(gumbel_device *device);

/* Whether a child of fork() completes the work in time. */
static int run_in_child(child_work does, gumbel_device *device)
{
    int status = 0;
    pid_t child = fork();
    if (child < 0)
        die("fork() failed");
    if (child == 0) {
        signal(SIGSEGV,
               SIG_DFL); /* otherwise cmocka's handler would run the parent's tests in the child */
        alarm(CHILD_SECONDS);
        _exit(!does(device));
    }
    if (waitpid(child, &status, 0) != child)
        die("waitpid: no status of the child");
    if (WIFSIGNALED(status))
        print_message("the child was ended by signal %d\n", WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int close_alone(gumbel_device *device)
{
    gumbel_close(device);
    return 1;
}

static int draw_and_close(gumbel_device *device)
{
    gumbel_device_info before = {.struct_size = sizeof before};
    int same = has_expected_results(device) && has_expected_results(device);
    same &= gumbel_describe(device, &before) == GUMBEL_OK && before.threads >= 1;
    gumbel_close(device);
    return same;
}

static int fork_and_draw(gumbel_device *device)
{
    return run_in_child(draw_and_close, device) && has_expected_results(device) &&
           run_in_child(draw_and_close, device) && draw_and_close(device);
}

/* A device that the child opens has threads of its own. */
static int open_another(gumbel_device *device)
{
    gumbel_device *own = open_device(GUMBEL_ISA_AUTO, THREADS, 0);
    int same = has_expected_results(own) && has_expected_results(device);
    gumbel_close(device);
    same &= has_expected_results(own);
    gumbel_close(own);
    return same;
}

/* ---------------------------------------------------------------------------------- tests ---- */

static void children_draw_and_close(void **state)
{
    static const child_work deeds[] = {close_alone, draw_and_close, fork_and_draw};
    (void)state;
    for (int32_t threads = 1; threads <= THREADS; threads += THREADS - 1) {
        gumbel_device *device = open_device(GUMBEL_ISA_AUTO, threads, 0);
        assert_true(has_expected_results(device));
        for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++) {
            assert_true(run_in_child(deeds[i], device));
            assert_true(has_expected_results(device));
        }
        gumbel_close(device);
    }
}

static void children_open_another(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    print_message("ThreadSanitizer lets no child start threads\n");
    skip();
#endif
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, THREADS, 0);
    assert_true(has_expected_results(device));
    assert_true(run_in_child(open_another, device));
    assert_true(has_expected_results(device));
    gumbel_close(device);
}

static void run_in_turn(void *context, int32_t count, gumbel_task task, void *argument)
{
    (void)context;
    for (int32_t i = 0; i < count; i++)
        task(argument, i);
}

/* The parallel-for of an engine is called in the child, too. */
static void children_use_the_engine_parallel_for(void **state)
{
    (void)state;
    gumbel_device *device;
    gumbel_device_options options = {
        .struct_size = sizeof options, .threads = THREADS, .parallel_for = run_in_turn};
    assert_int_equal(gumbel_open(&options, &device, NULL), GUMBEL_OK);
    assert_true(run_in_child(draw_and_close, device));
    gumbel_close(device);
}

/* The thread draws without allocating, because the allocator of a sanitizer may hold a lock at the
 * fork. */
typedef struct caller {
    gumbel_device *device;
    atomic_int *stop;
    outcome *drawn;
    void *workspace;
    size_t bytes;
    atomic_int calls;
    int differences;
} caller;

static caller make_caller(gumbel_device *device, atomic_int *stop)
{
    caller c = {.device = device, .stop = stop, .drawn = outcome_make(large.batch, large.samples)};
    c.workspace = make_workspace(device, large.batch, large.hidden_size, large.samples, &c.bytes);
    return c;
}

static void *call_until_stopped(void *given)
{
    caller *me = given;
    while (!atomic_load(me->stop)) {
        outcome_poison(me->drawn);
        if (gumbel_sample(me->device, NULL, &shared->head, &shared->sampling, &me->drawn->output,
                          me->workspace, me->bytes, NULL) != GUMBEL_OK ||
            !outcome_same(expected.fused, 0, me->drawn, OUTCOME_ALL, "a draw while others fork"))
            me->differences++;
        atomic_fetch_add(&me->calls, 1);
    }
    return NULL;
}

/* At most of these forks a thread of the pool holds a lock. */
static void forks_during_calls(void **state)
{
    enum { CALLERS = 2, FORKS = 30 };
    (void)state;
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, THREADS, 0);
    pthread_t started[CALLERS];
    caller callers[CALLERS];
    atomic_int stop = 0;
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = make_caller(device, &stop);
        assert_int_equal(pthread_create(&started[i], NULL, call_until_stopped, &callers[i]), 0);
        while (atomic_load(&callers[i].calls) == 0)
            sched_yield();
    }
    int did = 0;
    for (; did < FORKS; did++)
        if (!run_in_child(did % 3 ? draw_and_close : close_alone, device))
            break;
    atomic_store(&stop, 1);
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(started[i], NULL);
        assert_int_equal(callers[i].differences, 0);
        outcome_free(callers[i].drawn);
        free(callers[i].workspace);
    }
    assert_int_equal(did, FORKS);
    assert_true(has_expected_results(device));
    gumbel_close(device);
}

static int make_shared(void **state)
{
    static float values[ROWS * COLUMNS];
    uint64_t random = 72;
    (void)state;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        values[i] = 3 * random_normal(&random) - 40;
    logits = (gumbel_logits){.struct_size = sizeof logits,
                             .logits = tensor_of(values, GUMBEL_FLOAT32, ROWS, COLUMNS, 0)};
    shared = problem_make(&large);
    expected = make_results();
    gumbel_device *device = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
    int generated = compute_results(device, &expected);
    gumbel_close(device);
    return !generated;
}

static int free_shared(void **state)
{
    (void)state;
    free_results(&expected);
    problem_free(shared);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_draw_and_close),
        cmocka_unit_test(children_open_another),
        cmocka_unit_test(children_use_the_engine_parallel_for),
        cmocka_unit_test(forks_during_calls),
    };
    return cmocka_run_group_tests(tests, make_shared, free_shared);
}
