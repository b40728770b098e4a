/* SPDX-License-Identifier: Apache-2.0
 *
 * A watchdog: a thread that ends the program with a message if nothing progresses for too long. The
 * thread makes no call that could wait for a GPU.
 */
#ifndef TESTS_SOAK_WATCH_H
#define TESTS_SOAK_WATCH_H

/* Starts the watchdog for the test `name`. After GUMBEL_SOAK_PATIENCE seconds (default 20) without
 * progress it prints the notes and exits with code 1. A program that ends before watch_stop()
 * prints the notes, too. */
void watch_start(const char *name);
void watch_stop(void);

/* Record notes about the current work: watch_note() replaces all notes, watch_add() adds a line. */
void watch_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void watch_add(const char *format, ...) __attribute__((format(printf, 1, 2)));
void watch_print(void);

/* Report progress; `phase` is static text that names the next phase. */
void watch_step(const char *phase);

/* A number from the environment; `otherwise` if it is not set or empty. */
double watch_number(const char *name, double otherwise);

/* Seconds of a monotonic clock. */
double watch_seconds(void);

#endif
