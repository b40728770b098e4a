/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs on hostile rows and at the ends of their parameters, with results computed by hand.
 */
#include "program_row.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "every_isa.h"

enum { T = GUMBEL_PROGRAM_TEMPERATURE, ADAPTIVE_P = GUMBEL_PROGRAM_ADAPTIVE_P, RULES = ADAPTIVE_P };

/* Usual parameters of all rules. */
static const float min_p = 0.05f, top_p = 0.9f, typical_p = 0.9f, sigma = 1, epsilon = 0.01f,
                   eta = 0.01f, top_a = 0.2f, surprise = 5, xtc_p = 1, xtc_t = 0.1f, factor = 0.3f,
                   target = 0.4f;
static const int32_t top_k = 3;

/* A row whose program is one rule, with a usual parameter, and then TEMPERATURE; ADAPTIVE_P follows
 * it. */
static void set_rule_row(program_row *row, const float *logits, int64_t count, int rule)
{
    const uint8_t rules[3] = {(uint8_t)rule, T}, last[2] = {T, ADAPTIVE_P};
    set_program_row(row, logits, count, rule == ADAPTIVE_P ? last : rules, rule == T ? 1 : 2);
    row->truncation.min_p = same_f32(&min_p);
    row->truncation.top_k = same_i32(&top_k);
    row->truncation.top_p = same_f32(&top_p);
    row->programs.typical_p = same_f32(&typical_p);
    row->programs.top_n_sigma = same_f32(&sigma);
    row->programs.epsilon = same_f32(&epsilon);
    row->programs.eta = same_f32(&eta);
    row->programs.top_a = same_f32(&top_a);
    row->programs.surprise = same_f32(&surprise);
    row->programs.xtc_probability = same_f32(&xtc_p);
    row->programs.xtc_threshold = same_f32(&xtc_t);
    row->programs.smoothing_factor = same_f32(&factor);
    row->programs.adaptive_target = same_f32(&target);
}

static int64_t process_row(gumbel_device *device, const program_row *row, float *z)
{
    const int64_t count = row->logits.logits.cols;
    int64_t kept = 0;
    assert_int_equal(request_process(device, &row->logits, &row->sampling, z), GUMBEL_OK);
    for (int64_t i = 0; i < count; i++)
        kept += z[i] > -INFINITY;
    return kept;
}

/* Fails unless exactly the tokens of `kept`, bit i for token i, remain. */
static void assert_kept(gumbel_device *device, const program_row *row, unsigned kept)
{
    float z[32];
    unsigned found = 0;
    process_row(device, row, z);
    for (int64_t i = 0; i < row->logits.logits.cols; i++)
        found |= z[i] > -INFINITY ? 1u << i : 0;
    assert_int_equal(found, kept);
}

static void equal_rows_stay_whole(void **state)
{
    static const int64_t sizes[] = {1, 2, 3, 64, 65, 1000};
    float logits[1000], z[1000];
    for (int rule = 1; rule <= RULES; rule++)
        for (int k = 0; k < 6; k++) {
            program_row row;
            for (int64_t i = 0; i < sizes[k]; i++)
                logits[i] = -7.3f;
            set_rule_row(&row, logits, sizes[k], rule);
            assert_int_equal(process_row(*state, &row, z), sizes[k]);
            for (int64_t i = 0; i < sizes[k]; i++)
                assert_true(rule == ADAPTIVE_P ? z[i] == z[0] : z[i] == -7.3f);
        }
}

/* With exact ties, TOP_K and TOP_P keep the lowest ids, and XTC the highest one. */
static void exact_ties_of_equal_rows(void **state)
{
    static const float logits[8] = {0};
    static const int32_t keeps[] = {1, 6, 100};
    program_row row;
    for (int rule = 1; rule <= RULES; rule++) {
        set_rule_row(&row, logits, 8, rule);
        row.truncation.ties = GUMBEL_TIES_EXACT;
        const float half = 0.5f;
        row.truncation.top_p = same_f32(&half);
        for (int k = 0; k < 3; k++) {
            row.programs.min_keep = same_i32(&keeps[k]);
            const unsigned by_top_p = k == 0 ? 0x0f : k == 1 ? 0x3f : 0xff;
            assert_kept(*state, &row,
                        rule == GUMBEL_PROGRAM_TOP_K   ? 0x07
                        : rule == GUMBEL_PROGRAM_TOP_P ? by_top_p
                        : rule == GUMBEL_PROGRAM_XTC   ? (k == 0 ? 0x80 : 0xff)
                                                       : 0xff);
        }
    }
}

/* The cutoff of TOP_P is above the min_keep-th value: of the tokens that tie with it, those of the
 * lowest ids stay. */
static void exact_ties_where_min_keep_ends_top_p(void **state)
{
    static const float logits[] = {1, 9, 1, 1, 0, 1};
    static const int32_t three = 3;
    program_row row;
    set_rule_row(&row, logits, 6, GUMBEL_PROGRAM_TOP_P);
    row.programs.min_keep = same_i32(&three);
    assert_kept(*state, &row, 0x2f);
    row.truncation.ties = GUMBEL_TIES_EXACT;
    assert_kept(*state, &row, 0x07);
}

/* TYPICAL_P: the min_keep-th closest is counted, with the tokens as far as it. */
static void typical_tokens_of_min_keep(void **state)
{
    /* -ln p is 1.08, 1.08, 1.58, 2.18; the entropy 1.31 */
    static const float logits[] = {0, 0, -0.5f, -1.1f};
    static const float tiny = 0x1p-149f;
    static const int32_t keeps[] = {1, 2, 3, 4};
    static const unsigned kept[] = {0x3, 0x3, 0x7, 0xf};
    for (int k = 0; k < 4; k++) {
        program_row row;
        set_rule_row(&row, logits, 4, GUMBEL_PROGRAM_TYPICAL_P);
        row.programs.typical_p = same_f32(&tiny);
        row.programs.min_keep = same_i32(&keeps[k]);
        assert_kept(*state, &row, kept[k]);
    }
}

static void lone_tokens_stay(void **state)
{
    float logits[200], z[200];
    static const float range = 0.25f, half = 0.5f;
    for (int rule = 1; rule <= RULES; rule++)
        for (int at = 0; at < 200; at += 33) {
            program_row row;
            for (int i = 0; i < 200; i++)
                logits[i] = i == at ? -40 : -INFINITY;
            set_rule_row(&row, logits, 200, rule);
            row.sampling.temperature = same_f32(&half);
            if (rule != GUMBEL_PROGRAM_XTC) /* a range must not follow XTC */
                row.programs.temperature_range = same_f32(&range);
            assert_int_equal(process_row(*state, &row, z), 1);
            if (rule != ADAPTIVE_P)
                assert_true(z[at] == -80); /* T itself, as n = 1 */
        }
}

/* Where one token has all of the mass, the entropy is 0. */
static void temperatures_of_entropy_0(void **state)
{
    static const float logits[] = {1, -1000, -1001};
    static const struct {
        float temperature, range, exponent, expected;
    } rows[] = {
        {1, 0.5f, 1, 0.5f},   {1, 0.5f, 0, 1.5f},           {1, 1, 1, 0x1p-100f},
        {1, 3, 1, 0x1p-100f}, {0.25f, 0, 1, 0.25f},         {3e38f, 2e38f, 1, 1e38f},
        {1, 0.5f, 30, 0.5f},  {0x1p-120f, 0, 1, 0x1p-100f},
    };
    static const uint8_t rules[] = {T};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        program_row row;
        float z[3];
        set_program_row(&row, logits, 3, rules, 1);
        row.sampling.temperature = same_f32(&rows[k].temperature);
        row.programs.temperature_range = same_f32(&rows[k].range);
        row.programs.temperature_exponent = same_f32(&rows[k].exponent);
        process_row(*state, &row, z);
        if (!(fabsf(z[0] * rows[k].expected - 1) < 1e-6f))
            fail_msg("row %zu: z is %g", k, (double)z[0]);
    }
}

/* Uniform rows have the entropy ln n, and so the highest temperature. */
static void temperatures_of_uniform_rows(void **state)
{
    static const float logits[] = {2, 2, 2, 2, 2}, range = 0.5f, exponents[] = {0, 0.5f, 1, 30};
    static const uint8_t rules[] = {T};
    for (int k = 0; k < 4; k++) {
        program_row row;
        float z[5];
        set_program_row(&row, logits, 5, rules, 1);
        row.programs.temperature_range = same_f32(&range);
        row.programs.temperature_exponent = same_f32(&exponents[k]);
        assert_int_equal(process_row(*state, &row, z), 5);
        assert_true(fabsf(z[0] - 2 / 1.5f) < 1e-5f);
    }
}

/* Rows that no rule may empty: the largest value stays, except under TYPICAL_P and XTC, equal
 * values go together, and no z is NaN. */
static void hostile_rows(void **state)
{
    enum { V = 300 };
    static const float temperatures[] = {1, 1e-42f, 1e-6f, 1e6f, 3e38f};
    float *logits = make_zeroed(V, sizeof *logits), *z = make_zeroed(V, sizeof *z);
    for (int rule = 1; rule <= RULES; rule++)
        for (int shape = 0; shape < REQUEST_SHAPES; shape++)
            for (int t = 0; t < 5; t++) {
                program_row row;
                int64_t top = 0;
                for (int64_t i = 0; i < V; i++) {
                    logits[i] = request_hostile_logit(shape, i, V);
                    top = logits[i] > logits[top] ? i : top;
                }
                set_rule_row(&row, logits, V, rule);
                row.sampling.temperature = same_f32(&temperatures[t]);
                assert_true(process_row(*state, &row, z) > 0);
                if (rule != GUMBEL_PROGRAM_TYPICAL_P && rule != GUMBEL_PROGRAM_XTC)
                    assert_true(z[top] > -INFINITY);
                for (int64_t i = 1; i < V; i++) {
                    assert_false(isnan(z[i]));
                    if (logits[i] == logits[i - 1])
                        assert_true(z[i] == z[i - 1]);
                }
            }
    free(logits);
    free(z);
}

/* Logits masked with -FLT_MAX do not disturb the others. */
static void masked_by_the_lowest_float(void **state)
{
    static const float all[] = {1, -FLT_MAX, 0.5f, -1e30f, 0.75f}, some[] = {1, 0.5f, 0.75f};
    static const float curves[] = {1, 2, 3};
    for (int rule = 1; rule <= RULES; rule++)
        for (int c = 0; c < 3; c++) {
            program_row masked, plain;
            float z[5], expected[3];
            if (rule == GUMBEL_PROGRAM_TOP_N_SIGMA)
                continue; /* sigma counts all logits above -inf */
            set_rule_row(&masked, all, 5, rule);
            set_rule_row(&plain, some, 3, rule);
            masked.programs.smoothing_curve = plain.programs.smoothing_curve = same_f32(&curves[c]);
            process_row(*state, &masked, z);
            process_row(*state, &plain, expected);
            assert_true(z[0] == expected[0] && z[2] == expected[1] && z[4] == expected[2]);
            if (rule == GUMBEL_PROGRAM_SMOOTHING)
                assert_true(z[1] == -INFINITY && z[3] == -INFINITY);
        }
}

/* The distance of two finite values is infinite. */
static void distances_beyond_float32(void **state)
{
    static const float all[] = {3e38f, -FLT_MAX, 2.9e38f, 3e38f}, curves[] = {1, 2, 3};
    for (int rule = 1; rule <= RULES; rule++)
        for (int c = 0; c < 3; c++) {
            program_row row;
            float z[4];
            set_rule_row(&row, all, 4, rule);
            row.programs.smoothing_curve = same_f32(&curves[c]);
            process_row(*state, &row, z);
            assert_true(rule == ADAPTIVE_P || z[0] == 3e38f);
            assert_true(z[0] == z[3]);
            assert_false(isnan(z[1]) || isnan(z[2]));
            if (rule == GUMBEL_PROGRAM_SMOOTHING)
                assert_true(z[1] == -INFINITY && z[2] == -INFINITY);
        }
}

/* Faulty rows have their status, and the rows beside them the bits that they have alone. */
static void faulty_rows(void **state)
{
    enum { V = 70 };
    static const float faults[] = {NAN, INFINITY, -INFINITY};
    static const int32_t statuses[] = {GUMBEL_ROW_NAN, GUMBEL_ROW_INFINITE, GUMBEL_ROW_EMPTY};
    float logits[3 * V];
    uint64_t random = 5;
    for (int rule = 1; rule <= RULES; rule++)
        for (int f = 0; f < 3; f++) {
            program_row row;
            for (int i = 0; i < 3 * V; i++)
                logits[i] = 2 * random_normal(&random);
            for (int i = V; i < 2 * V; i++)
                logits[i] = f == 2 || i == V + 66 ? faults[f] : logits[i];
            set_rule_row(&row, logits, V, rule);
            row.logits.logits.rows = 3;
            outcome *drawn = outcome_make(3, 1), *alone = outcome_make(1, 1);
            outcome_widen(drawn, 4, GUMBEL_PROCESSED);
            outcome_widen(alone, 4, GUMBEL_PROCESSED);
            assert_int_equal(draw_logits(*state, &row.logits, &row.sampling, drawn), GUMBEL_OK);
            assert_int_equal(drawn->status[1], statuses[f]);
            assert_int_equal(drawn->tokens[1], -1);
            assert_int_equal(drawn->kept[1], 0);
            row.logits.logits.rows = 1;
            assert_int_equal(draw_logits(*state, &row.logits, &row.sampling, alone), GUMBEL_OK);
            assert_true(outcome_same(drawn, 0, alone, OUTCOME_ALL, "the first row"));
            outcome_free(drawn);
            outcome_free(alone);
        }
}

static void min_keep_above_the_vocabulary(void **state)
{
    static const float logits[] = {3, 1, 0, -5, -5, -90};
    static const int32_t keeps[] = {6, 7, INT32_MAX};
    for (int rule = 1; rule <= RULES; rule++)
        for (int k = 0; k < 3; k++) {
            program_row row;
            set_rule_row(&row, logits, 6, rule);
            row.programs.min_keep = same_i32(&keeps[k]);
            assert_kept(*state, &row, rule == GUMBEL_PROGRAM_TOP_K ? 0x07 : 0x3f);
        }
}

/* Parameters at the ends of their ranges. */
static void extreme_thresholds(void **state)
{
    static const float logits[] = {0, -1, -80, -103, -104, -300}, tiny = 0x1p-149f,
                       most = 1 - 0x1p-24f, one = 1, none = 0, huge = FLT_MAX;
    program_row row;
#define CASE(rule, field, value, kept)                                                             \
    set_rule_row(&row, logits, 6, GUMBEL_PROGRAM_##rule);                                          \
    row.field = same_f32(&value);                                                                  \
    assert_kept(*state, &row, kept)
    CASE(MIN_P, truncation.min_p, tiny, 0x0f); /* ln 2^-149 is -103.28 */
    CASE(MIN_P, truncation.min_p, one, 0x01);
    CASE(TOP_P, truncation.top_p, tiny, 0x01);
    CASE(TOP_P, truncation.top_p, most, 0x03);
    CASE(TYPICAL_P, programs.typical_p, tiny, 0x01); /* 0.31 and 1.31, the entropy 0.58 */
    CASE(TYPICAL_P, programs.typical_p, most, 0x03);
    CASE(TOP_N_SIGMA, programs.top_n_sigma, tiny, 0x01);
    CASE(TOP_N_SIGMA, programs.top_n_sigma, huge, 0x3f);
    CASE(EPSILON, programs.epsilon, tiny, 0x07); /* -ln p of -103 is 103.31 */
    CASE(EPSILON, programs.epsilon, most, 0x01);
    CASE(ETA, programs.eta, tiny, 0x07);
    CASE(ETA, programs.eta, most, 0x01);
    CASE(TOP_A, programs.top_a, tiny, 0x0f); /* p(m) is 0.73 */
    CASE(TOP_A, programs.top_a, one, 0x01);
    CASE(SURPRISE, programs.surprise, none, 0x01);
    CASE(SURPRISE, programs.surprise, huge, 0x3f);
    CASE(SURPRISE, programs.surprise, tiny, 0x01);
    CASE(XTC, programs.xtc_threshold, tiny, 0x3c); /* -80 is the smallest that reaches it */
    CASE(XTC, programs.xtc_threshold, one, 0x3f);
    CASE(XTC, programs.xtc_probability, none, 0x3f);
    CASE(XTC, programs.xtc_probability, tiny, 0x3f);
    CASE(XTC, programs.xtc_probability, most, 0x3f);
    CASE(XTC, programs.xtc_probability, one, 0x3e);
    CASE(SMOOTHING, programs.smoothing_factor, huge, 0x03); /* -FLT_MAX, and lower */
    CASE(SMOOTHING, programs.smoothing_factor, tiny, 0x3f);
#undef CASE
    /* A probability of 0.5 reaches a threshold of 0.5. */
    static const float equal[2] = {1, 1}, half = 0.5f;
    set_rule_row(&row, equal, 2, GUMBEL_PROGRAM_XTC);
    row.programs.xtc_threshold = same_f32(&half);
    row.truncation.ties = GUMBEL_TIES_EXACT;
    assert_kept(*state, &row, 0x2);
    /* Removed tokens stay removed under SMOOTHING. */
    static const float removed[3] = {1, -INFINITY, 0}, curves[] = {1, 2, 3};
    for (int c = 0; c < 3; c++) {
        set_rule_row(&row, removed, 3, GUMBEL_PROGRAM_SMOOTHING);
        row.programs.smoothing_factor = same_f32(&tiny);
        row.programs.smoothing_curve = same_f32(&curves[c]);
        assert_kept(*state, &row, 0x5);
    }
}

/* Removed tokens are in no list and have no rank, in contrast to truncation by an order, and
 * whatever other outputs the call has. */
static void lists_without_removed_tokens(void **state)
{
    enum { LISTED = 4 };
    static const float logits[] = {3, 1, 2, 0};
    static const int32_t two = 2, given[] = {0, 1, 2, 3}, ids[] = {0, 2, -1, -1},
                         ranks[] = {1, -1, 2, -1};
    int32_t tokens[LISTED], found_ids[LISTED], found_ranks[LISTED];
    float top_logits[LISTED], top_logprobs[LISTED];
    program_row row;
    size_t bytes;
    set_rule_row(&row, logits, 4, GUMBEL_PROGRAM_TOP_K);
    row.truncation.top_k = same_i32(&two);
    row.sampling.num_samples = LISTED;
    for (int kind = 0; kind < 4; kind++) {
        gumbel_output out = {.struct_size = sizeof out, .tokens = tokens};
        out.num_top = kind < 3 ? LISTED : 0;
        out.top_ids = kind < 3 ? found_ids : NULL;
        out.top_logprobs = kind == 1 ? top_logprobs : NULL;
        out.top_logits = kind == 2 ? top_logits : NULL;
        out.ranks = kind == 3 ? found_ranks : NULL;
        row.sampling.given = (gumbel_row_i32){kind == 3 ? given : NULL, 0};
        void *workspace = call_workspace(*state, NULL, &row.logits, &row.sampling, &out, &bytes);
        assert_int_equal(gumbel_sample_logits(*state, NULL, &row.logits, &row.sampling, &out,
                                              workspace, bytes, NULL),
                         GUMBEL_OK);
        free(workspace);
        assert_memory_equal(kind < 3 ? found_ids : found_ranks, kind < 3 ? ids : ranks, sizeof ids);
        if (kind == 2)
            assert_true(top_logits[0] == 3 && top_logits[1] == 2 && top_logits[2] == -INFINITY);
        if (kind == 1)
            assert_true(fabs(exp((double)top_logprobs[0]) + exp((double)top_logprobs[1]) - 1) <
                            1e-6 &&
                        top_logprobs[2] == -INFINITY);
    }
}

/* Bytes after the first GUMBEL_PROGRAM_END are no rules. */
static void bytes_after_the_end(void **state)
{
    static const float logits[] = {3, 2, 1, 0};
    static const uint8_t rules[][4] = {{T, 0, GUMBEL_PROGRAM_TOP_K, 0}, {T, 0, 200, T}};
    static const float half = 0.5f;
    for (int walked = 0; walked < 2; walked++)
        for (int k = 0; k < 2; k++) {
            static const int32_t one = 1;
            program_row row;
            float z[4];
            set_program_row(&row, logits, 4, rules[k], 4);
            row.truncation.top_k = same_i32(&one);
            row.sampling.temperature = same_f32(&half);
            if (walked)
                row.programs.min_keep = same_i32(&one);
            assert_int_equal(process_row(*state, &row, z), 4);
            assert_true(z[0] == 6 && z[3] == 0);
        }
}

int main(void)
{
    int failures;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_rows_stay_whole),
        cmocka_unit_test(exact_ties_of_equal_rows),
        cmocka_unit_test(exact_ties_where_min_keep_ends_top_p),
        cmocka_unit_test(typical_tokens_of_min_keep),
        cmocka_unit_test(lone_tokens_stay),
        cmocka_unit_test(temperatures_of_entropy_0),
        cmocka_unit_test(temperatures_of_uniform_rows),
        cmocka_unit_test(hostile_rows),
        cmocka_unit_test(masked_by_the_lowest_float),
        cmocka_unit_test(distances_beyond_float32),
        cmocka_unit_test(faulty_rows),
        cmocka_unit_test(min_keep_above_the_vocabulary),
        cmocka_unit_test(extreme_thresholds),
        cmocka_unit_test(lists_without_removed_tokens),
        cmocka_unit_test(bytes_after_the_end),
    };
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
