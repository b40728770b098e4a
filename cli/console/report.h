/* SPDX-License-Identifier: Apache-2.0
 *
 * What a command prints: JSON on stdout, progress on stderr, times, and the order statistics of
 * repeated timings.
 */
#ifndef GUMBEL_CLI_REPORT_H
#define GUMBEL_CLI_REPORT_H

#include <jansson.h>
#include <stdint.h>

/* Prints an object on stdout, a line a field and a line an element of an array of objects, with nine
 * digits (float32 survives the round trip), and releases it. */
void print_json(json_t *object);

/* A JSON number, or null where `value` is not finite, since JSON has no NaN. */
json_t *json_number(double value);

/* json_object_set_new() that fails loudly when memory is out or `value` is NULL. */
void json_put(json_t *object, const char *key, json_t *value);

/* Flush stdout and fail with EXIT_FAILED where what was printed could not be written. */
void finish_stdout(void);

/* Progress on stderr, if that is a terminal: nothing in the first second, then at most ten lines a
 * second, each over the one before. `label` must stay valid until progress_clear(). */
void progress_start(const char *label);
void progress_update(int64_t done, int64_t total);
/* The same for work whose length is not known: the label alone, at once. */
void progress_show(const char *label);
void progress_clear(void);

/* Seconds of a clock that only runs forward. */
double seconds_now(void);

/* Median and spread of repeated timings. */
struct spread {
    double least;
    double median;
    double p10;
    double p90;
};

/* The spread of values[0..count), count >= 1; sorts `values`. */
struct spread spread_of(double *values, int count);

#endif
