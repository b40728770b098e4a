/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chi_squared.h"
#include "report.h"
#include "verify.h"

/* A correct sampler fails at most once in a million runs: there are two tests, and a p-value may be
 * ten times too small (chi_squared.h). A wrong temperature passes equally seldom. */
static const double least_p_value = 5e-8;
static const float wrong_temperature = 1.02f;

enum {
    DRAWS_A_CALL = 4096,
    DRAWS_MAX = 1 << 20,
    NEEDED_MAX = 1 << 22, /* upper bound of the search */
    TIMES_MAX = 16,       /* upper bound of the default draws over those that fit the time */
    DRAWS_MIN = 1 << 13,
};
static const double seconds_wanted = 5;

/* ----------------------------------------------------------------- the truth, in float64 ---- */

static double half_to_double(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    double magnitude = 0;

    if (exponent == 31) {
        magnitude = mantissa ? NAN : INFINITY;
    } else {
        magnitude = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    }
    return bits & 0x8000 ? -magnitude : magnitude;
}

static double read_element(const gumbel_tensor *matrix, int64_t row, int64_t col)
{
    const int64_t index = row * (matrix->stride ? matrix->stride : matrix->cols) + col;
    uint32_t bits = 0;
    float value = 0;

    switch (matrix->dtype) {
    case GUMBEL_FLOAT16:
        return half_to_double(((const uint16_t *)matrix->data)[index]);
    case GUMBEL_BFLOAT16:
        bits = (uint32_t)((const uint16_t *)matrix->data)[index] << 16;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    default:
        return (double)((const float *)matrix->data)[index];
    }
}

/* Writes the row's logits to out[0..V), products summed in float64. */
static void exact_logits(const struct verify_input *input, double *out)
{
    const struct source *source = &input->source;
    const int64_t vocab = source_vocab(source);
    const int64_t width = source_hidden_size(source);
    const gumbel_head *head = &source->head;
    double *hidden = require_memory("hidden", width, sizeof *hidden);

    for (int64_t d = 0; d < width; d++) {
        hidden[d] = read_element(&head->hidden, input->row, d);
    }
    for (int64_t i = 0; i < vocab; i++) {
        if (source->from_logits) {
            out[i] = read_element(&source->logits.logits, input->row, i);
            continue;
        }
        out[i] = head->bias.data ? read_element(&head->bias, 0, i) : 0;
        for (int64_t d = 0; d < width; d++) {
            out[i] += read_element(&head->weight, i, d) * hidden[d];
        }
    }
    free(hidden);
}

/* compute_softmax(logits / temperature). */
static void compute_softmax(const double *logits, int64_t vocab, double temperature, double *out)
{
    double max = -INFINITY;
    double sum = 0;

    for (int64_t i = 0; i < vocab; i++) {
        max = fmax(max, logits[i]);
    }
    for (int64_t i = 0; i < vocab; i++) {
        out[i] = exp((logits[i] - max) / temperature);
        sum += out[i];
    }
    for (int64_t i = 0; i < vocab; i++) {
        out[i] /= sum;
    }
}

/* ---------------------------------------------------------------------------- counting ---- */

static gumbel_sampling sampling_at(const struct verify_input *input, const uint64_t *seed,
                                   const uint32_t *first, int64_t count)
{
    return (gumbel_sampling){
        .struct_size = sizeof(gumbel_sampling),
        .temperature = {&input->temperature, GUMBEL_SAME},
        .seed = {seed, GUMBEL_SAME},
        .num_samples = (int32_t)count,
        .first_sample = {first, GUMBEL_SAME},
    };
}

/* Number of draws that take about seconds_wanted, by the fastest of some trials. */
static double measure_fitting(const struct verify_input *input, const struct source *row)
{
    enum { TRIAL = 1024, TRIALS = 3 };
    const gumbel_sampling sampling = sampling_at(input, &input->seed, NULL, TRIAL);
    int32_t tokens[TRIAL];
    const gumbel_output output = {.struct_size = sizeof output, .tokens = tokens};
    double least = INFINITY;

    for (int i = 0; i < TRIALS; i++) {
        const double start = seconds_now();

        source_sample(row, input->device, &sampling, &output);
        least = fmin(least, seconds_now() - start);
    }
    return seconds_wanted / least * TRIAL;
}

/* The number of draws that take about seconds_wanted, a power of two so that small changes of speed
 * do not change the result; or the number that the power check requires, within TIMES_MAX. */
static int64_t choose_draws(const struct verify_input *input, const struct source *row,
                            int64_t needed)
{
    const double fitting = measure_fitting(input, row);
    int64_t draws = DRAWS_MAX;

    while (draws > DRAWS_MIN && (double)draws > fitting) {
        draws /= 2;
    }
    return needed > draws && (double)needed <= fitting * TIMES_MAX ? needed : draws;
}

/* Draws `draws` tokens of one row and counts them in observed[0..V). */
static void count_draws(const struct verify_input *input, const struct source *row, uint64_t seed,
                        int64_t draws, double *observed)
{
    int32_t *tokens = require_memory("tokens", DRAWS_A_CALL, sizeof *tokens);
    int32_t status = GUMBEL_ROW_OK;
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = tokens, .status = &status};

    memset(observed, 0, (size_t)source_vocab(row) * sizeof *observed);
    progress_start("drawing");
    for (int64_t done = 0; done < draws; done += DRAWS_A_CALL) {
        const int64_t count = draws - done < DRAWS_A_CALL ? draws - done : DRAWS_A_CALL;
        const uint32_t first = (uint32_t)done;
        const gumbel_sampling sampling = sampling_at(input, &seed, &first, count);

        source_sample(row, input->device, &sampling, &output);
        if (status != GUMBEL_ROW_OK) {
            fail("--row", "row %lld cannot be drawn from: %s", (long long)input->row,
                 gumbel_row_status_string((gumbel_row_status)status));
        }
        for (int64_t i = 0; i < count; i++) {
            observed[tokens[i]]++;
        }
        progress_update(done + count, draws);
    }
    progress_clear();
    free(tokens);
}

/* ------------------------------------------------------------------------------- tests ---- */

static json_t *chi_squared_json(const struct chi_squared *test, int64_t draws)
{
    json_t *details = json_object();

    json_put(details, "draws", json_integer(draws));
    json_put(details, "chi_squared", json_number(test->statistic));
    json_put(details, "degrees_of_freedom", json_integer(test->degrees));
    json_put(details, "p_value", json_number(test->p_value));
    json_put(details, "tested_mass", json_number(test->tested_mass));
    return details;
}

/* The row's distributions and counts, each [V]. */
struct truth {
    int64_t vocab;
    double *right;    /* probabilities at the row's temperature */
    double *wrong;    /* at a temperature 2% off */
    double *observed; /* counts */
};

/* True if `draws` draws detect the difference: the mean of the statistic, drawn at the right
 * temperature and tested against the wrong one, must exceed the rejection limit by 5 of its
 * standard deviations. */
static bool is_testable(const struct truth *truth, int64_t draws)
{
    double *expected = require_memory("expected", truth->vocab, sizeof *expected);
    struct chi_squared shift;
    double degrees = 0;
    double low = 0;

    for (int64_t i = 0; i < truth->vocab; i++) {
        expected[i] = (double)draws * truth->right[i];
    }
    shift = chi_squared_test(truth->wrong, expected, truth->vocab, (double)draws);
    degrees = (double)shift.degrees;
    free(expected);
    low = degrees + shift.statistic - 5 * sqrt(2 * (degrees + 2 * shift.statistic));
    return degrees > 0 && upper_gamma(0.5 * degrees, 0.5 * low) < least_p_value;
}

/* The smallest number of draws, a power of two, that detects the difference; 0: above
 * NEEDED_MAX. */
static int64_t count_needed_draws(const struct truth *truth)
{
    for (int64_t draws = DRAWS_MIN; draws <= NEEDED_MAX; draws *= 2) {
        if (is_testable(truth, draws)) {
            return draws;
        }
    }
    return 0;
}

static struct truth new_truth(int64_t vocab)
{
    return (struct truth){
        .vocab = vocab,
        .right = require_memory("probabilities", vocab, sizeof(double)),
        .wrong = require_memory("probabilities", vocab, sizeof(double)),
        .observed = require_memory("counts", vocab, sizeof(double)),
    };
}

static void set_truth(struct truth *truth, const double *logits, float temperature)
{
    compute_softmax(logits, truth->vocab, (double)temperature, truth->right);
    compute_softmax(logits, truth->vocab, (double)temperature * (double)wrong_temperature,
                    truth->wrong);
}

static void free_truth(struct truth *truth)
{
    free(truth->observed);
    free(truth->wrong);
    free(truth->right);
}

int64_t verify_choose_row(const struct verify_input *input)
{
    const int64_t rows = source_batch(&input->logits);
    struct truth truth = new_truth(source_vocab(&input->logits));
    double *logits = require_memory("logits", truth.vocab, sizeof *logits);
    int64_t chosen = rows - 1, fewest = INT64_MAX;

    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < truth.vocab; i++) {
            logits[i] = read_element(&input->logits.logits.logits, row, i);
        }
        set_truth(&truth, logits, input->temperature);
        const int64_t needed = count_needed_draws(&truth);

        if (needed > 0 && needed < fewest) {
            fewest = needed;
            chosen = row;
        }
    }
    free(logits);
    free_truth(&truth);
    return chosen;
}

static void test_power(const struct truth *truth, int64_t draws, struct verdicts *verdicts)
{
    const struct chi_squared test =
        chi_squared_test(truth->wrong, truth->observed, truth->vocab, (double)draws);
    const char *name = "power: temperature off by 2%";

    if (!is_testable(truth, draws)) {
        const int64_t needed = count_needed_draws(truth);
        char advice[64] = "choose another --row";

        if (needed > 0) {
            snprintf(advice, sizeof advice, "--draws %lld do", (long long)needed);
        }
        record_verdict(verdicts, SKIPPED, name, chi_squared_json(&test, draws),
                       "%lld draws of this row do not show it; %s", (long long)draws, advice);
        return;
    }
    record_verdict(verdicts, test.p_value < least_p_value ? PASSED : FAILED, name,
                   chi_squared_json(&test, draws), "%s: chi-squared %.1f, %lld degrees, p = %.3g",
                   test.p_value < least_p_value ? "rejected, as it must be" : "NOT rejected",
                   test.statistic, (long long)test.degrees, test.p_value);
}

static void test_way(const struct verify_input *input, const struct source *row, const char *name,
                     uint64_t seed, int64_t draws, struct truth *truth, struct verdicts *verdicts)
{
    struct chi_squared test;

    count_draws(input, row, seed, draws, truth->observed);
    test = chi_squared_test(truth->right, truth->observed, truth->vocab, (double)draws);
    if (test.degrees < 1 && test.p_value > 0) {
        record_verdict(
            verdicts, SKIPPED, name, chi_squared_json(&test, draws),
            "%lld draws are too few to judge this row by; take a row less sure or more --draws",
            (long long)draws);
        return;
    }
    record_verdict(verdicts, test.p_value >= least_p_value ? PASSED : FAILED, name,
                   chi_squared_json(&test, draws),
                   "%.1f, %lld degrees of freedom, p = %.4g (%lld draws, tested mass %.4f)",
                   test.statistic, (long long)test.degrees, test.p_value, (long long)draws,
                   test.tested_mass);
}

void verify_draws(const struct verify_input *input, struct verdicts *verdicts)
{
    const int64_t vocab = source_vocab(&input->source);
    const struct source row = source_rows(&input->source, input->row, 1);
    const struct source logits = source_rows(&input->logits, input->row, 1);
    int64_t draws = input->draws;
    double *exact = require_memory("logits", vocab, sizeof *exact);
    struct truth truth = new_truth(vocab);

    exact_logits(input, exact);
    set_truth(&truth, exact, input->temperature);
    if (draws == 0) {
        draws = choose_draws(input, &row, count_needed_draws(&truth));
    }
    if (!row.from_logits) {
        test_way(input, &row, "chi-squared, fused", input->seed, draws, &truth, verdicts);
    }
    test_way(input, &logits, "chi-squared, from logits", input->seed + 1, draws, &truth, verdicts);
    test_power(&truth, draws, verdicts);
    free_truth(&truth);
    free(exact);
}
