/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of `gumbel verify`. Each hands its result to verdict(), which prints and counts it.
 */
#ifndef GUMBEL_CLI_VERIFY_H
#define GUMBEL_CLI_VERIFY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "options.h"
#include "source.h"

/* What is put to the test. */
struct verify_input {
    struct device_choice choice;
    gumbel_device *device;
    struct source source; /* all rows; a head or logits */
    struct source logits; /* the same rows as logits, float32 or, given as such, any dtype */
    int64_t row;          /* the row whose draws are counted */
    float temperature;    /* > 0 */
    uint64_t seed;
    int64_t draws; /* of that row, each way; 0: as many as take about five seconds, or up to 16
                      times as many if the power check requires them */
};

enum outcome { PASSED, FAILED, SKIPPED };

struct verdicts {
    json_t *checks; /* an array of objects */
    bool print;     /* as text, line by line */
    int count[3];   /* of each outcome */
};

/* Record a check: its name, how it ended and one line of detail. `details`, an object or NULL, goes
 * into the JSON and is released. */
void verdict(struct verdicts *verdicts, enum outcome outcome, const char *name, json_t *details,
             const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The row of `input->logits` whose draws show a wrong temperature soonest. */
int64_t verify_choose_row(const struct verify_input *input);

/* Chi-squared of many draws of one row against probabilities in float64, fused and from logits, and
 * the power of that test: against a temperature 2% off the same draws must fail. */
void verify_draws(const struct verify_input *input, struct verdicts *verdicts);

/* The same bits from every ISA, 1 to 4 threads, from logits, in chunks and for each row alone. */
void verify_agreement(const struct verify_input *input, struct verdicts *verdicts);

/* A screen of the head: its certificate computed again, and the tokens and scores of draws by it
 * beside those without. Skipped from logits. */
void verify_screen(const struct verify_input *input, struct verdicts *verdicts);

/* How often a token `gap` nats under a dominant one is drawn, relative to the truth, by enumerating
 * the noise that the library makes. */
void verify_tail(uint64_t seed, struct verdicts *verdicts);

#endif
