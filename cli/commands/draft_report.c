/* SPDX-License-Identifier: Apache-2.0 */
#include "draft_report.h"

#include <math.h>
#include <stdio.h>

#include "report.h"

static double divide_or_zero(double of, double over) { return over > 0 ? of / over : 0; }

/* The predicted speed-up of drafts of at most g tokens: the time of plain steps for the tokens that
 * a cycle emits, over the cycle's time. A cycle emits one token and the accepted drafts. */
static double predict_speed_up(const struct draft_report *r, int32_t g)
{
    double emitted = 1, seconds = r->plain, rows = divide_or_zero(r->rows - 1, r->proposed);

    for (int32_t i = 0; i < g; i++) {
        emitted += r->offered[i] * r->at_place[i];
        seconds += r->offered[i] * (r->draft + rows * r->row);
    }
    return divide_or_zero(emitted * r->plain, seconds);
}

/* (1 - a^(g + 1)) / (1 - a), with a = accepted drafts / drafts whose predecessors were accepted. */
static double predict_emitted(const draft_stats *stats, int32_t tokens)
{
    int64_t reached = stats->proposed[0], accepted = 0;
    double a = 0;

    for (int32_t i = 0; i < DRAFT_TOKENS_MAX; i++) {
        accepted += stats->accepted[i];
        if (i > 0) {
            reached += stats->accepted[i - 1] < stats->proposed[i] ? stats->accepted[i - 1]
                                                                   : stats->proposed[i];
        }
    }
    a = divide_or_zero((double)accepted, (double)reached);
    return a < 1 ? (1 - pow(a, tokens + 1)) / (1 - a) : tokens + 1;
}

struct draft_report make_draft_report(const draft_stats *stats, int32_t tokens)
{
    const double cycles = (double)stats->cycles;
    double proposed = 0, accepted = 0;
    struct draft_report r = {.tokens = tokens};

    for (int32_t i = 0; i < DRAFT_TOKENS_MAX; i++) {
        r.at_place[i] = divide_or_zero((double)stats->accepted[i], (double)stats->proposed[i]);
        r.offered[i] = divide_or_zero((double)stats->proposed[i], cycles);
        proposed += (double)stats->proposed[i];
        accepted += (double)stats->accepted[i];
    }
    r.accepted = divide_or_zero(accepted, cycles);
    r.proposed = divide_or_zero(proposed, cycles);
    r.emitted = divide_or_zero((double)stats->emitted, cycles);
    r.draft = divide_or_zero(stats->drafting, proposed);
    r.target = divide_or_zero(stats->verifying, cycles);
    r.rows = divide_or_zero((double)stats->rows, cycles);
    r.plain = stats->plain;
    r.row = r.rows > 1 ? (r.target - r.plain) / (r.rows - 1) : 0;
    r.row = r.row > 0 ? r.row : 0;
    r.independent = predict_emitted(stats, tokens);
    r.speed_up = predict_speed_up(&r, tokens);
    r.measured =
        divide_or_zero((double)stats->emitted * r.plain, stats->drafting + stats->verifying);
    r.accept_rate = divide_or_zero(accepted, proposed);
    r.break_even =
        divide_or_zero(r.draft + divide_or_zero(r.rows - 1, r.proposed) * r.row, r.plain);
    for (int32_t g = 1; g <= tokens; g++) {
        if (predict_speed_up(&r, g) > fmax(1, r.best > 0 ? predict_speed_up(&r, r.best) : 0)) {
            r.best = g;
        }
    }
    return r;
}

void print_draft_report(const struct draft_report *r)
{
    const double ms = 1e3;

    fprintf(stderr,
            "drafts: %.2f of %.2f drafted tokens are accepted a cycle (by depth:", r->accepted,
            r->proposed);
    for (int32_t i = 0; i < r->tokens; i++) {
        fprintf(stderr, " %.2f", r->at_place[i]);
    }
    fprintf(stderr, "), %.2f tokens are written (%.2f if each depth had the same rate)\n",
            r->emitted, r->independent);
    fprintf(stderr,
            "times: drafting %.1f x %.2f ms, verifying %.1f rows in %.2f ms; a step without drafts "
            "takes %.2f ms\n",
            r->proposed, r->draft * ms, r->rows, r->target * ms, r->plain * ms);
    fprintf(stderr,
            "speed-up: predicted %.2f, measured %.2f; best draft length by prediction: %d\n",
            r->speed_up, r->measured, (int)r->best);
}

const char *draft_advice(const struct draft_report *r, char text[ADVICE_BYTES])
{
    char costs[160];

    if (r->proposed == 0) {
        snprintf(text, ADVICE_BYTES,
                 "drafts do not pay here: none was found; n-grams need a text that repeats itself");
        return text;
    }
    if (r->measured > 1) {
        return NULL;
    }
    snprintf(costs, sizeof costs,
             "%.0f%% of the drafted tokens are accepted, and one costs %.2f of a step without "
             "drafts (drafting %.2f ms, verifying %.2f ms)",
             100 * r->accept_rate, r->break_even, r->draft * 1e3,
             (r->break_even * r->plain - r->draft) * 1e3);
    if (r->best > 0 && r->best < r->tokens) {
        snprintf(text, ADVICE_BYTES,
                 "drafts of %d tokens do not pay here: %s; try --draft-tokens %d", (int)r->tokens,
                 costs, (int)r->best);
    } else if (r->break_even < 1) {
        snprintf(text, ADVICE_BYTES, "drafts do not pay here: %s; they pay above %.0f%%", costs,
                 100 * r->break_even);
    } else {
        snprintf(text, ADVICE_BYTES,
                 "drafts do not pay here: %s; at that price no accept rate pays%s", costs,
                 r->draft > 0.1 * r->plain ? ": try a smaller draft model, or ngram" : "");
    }
    return text;
}

json_t *draft_report_to_json(const struct draft_report *r)
{
    char advice[ADVICE_BYTES];
    json_t *root = json_object(), *places = json_array();

    for (int32_t i = 0; i < r->tokens; i++) {
        json_array_append_new(places, json_number(r->at_place[i]));
    }
    json_put(root, "accepted_by_place", places);
    json_put(root, "accepted_a_cycle", json_number(r->accepted));
    json_put(root, "proposed_a_cycle", json_number(r->proposed));
    json_put(root, "tokens_a_cycle", json_number(r->emitted));
    json_put(root, "tokens_a_cycle_if_alike", json_number(r->independent));
    json_put(root, "draft_seconds_a_token", json_number(r->draft));
    json_put(root, "target_seconds_a_cycle", json_number(r->target));
    json_put(root, "target_rows", json_number(r->rows));
    json_put(root, "target_seconds_a_row", json_number(r->plain));
    json_put(root, "speed_up_by_model", json_number(r->speed_up));
    json_put(root, "speed_up", json_number(r->measured));
    json_put(root, "best_tokens_by_model", json_integer(r->best));
    json_put(root, "accept_rate", json_number(r->accept_rate));
    json_put(root, "break_even_accept_rate", json_number(r->break_even));
    if (draft_advice(r, advice)) {
        json_put(root, "advice", json_string(advice));
    }
    return root;
}
