/* SPDX-License-Identifier: Apache-2.0
 *
 * Speculative decoding: a drafted text has the tokens of the text generated without drafts, and
 * log-probabilities with the same bits, for every drafter and every number of drafts.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decoder/drafts/drafter.h"
#include "decoder/drafts/generate_drafted.h"
#include "two_models.h"

#define SAMPLES    2
#define TOKENS     (TEST_SANITIZED ? 8 : 40)
#define PROMPT_MAX 4
static const int32_t prompt[PROMPT_MAX] = {0, 3438, 259, 2076};

typedef struct texts {
    int32_t ids[SAMPLES][TOKENS], ranks[SAMPLES][TOKENS], tops[SAMPLES][TOKENS][2];
    float logprobs[SAMPLES][TOKENS];
    int32_t counts[SAMPLES], prompt_count;
    bool ended[SAMPLES];
    int32_t stop_after; /* stop all texts after this total number of tokens; 0: never */
    int32_t end_after;  /* end each text after this number of tokens; 0: never */
} texts;

static generate_next store_token(void *context, const generate_token *token)
{
    texts *t = context;
    int32_t s = token->sample, at = t->counts[s]++;
    assert_false(t->ended[s]);
    assert_int_equal(token->position, t->prompt_count + at);
    t->ids[s][at] = token->id;
    t->logprobs[s][at] = token->logprob;
    t->ranks[s][at] = token->rank;
    memcpy(t->tops[s][at], token->top_ids, sizeof t->tops[s][at]);
    t->ended[s] = token->last;
    if (t->end_after > 0 && t->counts[s] == t->end_after) {
        return GENERATE_END_TEXT;
    }
    return t->stop_after == 0 || --t->stop_after > 0 ? GENERATE_CONTINUE : GENERATE_STOP;
}

static generate_options options_of(texts *t, int32_t prompt_count, float temperature)
{
    memset(t, 0, sizeof *t);
    t->prompt_count = prompt_count;
    return (generate_options){.prompt = prompt,
                              .prompt_count = prompt_count,
                              .max_tokens = TOKENS,
                              .num_samples = SAMPLES,
                              .first_sample = 5,
                              .temperature = temperature,
                              .seed = 78,
                              .on_token = store_token,
                              .context = t,
                              .ranks = true,
                              .num_top = 2};
}

static draft_stats run_drafted(decoder *model, const generate_options *o,
                               const draft_options *draft)
{
    decoder_error error;
    generate_times times;
    draft_stats stats;
    if (generate_drafted(model, device, o, draft, &stats, &times, &error) != 0) {
        fail_msg("%s", error.message);
    }
    assert_true(times.drawn <= stats.emitted); /* fewer if the callback stops */
    assert_int_equal(times.steps, stats.cycles);
    return stats;
}

/* Generates with drafts of a model or of n-grams, and compares with the text without drafts. */
static draft_stats assert_drafted_texts_match(decoder *model, decoder *by,
                                              const generate_options *plain, const texts *expected,
                                              int32_t tokens, int32_t siblings)
{
    static texts found;
    const draft_options draft = {.model = by, .tokens = tokens, .siblings = siblings};
    generate_options o = *plain;
    memset(&found, 0, sizeof found);
    found.prompt_count = plain->prompt_count;
    o.context = &found;
    draft_stats stats = run_drafted(model, &o, &draft);
    assert_memory_equal(&found, expected, sizeof found);
    assert_true(stats.plain > 0 && stats.verifying > 0);
    return stats;
}

static void drafted_texts_match_plain_ones(void **state)
{
    (void)state;
    static const float temperatures[] = {0, 0.6f, 1};
    static texts expected;
    int64_t cycles = 0, emitted = 0;
    for (int i = TEST_SANITIZED; i < 3 - TEST_SANITIZED; i++) {
        generate_options o = options_of(&expected, 1 + i, temperatures[i]);
        assert_int_equal(generate(target, device, &o, NULL, NULL), 0);
        for (int32_t tokens = 1; tokens <= 8; tokens += TEST_SANITIZED ? 3 : 1 + tokens / 2) {
            draft_stats stats = assert_drafted_texts_match(target, small, &o, &expected, tokens, 0);
            cycles += stats.cycles;
            emitted += stats.emitted;
            assert_drafted_texts_match(target, NULL, &o, &expected, tokens, 0);
        }
    }
    assert_true(emitted > cycles * 3 / 2);
    generate_options o = options_of(&expected, 2, 0.9f);
    assert_int_equal(generate(small, device, &o, NULL, NULL), 0);
    draft_stats own = assert_drafted_texts_match(small, small, &o, &expected, 4, 0);
    assert_int_equal(own.accepted[3],
                     own.proposed[3]); /* all drafts of the target itself are accepted */
    assert_drafted_texts_match(small, target, &o, &expected, 3, 0);
}

/* Siblings are leaves of a tree; one may be accepted where the chain is rejected. */
static void tree_drafts_match_plain_texts(void **state)
{
    (void)state;
    static texts expected;
    for (int i = TEST_SANITIZED; i < 2; i++) {
        generate_options o = options_of(&expected, 2 + i, i ? 0.8f : 1.2f);
        assert_int_equal(generate(target, device, &o, NULL, NULL), 0);
        draft_stats chain = assert_drafted_texts_match(target, small, &o, &expected, 4, 0);
        for (int32_t siblings = 1; siblings <= DRAFT_SIBLINGS_MAX;
             siblings += TEST_SANITIZED ? DRAFT_SIBLINGS_MAX - 1 : siblings + 1) {
            draft_stats tree =
                assert_drafted_texts_match(target, small, &o, &expected, 4, siblings);
            assert_true(tree.cycles <= chain.cycles);
            assert_true(tree.rows > tree.cycles * (1 + siblings));
        }
    }
}

/* Penalties count the drafts that precede a row, and truncation applies to it. */
static void requests_with_drafts_match_plain_ones(void **state)
{
    (void)state;
    static texts expected;
    const float repetition = 1.2f, frequency = 0.3f, top_p = 0.95f;
    const int64_t offsets[2] = {0, 2};
    const int32_t banned[2] = {11, 14};
    const gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                          .banned = {.offsets = offsets, .ids = banned},
                                          .repetition = {&repetition, 0},
                                          .frequency = {&frequency, 0}};
    const gumbel_truncation truncation = {.struct_size = sizeof truncation, .top_p = {&top_p, 0}};
    generate_options o = options_of(&expected, 3, 0.8f);
    o.transforms = &transforms;
    o.truncation = &truncation;
    assert_int_equal(generate(target, device, &o, NULL, NULL), 0);
    for (int32_t tokens = 1; tokens <= 7; tokens += TEST_SANITIZED ? 5 : 3) {
        assert_drafted_texts_match(target, small, &o, &expected, tokens, 0);
        assert_drafted_texts_match(target, NULL, &o, &expected, tokens, 0);
        assert_drafted_texts_match(target, small, &o, &expected, tokens, 2);
    }
}

/* A draft drawn at another temperature changes the acceptance rate, not the text. */
static void any_draft_temperature_keeps_the_text(void **state)
{
    (void)state;
    static texts expected, found;
    generate_options o = options_of(&expected, 2, 1);
    assert_int_equal(generate(target, device, &o, NULL, NULL), 0);
    o.context = &found;
    for (int i = 0; i < 3; i++) {
        static const float factors[] = {0.01f, 0.85f, 50};
        const draft_options draft = {.model = small, .tokens = 4, .temperature = factors[i]};
        memset(&found, 0, sizeof found);
        found.prompt_count = expected.prompt_count;
        run_drafted(target, &o, &draft);
        assert_memory_equal(&found, &expected, sizeof found);
    }
}

/* Callbacks of an engine that draws and verifies by itself; here on the device in `context`. */
static gumbel_status draw_elsewhere(void *context, const gumbel_head *head,
                                    const gumbel_sampling *sampling, const gumbel_output *output,
                                    gumbel_error *error)
{
    static _Alignas(64) char workspace[1 << 22];
    assert_ptr_equal(context, device);
    assert_int_equal(sampling->num_samples, 1);
    return gumbel_sample(context, NULL, head, sampling, output, workspace, sizeof workspace, error);
}

static int64_t verified_elsewhere, supplied_elsewhere;

/* The log-normalisers and log-probabilities supplied by the drafter equal those of its logits. */
static void assert_supplied(const gumbel_draft *draft)
{
    const float temperature = *draft->sampling->temperature.data;
    for (int32_t j = 0; j + 1 < draft->max_nodes; j++) {
        assert_true(draft->logprobs[j] <= 0 && draft->logprobs[j] > -30 && isfinite(draft->lse[j]));
        if (!draft->logits) {
            continue;
        }
        const gumbel_tensor *rows = &draft->logits->logits;
        const float *row = (const float *)rows->data + j * rows->stride;
        double sum = 0;
        for (int64_t i = 0; i < rows->cols; i++) {
            sum += exp((double)row[i] / (double)temperature);
        }
        const double z = (double)row[draft->tokens[j + 1]] / (double)temperature;
        assert_float_equal(draft->lse[j], log(sum), 1e-4);
        assert_float_equal(draft->logprobs[j], z - log(sum), 1e-4);
        supplied_elsewhere++;
    }
}

static gumbel_status verify_elsewhere(void *context, const gumbel_head *head,
                                      const gumbel_logits *logits, const gumbel_sampling *sampling,
                                      const gumbel_draft *draft, const gumbel_verified *verified,
                                      gumbel_error *error)
{
    static _Alignas(64) char workspace[1 << 22];
    verified_elsewhere++;
    assert_true(!head == (draft->rule == GUMBEL_RULE_BLOCK && draft->logits));
    assert_true(!head != !logits);
    assert_true(!draft->sampling == !draft->lse && !draft->lse == !draft->logprobs);
    if (draft->sampling) {
        assert_supplied(draft);
    }
    return head ? gumbel_verify(context, NULL, head, sampling, draft, verified, workspace,
                                sizeof workspace, error)
                : gumbel_verify_logits(context, NULL, logits, sampling, draft, verified, workspace,
                                       sizeof workspace, error);
}

static void external_verification_keeps_the_text(void **state)
{
    (void)state;
    static texts expected, found;
    generate_options o = options_of(&expected, 2, 0.9f);
    assert_int_equal(generate(target, device, &o, NULL, NULL), 0);
    draft_options draft = {.model = small, .tokens = 4, .siblings = 1, .verify = verify_elsewhere};
    o = options_of(&found, 2, 0.9f);
    o.draw = draw_elsewhere;
    o.draw_context = device;
    draft_stats stats = run_drafted(target, &o, &draft);
    assert_int_equal(verified_elsewhere, stats.cycles);
    assert_memory_equal(&found, &expected, sizeof found);
}

static void external_verification_by_other_rules(void **state)
{
    (void)state;
    static texts expected, found;
    for (int rule = GUMBEL_RULE_REJECTION; rule <= GUMBEL_RULE_BLOCK; rule++) {
        draft_options draft = {.model = small, .tokens = 4, .rule = (gumbel_rule)rule};
        generate_options o = options_of(&expected, 2, 0.9f);
        o.ranks = false;
        run_drafted(target, &o, &draft);
        o.context = &found;
        o.draw = draw_elsewhere;
        o.draw_context = device;
        draft.verify = verify_elsewhere;
        memset(&found, 0, sizeof found);
        found.prompt_count = 2;
        verified_elsewhere = 0;
        draft_stats stats = run_drafted(target, &o, &draft);
        assert_int_equal(verified_elsewhere, stats.cycles);
        assert_memory_equal(&found, &expected, sizeof found);
    }
    assert_true(supplied_elsewhere > 0);
}

/* Under the rejection and block rules, all drafts of the target itself are accepted, for any
 * parameters, because q = p. Drafts of another model are accepted more often than under the coupled
 * rule. N-gram drafts have no distribution q, so the text is that of the coupled rule. */
static void rejection_and_block_rules_accept_drafts(void **state)
{
    (void)state;
    static texts expected, found;
    const float repetition = 1.2f, frequency = 0.3f, top_p = 0.95f;
    const gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                          .repetition = {&repetition, 0},
                                          .frequency = {&frequency, 0}};
    const gumbel_truncation truncation = {.struct_size = sizeof truncation, .top_p = {&top_p, 0}};
    generate_options o = options_of(&expected, 3, 0.8f), edited;
    o.ranks = false;
    assert_int_equal(generate(target, device, &o, NULL, NULL), 0);
    o.context = &found;
    edited = o;
    edited.transforms = &transforms;
    edited.truncation = &truncation;
    int64_t accepted = 0, rejected = 0;
    for (int rule = GUMBEL_RULE_REJECTION; rule <= GUMBEL_RULE_BLOCK; rule++) {
        draft_options draft = {.model = small, .tokens = 4, .rule = (gumbel_rule)rule};
        memset(&found, 0, sizeof found);
        found.prompt_count = 3;
        draft_stats own = run_drafted(small, &edited, &draft);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(own.accepted[i], own.proposed[i]);
        }
        memset(&found, 0, sizeof found);
        found.prompt_count = 3;
        draft_stats other = run_drafted(target, &edited, &draft);
        accepted += other.accepted[0];
        rejected += other.proposed[0] - other.accepted[0];
        draft.model = NULL;
        memset(&found, 0, sizeof found);
        found.prompt_count = 3;
        run_drafted(target, &o, &draft);
        assert_memory_equal(&found, &expected, sizeof found);
    }
    assert_true(accepted > 0 && rejected > 0);
}

static void callback_stops_all_texts(void **state)
{
    (void)state;
    static texts t;
    generate_options o = options_of(&t, 2, 0);
    const draft_options draft = {.model = target, .tokens = 6};
    t.stop_after = 4; /* in the middle of a cycle */
    run_drafted(target, &o, &draft);
    assert_int_equal(t.counts[0], 4);
    assert_int_equal(t.counts[1], 0);
}

static void callback_ends_single_texts(void **state)
{
    (void)state;
    static texts whole, t;
    const draft_options draft = {.model = target, .tokens = 6};
    generate_options o = options_of(&whole, 2, 0);
    run_drafted(target, &o, &draft);
    o = options_of(&t, 2, 0);
    t.end_after = 4; /* in the middle of a cycle */
    run_drafted(target, &o, &draft);
    for (int s = 0; s < SAMPLES; s++) {
        assert_int_equal(t.counts[s], 4);
        assert_memory_equal(t.ids[s], whole.ids[s], 4 * sizeof *t.ids[s]);
    }
}

static void ngrams_repeat_the_last_continuation(void **state)
{
    (void)state;
    const int32_t text[] = {5, 6, 7, 8, 9, 5, 6, 7, 1, 5, 6, 7};
    int32_t drafts[8];
    drafter *d;
    const draft_options ngrams = {.tokens = 8};
    assert_int_equal(drafter_new(&ngrams, NULL, NULL, 0, 0, 0, &d, NULL), 0);
    assert_int_equal(drafter_propose(d, text, 12, NULL, 8, drafts, NULL, 0, NULL), 4);
    assert_int_equal(drafts[0], 1); /* the token after the last occurrence of 5 6 7 */
    assert_int_equal(drafter_propose(d, text, 8, NULL, 2, drafts, NULL, 0, NULL), 2);
    assert_int_equal(drafts[0], 8);
    assert_int_equal(drafts[1], 9);
    assert_int_equal(drafter_propose(d, text, 5, NULL, 8, drafts, NULL, 0, NULL), 0);
    assert_int_equal(drafter_propose(d, text, 1, NULL, 8, drafts, NULL, 0, NULL), 0);
    assert_int_equal(drafter_propose(d, text, 12, NULL, 0, drafts, NULL, 0, NULL), 0);
    drafter_free(d);
}

static gumbel_status no_draw(void *context, const gumbel_head *head,
                             const gumbel_sampling *sampling, const gumbel_output *output,
                             gumbel_error *error)
{
    (void)context;
    (void)head;
    (void)sampling;
    (void)output;
    (void)error;
    return GUMBEL_ERROR_DEVICE;
}

static void assert_refused(const generate_options *o, draft_options draft, const char *word)
{
    decoder_error error = {""};
    draft_stats stats;
    assert_int_equal(generate_drafted(target, device, o, &draft, &stats, NULL, &error), -1);
    assert_non_null(strstr(error.message, word));
}

static void invalid_options_return_an_error_by_name(void **state)
{
    (void)state;
    static texts t;
    generate_options o = options_of(&t, 2, 1), none = o, long_one = o, elsewhere = o;
    generate_options plain = o, raw = o;
    none.prompt_count = 0;
    long_one.max_tokens = 1 << 20;
    elsewhere.draw = no_draw;
    plain.ranks = false;
    raw.ranks = false;
    raw.logprobs_of = GUMBEL_RAW;
    assert_refused(&o, (draft_options){.tokens = 0}, "draft tokens");
    assert_refused(&o, (draft_options){.tokens = DRAFT_TOKENS_MAX + 1}, "draft tokens");
    assert_refused(&o, (draft_options){.tokens = 1, .temperature = -1}, "draft temperature");
    assert_refused(&o, (draft_options){.tokens = 1, .siblings = 1}, "n-grams");
    assert_refused(&o, (draft_options){.model = small, .tokens = 1, .siblings = 16}, "siblings");
    const draft_options rejection = {.model = small, .tokens = 1, .rule = GUMBEL_RULE_REJECTION};
    draft_options tree = rejection;
    tree.siblings = 1;
    assert_refused(&o, rejection, "ranks");
    assert_refused(&raw, rejection, "raw");
    assert_refused(&plain, tree, "siblings");
    assert_refused(&none, (draft_options){.tokens = 1}, "prompt");
    assert_refused(&long_one, (draft_options){.tokens = 1}, "max_tokens");
    assert_refused(&elsewhere, (draft_options){.tokens = 1}, "draft");
    assert_int_equal(t.counts[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafted_texts_match_plain_ones),
        cmocka_unit_test(tree_drafts_match_plain_texts),
        cmocka_unit_test(requests_with_drafts_match_plain_ones),
        cmocka_unit_test(any_draft_temperature_keeps_the_text),
        cmocka_unit_test(external_verification_keeps_the_text),
        cmocka_unit_test(external_verification_by_other_rules),
        cmocka_unit_test(rejection_and_block_rules_accept_drafts),
        cmocka_unit_test(callback_stops_all_texts),
        cmocka_unit_test(callback_ends_single_texts),
        cmocka_unit_test(ngrams_repeat_the_last_continuation),
        cmocka_unit_test(invalid_options_return_an_error_by_name),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
