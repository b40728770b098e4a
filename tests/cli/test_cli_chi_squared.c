/* SPDX-License-Identifier: Apache-2.0
 *
 * The false alarm rate of the chi-squared test in `gumbel verify`: sums the probability of every
 * rejected outcome, for a few draws of two and of three tokens.
 */
#include "chi_squared.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const double levels[] = {1e-6, 5e-8};
enum { LEVELS = 2 };

static double log_factorial(int n) { return lgamma(n + 1.0); }

/* All outcomes of a number of draws. */
struct outcomes {
    const double *probability;
    int tokens;
    int draws;
    int64_t degrees;
    double alarms[LEVELS]; /* probability of the outcomes rejected at each level */
};

static void add_outcome(struct outcomes *all, const double *observed)
{
    const struct chi_squared test =
        chi_squared_test(all->probability, observed, all->tokens, all->draws);
    double logarithm = log_factorial(all->draws);

    for (int i = 0; i < all->tokens; i++) {
        logarithm += observed[i] * log(all->probability[i]) - log_factorial((int)observed[i]);
    }
    for (int i = 0; i < LEVELS; i++) {
        all->alarms[i] += test.p_value < levels[i] ? exp(logarithm) : 0;
    }
    all->degrees = test.degrees;
}

/* Compares the rates with the limits that chi_squared.h states. */
static void assert_false_alarm_rate(const struct outcomes *all)
{
    const double most = all->degrees == 1 ? 10 : 2;

    for (int i = 0; i < LEVELS; i++) {
        if (all->alarms[i] > most * levels[i]) {
            fail_msg("%d draws, %d tokens, first p = %.4f: the false alarm rate at level %g is %g",
                     all->draws, all->tokens, all->probability[0], levels[i], all->alarms[i]);
        }
    }
}

static void false_alarm_rate_of_two_tokens(void **state)
{
    (void)state;
    for (int draws = 1; draws <= 700; draws += draws < 100 ? 1 : 61) {
        for (double rare = 0.001; rare <= 0.5; rare *= 1.15) {
            const double probability[] = {rare, 1 - rare};
            struct outcomes all = {probability, 2, draws, 0, {0}};

            for (int first = 0; first <= draws; first++) {
                const double observed[] = {first, draws - first};

                add_outcome(&all, observed);
            }
            assert_false_alarm_rate(&all);
        }
    }
}

static void false_alarm_rate_of_three_tokens(void **state)
{
    (void)state;
    for (int draws = 1; draws <= 180; draws += draws < 8 ? 1 : 17) {
        for (double rare = 0.02; rare <= 0.34; rare *= 1.4) {
            const double probability[] = {rare, 0.4 * (1 - rare), 0.6 * (1 - rare)};
            struct outcomes all = {probability, 3, draws, 0, {0}};

            for (int first = 0; first <= draws; first++) {
                for (int second = 0; second <= draws - first; second++) {
                    const double observed[] = {first, second, draws - first - second};

                    add_outcome(&all, observed);
                }
            }
            assert_false_alarm_rate(&all);
        }
    }
}

static void impossible_outcomes_are_rejected(void **state)
{
    const double probability[] = {0.5, 0.5, 0};
    (void)state;
    for (int draws = 1; draws <= 1000; draws *= 10) {
        const double observed[] = {draws - 1, 0, 1};

        assert_true(chi_squared_test(probability, observed, 3, draws).p_value <= 0);
    }
}

static void few_draws_are_never_rejected(void **state)
{
    const double probability[] = {0.499, 0.499, 0.001, 0.001};
    (void)state;
    for (int draws = 1; draws < 10; draws++) {
        const double observed[] = {draws, 0, 0, 0};
        const struct chi_squared test = chi_squared_test(probability, observed, 4, draws);

        assert_int_equal(test.degrees, 0);
        assert_true(test.p_value >= 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(false_alarm_rate_of_two_tokens),
        cmocka_unit_test(false_alarm_rate_of_three_tokens),
        cmocka_unit_test(impossible_outcomes_are_rejected),
        cmocka_unit_test(few_draws_are_never_rejected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
