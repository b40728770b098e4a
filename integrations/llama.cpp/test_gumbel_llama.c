/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: test_gumbel_llama
 *
 * Tests the sampler without a model: on arrays of candidates, compared with the library's own calls
 * and with llama.cpp's own samplers. Prints a line for each failed check; exits 1 if there is any.
 */
#include "gumbel_llama.h"
#include "test_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- draws ---- */

static void test_equals_the_librarys_draw(void)
{
    static const struct {
        float temperature, top_p, min_p;
        int32_t top_k;
    } cases[] = {{0, 1, 0, 0}, {1, 1, 0, 0}, {.8f, .95f, .05f, 40}, {1.5f, .5f, 0, 0}};
    float logits[V];

    for (size_t a = 0; a < sizeof cases / sizeof *cases; a++) {
        struct gumbel_llama_params params = gumbel_llama_default_params();
        params.seed = 7 + a;
        params.position = 3;
        params.temperature = cases[a].temperature;
        params.top_k = cases[a].top_k;
        params.top_p = cases[a].top_p;
        params.min_p = cases[a].min_p;
        struct llama_sampler *sampler = make_sampler(&params);
        for (int step = 0; step < STEPS; step++) {
            make_logits(step, logits);
            const llama_token wanted =
                draw_directly(logits, 3 + (uint64_t)step, params.temperature, params.top_k,
                              params.top_p, params.min_p, params.seed);
            const llama_token token = draw_token(sampler, logits);
            CHECK(token == wanted, "parameters %zu, step %d: %d, not %d", a, step, token, wanted);
            llama_sampler_accept(sampler, token);
        }
        llama_sampler_free(sampler);
    }
}

static int by_hash(const void *a, const void *b)
{
    const uint32_t x = (uint32_t)((const llama_token_data *)a)->id * 2654435761u;
    const uint32_t y = (uint32_t)((const llama_token_data *)b)->id * 2654435761u;
    return x < y ? -1 : x > y;
}

static void test_order_of_candidates_does_not_show(void)
{
    struct llama_sampler *sampler = make_sampler(NULL);
    llama_token_data data[V];
    float logits[V];

    for (int step = 0; step < STEPS; step++) {
        make_logits(step, logits);
        const llama_token wanted = draw_token(sampler, logits);
        llama_token_data_array array = make_array(logits, data);
        qsort(data, V, sizeof *data, by_hash);
        llama_sampler_apply(sampler, &array);
        CHECK(array.data[array.selected].id == wanted, "step %d", step);
        llama_sampler_accept(sampler, wanted);
    }
    llama_sampler_free(sampler);
}

/* Noise depends on the token id: after llama.cpp's own top_k and temperature, the draw is the
 * library's with the same parameters, and equals the draw from all tokens if that token is among
 * the candidates. */
static void test_behind_llamas_own_samplers(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    struct llama_sampler *chain =
        make_chain(llama_sampler_init_top_k(40), llama_sampler_init_temp(.5f));
    float logits[V];
    int inside = 0;

    params.seed = 11;
    llama_sampler_chain_add(chain, make_sampler(&params));
    for (int step = 0; step < STEPS; step++) {
        make_logits(step, logits);
        const uint64_t position = (uint64_t)step;
        const llama_token token = draw_token(chain, logits);
        const llama_token top40 = draw_directly(logits, position, .5f, 40, 1, 0, 11);
        CHECK(token == top40, "step %d: %d, not %d", step, token, top40);
        const llama_token whole = draw_directly(logits, position, .5f, 0, 1, 0, 11);
        int larger = 0;
        for (int i = 0; i < V; i++)
            larger += logits[i] > logits[whole];
        if (larger < 40) {
            inside++;
            CHECK(token == whole, "step %d: %d, not %d", step, token, whole);
        }
        llama_sampler_accept(chain, token);
    }
    CHECK(inside > STEPS / 4, "only %d draws of all tokens were inside", inside);
    llama_sampler_free(chain);
}

/* ------------------------------------------------------------ penalties, bias, masks ---- */

static void test_penalties_are_llamas_own(void)
{
    for (int window = -1; window < 20; window += 4) {
        struct gumbel_llama_params params = gumbel_llama_default_params();
        params.temperature = 0;
        params.repetition = 1.7f;
        params.frequency = .9f;
        params.presence = .4f;
        params.penalty_last_n = window;
        struct llama_sampler *ours = make_sampler(&params);
        struct llama_sampler *theirs =
            make_chain(llama_sampler_init_penalties(V, window < 0 ? STEPS : window, 1.7f, .9f, .4f),
                       llama_sampler_init_greedy());
        float logits[V];
        int changed = 0;
        for (int step = 0; step < STEPS; step++) {
            make_logits(step % 3, logits); /* few rows, so that tokens repeat */
            const llama_token wanted = draw_token(theirs, logits), token = draw_token(ours, logits);
            CHECK(token == wanted, "window %d, step %d: %d, not %d", window, step, token, wanted);
            changed += wanted != draw_directly(logits, 0, 0, 0, 1, 0, 0);
            llama_sampler_accept(ours, wanted);
            llama_sampler_accept(theirs, wanted);
        }
        CHECK(window == 0 || changed > STEPS / 4, "window %d: %d steps changed", window, changed);
        llama_sampler_free(ours);
        llama_sampler_free(theirs);
    }
}

static void test_bias(void)
{
    const llama_logit_bias bias[] = {{5, 30}, {6, 31}, {6, -INFINITY}};
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V];

    params.bias = bias;
    params.bias_count = 3;
    struct llama_sampler *sampler = make_sampler(&params), *clone = llama_sampler_clone(sampler);
    make_logits(0, logits);
    CHECK(draw_token(sampler, logits) == 5, "the token with the largest bias");
    llama_sampler_free(sampler);
    CHECK(draw_token(clone, logits) == 5, "a clone copies the list");
    llama_sampler_free(clone);
}

static bool allow_position(void *context, int64_t position, uint32_t *words, int32_t n_vocab)
{
    int *calls = context;
    ++*calls;
    if (position == 1)
        return false;
    memset(words, 0, ((size_t)n_vocab + 31) / 32 * sizeof *words);
    words[(position + 100) / 32] |= 1u << ((position + 100) & 31);
    return true;
}

static void test_mask(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V];
    int mask_calls = 0;

    params.mask = allow_position;
    params.mask_context = &mask_calls;
    struct llama_sampler *sampler = make_sampler(&params);
    for (int step = 0; step < 8; step++) {
        make_logits(step, logits);
        const llama_token token = draw_token(sampler, logits);
        const llama_token wanted =
            step == 1 ? draw_directly(logits, 1, 1, 0, 1, 0, 0) : (llama_token)(step + 100);
        CHECK(token == wanted, "step %d: %d", step, token);
        llama_sampler_accept(sampler, token);
    }
    CHECK(mask_calls == 8, "called %d times", mask_calls);
    llama_sampler_free(sampler);
}

/* ----------------------------------------------------------------------------- state ---- */

static void test_clone_reset_and_copy(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V];
    llama_token first[STEPS];

    params.seed = UINT64_MAX;
    params.repetition = 1.3f;
    params.frequency = .2f;
    params.penalty_last_n = 13;
    params.position = 9;
    struct llama_sampler *sampler = make_sampler(&params), *clone = NULL,
                         *copy = make_sampler(&params);
    for (int step = 0; step < STEPS; step++) {
        make_logits(step % 2, logits);
        if (step == STEPS / 2) {
            clone = llama_sampler_clone(sampler);
            llama_sampler_copy(sampler, copy);
        }
        first[step] = draw_token(sampler, logits);
        llama_sampler_accept(sampler, first[step]);
    }
    for (int step = STEPS / 2; step < STEPS; step++) {
        make_logits(step % 2, logits);
        CHECK(draw_token(clone, logits) == first[step], "clone, step %d", step);
        CHECK(draw_token(copy, logits) == first[step], "copy, step %d", step);
        llama_sampler_accept(clone, first[step]);
        llama_sampler_accept(copy, first[step]);
    }
    CHECK(report_of(sampler).position == 9 + STEPS, "every token advances the position by one");
    llama_sampler_reset(sampler);
    CHECK(report_of(sampler).position == 9 && report_of(sampler).candidates == 0, "reset");
    for (int step = 0; step < STEPS; step++) {
        make_logits(step % 2, logits);
        CHECK(draw_token(sampler, logits) == first[step], "after a reset, step %d", step);
        llama_sampler_accept(sampler, first[step]);
    }
    llama_sampler_free(sampler);
    llama_sampler_free(clone);
    llama_sampler_free(copy);
}

static void test_positions(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V];

    make_logits(0, logits);
    params.position = -1;
    struct llama_sampler *sampler = make_sampler(&params);
    draw_token(sampler, logits);
    CHECK(report_of(sampler).failed == 1, "no token has been accepted yet");
    CHECK(strcmp(report_of(sampler).error.field, "position") == 0, "the field is named");
    for (int i = 0; i < 4; i++) /* a prompt of four tokens */
        llama_sampler_accept(sampler, i);
    CHECK(draw_token(sampler, logits) == draw_directly(logits, 3, 1, 0, 1, 0, 0),
          "the fourth token's logits");
    CHECK(gumbel_llama_set_position(sampler, 1ll << 40), "set");
    CHECK(draw_token(sampler, logits) == draw_directly(logits, 1ull << 40, 1, 0, 1, 0, 0),
          "a far one");
    llama_sampler_free(sampler);
}

/* ----------------------------------------------------------------------------- errors ---- */

static void test_what_cannot_be_drawn(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V];
    llama_token_data data[2] = {{3, 1, 0}, {V, 2, 0}};
    llama_token_data_array odd = {.data = data, .size = 2, .selected = -1}, empty = {0};

    params.failed_token = 17;
    struct llama_sampler *sampler = make_sampler(&params);
    make_logits(0, logits);
    logits[5] = NAN;
    CHECK(draw_token(sampler, logits) == 17, "NaN");
    for (int i = 0; i < V; i++)
        logits[i] = -INFINITY;
    CHECK(draw_token(sampler, logits) == 17, "nothing allowed");
    CHECK(report_of(sampler).failed == 2, "both are counted");
    CHECK(report_of(sampler).error.message[0] != '\0', "and reported");
    llama_sampler_apply(sampler, &odd);
    CHECK(odd.selected == 0, "an id out of range: the first candidate");
    CHECK(strcmp(report_of(sampler).error.field, "candidates") == 0, "and reported");
    empty.selected = -1;
    llama_sampler_apply(sampler, &empty);
    CHECK(empty.selected == -1, "no candidates");
    make_logits(1, logits);
    CHECK(draw_token(sampler, logits) == draw_directly(logits, 0, 1, 0, 1, 0, 0),
          "the sampler works after the error");
    llama_sampler_free(sampler);
}

static void test_bad_parameters(void)
{
    const llama_logit_bias bias[] = {{V, 1}}, nan_bias[] = {{1, NAN}};
    const struct gumbel_llama_params good = gumbel_llama_default_params();
    struct gumbel_llama_params p;

    check_error(0, &good, "n_vocab");
    check_error(-5, &good, "n_vocab");
#define REFUSES(field_, value, name) (p = good, p.field_ = (value), check_error(V, &p, name))
    REFUSES(temperature, -1, "temperature");
    REFUSES(temperature, NAN, "temperature");
    REFUSES(temperature, INFINITY, "temperature");
    REFUSES(top_k, -1, "top_k");
    REFUSES(top_p, 0, "top_p");
    REFUSES(top_p, 1.5f, "top_p");
    REFUSES(min_p, -.5f, "min_p");
    REFUSES(min_p, NAN, "min_p");
    REFUSES(order, (gumbel_order)99, "order");
    REFUSES(ties, (gumbel_ties)99, "ties");
    REFUSES(repetition, 0, "repetition");
    REFUSES(frequency, NAN, "frequency");
    REFUSES(presence, INFINITY, "presence");
    REFUSES(penalty_last_n, -2, "penalty_last_n");
    REFUSES(position, -2, "position");
    REFUSES(failed_token, V, "failed_token");
    REFUSES(threads, 5000, "threads");
    REFUSES(bias_count, 1, "bias_count");
    p = good;
    p.bias_count = 1;
    p.bias = bias;
    check_error(V, &p, "bias");
    p.bias = nan_bias;
    check_error(V, &p, "bias");
}

static void test_other_samplers_are_distinguished(void)
{
    struct llama_sampler *greedy = llama_sampler_init_greedy();
    struct llama_sampler *chain = make_chain(greedy, NULL);
    struct gumbel_llama_report report;
    CHECK(!gumbel_llama_describe(greedy, &report), "another sampler");
    CHECK(!gumbel_llama_describe(chain, &report), "a chain without ours");
    CHECK(!gumbel_llama_describe(NULL, &report), "none");
    CHECK(!gumbel_llama_set_position(chain, 3), "a chain without ours");
    llama_sampler_chain_add(chain, make_sampler(NULL));
    CHECK(gumbel_llama_describe(chain, &report), "a chain with ours");
    llama_sampler_free(chain);
}

static void test_refused_drafts(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    int mask_calls = 0, emitted;

    check_draft_error(&params, -1, 0, GUMBEL_ERROR_ARGUMENT, "draft.count");
    check_draft_error(&params, 1024, 0, GUMBEL_ERROR_ARGUMENT, "draft.count");
    check_draft_error(&params, 4, -1, GUMBEL_ERROR_ARGUMENT, "draft.first");
    params.presence = 1;
    params.penalty_last_n = 7; /* four tokens have been accepted */
    check_draft_error(&params, 4, 0, GUMBEL_ERROR_UNSUPPORTED, "penalty_last_n");
    params = gumbel_llama_default_params();
    params.mask = allow_position;
    params.mask_context = &mask_calls;
    check_draft_error(&params, 1, 0, GUMBEL_ERROR_UNSUPPORTED, "mask");
    CHECK(gumbel_llama_verify(NULL, NULL, NULL, NULL, &emitted, NULL) == GUMBEL_ERROR_ARGUMENT,
          "no sampler");
}

int main(void)
{
    test_equals_the_librarys_draw();
    test_order_of_candidates_does_not_show();
    test_behind_llamas_own_samplers();
    test_penalties_are_llamas_own();
    test_bias();
    test_mask();
    test_clone_reset_and_copy();
    test_positions();
    test_what_cannot_be_drawn();
    test_bad_parameters();
    test_other_samplers_are_distinguished();
    test_refused_drafts();
    return end_checks();
}
