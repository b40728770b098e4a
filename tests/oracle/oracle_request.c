/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle_request.h"

#include "inputs.h"

#include "oracle.h"

#include <math.h>
#include <stdlib.h>

#define UNIT 0x1p-24 /* half an ulp of 1 in float32 */

/* Upper limit of 1/T. */
#define HIGHEST_INVERSE 0x1p100f

oracle_row *oracle_row_make(int64_t count)
{
    oracle_row *row = calloc(1, sizeof *row);
    size_t size = (size_t)count;
    row->count = count;
    row->l = calloc(size, sizeof *row->l);
    row->y = calloc(size, sizeof *row->y);
    row->bound = calloc(size, sizeof *row->bound);
    row->z = calloc(size, sizeof *row->z);
    row->order = calloc(size, sizeof *row->order);
    return row;
}

void oracle_row_free(oracle_row *row)
{
    free(row->l);
    free(row->y);
    free(row->bound);
    free(row->z);
    free(row->order);
    free(row);
}

/* --------------------------------------------------------------------------- transforms ---- */

/* The float32 result of an operation whose exact or double result is x. */
static double round_to_single(double x, double *bound)
{
    double rounded = (float)x;
    if (*bound > 0)
        *bound += 2 * UNIT * fabs(rounded);
    return rounded;
}

/* How often a token is in row b's list. */
static int64_t times_listed(const gumbel_token_lists *lists, int64_t b, int64_t token)
{
    int64_t times = 0;
    if (lists->offsets)
        for (int64_t k = lists->offsets[b]; k < lists->offsets[b + 1]; k++)
            times += lists->ids[k] == token;
    return times;
}

static int is_allowed(const gumbel_sampling *s, int64_t tokens, int64_t b, int64_t token)
{
    const gumbel_transforms *t = s->transforms;
    const gumbel_token_lists *allowed = &t->allowed;
    if (t->mask.data) {
        int64_t row = place_of_row(s, t->mask.stride, (tokens + 31) / 32, b);
        if (!((uint32_t)t->mask.data[row + token / 32] >> token % 32 & 1))
            return 0;
    }
    if (allowed->offsets && allowed->offsets[b] < allowed->offsets[b + 1] &&
        times_listed(allowed, b, token) == 0)
        return 0;
    return times_listed(&t->banned, b, token) == 0;
}

static double add_bias(const gumbel_token_lists *bias, int64_t b, int64_t token, double y,
                       double *bound)
{
    if (bias->offsets)
        for (int64_t k = bias->offsets[b]; k < bias->offsets[b + 1]; k++)
            if (bias->ids[k] == token)
                y = round_to_single(y + bias->values[k], bound);
    return y;
}

/* How often a token occurs in the prompt and in the output, for penalties. */
typedef struct occurrences {
    int in_prompt;
    int64_t in_output;
} occurrences;

static occurrences occurrences_of(const gumbel_sampling *s, int64_t b, int64_t token)
{
    const gumbel_transforms *t = s->transforms;
    const gumbel_history *h = t->history;
    occurrences found = {0, 0};
    if (!h) {
        found.in_prompt = times_listed(&t->prompt_tokens, b, token) > 0;
        found.in_output = times_listed(&t->output_tokens, b, token);
    } else if (token < h->vocab_size) {
        int64_t words = (h->vocab_size + 31) / 32, slot = slot_of_row(s, b);
        int64_t at = slot * h->vocab_size + token;
        found.in_prompt = h->prompt[slot * words + token / 32] >> token % 32 & 1;
        found.in_output = h->count_bits == 32 ? ((const int32_t *)h->counts)[at]
                                              : ((const uint16_t *)h->counts)[at];
    }
    if (found.in_output > UINT16_MAX)
        found.in_output = UINT16_MAX;
    return found;
}

static double apply_penalties(const gumbel_sampling *s, int64_t b, int64_t token, double y,
                              double *bound)
{
    const gumbel_transforms *t = s->transforms;
    double repetition = row_f32(&t->repetition, s, b, 1);
    double frequency = row_f32(&t->frequency, s, b, 0);
    double presence = row_f32(&t->presence, s, b, 0);
    occurrences found = occurrences_of(s, b, token);
    double exact = 0;
    if (found.in_prompt || found.in_output) {
        *bound *= fmax(repetition, 1 / repetition);
        y = round_to_single(y > 0 ? y / repetition : y * repetition, bound);
    }
    if (found.in_output) {
        y = round_to_single(y - round_to_single(frequency * (double)found.in_output, &exact),
                            bound);
        y = round_to_single(y - presence, bound);
    }
    return y;
}

static double edit_logit(const gumbel_logits *input, const gumbel_sampling *s, int64_t b,
                         int64_t token, double l, double *bound)
{
    double y = round_to_single(input->scale == 0 ? l : input->scale * l, bound);
    if (input->soft_cap > 0 && isfinite(y)) {
        double cap = input->soft_cap;
        y = cap * tanh(y / cap);
        *bound = 8 * UNIT * fabs(y);
    }
    if (!s->transforms)
        return y;
    y = add_bias(&s->transforms->bias, b, token, y, bound);
    y = apply_penalties(s, b, token, y, bound);
    return add_bias(&s->transforms->late_bias, b, token, y, bound);
}

void oracle_edit_row(const gumbel_logits *input, const gumbel_sampling *sampling, int64_t b,
                     oracle_row *row)
{
    const gumbel_tensor *l = &input->logits;
    int64_t stride = l->stride ? l->stride : l->cols;
    row->first_token = input->first_token;
    row->count = l->cols;
    for (int64_t i = 0; i < l->cols; i++) {
        int64_t token = input->first_token + i;
        row->l[i] = row->y[i] = -INFINITY;
        row->bound[i] = 0;
        if (input->vocab_size > 0 && token >= input->vocab_size)
            continue;
        row->l[i] = oracle_element(l, b * stride + i);
        if (sampling->transforms && !is_allowed(sampling, input->first_token + l->cols, b, token))
            continue;
        row->y[i] = edit_logit(input, sampling, b, token, row->l[i], &row->bound[i]);
    }
}

void oracle_temper_row(const gumbel_sampling *sampling, int64_t b, oracle_row *row)
{
    float temperature = row_f32(&sampling->temperature, sampling, b, 1);
    double inverse = temperature > 0 ? fminf(1.0f / temperature, HIGHEST_INVERSE) : 1;
    double exact = 0;
    int64_t nans = 0, infinite = 0, alive = 0;
    row->greedy = temperature == 0;
    for (int64_t i = 0; i < row->count; i++) {
        double z = row->z[i] = round_to_single(row->y[i] * inverse, &exact);
        nans += isnan(z); /* NaN and +inf pass all transforms unchanged */
        infinite += z == INFINITY;
        alive += z > -INFINITY;
    }
    row->status = nans       ? GUMBEL_ROW_NAN
                  : infinite ? GUMBEL_ROW_INFINITE
                  : alive    ? GUMBEL_ROW_OK
                             : GUMBEL_ROW_EMPTY;
}

/* --------------------------------------------------------------------------- truncation ---- */

typedef struct keyed {
    double key;
    int64_t token; /* from 0 */
} keyed;

static int compare_falling(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    if (x->key != y->key)
        return (x->key < y->key) - (x->key > y->key);
    return (x->token > y->token) - (x->token < y->token);
}

/* Returns the tokens that may be drawn, sorted by key, on the heap. */
static keyed *sort_row(const oracle_row *row, const double *key, int64_t *count)
{
    keyed *sorted = calloc((size_t)row->count, sizeof *sorted);
    *count = 0;
    for (int64_t i = 0; i < row->count; i++)
        if (row->z[i] > -INFINITY)
            sorted[(*count)++] = (keyed){key[i], i};
    qsort(sorted, (size_t)*count, sizeof *sorted, compare_falling);
    return sorted;
}

/* Every rule keeps a prefix of the sorted tokens. These functions return its length within the
 * first `count`; `side` is 0 for the rule in double, -1 and +1 for the fewest and the most tokens
 * that rounding permits. */

static int64_t first_by_min_p(const keyed *sorted, int64_t count, double min_p, int side)
{
    double log_p = log(min_p), cut = sorted[0].key + log_p;
    double slack = log_p < 0 ? UNIT * (3 * fabs(log_p) + fabs(cut)) : 0;
    int64_t kept = 0;
    while (kept < count && sorted[kept].key >= cut - side * slack)
        kept++;
    return kept;
}

static int64_t first_by_top_k(const keyed *sorted, int64_t count, int64_t k, gumbel_ties ties)
{
    if (k == 0 || k >= count)
        return count;
    if (ties == GUMBEL_TIES_ALL)
        while (k < count && sorted[k].key == sorted[k - 1].key)
            k++;
    return k;
}

/* exp(x), x <= 0, and the error bound of the library's mass. */
static double mass_of(double x, double *error)
{
    double mass = exp(x);
    *error = x < 0 ? UNIT * (4 + fabs(x)) * mass + 0x1p-61 : 0;
    return mass;
}

static int64_t first_by_top_p(const keyed *sorted, int64_t count, double p, gumbel_ties ties,
                              int side)
{
    double total = 0, total_error = 0, above = 0, above_error = 0, error;
    if (p >= 1)
        return count;
    for (int64_t i = 0; i < count; i++) {
        total += mass_of(sorted[i].key - sorted[0].key, &error);
        total_error += error;
    }
    for (int64_t i = 0; i < count; i++) {
        int starts = i == 0 || ties == GUMBEL_TIES_EXACT || sorted[i].key != sorted[i - 1].key;
        if (starts && !(above - side * above_error < p * (total + side * total_error)))
            return i;
        above += mass_of(sorted[i].key - sorted[0].key, &error);
        above_error += error;
    }
    return count;
}

static int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t first_by_rules(const keyed *sorted, int64_t count, const gumbel_sampling *s,
                              int64_t b, int side)
{
    const gumbel_truncation *rules = s->truncation;
    double min_p = row_f32(&rules->min_p, s, b, 0);
    double top_p = row_f32(&rules->top_p, s, b, 1);
    int64_t top_k = row_i32(&rules->top_k, s, b, 0);
    int64_t by_min_p = min_p > 0 ? first_by_min_p(sorted, count, min_p, side) : count, left;
    switch (rules->order) {
    case GUMBEL_ORDER_JOINT:
    case GUMBEL_ORDER_JOINT_TEMPERATURE:
        return min_i64(by_min_p, min_i64(first_by_top_k(sorted, count, top_k, rules->ties),
                                         first_by_top_p(sorted, count, top_p, rules->ties, side)));
    case GUMBEL_ORDER_TOP_K_TOP_P_MIN_P:
    case GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE:
        left = first_by_top_k(sorted, count, top_k, rules->ties);
        left = first_by_top_p(sorted, left, top_p, rules->ties, side);
        return min_p > 0 ? first_by_min_p(sorted, left, min_p, side) : left;
    default:
        left = first_by_top_k(sorted, by_min_p, top_k, rules->ties);
        return first_by_top_p(sorted, left, top_p, rules->ties, side);
    }
}

/* Whether the rules apply to y, before the temperature. */
static int by_y(const gumbel_truncation *rules)
{
    return rules->order == GUMBEL_ORDER_BEFORE_TEMPERATURE ||
           rules->order == GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE ||
           rules->order == GUMBEL_ORDER_JOINT_TEMPERATURE;
}

int oracle_truncate_row(const gumbel_sampling *sampling, int64_t b, oracle_row *row)
{
    const gumbel_truncation *rules = row->greedy ? NULL : sampling->truncation;
    int64_t count;
    keyed *sorted = sort_row(row, rules && by_y(rules) ? row->y : row->z, &count);
    for (int64_t i = 0; i < count; i++)
        row->order[i] = sorted[i].token;
    row->alive = row->fewest = row->most = row->kept = count;
    if (rules && count > 0) {
        row->fewest = first_by_rules(sorted, count, sampling, b, -1);
        row->kept = first_by_rules(sorted, count, sampling, b, 0);
        row->most = first_by_rules(sorted, count, sampling, b, 1);
    }
    free(sorted);
    return row->fewest < row->most;
}

/* ------------------------------------------------------------------------------ outputs ---- */

double oracle_row_lse(const oracle_row *row, gumbel_distribution of)
{
    double highest = -INFINITY, sum = 0;
    if (of == GUMBEL_RAW) {
        for (int64_t i = 0; i < row->count; i++)
            highest = isnan(row->l[i]) ? INFINITY : fmax(highest, row->l[i]);
        for (int64_t i = 0; i < row->count; i++)
            sum += exp(row->l[i] - highest);
        return highest + log(sum);
    }
    for (int64_t i = 0; i < row->kept; i++)
        highest = fmax(highest, row->z[row->order[i]]);
    for (int64_t i = 0; i < row->kept; i++)
        sum += exp(row->z[row->order[i]] - highest);
    return highest + log(sum);
}

float oracle_row_score(const oracle_row *row, int64_t token, float g)
{
    double z = row->z[token - row->first_token];
    return (float)(row->greedy ? z : z + g);
}

int32_t oracle_row_draw(const oracle_row *row, const float *noise)
{
    int64_t best = -1;
    float best_score = -INFINITY;
    for (int64_t k = 0; k < row->kept; k++) {
        int64_t token = row->first_token + row->order[k];
        float s = oracle_row_score(row, token, noise[row->order[k]]);
        if (best < 0 || s > best_score || (s == best_score && token < best)) {
            best = token;
            best_score = s;
        }
    }
    return (int32_t)best;
}

int32_t oracle_row_rank(const oracle_row *row, int32_t token)
{
    int32_t rank = 1;
    for (int64_t i = 0; i < row->count; i++)
        rank += row->z[i] > row->z[token - row->first_token];
    return rank;
}

int oracle_row_keeps(const oracle_row *row, int32_t token)
{
    for (int64_t i = 0; i < row->kept; i++)
        if (row->first_token + row->order[i] == token)
            return 1;
    return 0;
}

void oracle_row_top(const oracle_row *row, int32_t n, int32_t *ids)
{
    int64_t count;
    keyed *sorted = sort_row(row, row->z, &count);
    for (int32_t i = 0; i < n; i++)
        ids[i] = i < count ? (int32_t)(row->first_token + sorted[i].token) : -1;
    free(sorted);
}
