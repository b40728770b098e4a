/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters of a draw beside temperature, seed and position: the options that `sample` and
 * `generate` share, and the structs of the library. Wrong values end the program (options.h).
 */
#ifndef GUMBEL_CLI_REQUEST_OPTIONS_H
#define GUMBEL_CLI_REQUEST_OPTIONS_H

#include "arguments.h"
#include "gumbel/gumbel.h"
#include "rule_orders.h"

/* The first member of both commands' options. A text is a number, or a .npy file of one a row. */
struct request_options {
    struct common_options common;
    const char *top_k, *top_p, *min_p;
    const char *typical_p, *top_n_sigma, *epsilon, *eta, *top_a, *surprise;
    const char *xtc_probability, *xtc_threshold, *smoothing_factor, *smoothing_curve;
    const char *adaptive_target;
    const char *temperature_range, *temperature_exponent, *min_keep;
    const char *repetition, *frequency, *presence;
    const char *logit_bias, *allowed, *banned, *mask;
    const char *prompt_tokens, *output_tokens; /* of `sample`; `generate` counts its own */
    struct rule_order order, samplers;         /* at most one has a name */
    gumbel_ties ties;
    int32_t num_top;
    bool p_less, raw, ranks, kept;
};

/* The table of these options, for a command_line's `shared`. */
extern const struct argument request_arguments[];

/* The library's structs and the memory behind them. */
struct request {
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_programs programs;
    uint8_t rules[GUMBEL_PROGRAM_LENGTH];
    int32_t *mask;
    bool transformed; /* there are transforms */
    bool truncated;   /* there is a truncation */
};

/* Whether options of truncation or of other rules are given. */
bool request_truncates(const struct request_options *options);

/* Reads the request of `rows` rows into `request`, which must not move. Release it with
 * request_free().
 *  width  number of bits of a mask: first_token + V
 *  vocab  upper bound of the token ids in options */
void request_read(struct request *request, const struct request_options *options, int64_t rows,
                  int64_t width, int64_t vocab);
void request_free(struct request *request);

/* Sets the transforms and truncation of `sampling`; the request must outlive it. */
void request_attach(const struct request *request, gumbel_sampling *sampling);

#endif
