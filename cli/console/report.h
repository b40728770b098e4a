/* SPDX-License-Identifier: Apache-2.0
 *
 * Output of a command: JSON on stdout, progress on stderr, times, and order statistics of repeated
 * timings.
 */
#ifndef GUMBEL_CLI_REPORT_H
#define GUMBEL_CLI_REPORT_H

#include <jansson.h>
#include <stdint.h>

#include "decoder/decoder_clock.h"

/* Prints an object on stdout, a line a field and a line an element of an array of objects, with
 * nine digits (float32 survives the round trip), and releases it. */
void print_json(json_t *object);

/* A JSON number, or null if `value` is not finite. */
json_t *json_number(double value);

/* json_object_set_new(); fail_late() when memory runs out or `value` is NULL. */
void json_put(json_t *object, const char *key, json_t *value);

/* Flushes stdout; fail_late() if output could not be written. */
void finish_stdout(void);

/* Progress on stderr if it is a terminal: nothing in the first second, then at most ten updates a
 * second of one line. `label` must stay valid until progress_clear(). */
void progress_start(const char *label);
void progress_update(int64_t done, int64_t total);
/* Shows the label at once, for work of unknown length. */
void progress_show(const char *label);
void progress_clear(void);

/* Median and spread of repeated timings. */
struct spread {
    double least;
    double median;
    double p10;
    double p90;
};

/* Sorts values[0..count), count >= 1, and returns their spread. */
struct spread compute_spread(double *values, int count);

#endif
