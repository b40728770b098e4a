/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncated draws against the oracle's renormalised distribution, by chi-squared: on rows of the
 * bundled model, from logits and from hidden states, and with the vocabulary of a large model. The
 * tests have the power to detect a truncation wrong by one token and a temperature wrong by 2%.
 * Seeds are fixed, so that a run repeats.
 */
#include "fixtures.h"
#include "model_tensor.h"
#include "oracle_request.h"
#include "requests.h"
#include "statistics.h"
#include "test_scale.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A correct sampler has a smaller p-value in one of 10^4 tests. */
#define LOWEST_P 1e-4
/* A wrong distribution must have a smaller p-value. */
#define CAUGHT_P 1e-9

#define CALL 65536 /* samples of one call, the maximum */

#define ROWS   (TEST_SANITIZED ? 1 : 4) /* rows of a test */
#define FEWEST 8                        /* minimum number of kept tokens of a tested row */

/* Parameters of all rows of a test. */
typedef struct rules {
    const char *name;
    float temperature, min_p, top_p;
    int32_t top_k;
    gumbel_order order;
} rules;

static const rules every_rule[] = {
    {"top_p 0.7", 1, 0, 0.7f, 0, GUMBEL_ORDER_MIN_P_TOP_K_TOP_P},
    {"top_k 40", 1.3f, 0, 1, 40, GUMBEL_ORDER_MIN_P_TOP_K_TOP_P},
    {"min_p 0.05", 0.8f, 0.05f, 1, 0, GUMBEL_ORDER_MIN_P_TOP_K_TOP_P},
    {"top_k 50, top_p 0.95, min_p 0.01", 1, 0.01f, 0.95f, 50, GUMBEL_ORDER_MIN_P_TOP_K_TOP_P},
    {"joint top_k 20, top_p 0.8", 1, 0, 0.8f, 20, GUMBEL_ORDER_JOINT},
    {"top_p 0.8 before T 1.5", 1.5f, 0, 0.8f, 0, GUMBEL_ORDER_BEFORE_TEMPERATURE},
    {"T 0.8, top_k 40, top_p 0.95, min_p 0.05", 0.8f, 0.05f, 0.95f, 40,
     GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
    {"min_p 0.05, top_p 0.95, top_k 40 before T", 0.8f, 0.05f, 0.95f, 40,
     GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE},
};
#define RULES ((int)(sizeof every_rule / sizeof *every_rule))

/* One row and its rules as a request, with the arrays that the request points to. */
typedef struct lone_row {
    request req;
    gumbel_truncation truncation;
    float temperature, min_p, top_p;
    int32_t top_k;
    uint64_t seed;
    uint64_t position;
} lone_row;

static void set_request(lone_row *generated, gumbel_logits logits, const rules *r, uint64_t seed)
{
    *generated = (lone_row){.req = {.plan = {.batch = 1, .vocab = logits.logits.cols}},
                            .temperature = r->temperature,
                            .min_p = r->min_p,
                            .top_p = r->top_p,
                            .top_k = r->top_k,
                            .seed = seed};
    generated->truncation = (gumbel_truncation){.struct_size = sizeof generated->truncation,
                                                .min_p = {&generated->min_p, GUMBEL_SAME},
                                                .top_k = {&generated->top_k, GUMBEL_SAME},
                                                .top_p = {&generated->top_p, GUMBEL_SAME},
                                                .order = r->order};
    generated->req.logits = logits;
    generated->req.sampling =
        (gumbel_sampling){.struct_size = sizeof generated->req.sampling,
                          .temperature = {&generated->temperature, GUMBEL_SAME},
                          .seed = {&generated->seed, GUMBEL_SAME},
                          .position = {&generated->position, GUMBEL_SAME},
                          .num_samples = (int32_t)draws_of(CALL),
                          .truncation = &generated->truncation};
}

/* Draws `total` tokens by full calls and counts them; draws from the head if it has rows. */
static void count_draws(gumbel_device *device, lone_row *generated, int64_t total, int64_t *counts)
{
    int32_t samples = generated->req.sampling.num_samples;
    outcome *drawn = outcome_make(1, samples);
    int fused = generated->req.head.hidden.rows > 0;
    for (generated->position = 0; generated->position < (uint64_t)(total / samples);
         generated->position++) {
        assert_int_equal(fused ? request_draw_fused(device, &generated->req, drawn)
                               : request_draw(device, &generated->req, drawn),
                         GUMBEL_OK);
        for (int s = 0; s < samples; s++)
            counts[drawn->tokens[s]]++;
    }
    outcome_free(drawn);
}

/* Chi-squared of counts against the oracle's distribution, against distributions with one kept
 * token more or less, and against temperatures wrong by 2%. */
typedef struct powered {
    chi_squared fair, more, less, hot, cold;
} powered;

static void add_counts(chi_squared *sum, const oracle_row *row, int64_t kept, const int64_t *counts,
                       int64_t total)
{
    double *p = make_zeroed((size_t)row->count, sizeof *p), mass = 0;
    double highest = row->z[row->order[0]];
    for (int64_t k = 0; k < kept; k++)
        mass += p[row->order[k]] = exp(row->z[row->order[k]] - highest);
    for (int64_t i = 0; i < row->count; i++)
        p[i] /= mass;
    chi_squared_add(sum, counts, p, row->count, total);
    free(p);
}

/* Computes the oracle's row at `factor` times its temperature. */
static void run_oracle(lone_row *generated, float factor, oracle_row *row)
{
    float own = generated->temperature;
    generated->temperature = own * factor;
    oracle_edit_row(&generated->req.logits, &generated->req.sampling, 0, row);
    oracle_temper_row(&generated->req.sampling, 0, row);
    assert_int_equal(oracle_truncate_row(&generated->req.sampling, 0, row), 0);
    generated->temperature = own;
}

/* Draws from a row and compares. Returns 0, without drawing, if the row keeps too few tokens for
 * the test to have power. */
static int add_row(gumbel_device *device, powered *sum, lone_row *generated, int64_t total)
{
    oracle_row *row = oracle_row_make(generated->req.plan.vocab);
    run_oracle(generated, 1, row);
    if (row->kept < FEWEST) {
        oracle_row_free(row);
        return 0;
    }
    int64_t *counts = make_zeroed((size_t)row->count, sizeof *counts);
    count_draws(device, generated, total, counts);
    for (int64_t k = row->kept; k < row->alive; k++)
        assert_int_equal(counts[row->order[k]], 0);
    assert_true(row->kept < row->alive);
    add_counts(&sum->fair, row, row->kept, counts, total);
    add_counts(&sum->more, row, row->kept + 1, counts, total);
    add_counts(&sum->less, row, row->kept - 1, counts, total);
    run_oracle(generated, 1.02f, row);
    add_counts(&sum->hot, row, row->kept, counts, total);
    run_oracle(generated, 0.98f, row);
    add_counts(&sum->cold, row, row->kept, counts, total);
    oracle_row_free(row);
    free(counts);
    return 1;
}

static double print_result(const char *name, const char *against, const chi_squared *found)
{
    double p = chi_squared_p(found->statistic, found->degrees);
    print_message("%s, against %s: chi-squared %.1f, %.0f degrees of freedom, p %.4g\n", name,
                  against, found->statistic, found->degrees, p);
    return p;
}

static void assert_powered(const char *name, const powered *sum)
{
    assert_true(sum->fair.degrees >= 1);
    assert_true(print_result(name, "the oracle", &sum->fair) > LOWEST_P);
    if (TEST_SANITIZED)
        return;
    assert_true(print_result(name, "a token more", &sum->more) < CAUGHT_P);
    assert_true(print_result(name, "a token less", &sum->less) < CAUGHT_P);
    assert_true(print_result(name, "T 2% higher", &sum->hot) < CAUGHT_P);
    assert_true(print_result(name, "T 2% lower", &sum->cold) < CAUGHT_P);
}

static gumbel_logits row_of(const gumbel_tensor *logits, int64_t row)
{
    gumbel_logits one = {.struct_size = sizeof one, .logits = *logits};
    one.logits.data = (const float *)logits->data + row * logits->cols;
    one.logits.rows = 1;
    return one;
}

/* Tests a rule on the first rows that keep enough tokens, or in the nightly run on all rows. The
 * rows are logits, or come from a head [rows, D] float32 with these logits unless `head` is
 * NULL. */
static void draw_rows(gumbel_device *device, const char *name, const gumbel_tensor *logits,
                      const gumbel_head *head, const rules *r)
{
    int64_t total = draws_of(2 * CALL), rows = 0;
    powered sum = {0};
    char what[128];
    snprintf(what, sizeof what, "%s, %s", name, r->name);
    for (int64_t b = 0; b < logits->rows && (rows < ROWS || nightly_factor() > 1); b++) {
        lone_row generated;
        set_request(&generated, row_of(logits, b), r, 8100 + (uint64_t)b + (head ? 500 : 0));
        if (head) {
            generated.req.head = *head;
            generated.req.head.hidden.data =
                (const float *)head->hidden.data + b * head->hidden.cols;
            generated.req.head.hidden.rows = 1;
        }
        rows += add_row(device, &sum, &generated, total);
    }
    assert_true(rows >= ROWS);
    assert_powered(what, &sum);
}

static void model_logits_draws_are_fair(void **state)
{
    gumbel_tensor golden = model_tensor("golden.safetensors", "target.logits");
    for (int i = 0; i < RULES; i++)
        draw_rows(*state, "the model's logits", &golden, NULL, &every_rule[i]);
    free((void *)golden.data);
}

static void model_hidden_states_draws_are_fair(void **state)
{
    gumbel_tensor hidden = model_tensor("golden.safetensors", "target.hidden");
    gumbel_tensor weight =
        model_tensor("kjv-target/model.safetensors", "model.embed_tokens.weight");
    gumbel_head head = {.struct_size = sizeof head, .hidden = hidden, .weight = weight};
    float *products = product_logits(*state, &head);
    gumbel_tensor logits = tensor_of(products, GUMBEL_FLOAT32, hidden.rows, weight.rows, 0);
    for (int i = 0; i < RULES; i += 3)
        draw_rows(*state, "the model's hidden states", &logits, &head, &every_rule[i]);
    free(products);
    free((void *)hidden.data);
    free((void *)weight.data);
}

/* Gaussian logits with a few higher ones, all far below 0. */
static void large_vocabulary_draws_are_fair(void **state)
{
    enum { V = 151936 };
    float *values = make_zeroed((size_t)ROWS * V, sizeof *values);
    uint64_t random = 83;
    for (int64_t i = 0; i < (int64_t)ROWS * V; i++)
        values[i] = 2 * random_normal(&random) + (random_below(&random, 3000) ? -60 : -52);
    gumbel_tensor logits = tensor_of(values, GUMBEL_FLOAT32, ROWS, V, 0);
    draw_rows(*state, "V 151936", &logits, NULL, &every_rule[3]);
    if (nightly_factor() > 1)
        draw_rows(*state, "V 151936", &logits, NULL, &every_rule[4]);
    free(values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_logits_draws_are_fair),
        cmocka_unit_test(model_hidden_states_draws_are_fair),
        cmocka_unit_test(large_vocabulary_draws_are_fair),
    };
    return cmocka_run_group_tests(tests, open_one_thread, close_device);
}
