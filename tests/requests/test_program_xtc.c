/* SPDX-License-Identifier: Apache-2.0
 *
 * XTC needs no coin: tokens drawn with it have the distribution that a coin of probability P gives,
 * by chi-squared, with rules before and a temperature after. The distribution is computed in
 * double: P times that without the top choices, and 1 - P times that with them. The test detects a
 * P wrong by 5%, a missing normalisation, and one excluded token more or less.
 */
#include "fixtures.h"
#include "program_row.h"
#include "statistics.h"
#include "test_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define LOWEST_P 1e-4 /* a correct sampler has a smaller p-value in one of 10^4 tests */
#define CAUGHT_P 1e-9 /* a wrong distribution must have a smaller one */

enum { V = 12, CALL = 65536, CALLS = 8, T = GUMBEL_PROGRAM_TEMPERATURE };

static const float logits[V] = {1.5f, -3, 2.25f, 0.5f, 2, -9, 1, 2.25f, -0.5f, 0.25f, -2, 1.75f};

typedef struct xtc_case {
    const char *name;
    uint8_t rules[4];
    float probability, threshold, min_p, before, after; /* temperatures; 0: not there */
    int exact;
} xtc_case;

static const xtc_case cases[] = {
    {"min_p, XTC, T 0.7",
     {GUMBEL_PROGRAM_MIN_P, GUMBEL_PROGRAM_XTC, T},
     0.5f,
     0.1f,
     0.02f,
     0,
     0.7f,
     0},
    {"T 1.5, min_p, XTC",
     {T, GUMBEL_PROGRAM_MIN_P, GUMBEL_PROGRAM_XTC},
     0.5f,
     0.08f,
     0.1f,
     1.5f,
     0,
     0},
    {"XTC, T 2.5, exact", {GUMBEL_PROGRAM_XTC, T}, 0.5f, 0.17f, 0, 0, 2.5f, 1},
    {"T 1, XTC with P 0.2", {T, GUMBEL_PROGRAM_XTC}, 0.2f, 0.1f, 0, 1, 0, 0},
};

/* The softmax of z over the tokens with a bit in `kept`. */
static void normalise(const double *z, unsigned kept, double *p)
{
    double sum = 0;
    for (int i = 0; i < V; i++)
        sum += p[i] = kept >> i & 1 ? exp(z[i]) : 0;
    for (int i = 0; i < V; i++)
        p[i] /= sum;
}

/* The tokens that min_p keeps, and those of them that XTC may exclude. */
static unsigned find_top_choices(const xtc_case *c, const double *z, unsigned *kept)
{
    double p[V], top = -1e30, least = 1e30;
    unsigned reach = 0;
    int last = -1;
    *kept = 0;
    for (int i = 0; i < V; i++)
        top = fmax(top, z[i]);
    for (int i = 0; i < V; i++)
        *kept |= exp(z[i] - top) >= (double)c->min_p ? 1u << i : 0;
    normalise(z, *kept, p);
    for (int i = 0; i < V; i++)
        if (p[i] >= (double)c->threshold) {
            reach |= 1u << i;
            least = fmin(least, z[i]);
        }
    for (int i = 0; i < V; i++)
        last = z[i] == least ? i : last;
    for (int i = 0; i < V; i++)
        if (z[i] == least && (!c->exact || i == last))
            reach &= ~(1u << i);
    return reach;
}

/* The distribution of a coin of probability `coin` that removes the tokens `excluded`. */
static void find_distribution(const xtc_case *c, double coin, unsigned kept, unsigned excluded,
                              double *p)
{
    double z[V], with[V], without[V];
    for (int i = 0; i < V; i++)
        z[i] = (double)logits[i] / (double)(c->before > 0 ? c->before : c->after);
    normalise(z, kept, with);
    normalise(z, kept & ~excluded, without);
    for (int i = 0; i < V; i++)
        p[i] = coin * without[i] + (1 - coin) * with[i];
}

/* 1 - P times the weights of the excluded tokens, normalised: the result of a constant ln(1 - P).
 */
static void find_naive_distribution(const xtc_case *c, unsigned kept, unsigned excluded, double *p)
{
    double sum = 0;
    find_distribution(c, 0, kept, excluded, p);
    for (int i = 0; i < V; i++)
        sum += p[i] *= excluded >> i & 1 ? 1 - (double)c->probability : 1;
    for (int i = 0; i < V; i++)
        p[i] /= sum;
}

static void set_case(program_row *row, const xtc_case *c, const float *temperature)
{
    set_program_row(row, logits, V, c->rules, 4);
    row->sampling.temperature = same_f32(temperature);
    row->truncation.min_p = same_f32(&c->min_p);
    row->truncation.ties = c->exact ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL;
    row->programs.xtc_probability = same_f32(&c->probability);
    row->programs.xtc_threshold = same_f32(&c->threshold);
}

static double find_p(const char *name, const char *against, const int64_t *counts, int64_t total,
                     const double *probability)
{
    chi_squared sum = {0};
    chi_squared_add(&sum, counts, probability, V, total);
    const double p = chi_squared_p(sum.statistic, sum.degrees);
    print_message("%s, against %s: chi-squared %.1f, p %.4g\n", name, against, sum.statistic, p);
    return p;
}

static void check_case(gumbel_device *device, const xtc_case *c)
{
    const float temperature = c->before > 0 ? c->before : c->after;
    const int64_t samples = draws_of(CALL), calls = CALLS * nightly_factor();
    const double coin = (double)c->probability;
    uint64_t seed = 0;
    unsigned kept, excluded;
    int64_t counts[V] = {0};
    double z[V], law[V], wrong[V];
    program_row row;
    for (int i = 0; i < V; i++)
        z[i] = (double)logits[i] / (c->before > 0 ? (double)c->before : 1);
    excluded = find_top_choices(c, z, &kept);
    find_distribution(c, coin, kept, excluded, law);
    set_case(&row, c, &temperature);
    row.sampling.num_samples = (int32_t)samples;
    row.sampling.seed = (gumbel_row_u64){&seed, GUMBEL_SAME};
    outcome *drawn = outcome_make(1, (int32_t)samples);
    for (seed = 77; seed < 77 + (uint64_t)calls; seed++) {
        assert_int_equal(draw_logits(device, &row.logits, &row.sampling, drawn), GUMBEL_OK);
        for (int64_t s = 0; s < samples; s++) {
            const int32_t token = drawn->tokens[s];
            counts[token]++;
            assert_true(fabs((double)drawn->logprobs[s] - log(law[token])) < 2e-6);
        }
    }
    outcome_free(drawn);
    const int64_t total = calls * samples;
    assert_true(find_p(c->name, "the coin", counts, total, law) > LOWEST_P);
    if (TEST_SANITIZED)
        return;
    find_distribution(c, coin * 1.05, kept, excluded, wrong);
    assert_true(find_p(c->name, "P 5% higher", counts, total, wrong) < CAUGHT_P);
    find_distribution(c, coin * 0.95, kept, excluded, wrong);
    assert_true(find_p(c->name, "P 5% lower", counts, total, wrong) < CAUGHT_P);
    find_naive_distribution(c, kept, excluded, wrong);
    assert_true(find_p(c->name, "ln(1 - P) alone", counts, total, wrong) < CAUGHT_P);
    find_distribution(c, coin, kept, excluded & (excluded - 1), wrong);
    assert_true(find_p(c->name, "one token less", counts, total, wrong) < CAUGHT_P);
    find_distribution(c, coin, kept, excluded | 1u << 3, wrong);
    assert_true(find_p(c->name, "one token more", counts, total, wrong) < CAUGHT_P);
}

static void draws_follow_the_coin(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_case(*state, &cases[i]);
}

/* ln of the probabilities of tokens, as those of given tokens. */
static void find_logprobs(gumbel_device *device, program_row *row, int32_t count, float *logprobs)
{
    int32_t ids[V];
    outcome *given = outcome_make(1, count);
    for (int32_t i = 0; i < count; i++)
        ids[i] = i;
    row->sampling.num_samples = count;
    row->sampling.given = (gumbel_row_i32){ids, 0};
    assert_int_equal(draw_logits(device, &row->logits, &row->sampling, given), GUMBEL_OK);
    memcpy(logprobs, given->logprobs, (size_t)count * sizeof *logprobs);
    outcome_free(given);
    row->sampling.given = (gumbel_row_i32){NULL, 0};
}

/* At a low temperature the tokens that remain have almost no mass beside the excluded one. The coin
 * still gives them a probability of P. */
static void low_temperatures(void **state)
{
    static const float three[] = {2, 1, 0}, probabilities[] = {0.1f, 0.5f, 0.875f, 1, 0x1p-149f};
    static const float temperatures[] = {1, 0.3f, 0.05f, 0.02f, 0.01f, 1e-3f, 1e-6f};
    static const uint8_t rules[] = {GUMBEL_PROGRAM_XTC, T};
    static const float threshold = 0.2f; /* the second token is 0.24 */
    for (int k = 0; k < 5; k++)
        for (int t = 0; t < 7; t++) {
            const double coin = (double)probabilities[k];
            const double rest = exp(-1 / (double)temperatures[t]);
            const double last = exp(-2 / (double)temperatures[t]), all = 1 + rest + last;
            const double law[2] = {(1 - coin) / all,
                                   (1 - coin) * rest / all + coin * rest / (rest + last)};
            program_row row;
            float logprobs[3];
            set_program_row(&row, three, 3, rules, 2);
            row.sampling.temperature = same_f32(&temperatures[t]);
            row.programs.xtc_probability = same_f32(&probabilities[k]);
            row.programs.xtc_threshold = same_f32(&threshold);
            find_logprobs(*state, &row, 3, logprobs);
            /* z is about 1 / T, with a spacing of 2^-23 / T */
            const double bound = 1e-5 + 1e-6 / (double)temperatures[t];
            if (coin == 1)
                assert_true(logprobs[0] == -INFINITY);
            for (int i = coin == 1 || last == 0; i < 2 && bound < 0.1; i++)
                if (!(fabs((double)logprobs[i] - log(law[i])) < bound) && law[i] > 1e-30)
                    fail_msg("P %g, T %g: token %d has ln p %g, not %g", coin,
                             (double)temperatures[t], i, (double)logprobs[i], log(law[i]));
        }
}

/* A row with a kept token among the top choices skips the rule; ids of other rows, of tokens that
 * stay anyway, and beyond the vocabulary change nothing. */
static void kept_tokens_skip_the_rule(void **state)
{
    static const float row_logits[] = {2, 1.9f, 1.8f, 0, 2, 1.9f, 1.8f, 0};
    static const uint8_t rules[] = {T, GUMBEL_PROGRAM_XTC};
    static const float one = 1;
    static const struct {
        int32_t id;
        int skips;
    } kept[] = {{0, 1}, {1, 1}, {2, 0}, {3, 0}, {4, 0}, {INT32_MAX, 0}};
    for (int k = 0; k < 6; k++) {
        const int64_t offsets[] = {0, 0, 1};
        float z[8];
        program_row row;
        set_program_row(&row, row_logits, 4, rules, 2);
        row.logits.logits.rows = 2;
        row.programs.xtc_probability = same_f32(&one);
        row.programs.xtc_keep = (gumbel_token_lists){.offsets = offsets, .ids = &kept[k].id};
        assert_int_equal(request_process(*state, &row.logits, &row.sampling, z), GUMBEL_OK);
        for (int i = 0; i < 8; i++)
            assert_int_equal(z[i] > -INFINITY, i % 4 >= 2 || (i >= 4 && kept[k].skips));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_coin),
        cmocka_unit_test(low_temperatures),
        cmocka_unit_test(kept_tokens_skip_the_rule),
    };
    return cmocka_run_group_tests(tests, open_one_thread, close_device);
}
