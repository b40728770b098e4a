/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: test_llama_rules
 *
 * Tests the sampler's programs on arrays of candidates: the tokens they keep and the values of kept
 * tokens, compared with llama.cpp's own samplers. Prints a line for each failed check; exits 1 if
 * there is any.
 */
#include "test_rows.h"

#include <math.h>

enum { ROWS = 3, DRAWS = 8000 };

/* Compares the tokens that `params` keeps with those that llama.cpp's sampler keeps. At so high a
 * temperature the kept tokens have equal probabilities, and each is drawn. Frees both. */
static void check_kept(const char *name, struct gumbel_llama_params params,
                       struct llama_sampler *theirs)
{
    static llama_token_data data[V];
    float logits[V];

    params.temperature = 1e6f;
    struct llama_sampler *ours = make_sampler(&params);
    for (int row = 0; row < ROWS; row++) {
        bool kept[V] = {false}, drawn[V] = {false};
        int count = 0, found = 0;
        make_logits(row, logits);
        llama_token_data_array array = make_array(logits, data);
        llama_sampler_apply(theirs, &array);
        for (size_t i = 0; i < array.size; i++)
            kept[array.data[i].id] = array.data[i].logit > -INFINITY;
        for (int i = 0; i < DRAWS; i++) {
            gumbel_llama_set_position(ours, i);
            const llama_token token = draw_token(ours, logits);
            CHECK(kept[token], "%s, row %d: llama.cpp removes %d", name, row, token);
            drawn[token] = true;
        }
        for (int i = 0; i < V; i++) {
            count += kept[i];
            found += drawn[i];
        }
        CHECK(found == count && count < V && count > 1, "%s, row %d: %d tokens, not %d", name, row,
              found, count);
    }
    llama_sampler_free(ours);
    llama_sampler_free(theirs);
}

static void test_kept_sets_are_llamas_own(void)
{
    const struct gumbel_llama_params good = gumbel_llama_default_params();
    struct gumbel_llama_params p;

#define KEPT(theirs, ...) (p = good, __VA_ARGS__, check_kept(#__VA_ARGS__, p, theirs))
    KEPT(llama_sampler_init_top_n_sigma(1.2f), p.top_n_sigma = 1.2f);
    KEPT(llama_sampler_init_top_n_sigma(.5f), p.top_n_sigma = .5f);
    KEPT(llama_sampler_init_typical(.6f, 1), p.typical_p = .6f);
    KEPT(llama_sampler_init_typical(.1f, 1), p.typical_p = .1f, p.samplers = "typical;temp");
    KEPT(llama_sampler_init_typical(.01f, 30), p.typical_p = .01f, p.min_keep = 30);
    KEPT(llama_sampler_init_min_p(.2f, 1), p.min_p = .2f, p.samplers = "min-p;temperature");
    KEPT(llama_sampler_init_min_p(.99f, 25), p.min_p = .99f, p.min_keep = 25);
    KEPT(llama_sampler_init_top_p(.02f, 1), p.top_p = .02f, p.samplers = "nucleus;temperature");
    KEPT(llama_sampler_init_top_k(17), p.top_k = 17, p.samplers = "top_k;temperature");
    KEPT(make_chain(llama_sampler_init_top_k(40), llama_sampler_init_typical(.5f, 1)), p.top_k = 40,
         p.typical_p = .5f);
    KEPT(make_chain(llama_sampler_init_typical(.5f, 1), llama_sampler_init_top_k(40)), p.top_k = 40,
         p.typical_p = .5f, p.samplers = "typ_p;top_k;temperature");
    KEPT(make_chain(llama_sampler_init_top_k(40), llama_sampler_init_xtc(1, .03f, 1, 5)),
         p.top_k = 40, p.xtc_probability = 1, p.xtc_threshold = .03f);
    KEPT(make_chain(llama_sampler_init_top_k(40), llama_sampler_init_xtc(1, .03f, 35, 5)),
         p.top_k = 40, p.xtc_probability = 1, p.xtc_threshold = .03f, p.min_keep = 35);
}

/* llama.cpp's own samplers before ours give the draw of ours alone, which computes the values. */
static void test_values_are_llamas_own(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V];

    params.temperature = .9f;
    params.min_p = .1f;
    params.dynatemp_range = .7f;
    params.dynatemp_exponent = 1.5f;
    struct llama_sampler *ours = make_sampler(&params);
    struct llama_sampler *theirs =
        make_chain(llama_sampler_init_min_p(.1f, 1), llama_sampler_init_temp_ext(.9f, .7f, 1.5f));
    llama_sampler_chain_add(theirs, make_sampler(NULL));
    int fixed = 0;
    for (int step = 0; step < 8 * STEPS; step++) {
        make_logits(step, logits);
        const llama_token wanted = draw_token(theirs, logits), token = draw_token(ours, logits);
        CHECK(token == wanted, "step %d: %d, not %d", step, token, wanted);
        fixed += wanted == draw_directly(logits, (uint64_t)step, .9f, 0, 1, .1f, 0);
        llama_sampler_accept(ours, token);
        llama_sampler_accept(theirs, token);
    }
    CHECK(fixed < 8 * STEPS, "the range changes draws");
    llama_sampler_free(ours);
    llama_sampler_free(theirs);
}

/* XTC removes the likelier of two tokens with its probability. */
static void test_xtc_has_the_average_of_its_coin(void)
{
    enum { N = 4000 };
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V];
    int larger = 0;

    for (int i = 0; i < V; i++)
        logits[i] = -INFINITY;
    logits[3] = logf(.8f);
    logits[4] = logf(.2f);
    params.xtc_probability = .5f;
    struct llama_sampler *sampler = make_sampler(&params);
    for (int i = 0; i < N; i++) {
        gumbel_llama_set_position(sampler, i);
        larger += draw_token(sampler, logits) == 3;
    }
    /* .5 * .8 = .4, with a standard deviation of .0077 */
    CHECK(abs(larger - 2 * N / 5) < N / 25, "%d of %d", larger, N);
    llama_sampler_free(sampler);
}

static void test_rules_that_are_off_may_be_listed_anywhere(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V];

    params.samplers = "temp;xtc;adaptive_p;top-k;dry;penalties;typ;top-n-sigma";
    struct llama_sampler *sampler = make_sampler(&params);
    make_logits(0, logits);
    CHECK(draw_token(sampler, logits) == draw_directly(logits, 0, 1, 0, 1, 0, 0), "a plain draw");
    llama_sampler_free(sampler);
}

int main(void)
{
    test_kept_sets_are_llamas_own();
    test_values_are_llamas_own();
    test_xtc_has_the_average_of_its_coin();
    test_rules_that_are_off_may_be_listed_anywhere();
    return end_checks();
}
