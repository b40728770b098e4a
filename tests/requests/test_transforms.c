/* SPDX-License-Identifier: Apache-2.0
 *
 * Transforms of logits, in cases computed by hand: penalties, their order, masks at word
 * boundaries, bans, biases, histories and equivalent lists.
 */
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

#define V 203

/* Draws with `sampling`, in a workspace of exactly the required size. */
static void draw_request(gumbel_device *device, const gumbel_logits *logits,
                         const gumbel_sampling *sampling, outcome *into)
{
    size_t bytes;
    void *workspace = call_workspace(device, NULL, logits, sampling, &into->output, &bytes);
    outcome_poison(into);
    if (gumbel_sample_logits(device, NULL, logits, sampling, &into->output, workspace, bytes,
                             &into->error) != GUMBEL_OK)
        die("gumbel_sample_logits: %s: %s", into->error.field, into->error.message);
    free(workspace);
}

static gumbel_logits make_logits(const float *values, int64_t batch, int64_t vocab)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = tensor_of(values, GUMBEL_FLOAT32, batch, vocab, 0)};
}

/* z of every token of one row: the log-normaliser of a shard of that token alone. */
static void values_of(gumbel_device *device, const gumbel_logits *logits,
                      const gumbel_sampling *sampling, float *z)
{
    outcome *drawn = outcome_make(1, 1);
    for (int64_t i = 0; i < logits->logits.cols; i++) {
        gumbel_logits one = *logits;
        one.logits.data = (const float *)logits->logits.data + i;
        one.logits.cols = 1;
        one.first_token = logits->first_token + i;
        draw_request(device, &one, sampling, drawn);
        assert_in_range(drawn->status[0], GUMBEL_ROW_OK, GUMBEL_ROW_EMPTY);
        z[i] = drawn->status[0] == GUMBEL_ROW_OK ? drawn->lse[0] : -INFINITY;
    }
    outcome_free(drawn);
}

static void assert_values(const float *found, const float *expected, int count, const char *what)
{
    for (int i = 0; i < count; i++)
        if (found[i] != expected[i])
            fail_msg("%s, token %d: %a, not %a", what, i, (double)found[i], (double)expected[i]);
}

/* A history of one row of V tokens. */
typedef struct row_history {
    gumbel_history history;
    uint32_t prompt[(V + 31) / 32], output[(V + 31) / 32];
    uint16_t counts[V];
} row_history;

static void start_row_history(gumbel_device *device, row_history *generated,
                              const gumbel_token_lists *prompts, const gumbel_token_lists *outputs)
{
    generated->history = (gumbel_history){.struct_size = sizeof generated->history,
                                          .vocab_size = V,
                                          .prompt = generated->prompt,
                                          .output = generated->output,
                                          .counts = generated->counts};
    memset(generated->counts, 0xA7, sizeof generated->counts);
    assert_int_equal(
        gumbel_history_start(device, NULL, &generated->history, 1, NULL, prompts, outputs, NULL),
        GUMBEL_OK);
}

/* ----------------------------------------------------------------------------- penalties ---- */

/* Tokens 0 to 7 with y = 4 or -8 and similar; expected z with repetition 2, frequency 0.5, presence
 * 0.25. */
static void penalties_by_hand(void **state)
{
    static const float y[8] = {4, -4, 4, -4, 4, -4, 0, -INFINITY};
    static const int32_t prompt[] = {2, 3, 4, 5}, output[] = {4, 5, 4, 7, 6, 4};
    static const int64_t prompts[] = {0, 4}, outputs[] = {0, 6};
    static const float expected[8] = {
        4,                 /* not seen */
        -4,                /* not seen */
        2,                 /* in the prompt: 4 / 2 */
        -8,                /* in the prompt: -4 * 2 */
        2 - 1.5f - 0.25f,  /* in both, three times */
        -8 - 0.5f - 0.25f, /* in both, once */
        0 - 0.5f - 0.25f,  /* in the output, once */
        -INFINITY,         /* in the output: unchanged */
    };
    const float r = 2, f = 0.5f, p = 0.25f;
    gumbel_token_lists prompt_lists = {.offsets = prompts, .ids = prompt},
                       output_lists = {.offsets = outputs, .ids = output};
    gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                    .repetition = {&r, GUMBEL_SAME},
                                    .frequency = {&f, GUMBEL_SAME},
                                    .presence = {&p, GUMBEL_SAME},
                                    .prompt_tokens = prompt_lists,
                                    .output_tokens = output_lists};
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .transforms = &transforms};
    gumbel_logits logits = make_logits(y, 1, 8);
    float z[8];
    row_history generated;
    values_of(*state, &logits, &sampling, z);
    assert_values(z, expected, 8, "lists");
    start_row_history(*state, &generated, &prompt_lists, &output_lists);
    transforms.prompt_tokens = transforms.output_tokens = (gumbel_token_lists){0};
    transforms.history = &generated.history;
    values_of(*state, &logits, &sampling, z);
    assert_values(z, expected, 8, "history");
    /* The most negative frequency on the largest count changes no -inf. */
    const float most = -3.4e38f;
    transforms.frequency = (gumbel_row_f32){&most, GUMBEL_SAME};
    generated.counts[7] = 65535;
    outcome *drawn = outcome_make(1, 1);
    logits.logits.data = y + 7;
    logits.logits.cols = 1;
    logits.first_token = 7;
    draw_request(*state, &logits, &sampling, drawn);
    assert_int_equal(drawn->status[0], GUMBEL_ROW_EMPTY);
    outcome_free(drawn);
}

/* Tokens beyond the history's vocabulary keep their logits. */
static void history_of_a_smaller_vocabulary(void **state)
{
    static float y[V], z[V], expected[V];
    static int32_t all[V];
    const int64_t offsets[] = {0, V};
    const float r = 2;
    row_history generated;
    for (int i = 0; i < V; i++) {
        y[i] = 1;
        all[i] = V - 1 - i;
    }
    for (int64_t counted = 1; counted <= V; counted += counted % 32 >= 30 ? 1 : 15) {
        generated.history = (gumbel_history){.struct_size = sizeof generated.history,
                                             .vocab_size = counted,
                                             .prompt = generated.prompt,
                                             .output = generated.output,
                                             .counts = generated.counts};
        gumbel_token_lists lists = {.offsets = offsets, .ids = all};
        gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                        .repetition = {&r, GUMBEL_SAME},
                                        .history = &generated.history};
        gumbel_sampling sampling = {.struct_size = sizeof sampling, .transforms = &transforms};
        assert_int_equal(
            gumbel_history_start(*state, NULL, &generated.history, 1, NULL, &lists, &lists, NULL),
            GUMBEL_OK);
        gumbel_logits logits = make_logits(y, 1, V);
        for (int i = 0; i < V; i++)
            expected[i] = i < counted ? 0.5f : 1;
        values_of(*state, &logits, &sampling, z);
        assert_values(z, expected, V, "short history");
    }
}

/* Counts saturate at 65535, in a history and in lists. */
static void counts_saturate_at_65535(void **state)
{
    enum { MANY = 65536 + 3 };
    static int32_t same[MANY];
    const int64_t offsets[] = {0, MANY};
    const float y = 1, f = 1;
    const int32_t token = 0;
    gumbel_token_lists lists = {.offsets = offsets, .ids = same};
    gumbel_transforms transforms = {
        .struct_size = sizeof transforms, .frequency = {&f, GUMBEL_SAME}, .output_tokens = lists};
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .transforms = &transforms};
    gumbel_logits logits = make_logits(&y, 1, 1);
    row_history generated;
    float z;
    values_of(*state, &logits, &sampling, &z);
    assert_true(z == 1.0f - 65535);
    start_row_history(*state, &generated, NULL, &lists);
    assert_int_equal(generated.counts[0], 65535);
    start_row_history(*state, &generated, NULL, NULL);
    generated.counts[0] = 65534;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            gumbel_history_update(*state, NULL, &generated.history, 1, NULL, &token, 0, NULL, NULL),
            GUMBEL_OK);
        assert_int_equal(generated.counts[0], 65535);
    }
}

/* Any other order of the transforms gives another value. */
static void order_of_transforms_by_hand(void **state)
{
    static const int64_t one[] = {0, 1}, three[] = {0, 3};
    static const int32_t token[3] = {0};
    const float l = 4, bias = -3, r = 2, f = 0.5f, p = 0.25f, T = 0.5f;
    gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                    .bias = {.offsets = one, .ids = token, .values = &bias},
                                    .repetition = {&r, GUMBEL_SAME},
                                    .frequency = {&f, GUMBEL_SAME},
                                    .presence = {&p, GUMBEL_SAME},
                                    .output_tokens = {.offsets = three, .ids = token}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&T, GUMBEL_SAME},
                                .transforms = &transforms};
    gumbel_logits logits = make_logits(&l, 1, 1);
    float z;
    /* ((4 * 0.5 - 3) * 2 - 0.5 * 3 - 0.25) / 0.5 */
    logits.scale = 0.5f;
    values_of(*state, &logits, &sampling, &z);
    assert_true(z == -7.5f);
    /* The soft-cap of 2 at 2 is 2 tanh 1: then the same steps. */
    logits.soft_cap = 2;
    volatile float y = 2 * 0x1.85efacp-1f;
    y = y + bias;
    y = y * r;
    y = y - 1.5f;
    y = y - p;
    values_of(*state, &logits, &sampling, &z);
    assert_true(fabsf(z - 2 * y) <= 0x1p-21f);
}

/* --------------------------------------------------------------------- masks, bans, biases ---- */

/* Every token is once the only allowed token, and once the only masked one. */
static void masks_of_single_tokens(void **state)
{
    static float logits[V];
    static int32_t mask[2][(V + 100 + 31) / 32];
    static const int64_t firsts[] = {0, 37, 64, 100};
    outcome *drawn = outcome_make(2, 4);
    for (int i = 0; i < V; i++)
        logits[i] = (float)(i % 7);
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < V; i += k == 1 ? 1 : 5) {
            int64_t token = firsts[k] + i;
            gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                            .mask = {mask[0], sizeof mask[0] / sizeof **mask}};
            gumbel_sampling sampling = {
                .struct_size = sizeof sampling, .num_samples = 4, .transforms = &transforms};
            gumbel_logits input = make_logits(logits, 2, V);
            input.logits.stride = 0;
            static float rows[2][V];
            memcpy(rows[0], logits, sizeof logits);
            memcpy(rows[1], logits, sizeof logits);
            rows[1][i] = 1000; /* would always win */
            input.logits.data = rows;
            input.first_token = firsts[k];
            memset(mask[0], 0, sizeof mask[0]);
            memset(mask[1], 0xff, sizeof mask[1]);
            mask[0][token >> 5] = (int32_t)(1u << (token & 31));
            mask[1][token >> 5] = (int32_t) ~(1u << (token & 31));
            draw_request(*state, &input, &sampling, drawn);
            assert_int_equal(drawn->status[0], GUMBEL_ROW_OK);
            assert_true(drawn->lse[0] == logits[i]);
            for (int s = 0; s < 4; s++) {
                assert_int_equal(drawn->tokens[s], token);
                assert_true(drawn->tokens[4 + s] != token && drawn->tokens[4 + s] >= firsts[k]);
            }
        }
    outcome_free(drawn);
}

/* Masked and banned tokens are ignored, even if their logit or bias is NaN. */
static void bans_and_biases_by_hand(void **state)
{
    static float logits[V], z[V], expected[V];
    static const int64_t bans[] = {0, 3}, biases[] = {0, 7};
    static const int32_t banned[] = {202, 0, 64}, biased[] = {64, 5, 0, 6, 5, 100, 6};
    static const float values[] = {100, 1e8f, 100, 1, -1e8f, -INFINITY, 2};
    for (int i = 0; i < V; i++)
        expected[i] = logits[i] = 1;
    logits[202] = NAN;
    expected[202] = expected[0] = expected[64] = expected[100] = -INFINITY;
    expected[5] = 0; /* (1 + 10^8) - 10^8: in the list's order */
    expected[6] = 4;
    gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                    .banned = {.offsets = bans, .ids = banned},
                                    .bias = {.offsets = biases, .ids = biased, .values = values}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .transforms = &transforms};
    gumbel_logits input = make_logits(logits, 1, V);
    values_of(*state, &input, &sampling, z);
    assert_values(z, expected, V, "bans and biases");
    outcome *drawn = outcome_make(1, 1), *ordered = outcome_make(1, 1);
    draw_request(*state, &input, &sampling, drawn);
    assert_int_equal(drawn->status[0], GUMBEL_ROW_OK);
    /* A list with rising ids takes a binary search. */
    static const int32_t rising[] = {0, 5, 5, 6, 6, 64, 100};
    static const float risen[] = {100, 1e8f, -1e8f, 1, 2, 100, -INFINITY};
    transforms.bias = (gumbel_token_lists){.offsets = biases, .ids = rising, .values = risen};
    draw_request(*state, &input, &sampling, ordered);
    assert_true(outcome_same(drawn, 0, ordered, OUTCOME_TOKENS | OUTCOME_SCORES | OUTCOME_MASS,
                             "ordered biases"));
    /* A bias that overflows to +inf, and a row without any allowed token. */
    const float huge[] = {3e38f, 3e38f};
    const int32_t twice[] = {9, 9};
    const int64_t two[] = {0, 2};
    transforms.bias = (gumbel_token_lists){.offsets = two, .ids = twice, .values = huge};
    draw_request(*state, &input, &sampling, drawn);
    assert_int_equal(drawn->status[0], GUMBEL_ROW_INFINITE);
    static const int32_t none[(V + 31) / 32];
    transforms.mask = (gumbel_row_i32){none, GUMBEL_SAME};
    draw_request(*state, &input, &sampling, drawn);
    assert_int_equal(drawn->status[0], GUMBEL_ROW_EMPTY);
    outcome_free(drawn);
    outcome_free(ordered);
}

/* Raw log-probabilities are of all logits, so a NaN or +inf of a banned token affects them, and no
 * other output. */
static void raw_logprobs_count_banned_tokens(void **state)
{
    enum { TOP = 4 };
    static float logits[V];
    static const int64_t bans[] = {0, 1};
    static const int32_t banned[] = {202};
    static const float spoils[] = {NAN, INFINITY, -INFINITY};
    const gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                          .banned = {.offsets = bans, .ids = banned}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling, .transforms = &transforms};
    gumbel_logits input = make_logits(logits, 1, V);
    outcome *sound = outcome_make(1, 1), *spoilt = outcome_make(1, 1);
    outcome_widen(sound, TOP, GUMBEL_RAW);
    outcome_widen(spoilt, TOP, GUMBEL_RAW);
    draw_request(*state, &input, &sampling, sound);
    for (int k = 0; k < 3; k++) {
        logits[202] = spoils[k];
        draw_request(*state, &input, &sampling, spoilt);
        int is_nan = k < 2;
        assert_int_equal(spoilt->status[0], GUMBEL_ROW_OK);
        assert_int_equal(spoilt->tokens[0], sound->tokens[0]);
        assert_true(spoilt->scores[0] == sound->scores[0]);
        assert_int_equal(spoilt->ranks[0], sound->ranks[0]);
        assert_int_equal(spoilt->kept[0], V - 1);
        assert_int_equal(!!isnan(spoilt->lse[0]), is_nan);
        assert_int_equal(!!isnan(spoilt->logprobs[0]), is_nan);
        for (int i = 0; i < TOP; i++) {
            assert_int_equal(spoilt->top_ids[i], i);
            assert_int_equal(!!isnan(spoilt->top_logprobs[i]), is_nan);
        }
    }
    logits[202] = 0;
    outcome_free(sound);
    outcome_free(spoilt);
}

/* Greedy rows: the argmax of y, the lowest id among equals. */
static void greedy_rows_take_the_transformed_argmax(void **state)
{
    static float logits[V];
    static const int64_t biases[] = {0, 2}, bans[] = {0, 1}, outputs[] = {0, 3};
    static const int32_t biased[] = {150, 20}, banned[] = {10}, output[] = {150, 20, 20};
    static const float values[] = {4, 8};
    const float T = 0, f = 3;
    for (int i = 0; i < V; i++)
        logits[i] = -1;
    logits[10] = 50;
    gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                    .banned = {.offsets = bans, .ids = banned},
                                    .bias = {.offsets = biases, .ids = biased, .values = values}};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&T, GUMBEL_SAME},
                                .transforms = &transforms};
    gumbel_logits input = make_logits(logits, 1, V);
    outcome *drawn = outcome_make(1, 1);
    draw_request(*state, &input, &sampling, drawn);
    assert_int_equal(drawn->tokens[0], 20);
    assert_true(drawn->scores[0] == 7);
    transforms.frequency = (gumbel_row_f32){&f, GUMBEL_SAME};
    transforms.output_tokens = (gumbel_token_lists){.offsets = outputs, .ids = output};
    draw_request(*state, &input, &sampling, drawn); /* 20: 7 - 6, 150: 3 - 3 */
    assert_int_equal(drawn->tokens[0], 20);
    assert_true(drawn->scores[0] == 1);
    static const int32_t more[] = {20, 20, 20};
    transforms.output_tokens.ids = more; /* 20: 7 - 9, 150: 3 */
    draw_request(*state, &input, &sampling, drawn);
    assert_int_equal(drawn->tokens[0], 150);
    outcome_free(drawn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(penalties_by_hand),
        cmocka_unit_test(history_of_a_smaller_vocabulary),
        cmocka_unit_test(counts_saturate_at_65535),
        cmocka_unit_test(order_of_transforms_by_hand),
        cmocka_unit_test(masks_of_single_tokens),
        cmocka_unit_test(bans_and_biases_by_hand),
        cmocka_unit_test(raw_logprobs_count_banned_tokens),
        cmocka_unit_test(greedy_rows_take_the_transformed_argmax),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
