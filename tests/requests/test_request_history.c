/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts of penalties: transforms against numbers computed by hand, histories against a recount of
 * every token, and 200 steps of generation in which a history, lists and the oracle must
 * give the same tokens.
 */
#include "oracle_request.h"
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* ------------------------------------------------------------------------------- by hand ---- */

enum { FEW = 7 };

/* Processes one row of FEW logits with `t` at temperature T, and compares. */
static void assert_processed(gumbel_device *device, const float logits[FEW],
                             const gumbel_transforms *t, float temperature,
                             const float expected[FEW])
{
    gumbel_logits input = {.struct_size = sizeof input,
                           .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, FEW, 0)};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&temperature, GUMBEL_SAME},
                                .transforms = t};
    float found[FEW];
    assert_int_equal(request_process(device, &input, &sampling, found), GUMBEL_OK);
    for (int i = 0; i < FEW; i++)
        if (found[i] != expected[i])
            fail_msg("z[%d] is %a, not %a", i, (double)found[i], (double)expected[i]);
}

static void penalties_by_hand(void **state)
{
    const float logits[FEW] = {2, -2, 4, 0, 1, -1, 3};
    const int64_t prompt_offsets[] = {0, 3}, output_offsets[] = {0, 4};
    const int32_t prompt[] = {0, 1, 1}, output[] = {2, 3, 2, 5};
    const float r = 2, f = 0.5f, p = 0.25f;
    gumbel_transforms t = {.struct_size = sizeof t,
                           .prompt_tokens = {.offsets = prompt_offsets, .ids = prompt},
                           .output_tokens = {.offsets = output_offsets, .ids = output}};
    t.repetition = (gumbel_row_f32){&r, GUMBEL_SAME};
    assert_processed(*state, logits, &t, 1, (const float[]){1, -4, 2, 0, 1, -2, 3});
    t.frequency = (gumbel_row_f32){&f, GUMBEL_SAME};
    assert_processed(*state, logits, &t, 1, (const float[]){1, -4, 1, -0.5f, 1, -2.5f, 3});
    t.presence = (gumbel_row_f32){&p, GUMBEL_SAME};
    assert_processed(*state, logits, &t, 1, (const float[]){1, -4, 0.75f, -0.75f, 1, -2.75f, 3});
    assert_processed(*state, logits, &t, 0.5f, (const float[]){2, -8, 1.5f, -1.5f, 2, -5.5f, 6});
    assert_processed(*state, logits, &t, 0, (const float[]){1, -4, 0.75f, -0.75f, 1, -2.75f, 3});
    t.repetition = (gumbel_row_f32){NULL, 0};
    assert_processed(*state, logits, &t, 1, (const float[]){2, -2, 2.75f, -0.75f, 1, -1.75f, 3});
}

static void order_of_transforms_by_hand(void **state)
{
    const float logits[FEW] = {2, -2, 4, 0, 1, -1, 3};
    const int64_t banned_offsets[] = {0, 2}, bias_offsets[] = {0, 5}, output_offsets[] = {0, 3};
    const int32_t banned[] = {1, 1}, biased[] = {4, 2, 4, 0, 6}, output[] = {2, 5, 5};
    const float biases[] = {1.5f, 2, -0.25f, 100, -INFINITY}, r = 2, p = -1;
    const int32_t mask[] = {0x7e}; /* token 0 is not allowed */
    gumbel_transforms t = {.struct_size = sizeof t,
                           .mask = {mask, 0},
                           .banned = {.offsets = banned_offsets, .ids = banned},
                           .bias = {.offsets = bias_offsets, .ids = biased, .values = biases},
                           .repetition = {&r, GUMBEL_SAME},
                           .presence = {&p, GUMBEL_SAME},
                           .output_tokens = {.offsets = output_offsets, .ids = output}};
    /* Token 2: (4 + 2) / 2 + 1; token 4: 1 + 1.5 - 0.25; token 5: -1 * 2 + 1. */
    assert_processed(*state, logits, &t, 1,
                     (const float[]){-INFINITY, -INFINITY, 4, 0, 2.25f, -1, -INFINITY});
}

/* ----------------------------------------------------------------------------- histories ---- */

enum { B = 4, VOCAB = 300, WORDS = (VOCAB + 31) / 32, PROMPT = 20, STEPS = 200 };

/* All tokens so far, by row. */
typedef struct token_log {
    int64_t prompt_offsets[B + 1], output_offsets[B + 1];
    int32_t prompt[B * PROMPT], output[B * STEPS]; /* rows are concatenated */
    int32_t emitted[B][STEPS];
    int steps;
} token_log;

static void copy_outputs(token_log *text)
{
    for (int b = 0; b < B; b++) {
        text->output_offsets[b + 1] = text->output_offsets[b] + text->steps;
        memcpy(text->output + text->output_offsets[b], text->emitted[b],
               (size_t)text->steps * sizeof *text->output);
    }
}

static void begin_log(token_log *text)
{
    uint64_t random = 51;
    *text = (token_log){.steps = 0};
    for (int b = 0; b < B; b++) {
        int length = b == 0 ? 0 : PROMPT - b;
        text->prompt_offsets[b + 1] = text->prompt_offsets[b] + length;
        for (int64_t k = text->prompt_offsets[b]; k < text->prompt_offsets[b + 1]; k++)
            text->prompt[k] = (int32_t)random_below(&random, VOCAB);
    }
}

typedef struct filled_history {
    gumbel_history history;
    uint32_t prompt[B * WORDS], output[B * WORDS];
    uint16_t counts[B * VOCAB];
} filled_history;

/* A history whose memory holds arbitrary bytes, as an engine may allocate it. */
static filled_history *make_filled_history(void)
{
    filled_history *generated = make_zeroed(1, sizeof *generated);
    memset(generated, 0xA7, sizeof *generated);
    generated->history = (gumbel_history){.struct_size = sizeof generated->history,
                                          .vocab_size = VOCAB,
                                          .prompt = generated->prompt,
                                          .output = generated->output,
                                          .counts = generated->counts};
    return generated;
}

static int has_bit(const uint32_t *words, int64_t token)
{
    return words[token / 32] >> token % 32 & 1;
}

static int64_t count_token(const int32_t *ids, int64_t first, int64_t end, int64_t token)
{
    int64_t times = 0;
    for (int64_t k = first; k < end; k++)
        times += ids[k] == token;
    return times;
}

static void assert_history_matches(const filled_history *m, const token_log *text)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t token = 0; token < VOCAB; token++) {
            int64_t req = count_token(text->prompt, text->prompt_offsets[b],
                                      text->prompt_offsets[b + 1], token);
            int64_t count = count_token(text->emitted[b], 0, text->steps, token);
            assert_int_equal(has_bit(m->prompt + b * WORDS, token), req > 0);
            assert_int_equal(has_bit(m->output + b * WORDS, token), count > 0);
            assert_int_equal(m->counts[b * VOCAB + token], count);
        }
}

static gumbel_token_lists prompts_of(const token_log *text)
{
    return (gumbel_token_lists){.offsets = text->prompt_offsets, .ids = text->prompt};
}

static gumbel_token_lists outputs_of(const token_log *text)
{
    return (gumbel_token_lists){.offsets = text->output_offsets, .ids = text->output};
}

/* Fills the step's logits: a row of a small fixed matrix, chosen by the last token, so that the
 * text repeats itself unless penalties prevent it. */
static void make_logits(const token_log *text, float *logits)
{
    for (int64_t b = 0; b < B; b++) {
        int32_t last = text->steps ? text->emitted[b][text->steps - 1] : 0;
        uint64_t random = 600 + (uint64_t)(last % 16);
        for (int i = 0; i < VOCAB; i++)
            logits[b * VOCAB + i] = 3 * random_normal(&random);
    }
}

static int32_t run_oracle(const gumbel_logits *input, const gumbel_sampling *sampling, int64_t b)
{
    float noise[VOCAB];
    oracle_row *row = oracle_row_make(VOCAB);
    oracle_edit_row(input, sampling, b, row);
    oracle_temper_row(sampling, b, row);
    assert_int_equal(row->status, GUMBEL_ROW_OK);
    assert_int_equal(oracle_truncate_row(sampling, b, row), 0);
    assert_int_equal(gumbel_noise(gumbel_row_seed(*sampling->seed.data, (uint64_t)b),
                                  *sampling->position.data, 0, 0, 0, VOCAB, noise, NULL),
                     GUMBEL_OK);
    int32_t token = oracle_row_draw(row, noise);
    oracle_row_free(row);
    return token;
}

/* Draw one token a row by history, by lists and by the oracle, and append the tokens. */
static void draw_step(gumbel_device *device, filled_history *m, token_log *text)
{
    static const float r[B] = {1.3f, 1, 1.1f, 1}, f[B] = {0, 0.6f, 0.2f, -0.1f},
                       p[B] = {0, 0.4f, -0.2f, 0}, temperature[B] = {0.8f, 1, 0.6f, 0};
    static const int32_t k = 60;
    float logits[B * VOCAB];
    const uint64_t seed = 52;
    const uint64_t position = (uint64_t)text->steps;
    make_logits(text, logits);
    copy_outputs(text);
    gumbel_transforms by_history = {.struct_size = sizeof by_history, .history = &m->history};
    by_history.repetition = (gumbel_row_f32){r, 0};
    by_history.frequency = (gumbel_row_f32){f, 0};
    by_history.presence = (gumbel_row_f32){p, 0};
    gumbel_transforms by_lists = by_history;
    by_lists.history = NULL;
    by_lists.prompt_tokens = prompts_of(text);
    by_lists.output_tokens = outputs_of(text);
    gumbel_truncation truncation = {.struct_size = sizeof truncation, .top_k = {&k, GUMBEL_SAME}};
    request req = {.plan = {.batch = B, .vocab = VOCAB, .samples = 1}};
    req.logits = (gumbel_logits){.struct_size = sizeof req.logits,
                                 .logits = tensor_of(logits, GUMBEL_FLOAT32, B, VOCAB, 0)};
    req.sampling = (gumbel_sampling){.struct_size = sizeof req.sampling,
                                     .temperature = {temperature, 0},
                                     .seed = {&seed, GUMBEL_SAME},
                                     .position = {&position, GUMBEL_SAME},
                                     .transforms = &by_history,
                                     .truncation = &truncation};
    outcome *remembered = request_outcome(&req), *listed = request_outcome(&req);
    assert_int_equal(request_draw(device, &req, remembered), GUMBEL_OK);
    req.sampling.transforms = &by_lists;
    assert_int_equal(request_draw(device, &req, listed), GUMBEL_OK);
    assert_true(outcome_same(remembered, 0, listed, OUTCOME_ALL, "history and lists"));
    for (int64_t b = 0; b < B; b++) {
        assert_int_equal(remembered->tokens[b], run_oracle(&req.logits, &req.sampling, b));
        text->emitted[b][text->steps] = remembered->tokens[b];
    }
    text->steps++;
    assert_int_equal(gumbel_history_update(device, NULL, &m->history, B, NULL, remembered->tokens,
                                           0, NULL, NULL),
                     GUMBEL_OK);
    outcome_free(remembered);
    outcome_free(listed);
}

static void generation_by_history_lists_and_oracle(void **state)
{
    token_log text;
    filled_history *m = make_filled_history();
    begin_log(&text);
    gumbel_token_lists prompts = prompts_of(&text);
    assert_int_equal(gumbel_history_start(*state, NULL, &m->history, B, NULL, &prompts, NULL, NULL),
                     GUMBEL_OK);
    assert_history_matches(m, &text);
    while (text.steps < STEPS) {
        draw_step(*state, m, &text);
        if (text.steps % 20 == 0)
            assert_history_matches(m, &text);
    }
    int64_t most = 0;
    for (int i = 0; i < B * VOCAB; i++)
        most = m->counts[i] > most ? m->counts[i] : most;
    assert_true(most > 5); /* some tokens repeat */
    /* A history started from the emitted tokens is the same. */
    copy_outputs(&text);
    gumbel_token_lists outputs = outputs_of(&text);
    filled_history *anew = make_filled_history();
    assert_int_equal(
        gumbel_history_start(*state, NULL, &anew->history, B, NULL, &prompts, &outputs, NULL),
        GUMBEL_OK);
    assert_history_matches(anew, &text);
    free(anew);
    free(m);
}

/* Rows without a token, invalid ids, and saturated counts. */
static void updates_with_invalid_ids_and_saturated_counts(void **state)
{
    filled_history *m = make_filled_history(), *before = make_zeroed(1, sizeof *before);
    assert_int_equal(gumbel_history_start(*state, NULL, &m->history, B, NULL, NULL, NULL, NULL),
                     GUMBEL_OK);
    *before = *m;
    const int32_t none[2 * B] = {-1, 7, VOCAB, 7, INT32_MAX, 7, VOCAB + 31, 7};
    assert_int_equal(gumbel_history_update(*state, NULL, &m->history, B, NULL, none, 2, NULL, NULL),
                     GUMBEL_OK);
    assert_memory_equal(m->prompt, before->prompt, sizeof m->prompt);
    assert_memory_equal(m->output, before->output, sizeof m->output);
    assert_memory_equal(m->counts, before->counts, sizeof m->counts);
    m->counts[VOCAB - 1] = UINT16_MAX - 1;
    const int32_t last[B] = {VOCAB - 1, 0, 1, 31};
    for (int i = 0; i < 3; i++)
        assert_int_equal(
            gumbel_history_update(*state, NULL, &m->history, B, NULL, last, 1, NULL, NULL),
            GUMBEL_OK);
    assert_int_equal(m->counts[VOCAB - 1], UINT16_MAX);
    assert_int_equal(m->counts[VOCAB], 3);
    assert_int_equal(m->counts[3 * VOCAB + 31], 3);
    assert_int_equal(m->output[3 * WORDS], 0x80000000u);
    assert_int_equal(gumbel_history_update(*state, NULL, &m->history, 0, NULL, NULL, 0, NULL, NULL),
                     GUMBEL_OK);
    free(before);
    free(m);
}

/* More occurrences of a token than a 16-bit count holds: lists and histories saturate alike. */
static void counts_beyond_16_bits(void **state)
{
    enum { LENGTH = 70000 };
    static int32_t output[LENGTH];
    float logits[FEW] = {0}, f = 0x1p-10f;
    const int64_t offsets[] = {0, LENGTH};
    gumbel_transforms t = {.struct_size = sizeof t,
                           .frequency = {&f, GUMBEL_SAME},
                           .output_tokens = {.offsets = offsets, .ids = output}};
    assert_processed(*state, logits, &t, 1, (const float[FEW]){-65535 * 0x1p-10f});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(penalties_by_hand),
        cmocka_unit_test(order_of_transforms_by_hand),
        cmocka_unit_test(generation_by_history_lists_and_oracle),
        cmocka_unit_test(updates_with_invalid_ids_and_saturated_counts),
        cmocka_unit_test(counts_beyond_16_bits),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
