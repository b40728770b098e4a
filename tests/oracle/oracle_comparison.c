/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle_comparison.h"

#include "oracle_request.h"
#include "inputs.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define ULP 0x1p-23 /* of 1 in float32 */

/* One row, and all that is needed to check it. */
typedef struct row_check {
    const request *req;
    const outcome *drawn;
    int64_t b;
    const float *y, *processed; /* [V], by the library */
    oracle_row *row;
    float *noise; /* [V] */
    verdicts *seen;
} row_check;

static int report_error(const row_check *h, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Prints an error of the row; returns 0. */
static int report_error(const row_check *h, const char *format, ...)
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
static int check_close(const row_check *h, const char *name, int64_t index, float found,
                       double exact, double bound)
{
    if ((double)found == exact || (isnan(found) && isnan(exact)))
        return 1;
    double error = fabs((double)found - exact) / bound;
    if (!(error <= 1))
        return report_error(h, "%s[%" PRId64 "] is %a, the oracle has %a, bound %.3g", name, index,
                            (double)found, exact, bound);
    h->seen->worst = fmax(h->seen->worst, error);
    return 1;
}

static int check_equal(const row_check *h, const char *name, int64_t index, int64_t found,
                       int64_t expected)
{
    return found == expected ||
           report_error(h, "%s[%" PRId64 "] is %" PRId64 ", the oracle has %" PRId64, name, index,
                        found, expected);
}

/* Checks y within its bound, and continues with the library's y. */
static int check_y(const row_check *h)
{
    oracle_row *row = h->row;
    for (int64_t i = 0; i < row->count; i++) {
        if (!check_close(h, "y", i, h->y[i], row->y[i], row->bound[i]))
            return 0;
        row->y[i] = h->y[i];
    }
    oracle_temper_row(&h->req->sampling, h->b, row);
    return 1;
}

/* Checks a row without a token to draw. */
static int check_faulty_row(const row_check *h)
{
    const outcome *drawn = h->drawn;
    int32_t samples = drawn->samples, n = drawn->output.num_top;
    int empty = h->row->status == GUMBEL_ROW_EMPTY;
    h->seen->faulty++;
    for (int64_t at = h->b * samples; at < (h->b + 1) * samples; at++)
        if (drawn->tokens[at] != -1 || drawn->ranks[at] != -1 || !isnan(drawn->scores[at]) ||
            !isnan(drawn->logprobs[at]))
            return report_error(h, "is spoilt, and draw %" PRId64 " is (%d, rank %d, %g, %g)", at,
                                (int)drawn->tokens[at], (int)drawn->ranks[at],
                                (double)drawn->scores[at], (double)drawn->logprobs[at]);
    if (!isnan(drawn->lse[h->b]))
        return report_error(h, "is spoilt, and lse is %g", (double)drawn->lse[h->b]);
    for (int64_t at = h->b * n; at < (h->b + 1) * n; at++)
        if (drawn->top_ids[at] != -1 || !isnan(drawn->top_logprobs[at]))
            return report_error(h, "is spoilt, and top %" PRId64 " is (%d, %g)", at,
                                (int)drawn->top_ids[at], (double)drawn->top_logprobs[at]);
    for (int64_t i = 0; i < h->row->count; i++)
        if (empty ? h->processed[i] != -INFINITY : !isnan(h->processed[i]))
            return report_error(h, "is spoilt, and z[%" PRId64 "] is %g", i,
                                (double)h->processed[i]);
    return check_equal(h, "kept", 0, drawn->kept[h->b], 0);
}

/* Checks the kept set, as gumbel_process_logits() reports it. Near a cutoff, the following checks
 * use the library's set. */
static int check_truncation(const row_check *h)
{
    oracle_row *row = h->row;
    int near = oracle_truncate_row(&h->req->sampling, h->b, row);
    int64_t found = 0;
    while (found < row->alive && h->processed[row->order[found]] > -INFINITY)
        found++;
    h->seen->near_cutoffs += near;
    if (found < row->fewest || found > row->most)
        return report_error(h,
                            "keeps the first %" PRId64 " of %" PRId64 ", not %" PRId64
                            ", or %" PRId64 " to %" PRId64,
                            found, row->alive, row->kept, row->fewest, row->most);
    h->seen->other_kept_sets += found != row->kept;
    row->kept = found;
    h->seen->truncated += row->kept < row->alive;
    for (int64_t k = 0; k < row->alive; k++) {
        int64_t i = row->order[k];
        double expected = k < row->kept ? row->z[i] : -INFINITY;
        if ((double)h->processed[i] != expected)
            return report_error(h, "z[%" PRId64 "] is %a, the oracle has %a", i,
                                (double)h->processed[i], expected);
    }
    for (int64_t i = 0; i < row->count; i++)
        if (row->z[i] == -INFINITY && h->processed[i] != -INFINITY)
            return report_error(h, "z[%" PRId64 "] is %a, not -inf", i, (double)h->processed[i]);
    return check_equal(h, "kept", h->b, h->drawn->kept[h->b], row->kept);
}

/* Computes the noise of one draw by the public gumbel_noise(). */
static void record_noise(const row_check *h, int32_t sample)
{
    const gumbel_sampling *s = &h->req->sampling;
    if (gumbel_noise(row_u64(&s->seed, s, h->b, 0), row_u64(&s->position, s, h->b, 0),
                     row_u32(&s->first_sample, s, h->b, 0) + (uint32_t)sample, s->domain,
                     h->row->first_token, h->row->count, h->noise, NULL) != GUMBEL_OK)
        die("gumbel_noise() failed");
}

static double bound_of_lse(double lse) { return 2 * ULP * fmax(1, fabs(lse)); }

/* Checks the log-probability of a token; the processed distribution gives removed tokens -inf. */
static int check_logprob(const row_check *h, const char *name, int64_t at, float found,
                         int32_t token)
{
    gumbel_distribution of = h->drawn->output.logprobs_of;
    const oracle_row *row = h->row;
    int64_t i = token - row->first_token;
    double lse = oracle_row_lse(row, of);
    double exact = (of == GUMBEL_RAW ? row->l[i] : row->z[i]) - lse;
    if (of == GUMBEL_PROCESSED && !oracle_row_keeps(row, token))
        exact = -INFINITY;
    return check_close(h, name, at, found, exact, bound_of_lse(lse) + ULP * fabs(exact));
}

static int check_draw(const row_check *h, int32_t sample)
{
    int64_t at = h->b * h->drawn->samples + sample;
    record_noise(h, sample);
    int32_t expected = oracle_row_draw(h->row, h->noise);
    float score = oracle_row_score(h->row, expected, h->noise[expected - h->row->first_token]);
    return check_equal(h, "tokens", at, h->drawn->tokens[at], expected) &&
           check_close(h, "scores", at, h->drawn->scores[at], score, 0) &&
           check_equal(h, "ranks", at, h->drawn->ranks[at], oracle_row_rank(h->row, expected)) &&
           check_logprob(h, "logprobs", at, h->drawn->logprobs[at], expected);
}

static int check_top(const row_check *h)
{
    enum { IDS_MAX = 128 };
    int32_t ids[IDS_MAX], n = h->drawn->output.num_top;
    oracle_row_top(h->row, n, ids);
    for (int32_t k = 0; k < n; k++) {
        int64_t at = h->b * n + k;
        float logprob = h->drawn->top_logprobs[at];
        if (!check_equal(h, "top_ids", at, h->drawn->top_ids[at], ids[k]))
            return 0;
        if (ids[k] < 0 ? !check_close(h, "top_logprobs", at, logprob, -INFINITY, 0)
                       : !check_logprob(h, "top_logprobs", at, logprob, ids[k]))
            return 0;
    }
    return 1;
}

static int check_row(const row_check *h)
{
    const outcome *drawn = h->drawn;
    h->seen->rows++;
    oracle_edit_row(&h->req->logits, &h->req->sampling, h->b, h->row);
    oracle_temper_row(&h->req->sampling, h->b, h->row);
    if (!check_equal(h, "status", h->b, drawn->status[h->b], h->row->status))
        return 0;
    if (h->row->status != GUMBEL_ROW_OK)
        return check_faulty_row(h);
    if (!check_y(h) || !check_truncation(h))
        return 0;
    double lse = oracle_row_lse(h->row, drawn->output.logprobs_of);
    if (!check_close(h, "lse", h->b, drawn->lse[h->b], lse, bound_of_lse(lse)))
        return 0;
    for (int32_t s = 0; s < drawn->samples; s++)
        if (!check_draw(h, s))
            return 0;
    return check_top(h);
}

int compare_with_oracle(gumbel_device *device, const request *req, const outcome *drawn,
                        verdicts *seen)
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
        right = check_row(&(row_check){req, drawn, b, y + (size_t)b * vocab,
                                       processed + (size_t)b * vocab, row, noise, seen});
    oracle_row_free(row);
    free(y);
    free(processed);
    free(noise);
    return right;
}

void print_verdicts(const char *what, const verdicts *seen)
{
    printf("%s: %" PRId64 " rows compared, %" PRId64 " without a token, %" PRId64
           " truncated; near a cutoff %" PRId64 ", of which %" PRId64
           " with another kept set; largest error %.2f of its bound\n",
           what, seen->rows, seen->faulty, seen->truncated, seen->near_cutoffs,
           seen->other_kept_sets, seen->worst);
}
