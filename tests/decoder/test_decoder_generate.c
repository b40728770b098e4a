/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode loop: which options change a text, and which conditions end it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "decoder/generate.h"

#define SAMPLES_MAX (TEST_SANITIZED ? 5 : 20)
#define TOKENS_MAX  (TEST_SANITIZED ? 12 : 24)
static const int32_t prompt[] = {0, 3438, 259, 2076};
static const int32_t outside[] = {8192};
#define PROMPT_COUNT 4

typedef struct texts {
    int32_t ids[SAMPLES_MAX][TOKENS_MAX];
    float logprobs[SAMPLES_MAX][TOKENS_MAX];
    int32_t counts[SAMPLES_MAX];
    bool ended[SAMPLES_MAX];
    int32_t stop_after; /* stop all texts after this total number of tokens; 0: never */
    bool staggered;     /* text s ends after s + 1 tokens */
} texts;

static decoder *model;
static gumbel_device *device;

static int set_up(void **state)
{
    (void)state;
    if (decoder_open(MODELS_FOLDER "/kjv-draft", 2, &model, NULL) != 0) {
        return -1;
    }
    return gumbel_open(NULL, &device, NULL) == GUMBEL_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    gumbel_close(device);
    decoder_close(model);
    return 0;
}

static generate_next store_token(void *context, const generate_token *token)
{
    texts *t = context;
    assert_false(t->ended[token->sample]);
    assert_int_equal(token->position, PROMPT_COUNT + t->counts[token->sample]);
    t->ids[token->sample][t->counts[token->sample]] = token->id;
    t->logprobs[token->sample][t->counts[token->sample]++] = token->logprob;
    t->ended[token->sample] = token->last;
    if (t->staggered && t->counts[token->sample] == token->sample + 1) {
        t->ended[token->sample] = true;
        return GENERATE_END_TEXT;
    }
    return t->stop_after == 0 || --t->stop_after > 0 ? GENERATE_CONTINUE : GENERATE_STOP;
}

static generate_options make_options(texts *t)
{
    return (generate_options){.prompt = prompt,
                              .prompt_count = PROMPT_COUNT,
                              .max_tokens = TOKENS_MAX,
                              .temperature = 1.2f,
                              .seed = 77,
                              .on_token = store_token,
                              .context = t};
}

static void generate_texts(const generate_options *options)
{
    decoder_error error;
    if (generate(model, device, options, NULL, &error) != 0) {
        fail_msg("%s", error.message);
    }
}

static void texts_do_not_depend_on_other_samples(void **state)
{
    (void)state;
    static texts many, one;
    generate_options o = make_options(&many);
    o.num_samples = SAMPLES_MAX;
    generate_texts(&o);
    int different = 0;
    for (int s = 0; s < SAMPLES_MAX; s++) {
        memset(&one, 0, sizeof one);
        o = make_options(&one);
        o.first_sample = (uint32_t)s;
        generate_texts(&o);
        assert_int_equal(one.counts[0], many.counts[s]);
        assert_memory_equal(one.ids[0], many.ids[s], sizeof one.ids[0]);
        assert_memory_equal(one.logprobs[0], many.logprobs[s], sizeof one.logprobs[0]);
        different += s > 0 && memcmp(many.ids[s], many.ids[0], sizeof many.ids[0]) != 0;
    }
    assert_int_equal(different, SAMPLES_MAX - 1);
}

/* Each token equals gumbel_sample()'s at the position of its sequence. */
static void tokens_match_gumbel_sample(void **state)
{
    (void)state;
    static texts t;
    memset(&t, 0, sizeof t);
    generate_options o = make_options(&t);
    generate_texts(&o);
    const decoder_info *info = decoder_describe(model);
    float *hidden = malloc((size_t)info->hidden_size * sizeof *hidden);
    decoder_sequence *sequence;
    assert_int_equal(decoder_sequence_new(model, PROMPT_COUNT + TOKENS_MAX, &sequence, NULL), 0);
    assert_int_equal(
        decoder_feed(model, sequence, prompt, PROMPT_COUNT, PROMPT_COUNT - 1, hidden, NULL), 0);
    size_t bytes;
    const gumbel_limits limits = {
        .struct_size = sizeof limits, .batch = 1, .hidden_size = info->hidden_size};
    assert_int_equal(gumbel_workspace_most(device, &limits, &bytes, NULL), GUMBEL_OK);
    void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
    for (int i = 0; i < TOKENS_MAX; i++) {
        uint64_t position = (uint64_t)(PROMPT_COUNT - 1 + i);
        int32_t token;
        gumbel_head head = {.struct_size = sizeof head,
                            .hidden = {.data = hidden,
                                       .dtype = GUMBEL_FLOAT32,
                                       .rows = 1,
                                       .cols = info->hidden_size},
                            .weight = decoder_head(model)};
        gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                    .temperature = {&o.temperature, GUMBEL_SAME},
                                    .seed = {&o.seed, GUMBEL_SAME},
                                    .position = {&position, GUMBEL_SAME}};
        gumbel_output output = {.struct_size = sizeof output, .tokens = &token};
        assert_int_equal(
            gumbel_sample(device, NULL, &head, &sampling, &output, workspace, bytes, NULL),
            GUMBEL_OK);
        assert_int_equal(token, t.ids[0][i]);
        assert_true(t.logprobs[0][i] < 0 && isfinite(t.logprobs[0][i]));
        assert_int_equal(decoder_feed(model, sequence, &token, 1, 0, hidden, NULL), 0);
    }
    free(workspace);
    free(hidden);
    decoder_sequence_free(sequence);
}

static void draws_can_use_the_decoders_threads(void **state)
{
    (void)state;
    static texts own, shared;
    gumbel_device_options options = {.struct_size = sizeof options,
                                     .threads = 2,
                                     .parallel_for = decoder_parallel_for,
                                     .parallel_context = model};
    gumbel_device *borrowing;
    generate_options o = make_options(&own);
    generate_texts(&o);
    o.context = &shared;
    assert_int_equal(gumbel_open(&options, &borrowing, NULL), GUMBEL_OK);
    assert_int_equal(generate(model, borrowing, &o, NULL, NULL), 0);
    assert_memory_equal(&own, &shared, sizeof own);
    gumbel_close(borrowing);
}

static void eos_ends_one_sample_alone(void **state)
{
    (void)state;
    /* This seed draws an end token within these draws; few seeds do at a high temperature. */
    const uint64_t first = TEST_SANITIZED ? 33 : 26;
    static texts t, longer;
    generate_options o = make_options(&t);
    generate_times times;
    int ended = 0;
    o.temperature = 6;
    o.num_samples = SAMPLES_MAX;
    for (o.seed = first; ended == 0 && o.seed < 200; o.seed++) {
        memset(&t, 0, sizeof t);
        assert_int_equal(generate(model, device, &o, &times, NULL), 0);
        for (int s = 0; s < SAMPLES_MAX; s++) {
            assert_true(t.ended[s]);
            ended += t.counts[s] < TOKENS_MAX;
        }
    }
    assert_true(ended > 0);
    o.seed--;
    o.context = &longer;
    o.ignore_eos = true;
    generate_texts(&o);
    int64_t drawn = 0;
    for (int s = 0; s < SAMPLES_MAX; s++) {
        int32_t count = t.counts[s];
        drawn += count;
        assert_int_equal(longer.counts[s], TOKENS_MAX);
        assert_memory_equal(longer.ids[s], t.ids[s], (size_t)count * sizeof(int32_t));
        assert_true(count == TOKENS_MAX ||
                    t.ids[s][count - 1] == decoder_describe(model)->eos_ids[0]);
    }
    assert_int_equal(times.drawn, drawn);
    assert_int_equal(times.steps, TOKENS_MAX);
    assert_true(times.prefill > 0 && times.trunk > 0 && times.head > 0);
}

static void callback_stops_all_texts(void **state)
{
    (void)state;
    static texts t;
    memset(&t, 0, sizeof t);
    t.stop_after = 5;
    generate_options o = make_options(&t);
    generate_texts(&o);
    assert_int_equal(t.counts[0], 5);
}

/* Texts that the callback ends do not change the other texts. */
static void callback_ends_single_texts(void **state)
{
    (void)state;
    static texts whole, t;
    memset(&whole, 0, sizeof whole);
    memset(&t, 0, sizeof t);
    generate_options o = make_options(&whole);
    o.num_samples = SAMPLES_MAX;
    o.ignore_eos = true;
    generate_texts(&o);
    o.context = &t;
    t.staggered = true;
    generate_texts(&o);
    for (int s = 0; s < SAMPLES_MAX; s++) {
        int count = s + 1 < TOKENS_MAX ? s + 1 : TOKENS_MAX;
        assert_int_equal(t.counts[s], count);
        assert_memory_equal(t.ids[s], whole.ids[s], (size_t)count * sizeof *t.ids[s]);
    }
}

static void invalid_options_return_an_error(void **state)
{
    (void)state;
    static texts t;
    static const struct {
        const char *field;
        generate_options change;
    } cases[] = {
        {"prompt", {.max_tokens = 1}},
        {"prompt", {.prompt = prompt, .prompt_count = 0, .max_tokens = 1}},
        {"tokens", {.prompt = outside, .prompt_count = 1, .max_tokens = 1}},
        {"max_tokens", {.prompt = prompt, .prompt_count = 4}},
        {"max_tokens", {.prompt = prompt, .prompt_count = 4, .max_tokens = 1021}},
        {"max_tokens", {.prompt = prompt, .prompt_count = 4, .max_tokens = INT32_MAX}},
        {"num_samples", {.prompt = prompt, .prompt_count = 4, .max_tokens = 1, .num_samples = -1}},
        {"num_samples",
         {.prompt = prompt, .prompt_count = 4, .max_tokens = 1, .num_samples = 1025}},
        {"temperature", {.prompt = prompt, .prompt_count = 4, .max_tokens = 1, .temperature = -1}},
        {"temperature", {.prompt = prompt, .prompt_count = 4, .max_tokens = 1, .temperature = NAN}},
        {"temperature",
         {.prompt = prompt, .prompt_count = 4, .max_tokens = 1, .temperature = INFINITY}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        generate_options o = cases[i].change;
        decoder_error error = {""};
        o.on_token = store_token;
        o.context = &t;
        assert_int_equal(generate(model, device, &o, NULL, &error), -1);
        if (strncmp(error.message, cases[i].field, strlen(cases[i].field)) != 0) {
            fail_msg("case %zu: %s", i, error.message);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_do_not_depend_on_other_samples),
        cmocka_unit_test(tokens_match_gumbel_sample),
        cmocka_unit_test(draws_can_use_the_decoders_threads),
        cmocka_unit_test(eos_ends_one_sample_alone),
        cmocka_unit_test(callback_stops_all_texts),
        cmocka_unit_test(callback_ends_single_texts),
        cmocka_unit_test(invalid_options_return_an_error),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
