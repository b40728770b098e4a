/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "decoder/arrays/output_signals.h"

#include <signal.h>
#include <stddef.h>

enum { HELD = 4 };
static const int numbers[HELD] = {SIGINT, SIGTERM, SIGHUP, SIGXFSZ};
static struct sigaction before[HELD];
static volatile sig_atomic_t waiting; /* the first signal received; 0: none */

static void record_signal(int number)
{
    if (!waiting) {
        waiting = number;
    }
}

/* A handler, not a mask: a mask applies to one thread, and another would end the process. */
void output_signals_hold(void)
{
    struct sigaction held = {.sa_flags = SA_RESTART};
    sigemptyset(&held.sa_mask);
    for (int i = 0; i < HELD; i++) {
        sigaction(numbers[i], NULL, &before[i]);
        held.sa_handler = numbers[i] == SIGXFSZ ? SIG_IGN : record_signal;
        if (before[i].sa_handler != SIG_IGN) {
            sigaction(numbers[i], &held, NULL);
        }
    }
}

bool output_signals_waiting(void) { return waiting != 0; }

void output_signals_release(void)
{
    for (int i = 0; i < HELD; i++) {
        sigaction(numbers[i], &before[i], NULL);
    }
    const int number = waiting;
    waiting = 0;
    if (number) {
        raise(number);
    }
}
