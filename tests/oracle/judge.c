/* SPDX-License-Identifier: Apache-2.0 */
#include "judge.h"

#include "oracle_request.h"
#include "inputs.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define ULP 0x1p-23 /* of 1 in float32 */

/* A row to judge. */
typedef struct hearing {
    const request *req;
    const outcome *drawn;
    int64_t b;
    const float *y, *processed; /* [V], by the library */
    oracle_row *row;
    float *noise; /* [V] */
    verdicts *seen;
} hearing;

static int wrong(const hearing *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints an error of the row; returns 0. */
static int wrong(const hearing *h, const char *format, ...)
{
    va_list arguments;
    printf("%s: %s: ", request_describe(&h->req->plan), request_describe_row(h->req, h->b));
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    return 0;
}

/* Whether a float is within `bound` of the oracle's; infinities must be equal. */
static int close_to(const hearing *h, const char *name, int64_t index, float found, double exact,
                    double bound)
{
    if ((double)found == exact || (isnan(found) && isnan(exact)))
        return 1;
    double error = fabs((double)found - exact) / bound;
    if (!(error <= 1))
        return wrong(h, "%s[%" PRId64 "] is %a, the oracle has %a, bound %.3g", name, index,
                     (double)found, exact, bound);
    h->seen->worst = fmax(h->seen->worst, error);
    return 1;
}

static int same(const hearing *h, const char *name, int64_t index, int64_t found, int64_t expected)
{
    return found == expected || wrong(h, "%s[%" PRId64 "] is %" PRId64 ", the oracle has %" PRId64,
                                      name, index, found, expected);
}

/* Checks y within its bound, and continues with the library's y. */
static int judge_y(const hearing *h)
{
    oracle_row *row = h->row;
    for (int64_t i = 0; i < row->count; i++) {
        if (!close_to(h, "y", i, h->y[i], row->y[i], row->bound[i]))
            return 0;
        row->y[i] = h->y[i];
    }
    oracle_temper_row(&h->req->sampling, h->b, row);
    return 1;
}

/* Judges a row without a token to draw: only the status. */
static int judge_spoilt(const hearing *h)
{
    const outcome *drawn = h->drawn;
    int32_t samples = drawn->samples, n = drawn->output.num_top;
    int empty = h->row->status == GUMBEL_ROW_EMPTY;
    h->seen->spoilt++;
    for (int64_t at = h->b * samples; at < (h->b + 1) * samples; at++)
        if (drawn->tokens[at] != -1 || drawn->ranks[at] != -1 || !isnan(drawn->scores[at]) ||
            !isnan(drawn->logprobs[at]))
            return wrong(h, "is spoilt, and draw %" PRId64 " is (%d, rank %d, %g, %g)", at,
                         (int)drawn->tokens[at], (int)drawn->ranks[at], (double)drawn->scores[at],
                         (double)drawn->logprobs[at]);
    if (!isnan(drawn->lse[h->b]))
        return wrong(h, "is spoilt, and lse is %g", (double)drawn->lse[h->b]);
    for (int64_t at = h->b * n; at < (h->b + 1) * n; at++)
        if (drawn->top_ids[at] != -1 || !isnan(drawn->top_logprobs[at]))
            return wrong(h, "is spoilt, and top %" PRId64 " is (%d, %g)", at,
                         (int)drawn->top_ids[at], (double)drawn->top_logprobs[at]);
    for (int64_t i = 0; i < h->row->count; i++)
        if (empty ? h->processed[i] != -INFINITY : !isnan(h->processed[i]))
            return wrong(h, "is spoilt, and z[%" PRId64 "] is %g", i, (double)h->processed[i]);
    return same(h, "kept", 0, drawn->kept[h->b], 0);
}

/* Checks the kept set by gumbel_process_logits(); near a cutoff the library's set is used from here
 * on. */
static int judge_cut(const hearing *h)
{
    oracle_row *row = h->row;
    int near = oracle_truncate_row(&h->req->sampling, h->b, row);
    int64_t found = 0;
    while (found < row->alive && h->processed[row->order[found]] > -INFINITY)
        found++;
    h->seen->near_cuts += near;
    if (found < row->fewest || found > row->most)
        return wrong(h,
                     "keeps the first %" PRId64 " of %" PRId64 ", not %" PRId64 ", or %" PRId64
                     " to %" PRId64,
                     found, row->alive, row->kept, row->fewest, row->most);
    h->seen->other_cuts += found != row->kept;
    row->kept = found;
    h->seen->truncated += row->kept < row->alive;
    for (int64_t k = 0; k < row->alive; k++) {
        int64_t i = row->order[k];
        double expected = k < row->kept ? row->z[i] : -INFINITY;
        if ((double)h->processed[i] != expected)
            return wrong(h, "z[%" PRId64 "] is %a, the oracle has %a", i, (double)h->processed[i],
                         expected);
    }
    for (int64_t i = 0; i < row->count; i++)
        if (row->z[i] == -INFINITY && h->processed[i] != -INFINITY)
            return wrong(h, "z[%" PRId64 "] is %a, not -inf", i, (double)h->processed[i]);
    return same(h, "kept", h->b, h->drawn->kept[h->b], row->kept);
}

/* The noise of one draw, by the public gumbel_noise(). */
static void record_noise(const hearing *h, int32_t sample)
{
    const gumbel_sampling *s = &h->req->sampling;
    if (gumbel_noise(row_u64(&s->seed, s, h->b, 0), row_u64(&s->position, s, h->b, 0),
                     row_u32(&s->first_sample, s, h->b, 0) + (uint32_t)sample, s->domain,
                     h->row->first_token, h->row->count, h->noise, NULL) != GUMBEL_OK)
        die("noise is refused");
}

static double bound_of_lse(double lse) { return 2 * ULP * fmax(1, fabs(lse)); }

/* The log-probability of a token; removed tokens have none in the processed distribution. */
static int judge_logprob(const hearing *h, const char *name, int64_t at, float found, int32_t token)
{
    gumbel_distribution of = h->drawn->output.logprobs_of;
    const oracle_row *row = h->row;
    int64_t i = token - row->first_token;
    double lse = oracle_row_lse(row, of);
    double exact = (of == GUMBEL_RAW ? row->l[i] : row->z[i]) - lse;
    if (of == GUMBEL_PROCESSED && !oracle_row_keeps(row, token))
        exact = -INFINITY;
    return close_to(h, name, at, found, exact, bound_of_lse(lse) + ULP * fabs(exact));
}

static int judge_draw(const hearing *h, int32_t sample)
{
    int64_t at = h->b * h->drawn->samples + sample;
    record_noise(h, sample);
    int32_t expected = oracle_row_draw(h->row, h->noise);
    float score = oracle_row_score(h->row, expected, h->noise[expected - h->row->first_token]);
    return same(h, "tokens", at, h->drawn->tokens[at], expected) &&
           close_to(h, "scores", at, h->drawn->scores[at], score, 0) &&
           same(h, "ranks", at, h->drawn->ranks[at], oracle_row_rank(h->row, expected)) &&
           judge_logprob(h, "logprobs", at, h->drawn->logprobs[at], expected);
}

static int judge_top(const hearing *h)
{
    enum { IDS_MAX = 128 };
    int32_t ids[IDS_MAX], n = h->drawn->output.num_top;
    oracle_row_top(h->row, n, ids);
    for (int32_t k = 0; k < n; k++) {
        int64_t at = h->b * n + k;
        float logprob = h->drawn->top_logprobs[at];
        if (!same(h, "top_ids", at, h->drawn->top_ids[at], ids[k]))
            return 0;
        if (ids[k] < 0 ? !close_to(h, "top_logprobs", at, logprob, -INFINITY, 0)
                       : !judge_logprob(h, "top_logprobs", at, logprob, ids[k]))
            return 0;
    }
    return 1;
}

static int judge_row(const hearing *h)
{
    const outcome *drawn = h->drawn;
    h->seen->rows++;
    oracle_edit_row(&h->req->logits, &h->req->sampling, h->b, h->row);
    oracle_temper_row(&h->req->sampling, h->b, h->row);
    if (!same(h, "status", h->b, drawn->status[h->b], h->row->status))
        return 0;
    if (h->row->status != GUMBEL_ROW_OK)
        return judge_spoilt(h);
    if (!judge_y(h) || !judge_cut(h))
        return 0;
    double lse = oracle_row_lse(h->row, drawn->output.logprobs_of);
    if (!close_to(h, "lse", h->b, drawn->lse[h->b], lse, bound_of_lse(lse)))
        return 0;
    for (int32_t s = 0; s < drawn->samples; s++)
        if (!judge_draw(h, s))
            return 0;
    return judge_top(h);
}

int judge(gumbel_device *device, const request *req, const outcome *drawn, verdicts *seen)
{
    size_t vocab = (size_t)req->plan.vocab, size = (size_t)req->plan.batch * vocab;
    float *y = make_zeroed(size, sizeof *y), *processed = make_zeroed(size, sizeof *processed);
    float *noise = make_zeroed(vocab, sizeof *noise);
    gumbel_sampling untempered = req->sampling;
    untempered.temperature = (gumbel_row_f32){NULL, 0};
    untempered.truncation = NULL;
    oracle_row *row = oracle_row_make(req->plan.vocab);
    int right = request_process(device, &req->logits, &untempered, y) == GUMBEL_OK &&
                request_process(device, &req->logits, &req->sampling, processed) == GUMBEL_OK;
    for (int64_t b = 0; right && b < req->plan.batch; b++)
        right = judge_row(&(hearing){req, drawn, b, y + (size_t)b * vocab,
                                     processed + (size_t)b * vocab, row, noise, seen});
    oracle_row_free(row);
    free(y);
    free(processed);
    free(noise);
    return right;
}

void print_verdicts(const char *what, const verdicts *seen)
{
    printf("%s: %" PRId64 " rows judged, %" PRId64 " without a token, %" PRId64
           " truncated; near a cut %" PRId64 ", of which %" PRId64
           " cut elsewhere; largest error %.2f of its bound\n",
           what, seen->rows, seen->spoilt, seen->truncated, seen->near_cuts, seen->other_cuts,
           seen->worst);
}
