/* SPDX-License-Identifier: Apache-2.0
 *
 * Detection of watermarks: scores and p-values against plain loops; uniform p-values of texts
 * without a watermark; generated texts, whose watermarked tokens are the scored ones; every error.
 */
#include "outcome.h"
#include "statistics.h"
#include "watermark_texts.h"
#include "watermark_oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixtures.h"

enum { LONGEST = 5000 };

static gumbel_detection detect(const gumbel_detector *with, const int32_t *tokens, int64_t count,
                               double *scores)
{
    gumbel_detection found = {.struct_size = sizeof found};
    gumbel_error error = {"", ""};
    const gumbel_status status =
        gumbel_detect_watermark(with, tokens, count, scores, &found, &error);
    if (status != GUMBEL_OK)
        fail_msg("%s: %s", error.field, error.message);
    return found;
}

static gumbel_detector random_detector(uint64_t *random, int32_t context)
{
    return (gumbel_detector){.struct_size = sizeof(gumbel_detector),
                             .key = {random_bits(random), random_bits(random)},
                             .context = context};
}

/* ------------------------------------------------------------------------------ arithmetic ---- */

/* ln P(Gamma(n, 1) >= s): the terms of the Poisson distribution, in the order of their index. */
static double sum_log_tail(int64_t n, double s)
{
    long double log_term = -(long double)s, most = log_term, sum = 0;
    for (int64_t k = 1; k < n; k++) {
        log_term += logl((long double)s) - logl((long double)k);
        most = log_term > most ? log_term : most;
    }
    log_term = -(long double)s;
    for (int64_t k = 0; k < n; k++) {
        sum += expl(log_term - most);
        log_term += logl((long double)s) - logl((long double)(k + 1));
    }
    return (double)(most + logl(sum));
}

/* Checks a detection against the scores of plain loops. */
static void check_detection(const gumbel_detector *d, const int32_t *tokens, int64_t count)
{
    double *scores = malloc((size_t)(count + 1) * sizeof *scores), sum = 0;
    const int32_t context = d->context ? d->context : GUMBEL_CONTEXT_DEFAULT;
    const gumbel_detection found = detect(d, tokens, count, scores);
    int64_t scored = 0;
    for (int64_t i = 0; i < count; i++) {
        double score = oracle_watermark_score(d->key, context, d->sample, d->domain, tokens, i);
        if (i < d->first)
            score = NAN;
        assert_true(isnan(score) == isnan(scores[i]));
        if (isnan(score))
            continue;
        assert_true(fabs(score - scores[i]) <= 1e-12 * (1 + score));
        sum += score;
        scored++;
    }
    free(scores);
    assert_true(found.scored == scored);
    assert_true(fabs(found.statistic - sum) <= 1e-9 * (1 + sum));
    const double tail = scored ? sum_log_tail(scored, found.statistic) / log(10) : 0;
    assert_true(fabs(found.log10_p - tail) <= 1e-9 * fmax(1, fabs(tail)));
    const double p = found.log10_p < -306.95 ? 0 : exp(found.log10_p * log(10));
    assert_true(fabs(found.p_value - p) <= 1e-9 * p);
}

static void detections_agree_with_plain_loops(void **state)
{
    static const uint32_t alphabets[] = {1, 2, 3, 9, 1000, 0x7fffffff};
    static int32_t tokens[600];
    uint64_t random = 5;
    (void)state;
    for (int index = 0; index < 2000; index++) {
        const int64_t count = random_below(&random, random_below(&random, 4) ? 60 : 600);
        const uint32_t most = alphabets[random_below(&random, 6)];
        gumbel_detector d =
            random_detector(&random, (int32_t)random_below(&random, GUMBEL_CONTEXT_MAX + 1));
        d.sample = random_below(&random, 3);
        d.domain = random_below(&random, 3);
        d.first = random_below(&random, 2) ? random_below(&random, (uint32_t)count + 1) : 0;
        for (int64_t i = 0; i < count; i++)
            tokens[i] = (int32_t)random_below(&random, most);
        check_detection(&d, tokens, count);
    }
}

/* Texts whose every token has the largest or smallest noise of `choices`: p-values from below
 * 10^-3000 to nearly 1. */
static void p_values_are_accurate_at_both_ends(void **state)
{
    static int32_t tokens[LONGEST];
    static const int32_t choices[] = {-50, -2, 1, 2, 10, 300};
    static const int64_t counts[] = {5, 6, 7, 40, 900, LONGEST};
    uint64_t random = 9;
    double lowest = 0;
    (void)state;
    for (size_t k = 0; k < sizeof choices / sizeof *choices; k++) {
        gumbel_detector d = random_detector(&random, 4);
        const int32_t sign = choices[k] < 0 ? -1 : 1, many = choices[k] * sign;
        for (int64_t i = 0; i < LONGEST; i++) {
            const oracle_draw draw =
                oracle_watermark(d.key, 4, i < 4 ? tokens : tokens + i - 4, i < 4 ? 0 : 4, 0, 0);
            const int32_t base = (int32_t)random_below(&random, 1000000);
            float noise[300];
            int32_t best = 0;
            gumbel_error error;
            assert_int_equal(
                gumbel_noise(draw.seed, draw.position, 0, 0, base, many, noise, &error), GUMBEL_OK);
            for (int32_t j = 1; j < many; j++)
                if ((noise[j] - noise[best]) * (float)sign > 0)
                    best = j;
            tokens[i] = base + best;
        }
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
            gumbel_detection found = detect(&d, tokens, counts[n], NULL);
            check_detection(&d, tokens, counts[n]);
            lowest = fmin(lowest, found.log10_p);
        }
    }
    assert_true(lowest < -3000);
}

/* ---------------------------------------------------------------------------- distribution ---- */

/* p-values of texts that do not depend on the key, with repeats and without, are uniform. */
static void texts_without_a_watermark_have_uniform_p_values(void **state)
{
    static const uint32_t alphabets[] = {3, 100000};
    enum { TEXTS = 4000 };
    static double p[TEXTS];
    int32_t tokens[80];
    uint64_t random = 21;
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        for (int index = 0; index < TEXTS; index++) {
            const gumbel_detector d = random_detector(&random, 2);
            for (int i = 0; i < 80; i++)
                tokens[i] = (int32_t)random_below(&random, alphabets[k]);
            p[index] = detect(&d, tokens, 80, NULL).p_value;
        }
        assert_true(uniform_p(p, TEXTS) > 1e-4);
        /* p-values that are slightly too small fail. */
        for (int index = 0; index < TEXTS; index++)
            p[index] = pow(p[index], 1.1);
        assert_true(uniform_p(p, TEXTS) < 1e-4);
    }
}

enum { WIDE_VOCAB = 400, WIDE_TEXT = 204 };

/* Logits after a token, of about two bits of entropy; returns it. */
static double compute_logits(int32_t last, float *logits)
{
    double wide[WIDE_VOCAB], probability[WIDE_VOCAB], bits = 0;
    uint64_t random = 70 + (uint64_t)last;
    for (int i = 0; i < WIDE_VOCAB; i++)
        wide[i] = (double)(logits[i] = 7.0f * random_normal(&random));
    softmax(wide, WIDE_VOCAB, 1, probability);
    for (int i = 0; i < WIDE_VOCAB; i++)
        bits -= probability[i] * log2(probability[i] + 1e-300);
    return bits;
}

/* Decodes a text of one row; returns its mean entropy a token, in bits. */
static double decode_text(gumbel_device *device, const uint64_t *key, int32_t context,
                          int32_t *text)
{
    static float logits[WIDE_VOCAB];
    static unsigned char workspace[1 << 20] __attribute__((aligned(64)));
    int32_t ring[WIDE_TEXT];
    uint64_t count = 0, seed, position, own = 0;
    gumbel_error error;
    double bits = 0;
    gumbel_recent recent = {
        .struct_size = sizeof recent, .capacity = WIDE_TEXT, .tokens = ring, .count = &count};
    gumbel_watermark w = {.struct_size = sizeof w,
                          .key = key,
                          .context = {&context, 0},
                          .seed = {key, 0},
                          .position = {&own, 0}};
    gumbel_watermark_draws to = {.struct_size = sizeof to, .seed = &seed, .position = &position};
    gumbel_logits in = {.struct_size = sizeof in,
                        .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, WIDE_VOCAB, 0)};
    gumbel_sampling how = {
        .struct_size = sizeof how, .seed = {&seed, 0}, .position = {&position, 0}};
    for (own = 0; own < WIDE_TEXT; own++) {
        gumbel_output out = {.struct_size = sizeof out, .tokens = &text[own]};
        bits += compute_logits(own ? text[own - 1] : 0, logits) / WIDE_TEXT;
        assert_int_equal(gumbel_watermark_rows(device, NULL, &w, &recent, 1, &to, &error),
                         GUMBEL_OK);
        assert_int_equal(gumbel_sample_logits(device, NULL, &in, &how, &out, workspace,
                                              sizeof workspace, &error),
                         GUMBEL_OK);
        assert_int_equal(
            gumbel_recent_append(device, NULL, &recent, 1, NULL, &text[own], 1, NULL, &error),
            GUMBEL_OK);
    }
    return bits;
}

/* A text of 200 tokens and two bits a token is detected by its key alone, also with every tenth
 * token replaced; a context length of another text, and without a watermark, is not. */
static void short_texts_are_detected(void **state)
{
    int32_t text[WIDE_TEXT];
    double bits = 0, worst = -INFINITY, worst_edited = -INFINITY;
    enum { TEXTS = 30 };
    for (uint64_t index = 0; index < TEXTS; index++) {
        uint64_t random = index;
        gumbel_detector d = random_detector(&random, 4), other = random_detector(&random, 4);
        bits += decode_text(*state, d.key, 4, text) / TEXTS;
        worst = fmax(worst, detect(&d, text, WIDE_TEXT, NULL).log10_p);
        assert_true(detect(&other, text, WIDE_TEXT, NULL).p_value > 1e-4);
        d.context = 3;
        assert_true(detect(&d, text, WIDE_TEXT, NULL).p_value > 1e-4);
        d.context = 4;
        for (int i = 5; i < WIDE_TEXT; i += 10)
            text[i] = (int32_t)random_below(&random, WIDE_VOCAB);
        worst_edited = fmax(worst_edited, detect(&d, text, WIDE_TEXT, NULL).log10_p);
        decode_text(*state, d.key, 0, text);
        assert_true(detect(&d, text, WIDE_TEXT, NULL).p_value > 1e-4);
    }
    print_message("mean entropy %.2f bits; largest log10 p %.1f, with edits %.1f\n", bits, worst,
                  worst_edited);
    assert_true(bits > 1.8 && bits < 2.2);
    assert_true(worst < -6 && worst_edited < -3);
}

/* The scored tokens are those that were watermarked. */
static void detection_scores_the_watermarked_tokens(void **state)
{
    watermark_texts *t = malloc(sizeof *t);
    for (uint64_t index = 100; index < 140; index++) {
        watermark_texts_make(t, index, *state);
        for (int r = 0; r < TEXTS_REQUESTS; r++) {
            int32_t whole[TEXTS_CAPACITY];
            double scores[TEXTS_CAPACITY];
            const int32_t slot = t->of_row[r], prompt = t->text_start[slot] ? 0 : t->prompt[r];
            gumbel_detector d = {.struct_size = sizeof d,
                                 .key = {t->key[2 * slot], t->key[2 * slot + 1]},
                                 .context = t->context[slot],
                                 .first = prompt};
            memcpy(whole, t->prompts[r], (size_t)prompt * sizeof *whole);
            memcpy(whole + prompt, t->text[r], sizeof t->text[r]);
            if (d.context == 0)
                continue;
            detect(&d, whole, prompt + TEXTS_LENGTH, scores);
            for (int i = 0; i < TEXTS_LENGTH; i++)
                assert_true(isnan(scores[prompt + i]) == !t->watermarked[r][i]);
        }
    }
    free(t);
}

/* ---------------------------------------------------------------------------------- errors ---- */

static void invalid_calls_return_an_error_by_name(void **state)
{
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, -7, 8};
    double scores[9];
    gumbel_detection found, before;
    struct {
        const char *field;
        gumbel_detector with;
        const int32_t *tokens;
        int64_t count;
        double *scores;
        gumbel_detection *into;
    } cases[] = {
        {"count", {.context = 1}, tokens, -1, scores, &found},
        {"count", {.context = 1}, tokens, GUMBEL_DETECT_MAX + 1, scores, &found},
        {"tokens", {.context = 1}, NULL, 1, scores, &found},
        {"tokens", {.context = 1}, (const int32_t *)((const char *)tokens + 1), 1, scores, &found},
        {"tokens[6]", {.context = 1}, tokens, 8, scores, &found},
        {"detector.context", {.context = -1}, tokens, 6, scores, &found},
        {"detector.context", {.context = GUMBEL_CONTEXT_MAX + 1}, tokens, 6, scores, &found},
        {"detector.domain", {.domain = 0x80000000u}, tokens, 6, scores, &found},
        {"detector.reserved", {.reserved = 1}, tokens, 6, scores, &found},
        {"detector.first", {.first = -1}, tokens, 6, scores, &found},
        {"detector.first", {.first = 7}, tokens, 6, scores, &found},
        {"scores", {.context = 1}, tokens, 6, (double *)((char *)scores + 1), &found},
        {"detection", {.context = 1}, tokens, 6, scores, NULL},
    };
    (void)state;
    memset(scores, 0x5A, sizeof scores);
    memset(&found, 0x5A, sizeof found);
    found.struct_size = sizeof found;
    before = found;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gumbel_error error = {"", ""};
        cases[i].with.struct_size = sizeof cases[i].with;
        assert_int_equal(gumbel_detect_watermark(&cases[i].with, cases[i].tokens, cases[i].count,
                                                 cases[i].scores, cases[i].into, &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, cases[i].field);
        assert_memory_equal(&found, &before, sizeof found);
        for (size_t k = 0; k < sizeof scores; k++)
            assert_int_equal(((unsigned char *)scores)[k], 0x5A);
    }
    gumbel_error error = {"", ""};
    assert_int_equal(gumbel_detect_watermark(NULL, tokens, 6, NULL, &found, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "detector");
    found.struct_size = 4;
    assert_int_equal(gumbel_detect_watermark(&cases[0].with, tokens, 6, NULL, &found, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "detection");
}

/* Texts without a scored token have p = 1; the struct of an older caller is not overrun. */
static void short_texts_and_structs(void **state)
{
    const int32_t tokens[16] = {0};
    gumbel_detector d = {.struct_size = sizeof d, .context = GUMBEL_CONTEXT_MAX};
    for (int64_t count = 0; count <= 16; count++) {
        const gumbel_detection found = detect(&d, count ? tokens : NULL, count, NULL);
        assert_true(found.scored == 0 && found.statistic == 0);
        assert_true(found.p_value == 1 && found.log10_p == 0);
    }
    (void)state;
    gumbel_detection found;
    memset(&found, 0x5A, sizeof found);
    found.struct_size = offsetof(gumbel_detection, p_value);
    d.context = 1;
    assert_int_equal(gumbel_detect_watermark(&d, tokens, 16, NULL, &found, NULL), GUMBEL_OK);
    assert_true(found.scored == 1);
    for (size_t i = offsetof(gumbel_detection, p_value); i < sizeof found; i++)
        assert_int_equal(((unsigned char *)&found)[i], 0x5A);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(detections_agree_with_plain_loops),
        cmocka_unit_test(p_values_are_accurate_at_both_ends),
        cmocka_unit_test(texts_without_a_watermark_have_uniform_p_values),
        cmocka_unit_test(short_texts_are_detected),
        cmocka_unit_test(detection_scores_the_watermarked_tokens),
        cmocka_unit_test(invalid_calls_return_an_error_by_name),
        cmocka_unit_test(short_texts_and_structs),
    };
    return cmocka_run_group_tests(tests, open_one_thread, close_device);
}
