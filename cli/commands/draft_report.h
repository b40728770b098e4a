/* SPDX-License-Identifier: Apache-2.0
 *
 * A report on the drafts of a text: the number accepted, and the speed-up, predicted and measured.
 */
#ifndef GUMBEL_CLI_DRAFT_REPORT_H
#define GUMBEL_CLI_DRAFT_REPORT_H

#include <jansson.h>

#include "decoder/drafts/generate_drafted.h"

/* Seconds and rates computed from the stats of a call. A cycle drafts n - 1 tokens, each in
 * T_draft, and feeds the target n rows in T(n) = T(1) + (n - 1) * `row`. */
struct draft_report {
    int32_t tokens;                    /* of a draft, as requested */
    double at_place[DRAFT_TOKENS_MAX]; /* accepted / proposed drafts at a place */
    double offered[DRAFT_TOKENS_MAX];  /* drafts at a place, a cycle */
    double accepted;                   /* a cycle, as the next two */
    double proposed;
    double emitted;
    double draft;       /* T_draft */
    double target;      /* T(n), on average */
    double rows;        /* n, on average */
    double plain;       /* T(1) */
    double row;         /* of an additional row */
    double independent; /* tokens a cycle if all places had one accept rate */
    double speed_up;    /* predicted: tokens a second over those of plain steps */
    double measured;    /* the measured speed-up */
    int32_t best;       /* draft length with the largest predicted speed-up; 0: none */
    double accept_rate; /* accepted / drafted tokens */
    double break_even;  /* accept rate at which drafts of one token save as much as they cost */
};

struct draft_report make_draft_report(const draft_stats *stats, int32_t tokens);

/* Prints one line on stderr. */
void print_draft_report(const struct draft_report *report);

/* Why drafts lose time, and which option to change: a line in `text`; NULL if they gain. */
enum { ADVICE_BYTES = 320 };
const char *draft_advice(const struct draft_report *report, char text[ADVICE_BYTES]);

json_t *draft_report_to_json(const struct draft_report *report);

#endif
