/* SPDX-License-Identifier: Apache-2.0
 *
 * A watchdog: a thread that ends the program with a message if nothing progresses for too long. The
 * thread makes no call that could wait for a GPU.
 */
#ifndef TESTS_SOAK_WATCH_H
#define TESTS_SOAK_WATCH_H

/* Watch from here on, for a test of this name. Where nothing moves on for GUMBEL_SOAK_PATIENCE
 * seconds (20 if it is not set) print the notes and leave with exit code 1. A program that ends
 * while it is watched prints the notes, too. */
void watch_start(const char *name);
void watch_stop(void);

/* Take notes of what is being done: the first line, which drops all others, and further ones. */
void watch_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void watch_add(const char *format, ...) __attribute__((format(printf, 1, 2)));
void watch_print(void);

/* Report progress; `phase` is static text that names the next phase. */
void watch_step(const char *phase);

/* A number from the environment; `otherwise` where it is not set or empty. */
double watch_number(const char *name, double otherwise);

/* Seconds of a clock that only goes forward. */
double watch_seconds(void);

#endif
