/* SPDX-License-Identifier: Apache-2.0
 *
 * What the drafts of a text were worth: how many were accepted, and the speed-up, by a model and as
 * measured.
 */
#ifndef GUMBEL_CLI_DRAFT_REPORT_H
#define GUMBEL_CLI_DRAFT_REPORT_H

#include <jansson.h>

#include "decoder/drafts/generate_drafted.h"

/* Seconds and rates that the stats of a call come to. A cycle drafts some tokens, each in T_draft,
 * and feeds the target n rows, one more than these, in T(n) = T(1) + (n - 1) * `row`. */
struct draft_report {
    int32_t tokens;                     /* of a draft, as was asked for */
    double at_place[DRAFT_TOKENS_MOST]; /* share of the drafts at a place that were accepted */
    double offered[DRAFT_TOKENS_MOST];  /* drafts at a place, a cycle */
    double accepted;                    /* a cycle, as the next two */
    double proposed;
    double emitted;
    double draft;       /* T_draft */
    double target;      /* T(n), on average */
    double rows;        /* n, on average */
    double plain;       /* T(1) */
    double row;         /* what a row more costs */
    double independent; /* tokens a cycle if every draft were accepted alike */
    double speed_up;    /* by the model: tokens a second over those of plain steps */
    double measured;    /* the same as it was */
    int32_t best;       /* tokens of a draft at which the model has the most; 0: none */
    double accept_rate; /* share of the drafted tokens that were accepted */
    double break_even;  /* accept rate at which drafts of one token cost as much as they save */
};

struct draft_report draft_report_of(const draft_stats *stats, int32_t tokens);

/* One line on stderr. */
void print_draft_report(const struct draft_report *report);

/* Why drafts cost time here, and what to change: a line, in `text`; NULL if they pay. */
enum { ADVICE_BYTES = 320 };
const char *draft_advice(const struct draft_report *report, char text[ADVICE_BYTES]);

json_t *draft_report_to_json(const struct draft_report *report);

#endif
