/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "soak_watch.h"

#include "inputs.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NOTES_MAX = 8192 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char notes[NOTES_MAX];
static const char *test = "";
static atomic_uint_fast64_t steps;
static _Atomic(const char *) doing;
static atomic_int watching;
static double patience;
static pthread_t thread;

double watch_number(const char *name, double otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return otherwise;
    double number = strtod(text, &end);
    if (*end || !(number >= 0))
        die("%s: \"%s\" is no number", name, text);
    return number;
}

double watch_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void add(const char *format, va_list arguments)
{
    size_t used = strlen(notes);
    vsnprintf(notes + used, NOTES_MAX - used, format, arguments);
}

void watch_note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    notes[0] = 0;
    add(format, arguments);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
}

void watch_add(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    add("\n", arguments);
    add(format, arguments);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
}

void watch_print(void)
{
    const char *phase = atomic_load(&doing);
    pthread_mutex_lock(&lock);
    printf("%s, doing: %s\n%s\n", test, phase ? phase : "nothing yet", notes);
    pthread_mutex_unlock(&lock);
    fflush(stdout);
}

void watch_step(const char *phase)
{
    atomic_store(&doing, phase);
    atomic_fetch_add(&steps, 1);
}

/* Look at least ten times within the time that is allowed. */
static void *watch(void *argument)
{
    uint_fast64_t seen = atomic_load(&steps);
    double since = watch_seconds(), sleep_time = patience < 2 ? patience / 10 : 0.2;
    struct timespec pause = {0, (long)(1e9 * sleep_time)};
    (void)argument;
    while (atomic_load(&watching)) {
        nanosleep(&pause, NULL);
        uint_fast64_t now = atomic_load(&steps);
        if (now != seen) {
            seen = now;
            since = watch_seconds();
        } else if (watch_seconds() - since > patience) {
            printf("no progress for %g s: ", patience);
            watch_print();
            _exit(1);
        }
    }
    return NULL;
}

static void print_at_exit(void)
{
    if (atomic_load(&watching))
        watch_print();
}

void watch_start(const char *name)
{
    static int registered;
    patience = watch_number("GUMBEL_SOAK_PATIENCE", 20);
    test = name;
    watch_note("not begun");
    watch_step("start");
    if (!registered && atexit(print_at_exit) != 0)
        die("atexit() failed");
    registered = 1;
    atomic_store(&watching, 1);
    if (pthread_create(&thread, NULL, watch, NULL) != 0)
        die("the watchdog cannot be started");
}

void watch_stop(void)
{
    atomic_store(&watching, 0);
    if (pthread_join(thread, NULL) != 0)
        die("the watchdog does not end");
}
