/* SPDX-License-Identifier: Apache-2.0
 *
 * Stale weights: weights or hidden states that changed after their screen was made. A draw with
 * such a screen may give a wrong token. The draw must end, stay within its memory (asan,
 * assertions), and give each row a token of the vocabulary or a status. A row with a score outside
 * of its token's bounds is drawn from the current weights.
 */
#include "gumbel/drafts.h"
#include "gumbel/screen.h"
#include "requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "screened_draws.h"
#include "stale_weights.h"
#include "test_scale.h"

#define BATCH_MAX 32

/* ------------------------------------------------------------------------------- checking ---- */

/* Each draw has a token in [first, end), or none and a status. */
static void check_outcome(const outcome *out, int64_t first, int64_t end, const char *what)
{
    for (int64_t b = 0; b < out->batch; b++)
        for (int32_t s = 0; s < out->samples; s++) {
            int32_t token = out->tokens[b * out->samples + s];
            int sound =
                out->status[b] == GUMBEL_ROW_OK ? token >= first && token < end : token == -1;
            if (!sound)
                fail_msg("%s: row %d has token %d and status %d", what, (int)b, (int)token,
                         (int)out->status[b]);
        }
}

static int served; /* calls, by their screens */

static void draw_stale(gumbel_device *device, const gumbel_head *head,
                       const gumbel_sampling *sampling, int32_t samples, const char *what)
{
    outcome *out = plain_outcome(head->hidden.rows, samples);
    int64_t end = head->vocab_size ? head->vocab_size : head->first_token + head->weight.rows;
    served += is_screened(device, head, sampling, &out->output);
    assert_int_equal(draw(device, head, sampling, out), GUMBEL_OK);
    check_outcome(out, head->first_token, end, what);
    outcome_free(out);
}

/* ---------------------------------------------------------------------------------- rules ---- */

/* Cuts of a call: none, one, or several, usual or hostile, and changing with the row. */
typedef struct rules {
    int32_t top_k[BATCH_MAX];
    float top_p[BATCH_MAX], min_p[BATCH_MAX];
    gumbel_truncation how;
} rules;

static void make_rules(rules *r, uint32_t which, int64_t vocab, uint64_t *random)
{
    static const float top_ps[] = {0.95f, 0.5f, 1.0f, 0.99f, 1e-6f, 1 - 0x1p-24f};
    static const float min_ps[] = {0.05f, 0.0f, 0.3f, 1e-30f, 0.9f};
    const int32_t ks[] = {50, 5, 1, 0, 300, (int32_t)vocab - 1};
    r->how =
        (gumbel_truncation){.struct_size = sizeof r->how,
                            .order = (gumbel_order)random_below(random, REQUEST_ORDERS),
                            .ties = random_below(random, 2) ? GUMBEL_TIES_ALL : GUMBEL_TIES_EXACT};
    for (int b = 0; b < BATCH_MAX; b++) {
        r->top_k[b] = ks[random_below(random, 6)];
        r->top_p[b] = top_ps[random_below(random, 6)];
        r->min_p[b] = min_ps[random_below(random, 5)];
    }
    if (which & 1)
        r->how.top_k = (gumbel_row_i32){r->top_k, 1};
    if (which & 2)
        r->how.top_p = (gumbel_row_f32){r->top_p, 1};
    if (which & 4)
        r->how.min_p = (gumbel_row_f32){r->min_p, 1};
}

/* ----------------------------------------------------------------- every kind of weights ---- */

static const float temperatures[] = {1.0f, 0.7f, 0.0f, 1.3f, 0.3f, 3.0f, 100.0f, 1e-4f};

/* A call for each set of cuts. */
static void draw_each_cut(gumbel_device *device, const gumbel_head *head, int32_t samples,
                          uint64_t *random, const char *what)
{
    int64_t vocab = head->weight.rows;
    uint64_t seed = random_bits(random), position = 0;
    size_t words = (size_t)(vocab + 31) / 32;
    float temperature[BATCH_MAX];
    int32_t *mask = make_zeroed(words * BATCH_MAX, sizeof *mask);
    gumbel_transforms masked = {.struct_size = sizeof masked, .mask = {mask, (int64_t)words}};
    for (size_t i = 0; i < words * BATCH_MAX; i++)
        mask[i] = (int32_t)random_bits(random);
    for (int b = 0; b < BATCH_MAX; b++)
        temperature[b] = temperatures[random_below(random, 8)];
    for (uint32_t which = 0; which < 8; which++) {
        rules r;
        make_rules(&r, which, vocab, random);
        gumbel_sampling how = {.struct_size = sizeof how,
                               .temperature = {temperature, 1},
                               .seed = {&seed, GUMBEL_SAME},
                               .position = {&position, GUMBEL_SAME},
                               .transforms = random_below(random, 3) ? NULL : &masked,
                               .truncation = which ? &r.how : NULL,
                               .num_samples = samples};
        position++;
        draw_stale(device, head, &how, samples, what);
    }
    free(mask);
}

static void draw_stale_head(gumbel_device *device, gumbel_dtype dtype, stale_kind kind,
                            int64_t batch, int64_t vocab, uint64_t *random)
{
    generated_head generated = generate_head((head_kind)random_below(random, HEAD_KINDS), dtype,
                                             vocab, 96, batch, random_bits(random));
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = generated.hidden,
                        .weight = generated.weight,
                        .screen = make_screen(device, &generated.weight)};
    if (random_below(random, 4) == 0)
        head.soft_cap = 4.0f;
    if (random_below(random, 4) == 0)
        head.scale = -0.7f;
    spoil_weights(&generated.weight, kind, random);
    if (random_below(random, 3) == 0)
        spoil_rows(&generated.hidden, kind, random);
    draw_each_cut(device, &head, batch > 8 ? 1 : 1 + (int32_t)random_below(random, 4), random,
                  stale_names[kind]);
    free(head.screen.data);
    free_generated_head(&generated);
}

/* Devices of one and of several threads, of the ISA under test. */
static void every_kind_of_stale_weights(void **state)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const int64_t batches[] = {1, 3, 8, 32};
    gumbel_device *alone = open_device(isa_under_test, 1, 0);
    int64_t vocab = isa_under_test == GUMBEL_ISA_REFERENCE || TEST_SANITIZED ? 300 : 1500;
    uint64_t random = 41;
    served = 0;
    for (int turn = 0; turn < nightly_factor(); turn++)
        for (int kind = 0; kind < STALE_KINDS; kind++)
            for (int i = 0; i < 12; i++)
                draw_stale_head(i % 2 ? alone : *state, dtypes[i % 3], (stale_kind)kind,
                                batches[i % 4], i % 5 ? vocab : 131, &random);
    gumbel_close(alone);
    print_message("%d calls were served by their screens\n", served);
    assert_true(served > 500);
}

/* ------------------------------------------------------------------- every kind of request ---- */

/* Requests of every kind, with penalties, lists, noise, shards, histories and outputs. */
static void every_kind_of_request(void **state)
{
    int count = (TEST_SANITIZED ? 100 : 300) * nightly_factor();
    uint64_t random = 5;
    served = 0;
    for (int i = 0; i < count; i++) {
        request_plan plan = request_plan_at_random(i, 1);
        request *req = request_make(&plan, *state);
        gumbel_head head = req->head;
        int32_t samples = plan.samples > 0 ? plan.samples : 1;
        int64_t end = head.vocab_size ? head.vocab_size : head.first_token + head.weight.rows;
        stale_kind kind = (stale_kind)random_below(&random, STALE_KINDS);
        head.screen = make_screen(*state, &head.weight);
        spoil_weights(&head.weight, kind, &random);
        outcome *plain = plain_outcome(head.hidden.rows, samples);
        served += is_screened(*state, &head, &req->sampling, &plain->output);
        assert_int_equal(draw(*state, &head, &req->sampling, plain), GUMBEL_OK);
        check_outcome(plain, head.first_token, end, request_describe(&plan));
        outcome_free(plain);
        /* With ranks, kept counts and lists: by the screen only if top_k or min_p truncates. */
        outcome *all = request_outcome(req);
        assert_int_equal(draw(*state, &head, &req->sampling, all), GUMBEL_OK);
        check_outcome(all, head.first_token, end, request_describe(&plan));
        outcome_free(all);
        free(head.screen.data);
        request_free(req);
    }
    print_message("%d of %d requests were served by their screen\n", served, count);
    assert_true(served > count / 3);
}

/* ------------------------------------------------------------------------------- fallback ---- */

/* Weights that are NaN or infinite are seen, as a row's best candidates are: it is drawn from the
 * weights as they are, whose status it has. */
static void spoilt_heads_are_reported(void **state)
{
    for (uint32_t which = 0; which < 8; which++)
        for (int infinite = 0; infinite < 2; infinite++) {
            uint64_t random = which, seed = 1;
            generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 700, 64, 4, 8);
            rules r;
            make_rules(&r, which, 700, &random);
            gumbel_head head = {.struct_size = sizeof head,
                                .hidden = generated.hidden,
                                .weight = generated.weight,
                                .screen = make_screen(*state, &generated.weight)};
            gumbel_sampling how = {.struct_size = sizeof how,
                                   .seed = {&seed, GUMBEL_SAME},
                                   .truncation = which ? &r.how : NULL};
            outcome *out = plain_outcome(4, 1);
            spoil_weights(&generated.weight, infinite ? STALE_INFINITE : STALE_NAN, &random);
            assert_int_equal(draw(*state, &head, &how, out), GUMBEL_OK);
            for (int b = 0; b < 4; b++)
                assert_int_equal(out->status[b], GUMBEL_ROW_NAN);
            outcome_free(out);
            free(head.screen.data);
            free_generated_head(&generated);
        }
}

/* A row's best tokens are far above their bounds: it has the token of the full pass. */
static void values_above_their_bounds_are_seen(void **state)
{
    for (uint32_t which = 0; which < 8; which++) {
        uint64_t random = 70 + which, seed = 3, position = 0;
        generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 700, 64, 4, 8);
        rules r;
        make_rules(&r, which, 700, &random);
        gumbel_head head = {.struct_size = sizeof head,
                            .hidden = generated.hidden,
                            .weight = generated.weight,
                            .screen = make_screen(*state, &generated.weight)};
        gumbel_head without = head;
        gumbel_sampling how = {.struct_size = sizeof how,
                               .seed = {&seed, GUMBEL_SAME},
                               .position = {&position, GUMBEL_SAME},
                               .truncation = which ? &r.how : NULL};
        outcome *a = plain_outcome(4, 1), *b = plain_outcome(4, 1);
        without.screen = (gumbel_screen){NULL, 0, 0};
        scale_weights(&generated.weight, 8.0f);
        for (; position < 8; position++) {
            assert_int_equal(draw(*state, &head, &how, a), GUMBEL_OK);
            assert_int_equal(draw(*state, &without, &how, b), GUMBEL_OK);
            assert_true(outcome_same(a, 0, b, OUTCOME_TOKENS | OUTCOME_SCORES, "weights times 8"));
        }
        outcome_free(a);
        outcome_free(b);
        free(head.screen.data);
        free_generated_head(&generated);
    }
}

/* -------------------------------------------------------------------------------- drafts ---- */

static void coupled_drafts(void **state)
{
    uint64_t random = 9, seed = 9, position = 0;
    int32_t drafted[4] = {1, 2, 3, 4}, emitted[4], status, count, accepted, top_k = 20;
    gumbel_truncation cut = {.struct_size = sizeof cut, .top_k = {&top_k, GUMBEL_SAME}};
    gumbel_sampling how = {.struct_size = sizeof how,
                           .seed = {&seed, GUMBEL_SAME},
                           .position = {&position, GUMBEL_SAME}};
    gumbel_draft draft = {
        .struct_size = sizeof draft, .requests = 1, .max_nodes = 4, .tokens = drafted};
    gumbel_verified out = {.struct_size = sizeof out,
                           .tokens = emitted,
                           .emitted = &count,
                           .accepted = &accepted,
                           .status = &status};
    for (int kind = 0; kind < STALE_KINDS; kind++) {
        generated_head generated = generate_head(HEAD_STRUCTURED, GUMBEL_BFLOAT16, 500, 64, 4, 6);
        gumbel_head head = {.struct_size = sizeof head,
                            .hidden = generated.hidden,
                            .weight = generated.weight,
                            .screen = make_screen(*state, &generated.weight)};
        spoil_weights(&generated.weight, (stale_kind)kind, &random);
        for (position = 0; position < 4; position++) {
            gumbel_error error;
            size_t bytes;
            how.truncation = position % 2 ? &cut : NULL;
            assert_int_equal(gumbel_verify_workspace_size(*state, &head, NULL, &how, &draft, &out,
                                                          &bytes, &error),
                             GUMBEL_OK);
            void *workspace = poisoned_workspace(bytes);
            assert_int_equal(
                gumbel_verify(*state, NULL, &head, &how, &draft, &out, workspace, bytes, &error),
                GUMBEL_OK);
            assert_true(count >= 0 && count <= 4 && accepted >= 0 && accepted <= 3);
            for (int i = 0; i < count; i++)
                assert_true(emitted[i] >= 0 && emitted[i] < 500);
            free(workspace);
        }
        free(head.screen.data);
        free_generated_head(&generated);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_stale_weights),
        cmocka_unit_test(every_kind_of_request),
        cmocka_unit_test(spoilt_heads_are_reported),
        cmocka_unit_test(values_above_their_bounds_are_seen),
        cmocka_unit_test(coupled_drafts),
    };
    int failures;
    RUN_ON_EVERY_FORMAT(tests, failures);
    return failures;
}
