/* SPDX-License-Identifier: Apache-2.0
 *
 * Grouped draws: each part of a vocabulary draws a token, and one part is drawn by the log-masses.
 * The tokens have the softmax distribution of the whole, by chi-squared; log-masses wrong by 5% are
 * detected. Also empty parts, masses far apart, and invalid masses.
 */
#include "inputs.h"
#include "outcome.h"
#include "statistics.h"
#include "test_scale.h"

#include <gumbel/dist.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 300, PARTS = 5, BATCH = 500, SAMPLES = 100 };
#define LOWEST_P 1e-4
#define CAUGHT_P 1e-9

static const int borders[PARTS + 1] = {0, 7, 71, 71, 200, VOCAB}; /* the third is empty */

typedef struct parts {
    float logits[VOCAB];
    double p[VOCAB];
    float masses[PARTS][BATCH];    /* as drawn */
    float with_mass[PARTS][BATCH]; /* multiplied by a factor; correct only with factor 1 */
    int32_t tokens[PARTS][BATCH][SAMPLES];
    gumbel_sampling sampling;
} parts;

/* Every part draws its own tokens with the noise of a shard; `step` is the position. */
static void draw_in_each_part(gumbel_device *device, parts *generated, const uint64_t *step)
{
    float rows[VOCAB * 1];
    memcpy(rows, generated->logits, sizeof rows);
    for (int k = 0; k < PARTS; k++) {
        int first = borders[k], count = borders[k + 1] - first;
        for (int b = 0; b < BATCH; b++)
            generated->masses[k][b] = -INFINITY;
        if (count == 0)
            continue;
        float *copies = make_zeroed((size_t)(BATCH * count), sizeof *copies);
        for (int b = 0; b < BATCH; b++)
            memcpy(copies + b * count, rows + first, (size_t)count * sizeof *rows);
        outcome *drawn = outcome_make(BATCH, SAMPLES);
        gumbel_logits logits = {.struct_size = sizeof logits,
                                .logits = tensor_of(copies, GUMBEL_FLOAT32, BATCH, count, 0),
                                .first_token = first};
        gumbel_sampling sampling = generated->sampling;
        sampling.position = (gumbel_row_u64){step, GUMBEL_SAME};
        assert_int_equal(draw_logits(device, &logits, &sampling, drawn), GUMBEL_OK);
        for (int b = 0; b < BATCH; b++)
            generated->masses[k][b] = drawn->lse[b];
        memcpy(generated->tokens[k], drawn->tokens, sizeof generated->tokens[k]);
        outcome_free(drawn);
        free(copies);
    }
}

static parts *make_parts(double *whole)
{
    static const uint64_t seed = 77;
    parts *generated = make_zeroed(1, sizeof *generated);
    uint64_t random = 3;
    double logits[VOCAB];
    for (int i = 0; i < VOCAB; i++)
        logits[i] = generated->logits[i] = 2 * random_normal(&random) + (i < 7 ? 2.0f : 0.0f) - 4;
    softmax(logits, VOCAB, 1, generated->p);
    *whole = 0;
    for (int i = 0; i < VOCAB; i++)
        *whole += exp(logits[i]);
    *whole = log(*whole);
    generated->sampling = (gumbel_sampling){.struct_size = sizeof generated->sampling,
                                            .seed = {&seed, GUMBEL_SAME},
                                            .num_samples = SAMPLES};
    return generated;
}

/* Joins the draws of the parts, at once or streamed, with log-masses multiplied by `factor`.
 * Returns the log-mass of the whole. */
static float join_parts(parts *generated, int streamed, double factor, gumbel_stream_draw *stream,
                        int32_t *drawn)
{
    float lse[BATCH];
    for (int k = 0; k < PARTS; k++)
        for (int b = 0; b < BATCH; b++)
            generated->with_mass[k][b] = (float)(generated->masses[k][b] * factor);
    if (!streamed) {
        assert_int_equal(gumbel_draw_group(NULL, NULL, PARTS, BATCH, &generated->with_mass[0][0],
                                           &generated->tokens[0][0][0], &generated->sampling, drawn,
                                           NULL, lse, NULL, NULL),
                         GUMBEL_OK);
        return lse[0];
    }
    gumbel_stream_draw_clear(stream, BATCH * SAMPLES);
    for (int k = PARTS - 1; k >= 0; k--)
        assert_int_equal(gumbel_stream_draw_add(NULL, NULL, k, BATCH, generated->with_mass[k],
                                                &generated->tokens[k][0][0], &generated->sampling,
                                                stream, NULL),
                         GUMBEL_OK);
    for (int i = 0; i < BATCH * SAMPLES; i++)
        drawn[i] = stream[i].token;
    return (float)stream[0].log_mass;
}

/* The parts draw once. Their draws are joined by both calls, with correct and with wrong masses. */
static void tokens_have_the_softmax_distribution(void **state)
{
    static const struct {
        const char *way;
        int streamed;
        double factor;
    } joins[] = {
        {"at once", 0, 1}, {"streamed", 1, 1}, {"at once", 0, 1.05}, {"streamed", 1, 1.05}};
    const int count = TEST_SANITIZED ? 2 : 4;
    static int64_t counts[4][VOCAB];
    gumbel_device *device = open_device(GUMBEL_ISA_AUTO, 1, 0);
    double whole;
    parts *generated = make_parts(&whole);
    int64_t total = draws_of(20) * BATCH * SAMPLES;
    int32_t *drawn = make_zeroed(BATCH * SAMPLES, sizeof *drawn);
    gumbel_stream_draw *stream = make_zeroed(BATCH * SAMPLES, sizeof *stream);
    (void)state;
    for (uint64_t step = 0; (int64_t)step < total / (BATCH * SAMPLES); step++) {
        draw_in_each_part(device, generated, &step);
        generated->sampling.position = (gumbel_row_u64){&step, GUMBEL_SAME};
        for (int j = 0; j < count; j++) {
            float lse = join_parts(generated, joins[j].streamed, joins[j].factor, stream, drawn);
            assert_true(joins[j].factor != 1 || fabs(lse - whole) < 1e-5);
            for (int i = 0; i < BATCH * SAMPLES; i++)
                counts[j][drawn[i]]++;
        }
    }
    for (int j = 0; j < count; j++) {
        chi_squared found = {0};
        chi_squared_add(&found, counts[j], generated->p, VOCAB, total);
        double p = chi_squared_p(found.statistic, found.degrees);
        print_message("%s, masses times %g: chi-squared %.1f, %.0f degrees of freedom, p %.4g\n",
                      joins[j].way, joins[j].factor, found.statistic, found.degrees, p);
        assert_true(joins[j].factor == 1 ? p > LOWEST_P : p < CAUGHT_P);
    }
    free(stream);
    free(drawn);
    free(generated);
    gumbel_close(device);
}

/* Invalid masses, and masses so far apart that one part has nearly all. */
static void zero_and_extreme_masses(void **state)
{
    enum { ROWS = 6 };
    static const float masses[2][ROWS] = {{0, NAN, INFINITY, -INFINITY, -INFINITY, 500},
                                          {-800, 0, NAN, -INFINITY, 3, -500}};
    static const int32_t tokens[2][ROWS] = {{10, 11, 12, 13, 14, 15}, {20, 21, 22, 23, 24, 25}};
    static const int32_t expected[ROWS] = {10, -1, -1, -1, 24, 15};
    static const int32_t statuses[ROWS] = {GUMBEL_ROW_OK,    GUMBEL_ROW_NAN, GUMBEL_ROW_NAN,
                                           GUMBEL_ROW_EMPTY, GUMBEL_ROW_OK,  GUMBEL_ROW_OK};
    int32_t drawn[ROWS], which[ROWS], status[ROWS];
    float lse[ROWS];
    gumbel_stream_draw stream[ROWS];
    (void)state;
    assert_int_equal(gumbel_draw_group(NULL, NULL, 2, ROWS, &masses[0][0], &tokens[0][0], NULL,
                                       drawn, which, lse, status, NULL),
                     GUMBEL_OK);
    gumbel_stream_draw_clear(stream, ROWS);
    for (int k = 0; k < 2; k++)
        assert_int_equal(
            gumbel_stream_draw_add(NULL, NULL, k, ROWS, masses[k], tokens[k], NULL, stream, NULL),
            GUMBEL_OK);
    for (int b = 0; b < ROWS; b++) {
        assert_int_equal(drawn[b], expected[b]);
        assert_int_equal(stream[b].token, expected[b]);
        assert_int_equal(status[b], statuses[b]);
        assert_true(isnan(lse[b]) == (status[b] != GUMBEL_ROW_OK));
        assert_int_equal(which[b], expected[b] < 0 ? -1 : expected[b] / 10 - 1);
    }
    assert_true(lse[0] == 0 && lse[4] == 3 && lse[5] == 500);
}

/* The mass of a stream is the sum over its parts, to a few units in the last place of a double. */
static void stream_mass_is_the_sum_of_parts(void **state)
{
    static const int32_t token = 1;
    uint64_t random = 9;
    (void)state;
    for (int turn = 0; turn < 20000; turn++) {
        gumbel_stream_draw stream;
        long double sum = 0;
        int count = 2 + turn % 7;
        float spread = turn % 3 == 0 ? 0.01f : turn % 3 == 1 ? 3.0f : 40.0f;
        gumbel_stream_draw_clear(&stream, 1);
        for (int k = 0; k < count; k++) {
            float mass = spread * random_normal(&random);
            sum += expl(mass);
            assert_int_equal(
                gumbel_stream_draw_add(NULL, NULL, k, 1, &mass, &token, NULL, &stream, NULL),
                GUMBEL_OK);
        }
        double expected = (double)logl(sum), off = fabs(stream.log_mass - expected);
        double scale = fmax(1, fmax(spread * 5, fabs(expected)));
        if (!(off <= 4e-16 * count * scale))
            fail_msg("%d count: %a, not %a", count, stream.log_mass, expected);
    }
}

static void invalid_arguments_return_an_error_by_name(void **state)
{
    static const float mass = 0;
    static const int32_t token = 1;
    int32_t drawn;
    gumbel_stream_draw stream;
    gumbel_error error;
    (void)state;
    const gumbel_sampling table = {.struct_size = sizeof table, .token_ids = &token};
#define REFUSED(call, name)                                                                        \
    assert_int_equal(call, GUMBEL_ERROR_ARGUMENT);                                                 \
    assert_string_equal(error.field, name)
    REFUSED(
        gumbel_draw_group(NULL, NULL, 0, 1, &mass, &token, NULL, &drawn, NULL, NULL, NULL, &error),
        "parts");
    REFUSED(gumbel_draw_group(NULL, NULL, 1, 1, &mass, &token, &table, &drawn, NULL, NULL, NULL,
                              &error),
            "sampling.token_ids");
    REFUSED(
        gumbel_draw_group(NULL, NULL, 1, -1, &mass, &token, NULL, &drawn, NULL, NULL, NULL, &error),
        "batch");
    REFUSED(
        gumbel_draw_group(NULL, NULL, 1, 1, NULL, &token, NULL, &drawn, NULL, NULL, NULL, &error),
        "log_masses");
    REFUSED(
        gumbel_draw_group(NULL, NULL, 1, 1, &mass, NULL, NULL, &drawn, NULL, NULL, NULL, &error),
        "tokens");
    REFUSED(
        gumbel_draw_group(NULL, NULL, 1, 1, &mass, &token, NULL, NULL, NULL, NULL, NULL, &error),
        "drawn");
    REFUSED(gumbel_stream_draw_add(NULL, NULL, -1, 1, &mass, &token, NULL, &stream, &error),
            "part");
    REFUSED(gumbel_stream_draw_add(NULL, NULL, 0, 1, &mass, &token, NULL, NULL, &error), "draws");
    assert_int_equal(
        gumbel_draw_group(NULL, NULL, 1, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, &error),
        GUMBEL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_have_the_softmax_distribution),
                                       cmocka_unit_test(zero_and_extreme_masses),
                                       cmocka_unit_test(stream_mass_is_the_sum_of_parts),
                                       cmocka_unit_test(invalid_arguments_return_an_error_by_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
