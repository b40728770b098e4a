/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws with a screen have the bits of draws without one: many draws, requests of every kind, rows
 * that are not finite, ties, candidate lists of length one.
 */
#include "gumbel/drafts.h"
#include "gumbel/screen.h"
#include "maths/screen_bound.h"
#include "requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "screened_draws.h"
#include "test_scale.h"

/* Draw with the screen and without; 1 where tokens, scores and statuses are the same bits. */
static int draws_same(gumbel_device *device, const gumbel_head *head,
                      const gumbel_sampling *sampling, int32_t samples, const char *what)
{
    gumbel_head without = *head;
    without.screen = (gumbel_screen){NULL, 0, 0};
    outcome *a = plain_outcome(head->hidden.rows, samples);
    outcome *b = plain_outcome(head->hidden.rows, samples);
    assert_int_equal(draw(device, &without, sampling, a), GUMBEL_OK);
    assert_int_equal(draw(device, head, sampling, b), GUMBEL_OK);
    int same = outcome_same(a, 0, b, OUTCOME_TOKENS | OUTCOME_SCORES, what) &&
               memcmp(a->status, b->status, (size_t)head->hidden.rows * sizeof *a->status) == 0;
    outcome_free(a);
    outcome_free(b);
    return same;
}

/* --------------------------------------------------------------------------- many draws ---- */

static const float temperatures[] = {0.0f, 0.3f, 0.8f, 1.0f, 3.0f, 100.0f};
#define TEMPERATURES 6

/* `draws` draws of each temperature, in batches; the samples of a call, its list's room. */
static void draw_many(gumbel_device *device, const generated_head *generated, gumbel_screen screen,
                      int32_t samples, int64_t calls, const char *name)
{
    int64_t batch = generated->hidden.rows;
    float *temperature = make_zeroed((size_t)batch, sizeof *temperature);
    uint64_t seed = 7, position = 0;
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = generated->hidden,
                        .weight = generated->weight,
                        .screen = screen};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {temperature, 0},
                           .seed = {&seed, GUMBEL_SAME},
                           .position = {&position, GUMBEL_SAME},
                           .num_samples = samples};
    outcome *shown = plain_outcome(batch, samples);
    assert_true(is_screened(device, &head, &how, &shown->output));
    outcome_free(shown);
    for (; position < (uint64_t)calls; position++) {
        for (int64_t b = 0; b < batch; b++)
            temperature[b] = temperatures[((uint64_t)b + position) % TEMPERATURES];
        assert_true(draws_same(device, &head, &how, samples, name));
    }
    free(temperature);
}

static void many_draws(void **state)
{
    gumbel_device_info info = {.struct_size = sizeof info};
    assert_int_equal(gumbel_describe(*state, &info), GUMBEL_OK);
    int64_t calls = is_nightly() ? 5000 : 200;
    if (info.isa == GUMBEL_ISA_REFERENCE || TEST_SANITIZED)
        calls /= info.isa == GUMBEL_ISA_REFERENCE && TEST_SANITIZED ? 50 : 20;
    for (int kind = 0; kind < HEAD_KINDS; kind++) {
        generated_head generated = generate_head(
            (head_kind)kind, kind % 2 ? GUMBEL_BFLOAT16 : GUMBEL_FLOAT32, 1500, 96, 8, 21);
        gumbel_screen screen = make_screen(*state, &generated.weight);
        draw_many(*state, &generated, screen, 1, calls, head_kind_names[kind]);
        draw_many(*state, &generated, screen, 8, calls / 4, "several samples");
        set_list_max(screen.data, 1);
        draw_many(*state, &generated, screen, 3, calls / 8, "lists of one");
        free(screen.data);
        free_generated_head(&generated);
    }
}

/* Rows with one large weight have coarse bounds that are so wide that most tokens are refined,
 * until the threads read both halves of all tokens. */
static void crowded_draws(void **state)
{
    const int64_t rows = 24000, columns = 64;
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_FLOAT32, rows, columns, 2, 3);
    float *weight = (float *)(uintptr_t)generated.weight.data;
    for (int64_t row = 0; row < rows; row++)
        weight[row * columns + row % columns] = row % 2 ? 4.0f : -4.0f;
    gumbel_screen screen = make_screen(*state, &generated.weight);
    draw_many(*state, &generated, screen, 1, TEST_SANITIZED ? 2 : 6, "crowded");
    free(screen.data);
    free_generated_head(&generated);
}

static void bundled_model(void **state)
{
    generated_head generated = bundled_head(8);
    gumbel_screen screen = make_screen(*state, &generated.weight);
    gumbel_device_info info = {.struct_size = sizeof info};
    assert_int_equal(gumbel_describe(*state, &info), GUMBEL_OK);
    draw_many(*state, &generated, screen, 1,
              info.isa == GUMBEL_ISA_REFERENCE ? 2
              : TEST_SANITIZED                 ? 6
                                               : 60,
              "bundled model");
    free(screen.data);
    free((void *)(uintptr_t)generated.weight.data);
}

/* ------------------------------------------------------------------------------ requests ---- */

/* Requests of every kind: those that the screen serves, and those that take the full pass with all
 * their outputs. */
static void requests_of_every_kind(void **state)
{
    int served = 0, count = TEST_SANITIZED ? 30 : 300;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random(i, 1);
        if (i % 3 != 0)
            plan.truncation = 0;
        if (i % 5 == 0)
            plan.soft_cap = 4.0f;
        if (i % 7 == 0)
            plan.scale = -0.7f;
        request *req = request_make(&plan, *state);
        gumbel_head head = req->head;
        head.screen = make_screen(*state, &head.weight);
        int32_t samples = plan.samples > 0 ? plan.samples : 1;
        outcome *shown = plain_outcome(head.hidden.rows, samples);
        served += is_screened(*state, &head, &req->sampling, &shown->output);
        outcome_free(shown);
        assert_true(draws_same(*state, &head, &req->sampling, samples, request_describe(&plan)));

        outcome *a = request_outcome(req), *b = request_outcome(req);
        assert_int_equal(draw(*state, &req->head, &req->sampling, a), GUMBEL_OK);
        assert_int_equal(draw(*state, &head, &req->sampling, b), GUMBEL_OK);
        assert_true(outcome_same(a, 0, b, OUTCOME_ALL, request_describe(&plan)));
        outcome_free(a);
        outcome_free(b);
        free(head.screen.data);
        request_free(req);
    }
    print_message("%d of %d requests were served by their screen\n", served, count);
    assert_true(served > count / 4);
}

/* Shards that begin and end anywhere, with paddings that do not count. */
static void shards(void **state)
{
    static const int64_t firsts[] = {0, 64, 13, 63, 1000}, ends[] = {0, 1, 77, 200};
    generated_head generated = generate_head(HEAD_STRUCTURED, GUMBEL_BFLOAT16, 333, 70, 3, 4);
    gumbel_screen screen = make_screen(*state, &generated.weight);
    uint64_t seed = 5, position = 0;
    float temperature[3] = {0.0f, 0.7f, 1.0f};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {temperature, 0},
                           .seed = {&seed, GUMBEL_SAME},
                           .position = {&position, GUMBEL_SAME}};
    for (int i = 0; i < 20; i++) {
        gumbel_head head = {.struct_size = sizeof head,
                            .hidden = generated.hidden,
                            .weight = generated.weight,
                            .first_token = firsts[i % 5],
                            .vocab_size = ends[i / 5] ? firsts[i % 5] + ends[i / 5] : 0,
                            .screen = screen};
        for (position = 0; position < (TEST_SANITIZED ? 5 : 20); position++)
            assert_true(draws_same(*state, &head, &how, 1, "a shard"));
    }
    free(screen.data);
    free_generated_head(&generated);
}

/* Coupled verification is a draw of all rows of a draft. */
static void coupled_drafts(void **state)
{
    generated_head generated = generate_head(HEAD_STRUCTURED, GUMBEL_BFLOAT16, 500, 64, 4, 6);
    uint64_t seed = 9, position = 0;
    int32_t drafted[4] = {0}, emitted[2][4], count[2], accepted[2], top_k = 20;
    float temperature = 0.5f, top_p = 0.9f;
    gumbel_truncation cut = {
        .struct_size = sizeof cut, .top_k = {&top_k, GUMBEL_SAME}, .top_p = {&top_p, GUMBEL_SAME}};
    gumbel_head head = {
        .struct_size = sizeof head, .hidden = generated.hidden, .weight = generated.weight};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {&temperature, GUMBEL_SAME},
                           .seed = {&seed, GUMBEL_SAME},
                           .position = {&position, GUMBEL_SAME}};
    gumbel_draft draft = {
        .struct_size = sizeof draft, .requests = 1, .max_nodes = 4, .tokens = drafted};
    gumbel_screen screen = make_screen(*state, &generated.weight);
    for (position = 0; position < (TEST_SANITIZED ? 20 : 60); position++) {
        how.truncation = position % 2 ? &cut : NULL;
        for (int way = 0; way < 2; way++) {
            gumbel_verified out = {.struct_size = sizeof out,
                                   .tokens = emitted[way],
                                   .emitted = &count[way],
                                   .accepted = &accepted[way]};
            gumbel_error error;
            size_t bytes;
            memset(emitted[way], 0xab, sizeof emitted[way]);
            head.screen = way ? screen : (gumbel_screen){NULL, 0, 0};
            assert_int_equal(gumbel_verify_workspace_size(*state, &head, NULL, &how, &draft, &out,
                                                          &bytes, &error),
                             GUMBEL_OK);
            void *workspace = poisoned_workspace(bytes);
            assert_int_equal(
                gumbel_verify(*state, NULL, &head, &how, &draft, &out, workspace, bytes, &error),
                GUMBEL_OK);
            free(workspace);
        }
        assert_int_equal(count[0], count[1]);
        assert_int_equal(accepted[0], accepted[1]);
        assert_memory_equal(emitted[0], emitted[1], sizeof emitted[0]);
        for (int i = 0; i < count[0]; i++) /* the next draft is right as far as this one went */
            drafted[i + 1 < 4 ? i + 1 : 3] = emitted[0][i];
    }
    /* A damaged screen is refused, as by a draw. */
    gumbel_verified out = {.struct_size = sizeof out, .tokens = emitted[0], .emitted = count};
    gumbel_error error;
    size_t bytes;
    set_list_max(screen.data, 0);
    head.screen = screen;
    assert_int_equal(
        gumbel_verify_workspace_size(*state, &head, NULL, &how, &draft, &out, &bytes, &error),
        GUMBEL_OK);
    void *workspace = poisoned_workspace(bytes);
    assert_int_equal(
        gumbel_verify(*state, NULL, &head, &how, &draft, &out, workspace, bytes, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "head.screen");
    free(workspace);
    free(screen.data);
    free_generated_head(&generated);
}

/* --------------------------------------------------------------------------- odd numbers ---- */

/* One call of a head whose row 5 holds `odd` at column 3, of a hidden state that may, too. */
static void draw_odd(gumbel_device *device, float odd, int in_hidden, const gumbel_transforms *t)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_FLOAT32, 300, 40, 3, 8);
    uint64_t seed = 2;
    float temperature[3] = {0.0f, 0.7f, 1.0f};
    float *at = (float *)(uintptr_t)(in_hidden ? generated.hidden.data : generated.weight.data);
    at[in_hidden ? 40 + 3 : 5 * 40 + 3] = odd;
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = generated.hidden,
                        .weight = generated.weight,
                        .screen = make_screen(device, &generated.weight)};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .temperature = {temperature, 0},
                           .seed = {&seed, GUMBEL_SAME},
                           .transforms = t};
    assert_true(draws_same(device, &head, &how, 1, in_hidden ? "an odd hidden state" : "odd"));
    assert_int_equal(gumbel_screen_verify(device, NULL, &generated.weight, &head.screen, NULL),
                     GUMBEL_OK);
    free(head.screen.data);
    free_generated_head(&generated);
}

static void odd_numbers(void **state)
{
    static const float odd[] = {NAN,    INFINITY, -INFINITY, 3e38f,     -3e38f, 1e30f,
                                1e-38f, 1e-45f,   0x1p60f,   -0x1p100f, 0.0f,   -0.0f};
    /* Row 5 is banned: there a NaN spoils nothing, with a screen neither. */
    static const int64_t offsets[] = {0, 1, 2, 3};
    static const int32_t ids[] = {5, 5, 5};
    gumbel_transforms ban = {.struct_size = sizeof ban, .banned = {.offsets = offsets, .ids = ids}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        for (int in_hidden = 0; in_hidden < 2; in_hidden++) {
            draw_odd(*state, odd[i], in_hidden, NULL);
            draw_odd(*state, odd[i], in_hidden, &ban);
        }
}

/* Rows of weights that are all the same: candidates are all of V, greedy ties go to the lowest id,
 * and the row to the full pass. */
static void ties(void **state)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 3000, 64, 4, 8);
    char *weight = (char *)(uintptr_t)generated.weight.data;
    for (int distinct = 1; distinct <= 4; distinct++) {
        for (int64_t row = distinct; row < 3000; row++)
            memcpy(weight + row * 128, weight + row % distinct * 128, 128);
        gumbel_screen screen = make_screen(*state, &generated.weight);
        draw_many(*state, &generated, screen, 1, 12, "equal rows");
        set_list_max(screen.data, 1);
        draw_many(*state, &generated, screen, 1, 6, "equal rows, lists of one");
        free(screen.data);
    }
    free_generated_head(&generated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_draws),    cmocka_unit_test(crowded_draws),
        cmocka_unit_test(bundled_model), cmocka_unit_test(requests_of_every_kind),
        cmocka_unit_test(shards),        cmocka_unit_test(coupled_drafts),
        cmocka_unit_test(odd_numbers),   cmocka_unit_test(ties),
    };
    int failures;
    RUN_ON_EVERY_FORMAT(tests, failures);
    return failures;
}
