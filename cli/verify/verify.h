/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of `gumbel verify`. Each reports by record_verdict(), which prints and counts results.
 */
#ifndef GUMBEL_CLI_VERIFY_H
#define GUMBEL_CLI_VERIFY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "options.h"
#include "source.h"

/* The input of the checks. */
struct verify_input {
    struct device_choice choice;
    gumbel_device *device;
    struct source source; /* all rows; a head or logits */
    struct source logits; /* the rows as logits: float32, or the dtype of given logits */
    int64_t row;          /* the row whose draws are counted */
    float temperature;    /* > 0 */
    uint64_t seed;
    int64_t draws; /* of that row, each way; 0: as many as take about five seconds, or up to 16
                      times that number if the power check requires them */
};

enum outcome { PASSED, FAILED, SKIPPED };

struct verdicts {
    json_t *checks; /* an array of objects */
    bool print;     /* as text, line by line */
    int count[3];   /* of each outcome */
};

/* Records a check: its name, outcome and one line of detail. `details`, an object or NULL, is added
 * to the JSON and released. */
void record_verdict(struct verdicts *verdicts, enum outcome outcome, const char *name,
                    json_t *details, const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The row of `input->logits` that shows a wrong temperature with the fewest draws. */
int64_t verify_choose_row(const struct verify_input *input);

/* Chi-squared of many draws of one row, fused and from logits, against probabilities in float64;
 * and the power of that test: against a temperature 2% off, the same draws must fail. */
void verify_draws(const struct verify_input *input, struct verdicts *verdicts);

/* Equal bits from every ISA, with 1 to 4 threads, from logits, in chunks and for single rows. */
void verify_agreement(const struct verify_input *input, struct verdicts *verdicts);

/* A screen of the head: its error bounds computed again, and tokens and scores of draws with it
 * compared with those without. Skipped from logits. */
void verify_screen(const struct verify_input *input, struct verdicts *verdicts);

/* The rate of a token `gap` nats below a dominant one, relative to the exact rate, by enumeration
 * of the library's noise. */
void verify_tail(uint64_t seed, struct verdicts *verdicts);

#endif
