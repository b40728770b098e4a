/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: test_llama_rules
 *
 * Tests the sampler's programs, DRY, mirostat and adaptive_p on arrays of candidates, compared with
 * llama.cpp's own samplers. Prints a line for each failed check; exits 1 if there is any.
 */
#include "test_rows.h"

#include <math.h>

enum { ROWS = 3, DRAWS = 8000 };

static struct llama_sampler *chain_of(struct llama_sampler *first, struct llama_sampler *second)
{
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, first);
    if (second)
        llama_sampler_chain_add(chain, second);
    return chain;
}

/* ---------------------------------------------------------------------------- kept sets ---- */

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
    KEPT(chain_of(llama_sampler_init_top_k(40), llama_sampler_init_typical(.5f, 1)), p.top_k = 40,
         p.typical_p = .5f);
    KEPT(chain_of(llama_sampler_init_typical(.5f, 1), llama_sampler_init_top_k(40)), p.top_k = 40,
         p.typical_p = .5f, p.samplers = "typ_p;top_k;temperature");
    KEPT(chain_of(llama_sampler_init_top_k(40), llama_sampler_init_xtc(1, .03f, 1, 5)),
         p.top_k = 40, p.xtc_probability = 1, p.xtc_threshold = .03f);
    KEPT(chain_of(llama_sampler_init_top_k(40), llama_sampler_init_xtc(1, .03f, 35, 5)),
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
        chain_of(llama_sampler_init_min_p(.1f, 1), llama_sampler_init_temp_ext(.9f, .7f, 1.5f));
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

/* ------------------------------------------------------------------------------- DRY ---- */

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Logits of a few tokens that are close to each other. */
static void make_few_logits(uint32_t step, int few, float *logits)
{
    for (int i = 0; i < V; i++)
        logits[i] = i < few ? (float)(mix(step * 64 + (uint32_t)i) % 1000) / 500 : -30;
}

static void test_dry_is_llamas_own(void)
{
    int changed = 0;
    for (uint32_t text = 0; text < 24; text++) {
        struct gumbel_llama_params params = gumbel_llama_default_params();
        const int32_t window = (int32_t[]){-1, 40, 9}[text % 3], few = 2 + (int32_t)text % 3;
        params.temperature = 0;
        params.dry_multiplier = .3f;
        params.dry_base = text % 2 ? 1.75f : 1.2f;
        params.dry_allowed_length = (int32_t)text % 4;
        params.dry_penalty_last_n = window;
        params.frequency = text % 5 ? 0 : .1f;
        params.penalty_last_n = 7;
        struct llama_sampler *ours = make_sampler(&params);
        struct llama_sampler *theirs =
            chain_of(llama_sampler_init_penalties(V, 7, 1, params.frequency, 0),
                     llama_sampler_init_dry(NULL, .3f, params.dry_base, params.dry_allowed_length,
                                            window < 0 ? 1000 : window, NULL, 0));
        llama_sampler_chain_add(theirs, llama_sampler_init_greedy());
        for (uint32_t step = 0; step < 120; step++) {
            float logits[V];
            make_few_logits(text * 1000 + step, few, logits);
            const llama_token wanted = draw_token(theirs, logits), token = draw_token(ours, logits);
            CHECK(token == wanted, "text %d, step %d: %d, not %d", (int)text, (int)step, token,
                  wanted);
            changed += wanted != draw_directly(logits, 0, 0, 0, 1, 0, 0);
            const llama_token next = (llama_token)(mix(step + 7000 * text) % (uint32_t)few);
            llama_sampler_accept(ours, next);
            llama_sampler_accept(theirs, next);
        }
        CHECK(report_of(ours).failed == 0, "%s", report_of(ours).error.message);
        llama_sampler_free(ours);
        llama_sampler_free(theirs);
    }
    CHECK(changed > 24 * 120 / 8, "only %d steps changed", changed);
}

/* Whether DRY discourages 3 after the text 1 2 3 4 1 2. */
static bool has_penalty(const struct gumbel_llama_breaker *breakers, int32_t count)
{
    const llama_token text[] = {1, 2, 3, 4, 1, 2};
    struct gumbel_llama_params params = gumbel_llama_default_params();
    float logits[V] = {0};

    params.temperature = 0;
    params.dry_multiplier = 2;
    params.dry_breakers = breakers;
    params.dry_breaker_count = count;
    struct llama_sampler *sampler = make_sampler(&params), *clone;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        llama_sampler_accept(sampler, text[i]);
    logits[3] = 1.5f; /* the bias is -2 */
    logits[7] = 1;
    clone = llama_sampler_clone(sampler);
    const llama_token token = draw_token(sampler, logits), copied = draw_token(clone, logits);
    CHECK((token == 3 || token == 7) && copied == token, "%d, of a clone %d", token, copied);
    llama_sampler_reset(sampler);
    CHECK(draw_token(sampler, logits) == 3, "an empty text");
    llama_sampler_free(sampler);
    llama_sampler_free(clone);
    return token == 7;
}

static void test_breakers(void)
{
    const llama_token text[] = {4, 1, 2, 3}, *four = text, *two = text + 2, *three = text + 3;

    CHECK(has_penalty(NULL, 0), "1 2 is repeated");
    CHECK(has_penalty(&(struct gumbel_llama_breaker){four, 1}, 1), "1 2 is behind the breaker");
    CHECK(!has_penalty(&(struct gumbel_llama_breaker){four, 2}, 1), "1 is part of the breaker");
    CHECK(!has_penalty(&(struct gumbel_llama_breaker){two, 1}, 1), "ends the text");
    CHECK(has_penalty(&(struct gumbel_llama_breaker){two, 2}, 1), "lets 3 follow, but is longer");
    CHECK(!has_penalty(&(struct gumbel_llama_breaker){three, 1}, 1), "a breaker has no penalty");
    const struct gumbel_llama_breaker sorted[] = {{three, 1}, {two, 1}, {four, 1}, {four, 2}};
    CHECK(!has_penalty(sorted, 4), "several, in another order");
    CHECK(!has_penalty(sorted + 2, 2), "the longest one that begins there");
}

/* ---------------------------------------------------------------------------- mirostat ---- */

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
    struct llama_sampler *theirs = llama_sampler_chain_init(llama_sampler_chain_default_params());
    float raw[V], logits[V];
    int changed = 0;

    llama_sampler_chain_add(theirs, llama_sampler_init_min_p(.87f, 1));
    llama_sampler_chain_add(theirs, llama_sampler_init_temp(.03f));
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

/* -------------------------------------------------------------------------------- errors ---- */

static void test_refused_parameters(void)
{
    const struct gumbel_llama_params good = gumbel_llama_default_params();
    const struct gumbel_llama_breaker empty = {&(llama_token){0}, 0};
    struct gumbel_llama_params p;

#define REFUSES(name, ...) (p = good, __VA_ARGS__, check_error(V, &p, name))
    static const char *const lists[] = {"",
                                        "top_k",
                                        "top_k;",
                                        "top_k temperature",
                                        "temperature;top_k;top_k",
                                        "infill;temperature",
                                        "adaptive_p",
                                        "adaptive_p;temperature;adaptive-p",
                                        "mirostat;temperature"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        REFUSES("samplers", p.samplers = lists[i]);
    REFUSES("samplers", p.samplers = "top_k;dry;temperature", p.top_k = 4, p.dry_multiplier = 1);
    REFUSES("samplers", p.samplers = "dry;penalties;temperature", p.presence = 1,
            p.dry_multiplier = 1);
    REFUSES("samplers", p.samplers = "temperature;xtc;top_k", p.top_k = 4, p.xtc_probability = 1);
    REFUSES("dynatemp_range", p.samplers = "xtc;temperature", p.dynatemp_range = 1,
            p.xtc_probability = 1);
    REFUSES("top_k", p.samplers = "temperature", p.top_k = 4);
    REFUSES("top_p", p.samplers = "temperature", p.top_p = .5f);
    REFUSES("xtc_probability", p.samplers = "temperature", p.xtc_probability = .5f);
    REFUSES("penalty_last_n", p.samplers = "temperature", p.presence = 1);
    REFUSES("dry_multiplier", p.samplers = "temperature", p.dry_multiplier = 1);
    REFUSES("order", p.order = GUMBEL_ORDER_JOINT, p.typical_p = .5f);
    REFUSES("typical_p", p.typical_p = 0);
    REFUSES("typical_p", p.typical_p = NAN);
    REFUSES("top_n_sigma", p.top_n_sigma = NAN);
    REFUSES("top_n_sigma", p.top_n_sigma = -INFINITY);
    REFUSES("xtc_probability", p.xtc_probability = 2);
    REFUSES("xtc_threshold", p.xtc_probability = 1, p.xtc_threshold = 0);
    REFUSES("dynatemp_range", p.dynatemp_range = -1);
    REFUSES("dynatemp_exponent", p.dynatemp_exponent = NAN);
    REFUSES("min_keep", p.min_keep = -1);
    REFUSES("mirostat", p.mirostat = 1);
    REFUSES("mirostat_tau", p.mirostat_tau = -1);
    REFUSES("mirostat_eta", p.mirostat_eta = NAN);
    REFUSES("adaptive_target", p.adaptive_target = NAN);
    REFUSES("adaptive_target", p.adaptive_target = 1.5f);
    REFUSES("adaptive_target", p.adaptive_target = .5f, p.samplers = "temperature");
    REFUSES("adaptive_target", p.adaptive_target = .5f, p.xtc_probability = .5f);
    REFUSES("adaptive_target", p.adaptive_target = .5f, p.mirostat = 2);
    REFUSES("adaptive_decay", p.adaptive_target = .5f, p.adaptive_decay = 1);
    REFUSES("adaptive_decay", p.adaptive_decay = -.5f);
    REFUSES("adaptive_decay", p.adaptive_decay = NAN);
    REFUSES("top_k", p.mirostat = 2, p.top_k = 4);
    REFUSES("typical_p", p.mirostat = 2, p.typical_p = .4f);
    REFUSES("samplers", p.mirostat = 2, p.samplers = "temperature");
    REFUSES("dry_multiplier", p.dry_multiplier = -1);
    REFUSES("dry_base", p.dry_multiplier = 1, p.dry_base = NAN);
    REFUSES("dry_allowed_length", p.dry_multiplier = 1, p.dry_allowed_length = -1);
    REFUSES("dry_penalty_last_n", p.dry_penalty_last_n = -2);
    REFUSES("dry_breaker_count", p.dry_breaker_count = 1);
    REFUSES("dry_breakers", p.dry_breaker_count = 1, p.dry_breakers = &empty);
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

static void check_refused_draft(const struct gumbel_llama_params *params, const char *field)
{
    const llama_token drafts[1] = {1};
    const struct gumbel_llama_draft draft = {.tokens = drafts, .count = 1};
    struct llama_sampler *sampler = make_sampler(params);
    llama_token tokens[2];
    int32_t emitted;
    gumbel_error error = {"", ""};
    /* The error is returned before the context is read. */
    CHECK(gumbel_llama_verify(sampler, NULL, &draft, tokens, &emitted, &error) ==
                  GUMBEL_ERROR_UNSUPPORTED &&
              strcmp(error.field, field) == 0,
          "%s: '%s' '%s'", field, error.field, error.message);
    llama_sampler_free(sampler);
}

static void test_refused_drafts(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();

    params.mirostat = 2;
    check_refused_draft(&params, "mirostat");
    params = gumbel_llama_default_params();
    params.adaptive_target = .5f;
    check_refused_draft(&params, "adaptive_target");
    params = gumbel_llama_default_params();
    params.dry_multiplier = 1;
    check_refused_draft(&params, "dry_multiplier");
}

int main(void)
{
    test_kept_sets_are_llamas_own();
    test_values_are_llamas_own();
    test_xtc_has_the_average_of_its_coin();
    test_dry_is_llamas_own();
    test_breakers();
    test_mirostat();
    test_adaptive_p_is_llamas_own();
    test_state_of_adaptive_p();
    test_refused_parameters();
    test_rules_that_are_off_may_be_listed_anywhere();
    test_refused_drafts();
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
