/* SPDX-License-Identifier: Apache-2.0
 *
 * REJECTION and BLOCK: the joint distribution of three tokens emitted in several cycles, for many
 * kinds of model pairs; acceptance rates; and errors of drafts that the tests must detect.
 */
#include "draft_chains.h"
#include "fixtures.h"
#include "inputs.h"
#include "outcome.h"
#include "statistics.h"
#include "test_scale.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* p-value limits: a correct sampler is below LOWEST_P once in 10^4 tests; a wrong one must be below
 * CAUGHT_P.
 */
#define LOWEST_P 1e-4
#define CAUGHT_P 1e-9

#define USUAL_TEXTS   12000
#define NIGHTLY_TEXTS 2000000

/* -------------------------------------------------------------------------------- models ---- */

/* Random models. `kind` 1: equal models; 2: no common token; 3 and 4: the target or the draft has
 * one token. */
static chain_models make_models(int kind, uint64_t seed)
{
    chain_models m;
    uint64_t random = seed;
    for (int i = 0; i < CHAIN_TOKENS; i++) {
        int lone = (int)random_below(&random, CHAIN_TOKENS);
        for (int j = 0; j < CHAIN_TOKENS; j++) {
            m.target[i][j] = random_normal(&random);
            m.draft[i][j] = m.target[i][j] + random_normal(&random);
            if (kind == 1)
                m.draft[i][j] = m.target[i][j];
            if (kind == 2)
                *(j % 2 ? &m.draft[i][j] : &m.target[i][j]) = -INFINITY;
            if (kind == 3 && j != lone)
                m.target[i][j] = -INFINITY;
            if (kind == 4 && j != lone)
                m.draft[i][j] = -INFINITY;
        }
    }
    return m;
}

static chain_plan right_plan(gumbel_rule rule, int drafts, uint64_t seed)
{
    return (chain_plan){.rule = rule,
                        .drafts = drafts,
                        .domain = GUMBEL_DOMAIN_DRAFT,
                        .by_step = rule == GUMBEL_RULE_BLOCK,
                        .drawn_at = 1,
                        .supplied_at = 1,
                        .seed = seed};
}

/* The chi-squared p-value of the joint distribution of three tokens. */
static double joint_p_value(gumbel_device *device, const chain_models *models,
                            const chain_plan *plan, int64_t total, chain_counts *counts)
{
    double law[CHAIN_LAWS];
    chi_squared found = {0};
    chains_write(device, models, plan, total, counts);
    chain_laws(models, law);
    for (int i = 0; i < CHAIN_LAWS; i++)
        assert_true(law[i] > 0 || counts->laws[i] == 0);
    chi_squared_add(&found, counts->laws, law, CHAIN_LAWS, total);
    return found.degrees < 1 ? 1 : chi_squared_p(found.statistic, found.degrees);
}

static void joint_distribution_is_the_targets(void **state)
{
    static const gumbel_rule rules[] = {GUMBEL_RULE_REJECTION, GUMBEL_RULE_BLOCK};
    int64_t total =
        nightly_factor() > 1 ? NIGHTLY_TEXTS : (draws_of(USUAL_TEXTS) + 999) / 1000 * 1000;
    for (int i = 0; i < 20; i++) {
        chain_plan plan = right_plan(rules[i % 2], 1 + i / 2 % 5, 40 + (uint64_t)i);
        chain_models models = make_models(i / 4, 7 + (uint64_t)i);
        chain_counts counts;
        plan.missing = i % 5 == 4 ? 3 : 0;
        double p = joint_p_value(*state, &models, &plan, total, &counts);
        print_message("rule %d, %d drafts, models of kind %d: p %.4f\n", (int)plan.rule,
                      plan.drafts, i / 4, p);
        assert_true(p > LOWEST_P);
    }
}

/* Each error must change the joint distribution significantly. */
static void wrong_drafts_are_detected(void **state)
{
    const chain_models models = make_models(0, 21);
    struct {
        const char *what;
        chain_plan plan;
        int64_t total;
    } wrong[] = {
        {"the target's noise, rejection", right_plan(GUMBEL_RULE_REJECTION, 3, 1), 60000},
        {"the target's noise, block", right_plan(GUMBEL_RULE_BLOCK, 3, 2), 40000},
        {"the noise of the acceptance coin", right_plan(GUMBEL_RULE_REJECTION, 3, 3), 10000},
        {"q at another temperature", right_plan(GUMBEL_RULE_REJECTION, 3, 4), 10000},
        {"q 10% off", right_plan(GUMBEL_RULE_REJECTION, 3, 5), 20000},
        {"block, drafts by position alone", right_plan(GUMBEL_RULE_BLOCK, 3, 6), 60000},
        {"q before top-k", right_plan(GUMBEL_RULE_REJECTION, 3, 8), 10000},
        {"a residual without the draft alone", right_plan(GUMBEL_RULE_REJECTION, 3, 9), 10000},
        {"a residual where there is no draft", right_plan(GUMBEL_RULE_REJECTION, 3, 10), 10000},
        {"block, a residual where there is no draft", right_plan(GUMBEL_RULE_BLOCK, 3, 11), 10000},
        {"q 2% off", right_plan(GUMBEL_RULE_REJECTION, 3, 7), 4000000},
    };
    size_t count = sizeof wrong / sizeof *wrong - (nightly_factor() > 1 ? 0 : 1);
    if (TEST_SANITIZED)
        skip();
    wrong[0].plan.domain = GUMBEL_DOMAIN_TARGET;
    wrong[1].plan.domain = GUMBEL_DOMAIN_TARGET;
    wrong[1].plan.by_step = 0;
    wrong[2].plan.domain = GUMBEL_DOMAIN_ACCEPT;
    wrong[3].plan.drawn_at = 0.5f;
    wrong[4].plan.drawn_at = 1.1f;
    wrong[5].plan.by_step = 0;
    wrong[6].plan.drawn_top_k = 2;
    wrong[7].plan.residual = CHAIN_RESIDUAL_OTHERS;
    for (int i = 8; i < 10; i++) {
        wrong[i].plan.residual = CHAIN_RESIDUAL_OF_NONE;
        wrong[i].plan.missing = 3;
    }
    wrong[10].plan.drawn_at = 1.02f;
    for (size_t i = 0; i < count; i++) {
        chain_counts counts;
        double p = joint_p_value(*state, &models, &wrong[i].plan, wrong[i].total, &counts);
        print_message("%s: p %.2g\n", wrong[i].what, p);
        assert_true(p < CAUGHT_P);
    }
}

/* ---------------------------------------------------------------------------- acceptance ---- */

static double mean_accepted(const chain_counts *counts, int64_t total)
{
    double sum = 0;
    for (int i = 0; i <= CHAIN_DRAFTS_MAX; i++)
        sum += (double)i * (double)counts->accepted[i];
    return sum / (double)total;
}

static void assert_near(double found, double expected, double variance, int64_t total)
{
    double error = sqrt(fmax(variance, 0) / (double)total);
    print_message("accepted %.4f, expected %.4f, standard error %.4f\n", found, expected, error);
    assert_true(fabs(found - expected) < 4 * error + 1e-9);
}

/* One draft is accepted with probability 1 - d for all models. */
static void single_draft_acceptance_rate_is_maximal(void **state)
{
    int64_t total = TEST_SANITIZED ? 2000 : 20000;
    for (int i = 0; i < 8; i++) {
        chain_models models = make_models(i % 5, 90 + (uint64_t)i);
        chain_plan plan =
            right_plan(i % 2 ? GUMBEL_RULE_BLOCK : GUMBEL_RULE_REJECTION, 1, 60 + (uint64_t)i);
        double p[CHAIN_TOKENS], q[CHAIN_TOKENS], alike = 0;
        chain_counts counts;
        chains_write(*state, &models, &plan, total, &counts);
        chain_law(models.target[0], p);
        chain_law(models.draft[0], q);
        for (int j = 0; j < CHAIN_TOKENS; j++)
            alike += fmin(p[j], q[j]);
        assert_near(mean_accepted(&counts, total), alike, alike * (1 - alike), total);
    }
}

/* The example of arXiv 2403.10444: of two drafts, REJECTION accepts 10/9 on average and BLOCK
 * 11/9. */
static void block_rule_accepts_more_drafts(void **state)
{
    chain_models models;
    int64_t total = TEST_SANITIZED ? 4000 : 40000;
    double found[2];
    for (int i = 0; i < CHAIN_TOKENS; i++)
        for (int j = 0; j < CHAIN_TOKENS; j++) {
            models.target[i][j] = j == 0 ? 0.0f : j == 1 ? logf(2) : -INFINITY;
            models.draft[i][j] = j == 0 ? logf(2) : j == 1 ? 0.0f : -INFINITY;
        }
    for (int i = 0; i < 2; i++) {
        chain_plan plan = right_plan(i ? GUMBEL_RULE_BLOCK : GUMBEL_RULE_REJECTION, 2, 5);
        chain_counts counts;
        chains_write(*state, &models, &plan, total, &counts);
        found[i] = mean_accepted(&counts, total);
    }
    assert_near(found[0], 10.0 / 9, 0.8, total);
    assert_near(found[1], 11.0 / 9, 0.8, total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joint_distribution_is_the_targets),
        cmocka_unit_test(wrong_drafts_are_detected),
        cmocka_unit_test(single_draft_acceptance_rate_is_maximal),
        cmocka_unit_test(block_rule_accepts_more_drafts),
    };
    return cmocka_run_group_tests(tests, open_one_thread, close_device);
}
