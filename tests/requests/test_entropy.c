/* SPDX-License-Identifier: Apache-2.0
 *
 * The entropy of rows, against two oracles over the processed logits of the same request, or over
 * its raw logits: the integer sums of docs/maths.md, section 18, bit by bit, and long double.
 * Requests of every kind, orders and programs, from logits and from hidden states; hostile rows;
 * given tokens; slots, live rows and invalid arguments.
 */
#include "fixtures.h"
#include "prefixed_programs.h"
#include "program_row.h"
#include "test_scale.h"

#include "maths/elementary.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* The bound of output.entropy in gumbel.h. */
static double error_bound(double entropy) { return 0x1p-16 + 0x1p-21 * entropy; }

static double largest_error;

static float find_largest(const float *v, int64_t count)
{
    float largest = -INFINITY;
    for (int64_t i = 0; i < count; i++)
        largest = v[i] > largest ? v[i] : largest;
    return largest;
}

/* The definition, a token at a time. */
__extension__ typedef unsigned __int128 wide;
static float exact_entropy(const float *v, int64_t count)
{
    const float largest = find_largest(v, count);
    wide mass = 0, weighted = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!(v[i] > -INFINITY))
            continue;
        const uint64_t own = (uint64_t)ldexp((double)gumbel_exp(v[i] - largest), 61);
        const double distance = fmin((double)(largest - v[i]), 32768.0);
        mass += own;
        weighted += (wide)own * (uint64_t)rint(ldexp(distance, 16));
    }
    const float log_mass = gumbel_log((float)ldexp((double)mass, -61));
    return log_mass + (float)((double)weighted / ldexp((double)mass, 16));
}

static double real_entropy(const float *v, int64_t count)
{
    const long double largest = find_largest(v, count);
    long double mass = 0, weighted = 0;
    for (int64_t i = 0; i < count; i++) {
        const long double e = v[i] > -INFINITY ? expl(v[i] - largest) : 0;
        mass += e;
        weighted += e > 0 ? e * (largest - v[i]) : 0;
    }
    return (double)(logl(mass) + weighted / mass);
}

/* Whether the row has an entropy: no NaN and no +inf, and a token. */
static int has_entropy(const float *v, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (isnan(v[i]) || v[i] == INFINITY)
            return 0;
    return find_largest(v, count) > -INFINITY;
}

static int row_agrees(float found, const float *v, int64_t count)
{
    if (!has_entropy(v, count))
        return isnan(found);
    const float exact = exact_entropy(v, count);
    const double real = real_entropy(v, count), error = fabs((double)found - real);
    largest_error = error > largest_error ? error : largest_error;
    return memcmp(&found, &exact, sizeof exact) == 0 && error <= error_bound(real);
}

/* The tokens of row b whose distribution is output.logprobs_of. */
static const float *row_values(const request *req, int64_t b, const float *z, float *raw,
                               int64_t *count)
{
    const gumbel_logits *l = &req->logits;
    const int64_t vocab = l->logits.cols, stride = l->logits.stride ? l->logits.stride : vocab;
    *count = vocab;
    if (req->plan.logprobs_of == GUMBEL_PROCESSED)
        return z + b * vocab;
    if (l->vocab_size && l->vocab_size < l->first_token + vocab)
        *count = l->vocab_size > l->first_token ? l->vocab_size - l->first_token : 0;
    for (int64_t i = 0; i < *count; i++) {
        /* dtype_load() widens finite values */
        const uint16_t bits = ((const uint16_t *)l->logits.data)[b * stride + i];
        if (l->logits.dtype == GUMBEL_FLOAT32)
            raw[i] = ((const float *)l->logits.data)[b * stride + i];
        else if (l->logits.dtype == GUMBEL_FLOAT16 && (bits & 0x7c00) == 0x7c00)
            raw[i] = bits & 0x3ff ? NAN : bits & 0x8000 ? -INFINITY : INFINITY;
        else if (l->logits.dtype == GUMBEL_BFLOAT16)
            raw[i] = gumbel_float_of((uint32_t)bits << 16);
        else
            raw[i] = dtype_load(l->logits.data, l->logits.dtype, b * stride + i);
    }
    return raw;
}

/* Checks all rows of a request; returns the number of rows with an entropy. */
static int check_request(gumbel_device *device, const request *req, int alone)
{
    const int64_t batch = req->plan.batch, vocab = req->logits.logits.cols;
    float *z = make_zeroed((size_t)(batch * vocab), sizeof *z);
    float *raw = make_zeroed((size_t)vocab, sizeof *raw);
    outcome *drawn = request_outcome(req);
    int found = 0;
    if (alone) /* no other output but the tokens and the status */
        drawn->output = (gumbel_output){.struct_size = sizeof drawn->output,
                                        .tokens = drawn->tokens,
                                        .status = drawn->status,
                                        .logprobs_of = req->plan.logprobs_of,
                                        .entropy = drawn->entropy};
    assert_int_equal(request_process(device, &req->logits, &req->sampling, z), GUMBEL_OK);
    assert_int_equal(req->product ? request_draw_fused(device, req, drawn)
                                  : request_draw(device, req, drawn),
                     GUMBEL_OK);
    for (int64_t b = 0; b < batch; b++) {
        int64_t count;
        const float *v = row_values(req, b, z, raw, &count);
        const int good = drawn->status[b] == GUMBEL_ROW_OK ? row_agrees(drawn->entropy[b], v, count)
                                                           : isnan(drawn->entropy[b]);
        if (!good)
            fail_msg("%s: entropy %a", request_describe_row(req, b), (double)drawn->entropy[b]);
        found += !isnan(drawn->entropy[b]);
    }
    outcome_free(drawn);
    free(z);
    free(raw);
    return found;
}

static void entropies_match_both_oracles(void **state)
{
    uint64_t random = 61;
    int found = 0, raw = 0;
    for (int i = 0; i < scale_count(300, 12); i++) {
        prefixed_programs programs;
        request_plan plan = request_plan_at_random(i, i % 3 == 0);
        plan.entropy = 1;
        plan.logprobs_of = i % 4 == 1 ? GUMBEL_RAW : GUMBEL_PROCESSED;
        request *req = request_make(&plan, *state);
        if (i % 5 > 2)
            prefixed_programs_set(&programs, req, &random);
        const int rows = check_request(*state, req, i % 7 == 0);
        found += rows;
        raw += plan.logprobs_of == GUMBEL_RAW ? rows : 0;
        request_free(req);
    }
    printf("%d rows, %d of raw logits: largest error %.3g\n", found, raw, largest_error);
    assert_true(found > (TEST_SANITIZED ? 50 : 800) && raw > (TEST_SANITIZED ? 5 : 100));
}

static gumbel_status draw_rows(gumbel_device *device, const gumbel_logits *input,
                               const gumbel_sampling *how, const gumbel_output *output)
{
    size_t bytes;
    gumbel_error error = {"", ""};
    void *workspace = call_workspace(device, NULL, input, how, output, &bytes);
    const gumbel_status status =
        gumbel_sample_logits(device, NULL, input, how, output, workspace, bytes, &error);
    free(workspace);
    return report_call("gumbel_sample_logits", status, &error);
}

/* Known entropies: of one token, of n equal tokens, of masked and far values, and of no row. */
static void hostile_rows_have_known_entropies(void **state)
{
    enum { V = 300 };
    static const struct {
        float first, second, rest; /* of tokens 0 and 1, and of the others */
        double entropy;            /* -1: NaN */
    } rows[] = {
        {0.0f, 0.0f, 0.0f, 5.703782474656201},         /* ln 300 */
        {-7.5f, -INFINITY, -INFINITY, 0.0},            /* one token */
        {1e30f, 1e30f, -INFINITY, 0.6931471805599453}, /* ln 2 */
        {3e38f, -3e38f, -3e38f, 0.0},                  /* a difference beyond float */
        {0.0f, 0.0f, -FLT_MAX, 0.6931471805599453},    /* masked */
        {-FLT_MAX, -FLT_MAX, -FLT_MAX, 5.703782474656201},
        {-FLT_MAX, -INFINITY, -INFINITY, 0.0},
        {0.0f, -1.0f, -INFINITY, 0.5822030660},
        {0.0f, -40.0f, -90000.0f, 1.7418e-16},
        {NAN, 0.0f, 0.0f, -1.0},
        {INFINITY, 0.0f, 0.0f, -1.0},
        {-INFINITY, -INFINITY, -INFINITY, -1.0},
    };
    enum { B = sizeof rows / sizeof *rows };
    static float values[B * V];
    int32_t tokens[B], status[B];
    float entropy[B];
    for (int b = 0; b < B; b++)
        for (int i = 0; i < V; i++)
            values[b * V + i] = i == 0 ? rows[b].first : i == 1 ? rows[b].second : rows[b].rest;
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(values, GUMBEL_FLOAT32, B, V, 0)};
    for (int raw = 0; raw < 2; raw++) {
        const gumbel_output output = {.struct_size = sizeof output,
                                      .tokens = tokens,
                                      .status = status,
                                      .logprobs_of = raw ? GUMBEL_RAW : GUMBEL_PROCESSED,
                                      .entropy = entropy};
        const gumbel_sampling how = {.struct_size = sizeof how};
        assert_int_equal(draw_rows(*state, &input, &how, &output), GUMBEL_OK);
        for (int b = 0; b < B; b++) {
            assert_true(row_agrees(entropy[b], values + b * V, V));
            if (rows[b].entropy >= 0)
                assert_true(fabs((double)entropy[b] - rows[b].entropy) < 2e-5);
            else
                assert_true(isnan(entropy[b]));
            if (rows[b].entropy == 0)
                assert_true(entropy[b] == 0.0f);
        }
    }
}

/* A greedy row has the entropy of T = 1 over all tokens, another one that of its temperature and
 * its kept tokens; given tokens and several samples change nothing. */
static void parameters_select_the_distribution(void **state)
{
    enum { B = 3, V = 1000 };
    static float values[B * V];
    static const float temperature[B] = {0.0f, 1.0f, 2.0f};
    static const int32_t top_k[B] = {4, 4, 0}, given[2 * B] = {1, 2, -1, 3, 5, -1};
    float expected[B], entropy[B];
    int32_t tokens[2 * B];
    uint64_t random = 62;
    for (int i = 0; i < V; i++)
        values[i] = values[V + i] = values[2 * V + i] = 2.0f * random_normal(&random);
    const gumbel_truncation truncation = {.struct_size = sizeof truncation, .top_k = {top_k, 1}};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {temperature, 1},
                           .num_samples = 2,
                           .truncation = &truncation};
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = tokens, .entropy = entropy};
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(values, GUMBEL_FLOAT32, B, V, 0)};
    float four[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, halves[V];
    for (int i = 0; i < V; i++) {
        float v = values[i];
        for (int k = 0; k < 4; k++)
            if (v > four[k]) {
                const float lower = four[k];
                four[k] = v;
                v = lower;
            }
        halves[i] = values[i] * 0.5f;
    }
    expected[0] = exact_entropy(values, V);
    expected[1] = exact_entropy(four, 4);
    expected[2] = exact_entropy(halves, V);
    for (int scores = 0; scores < 2; scores++) {
        how.given.data = scores ? given : NULL;
        memset(entropy, 0x5A, sizeof entropy);
        assert_int_equal(draw_rows(*state, &input, &how, &output), GUMBEL_OK);
        assert_memory_equal(entropy, expected, sizeof expected);
    }
}

/* Rows beyond live_rows have NaN, others the entropy of their slots' temperature; no row of B = 0
 * is written. */
static void unused_rows_have_none(void **state)
{
    enum { B = 4, V = 200 };
    static float values[B * V];
    static const int32_t of_row[B] = {2, 1, 0, 2}, live = 3;
    static const float temperature[3] = {1.0f, 0.5f, 2.0f};
    int32_t tokens[B], status[B];
    float entropy[B];
    uint64_t random = 63;
    for (int i = 0; i < B * V; i++)
        values[i] = random_normal(&random);
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(values, GUMBEL_FLOAT32, B, V, 0)};
    const gumbel_sampling how = {.struct_size = sizeof how,
                                 .temperature = {temperature, 0},
                                 .slots = {of_row, 3},
                                 .live_rows = &live};
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = tokens, .status = status, .entropy = entropy};
    assert_int_equal(draw_rows(*state, &input, &how, &output), GUMBEL_OK);
    for (int b = 0; b < B; b++) {
        float z[V];
        for (int i = 0; i < V; i++)
            z[i] = values[b * V + i] * (1.0f / temperature[of_row[b]]);
        assert_int_equal(status[b], b < live ? GUMBEL_ROW_OK : GUMBEL_ROW_UNUSED);
        assert_true(b < live ? row_agrees(entropy[b], z, V) : isnan(entropy[b]));
    }
    memset(entropy, 0x5A, sizeof entropy);
    const float before = entropy[0];
    const gumbel_sampling none = {.struct_size = sizeof none};
    input.logits.rows = 0;
    assert_int_equal(draw_rows(*state, &input, &none, &output), GUMBEL_OK);
    assert_memory_equal(&entropy[0], &before, sizeof before);
}

static void invalid_calls_return_an_error_by_name(void **state)
{
    const float values[4] = {0};
    int32_t tokens[2];
    float entropy[3];
    gumbel_summary summaries[2];
    gumbel_error error = {"", ""};
    _Alignas(64) static char workspace[1 << 16];
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(values, GUMBEL_FLOAT32, 2, 2, 0)};
    gumbel_output output = {
        .struct_size = sizeof output, .tokens = tokens, .entropy = (float *)((char *)entropy + 2)};
    assert_int_equal(gumbel_sample_logits(*state, NULL, &input, NULL, &output, workspace,
                                          sizeof workspace, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "output.entropy");
    output.entropy = entropy;
    gumbel_summary_clear(summaries, 2);
    assert_int_equal(gumbel_finish(NULL, NULL, summaries, 1, 2, 1, &output, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "output.entropy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entropies_match_both_oracles),
        cmocka_unit_test(hostile_rows_have_known_entropies),
        cmocka_unit_test(parameters_select_the_distribution),
        cmocka_unit_test(unused_rows_have_none),
        cmocka_unit_test(invalid_calls_return_an_error_by_name),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
