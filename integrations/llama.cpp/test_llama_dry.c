/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: test_llama_dry
 *
 * Tests the sampler's DRY on arrays of candidates, compared with llama.cpp's own, and its sequence
 * breakers. Prints a line for each failed check; exits 1 if there is any.
 */
#include "test_rows.h"

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
            make_chain(llama_sampler_init_penalties(V, 7, 1, params.frequency, 0),
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

int main(void)
{
    test_dry_is_llamas_own();
    test_breakers();
    return end_checks();
}
