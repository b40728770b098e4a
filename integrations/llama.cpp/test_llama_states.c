/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: test_llama_states
 *
 * Tests the rules whose state changes with drawn tokens, mirostat and adaptive_p, on arrays of
 * candidates, compared with llama.cpp's own samplers. Prints a line for each failed check; exits 1
 * if there is any.
 */
#include "test_rows.h"

#include <math.h>

/* Sets logits of tokens with more than `mu` bits of surprise to -inf, but for the largest. Returns
 * how many remain. */
static int keep_by_surprise(float *logits, double mu)
{
    double sum = 0;
    int kept = 0;
    float largest = -INFINITY;

    for (int i = 0; i < V; i++) {
        sum += exp((double)logits[i]);
        largest = fmaxf(largest, logits[i]);
    }
    for (int i = 0; i < V; i++)
        if (logits[i] < largest && -log2(exp((double)logits[i]) / sum) > mu)
            logits[i] = -INFINITY;
        else
            kept++;
    return kept;
}

static void test_mirostat(void)
{
    static llama_token_data data[V];
    struct gumbel_llama_params params = gumbel_llama_default_params();
    struct llama_sampler *theirs = llama_sampler_init_mirostat_v2(1, 4, .3f);
    float logits[V];
    double mu = 8;

    params.mirostat = 2;
    params.mirostat_tau = 4;
    params.mirostat_eta = .3f;
    struct llama_sampler *ours = make_sampler(&params), *clone;
    for (int step = 0; step < STEPS; step++) {
        make_logits(step, logits);
        const llama_token token = draw_token(ours, logits);
        CHECK(draw_token(ours, logits) == token, "a draw does not change mu");
        clone = llama_sampler_clone(ours);
        CHECK(draw_token(clone, logits) == token, "a clone has the same mu");
        llama_sampler_free(clone);
        llama_token_data_array array = make_array(logits, data);
        const int kept = keep_by_surprise(logits, mu);
        if (step == 0) {
            llama_sampler_apply(theirs, &array);
            CHECK(array.size == (size_t)kept && kept < V, "%d, not %d", kept, (int)array.size);
        }
        const llama_token wanted = draw_directly(logits, (uint64_t)step, 1, 0, 1, 0, 0);
        CHECK(token == wanted, "step %d: %d, not %d", step, token, wanted);
        double sum = 0;
        for (int i = 0; i < V; i++)
            sum += exp((double)logits[i]);
        mu -= .3f * (-log2(exp((double)logits[token]) / sum) - 4);
        llama_sampler_accept(ours, token);
    }
    CHECK(fabs(mu - 8) > .5, "mu has moved to %g", mu);
    llama_sampler_reset(ours);
    llama_sampler_accept(ours, 5); /* not drawn: mu stays, as a prompt's tokens require */
    make_logits(0, logits);
    keep_by_surprise(logits, 8);
    const llama_token wanted = draw_directly(logits, 1, 1, 0, 1, 0, 0);
    make_logits(0, logits);
    CHECK(draw_token(ours, logits) == wanted, "a reset restores mu");
    llama_sampler_free(ours);
    llama_sampler_free(theirs);
}

/* -------------------------------------------------------------------------- adaptive_p ---- */

/* Applies llama.cpp's chain until it selects `token`: its target then adapts to our draws. Its
 * logits, which are the same at each try, go to `logits`, with -inf for removed tokens. Returns
 * false if it never selects the token. */
static bool select_token(struct llama_sampler *chain, const float *raw, llama_token token,
                         float *logits)
{
    static llama_token_data data[V];

    for (int i = 0; i < 20000; i++) {
        llama_token_data_array array = make_array(raw, data);
        llama_sampler_apply(chain, &array);
        for (int j = 0; j < V; j++)
            logits[j] = -INFINITY;
        for (size_t j = 0; j < array.size; j++)
            logits[array.data[j].id] = array.data[j].logit;
        if (array.selected >= 0 && array.data[array.selected].id == token)
            return true;
    }
    return false;
}

/* Compares draws with those from the values of llama.cpp's adaptive_p. Returns how many differ from
 * draws without the rule. */
static int check_adaptive(float target, float decay, const char *samplers)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    struct llama_sampler *theirs =
        make_chain(llama_sampler_init_min_p(.87f, 1), llama_sampler_init_temp(.03f));
    float raw[V], logits[V];
    int changed = 0;

    llama_sampler_chain_add(theirs, llama_sampler_init_adaptive_p(target, decay, 5));
    params.min_p = .87f; /* some 12 tokens */
    params.temperature = .03f;
    params.adaptive_target = target;
    params.adaptive_decay = decay;
    params.samplers = samplers;
    struct llama_sampler *ours = make_sampler(&params), *clone;
    for (int step = 0; step < STEPS; step++) {
        make_logits(step, raw);
        const llama_token token = draw_token(ours, raw);
        CHECK(draw_token(ours, raw) == token, "a draw does not change the target");
        clone = llama_sampler_clone(ours);
        CHECK(draw_token(clone, raw) == token, "a clone has the same target");
        llama_sampler_free(clone);
        CHECK(select_token(theirs, raw, token, logits), "step %d: llama.cpp never draws %d", step,
              token);
        const llama_token wanted = draw_directly(logits, (uint64_t)step, 1, 0, 1, 0, 0);
        CHECK(token == wanted, "target %g, step %d: %d, not %d", target, step, token, wanted);
        changed += token != draw_directly(raw, (uint64_t)step, .03f, 0, 1, .87f, 0);
        llama_sampler_accept(ours, token);
        llama_sampler_accept(theirs, token);
    }
    const struct gumbel_llama_report report = report_of(ours);
    CHECK(report.failed == 0, "%s: %s", report.error.field, report.error.message);
    llama_sampler_free(ours);
    llama_sampler_free(theirs);
    return changed;
}

static void test_adaptive_p_is_llamas_own(void)
{
    CHECK(check_adaptive(.1f, .9f, NULL) > STEPS / 4, "low targets change draws");
    CHECK(check_adaptive(.5f, .5f, "adaptive_p;min_p;temperature") > 0, "last, wherever listed");
    CHECK(check_adaptive(.3f, 0, "min-p;temp;adaptive-p") > 0, "without memory");
    CHECK(check_adaptive(0, .99f, NULL) > STEPS / 4, "the lowest target");
}

/* The target adapts to drawn tokens only, and a reset restores it. */
static void test_state_of_adaptive_p(void)
{
    enum { N = 30 };
    struct gumbel_llama_params params = gumbel_llama_default_params();
    llama_token first[N];
    float logits[V];
    int moved = 0;

    params.temperature = .03f;
    params.min_p = .87f;
    params.adaptive_target = .3f;
    params.adaptive_decay = .5f;
    struct llama_sampler *ours = make_sampler(&params), *still = make_sampler(&params);
    for (int step = 0; step < N; step++) {
        make_logits(step, logits);
        first[step] = draw_token(ours, logits);
        moved += draw_token(still, logits) != first[step];
        llama_sampler_accept(ours, first[step]);
        llama_sampler_accept(still, V - 1); /* the token that the rule never keeps: not drawn */
    }
    CHECK(moved > 0, "the target moves with drawn tokens alone");
    llama_sampler_reset(ours);
    for (int step = 0; step < N; step++) {
        make_logits(step, logits);
        const llama_token token = draw_token(ours, logits);
        CHECK(token == first[step], "after a reset, step %d: %d, not %d", step, token, first[step]);
        llama_sampler_accept(ours, token);
    }
    llama_sampler_free(ours);
    llama_sampler_free(still);
    params.temperature = 0; /* greedy rows have no rules */
    ours = make_sampler(&params);
    make_logits(0, logits);
    CHECK(draw_token(ours, logits) == draw_directly(logits, 0, 0, 0, 1, 0, 0), "a greedy draw");
    llama_sampler_free(ours);
}

int main(void)
{
    test_mirostat();
    test_adaptive_p_is_llamas_own();
    test_state_of_adaptive_p();
    return end_checks();
}
