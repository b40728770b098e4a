/* SPDX-License-Identifier: Apache-2.0
 *
 * Late biases and list_status: the order of transforms by hand; rows whose lists have no room, in
 * every call; a decode loop with made lists against the same lists by plain loops.
 */
#include "oracle_request.h"
#include "requests.h"
#include <gumbel/recent.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

static void late_biases_by_hand(void **state)
{
    enum { V = 5 };
    const float logits[V] = {4, 4, 4, NAN, 4}, r = 2, f = 0.5f, p = 0.25f, T = 0.5f;
    const float early[] = {-3, 1}, late[] = {8, 1, -INFINITY, 1e8f, -1e8f};
    const int64_t one[] = {0, 1}, two[] = {0, 2}, three[] = {0, 3}, five[] = {0, 5};
    const int32_t seen[] = {0, 0, 0}, biased[] = {0, 3}, banned[] = {3};
    const int32_t late_ids[] = {0, 3, 2, 1, 1};
    const gumbel_transforms t = {
        .struct_size = sizeof t,
        .banned = {.offsets = one, .ids = banned},
        .bias = {.offsets = two, .ids = biased, .values = early},
        .repetition = {&r, GUMBEL_SAME},
        .frequency = {&f, GUMBEL_SAME},
        .presence = {&p, GUMBEL_SAME},
        .output_tokens = {.offsets = three, .ids = seen},
        .late_bias = {.offsets = five, .ids = late_ids, .values = late},
    };
    const gumbel_sampling sampling = {
        .struct_size = sizeof sampling, .temperature = {&T, GUMBEL_SAME}, .transforms = &t};
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .scale = 0.5f,
                                 .logits = tensor_of(logits, GUMBEL_FLOAT32, 1, V, 0)};
    /* ((4 * 0.5 - 3) * 2 - 0.5 * 3 - 0.25 + 8) / 0.5; (4 * 0.5 + 10^8 - 10^8) / 0.5 */
    const float expected[V] = {8.5f, 0, -INFINITY, -INFINITY, 4};
    float z[V];
    assert_int_equal(request_process(*state, &input, &sampling, z), GUMBEL_OK);
    for (int i = 0; i < V; i++)
        if (z[i] != expected[i])
            fail_msg("z[%d] is %a, not %a", i, (double)z[i], (double)expected[i]);
}

/* ---------------------------------------------------------------------- rows without lists ---- */

/* Sets some rows of `refused` to the outputs of a row whose lists have no room. */
static void refuse_rows(outcome *o, const int32_t *status, int32_t num_top)
{
    for (int64_t b = 0; b < o->batch; b++) {
        if (status[b] != GUMBEL_ROW_LISTS)
            continue;
        for (int64_t at = b * o->samples; at < (b + 1) * o->samples; at++) {
            o->tokens[at] = o->ranks[at] = -1;
            o->logprobs[at] = o->scores[at] = NAN;
        }
        o->lse[b] = NAN;
        o->status[b] = GUMBEL_ROW_LISTS;
        o->kept[b] = 0;
        for (int64_t at = b * num_top; at < (b + 1) * num_top; at++) {
            o->top_ids[at] = -1;
            o->top_logprobs[at] = NAN;
        }
    }
}

static void check_processed(gumbel_device *device, const request *req, const int32_t *status)
{
    const int64_t B = req->plan.batch, V = req->plan.vocab;
    const size_t size = (size_t)(B * V);
    float *with = make_zeroed(size, sizeof *with), *without = make_zeroed(size, sizeof *without);
    request plain = *req;
    plain.sampling.transforms = &plain.transforms;
    plain.transforms.list_status = NULL;
    assert_int_equal(request_process(device, &req->logits, &req->sampling, with), GUMBEL_OK);
    assert_int_equal(request_process(device, &plain.logits, &plain.sampling, without), GUMBEL_OK);
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = b * V; i < (b + 1) * V; i++)
            assert_true(status[b] == GUMBEL_ROW_LISTS
                            ? isnan(with[i])
                            : with[i] == without[i] || (isnan(with[i]) && isnan(without[i])));
    size_t bytes;
    void *workspace = call_workspace(device, NULL, &req->logits, &req->sampling, NULL, &bytes);
    assert_int_equal(
        gumbel_softmax(device, NULL, &req->logits, &req->sampling, with, 0, workspace, bytes, NULL),
        GUMBEL_OK);
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = b * V; i < (b + 1) * V && status[b] == GUMBEL_ROW_LISTS; i++)
            assert_true(isnan(with[i]));
    free(workspace);
    free(with);
    free(without);
}

static void check_summaries(gumbel_device *device, const request *req, const int32_t *status)
{
    request part = *req;
    part.sampling.transforms = &part.transforms;
    part.sampling.truncation = NULL;
    part.sampling.noise = NULL;
    gumbel_summary *summaries = summarise(device, NULL, &part.logits, &part.sampling);
    for (int64_t b = 0; b < part.plan.batch; b++)
        assert_int_equal(summaries[b * part.plan.samples].flags >> 5 & 1,
                         status[b] == GUMBEL_ROW_LISTS);
    free(summaries);
}

/* Rows with GUMBEL_ROW_LISTS are not drawn; other rows, and other values, change nothing. */
static void rows_whose_lists_have_no_room(void **state)
{
    static const int32_t values[] = {GUMBEL_ROW_OK, GUMBEL_ROW_LISTS, GUMBEL_ROW_SLOT, 99};
    int checked = 0;
    for (int i = 0; checked < 60; i++) {
        request_plan plan = request_plan_at_random(i, i % 3 == 0);
        uint64_t random = (uint64_t)i;
        if (plan.logprobs_of == GUMBEL_RAW || !plan.transforms)
            continue;
        request *req = request_make(&plan, *state);
        outcome *without = request_outcome(req), *with = request_outcome(req);
        int32_t *status = make_zeroed((size_t)plan.batch, sizeof *status);
        for (int64_t b = 0; b < plan.batch; b++)
            status[b] = values[random_below(&random, 4)];
        const int fused = plan.hidden_size > 0;
        if (req->transforms.banned.offsets || req->transforms.late_bias.offsets) {
            gumbel_status (*call)(gumbel_device *, const request *, outcome *) =
                fused ? request_draw_fused : request_draw;
            assert_int_equal(call(*state, req, without), GUMBEL_OK);
            req->transforms.list_status = status;
            assert_int_equal(call(*state, req, with), GUMBEL_OK);
            refuse_rows(without, status, plan.num_top);
            assert_true(outcome_same(without, 0, with, OUTCOME_ALL, request_describe(&plan)));
            if (!fused) {
                check_processed(*state, req, status);
                check_summaries(*state, req, status);
            }
            checked++;
        }
        free(status);
        outcome_free(without);
        outcome_free(with);
        request_free(req);
    }
}

/* ---------------------------------------------------------------------------- decode loops ---- */

enum { B = 4, VOCAB = 30, STEPS = 120, CAPACITY = 24, PLACES = 12 };

/* A decode loop whose model prefers to repeat itself, under rules. */
typedef struct decode_loop {
    gumbel_recent recent;
    gumbel_list_rules rules;
    gumbel_row_lists lists;
    gumbel_transforms transforms;
    gumbel_history history;
    int32_t tokens[B * CAPACITY], text[B][STEPS];
    uint64_t count[B], position[B], min_position[B];
    int64_t offsets[B + 1];
    int32_t banned[B * PLACES], late_ids[B * PLACES], status[B];
    float late_values[B * PLACES];
    uint32_t prompt[B], output[B];
    uint16_t counts[B * VOCAB];
    float logits[B * VOCAB];
} decode_loop;

static const float multiplier = 1.5f, repetition = 1.2f;
static const int32_t ngram = 3, window = 8, stops[B] = {1, 2, 3, 4};
static const int64_t one_each[B + 1] = {0, 1, 2, 3, 4};

static decode_loop *make_loop(void)
{
    decode_loop *d = make_zeroed(1, sizeof *d);
    d->history = (gumbel_history){.struct_size = sizeof d->history,
                                  .vocab_size = VOCAB,
                                  .prompt = d->prompt,
                                  .output = d->output,
                                  .counts = d->counts};
    d->recent = (gumbel_recent){.struct_size = sizeof d->recent,
                                .capacity = CAPACITY,
                                .tokens = d->tokens,
                                .count = d->count,
                                .history = &d->history,
                                .window = {&window, GUMBEL_SAME}};
    d->rules = (gumbel_list_rules){.struct_size = sizeof d->rules,
                                   .dry_multiplier = {&multiplier, GUMBEL_SAME},
                                   .ngram_size = {&ngram, GUMBEL_SAME},
                                   .position = {d->position, 0},
                                   .min_position = {d->min_position, 0},
                                   .stop_tokens = {.offsets = one_each, .ids = stops}};
    d->lists = (gumbel_row_lists){.struct_size = sizeof d->lists,
                                  .capacity = PLACES,
                                  .offsets = d->offsets,
                                  .banned = d->banned,
                                  .late_ids = d->late_ids,
                                  .late_values = d->late_values,
                                  .status = d->status};
    d->transforms = (gumbel_transforms){
        .struct_size = sizeof d->transforms,
        .banned = {.offsets = d->offsets, .ids = d->banned},
        .repetition = {&repetition, GUMBEL_SAME},
        .history = &d->history,
        .late_bias = {.offsets = d->offsets, .ids = d->late_ids, .values = d->late_values},
        .list_status = d->status};
    for (int b = 0; b < B; b++)
        d->min_position[b] = 30;
    return d;
}

/* Whether the text would have an n-gram twice in the ring if it went on with `token`. */
static int repeats_ngram(const int32_t *text, int count, int32_t token)
{
    const int first = count > CAPACITY ? count - CAPACITY : 0;
    for (int at = first; at + ngram <= count; at++)
        if (text[at] == text[count - 2] && text[at + 1] == text[count - 1] && text[at + 2] == token)
            return 1;
    return 0;
}

static void check_step(const decode_loop *d, const int32_t *drawn, int step)
{
    for (int b = 0; b < B; b++) {
        assert_in_range(drawn[b], 0, VOCAB - 1);
        assert_true(step >= 30 || drawn[b] != stops[b]);
        assert_true(step < ngram || !repeats_ngram(d->text[b], step, drawn[b]));
    }
}

static void decode_under_rules(void **state)
{
    decode_loop *d = make_loop();
    outcome *o = outcome_make(B, 1);
    const uint64_t seed = 5;
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .seed = {&seed, GUMBEL_SAME},
                                      .position = {d->position, 0},
                                      .transforms = &d->transforms};
    const gumbel_logits input = {.struct_size = sizeof input,
                                 .logits = tensor_of(d->logits, GUMBEL_FLOAT32, B, VOCAB, 0)};
    int late = 0, stopped = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < B; b++) {
            const int32_t last = step ? d->text[b][step - 1] : 0;
            uint64_t random = 99 + (uint64_t)last % 5;
            for (int i = 0; i < VOCAB; i++)
                d->logits[b * VOCAB + i] = 3 * random_normal(&random) + (i == stops[b] ? 3 : 0);
        }
        assert_int_equal(
            gumbel_make_lists(*state, NULL, &d->rules, &d->recent, B, NULL, &d->lists, NULL),
            GUMBEL_OK);
        for (int b = 0; b < B; b++)
            late += d->late_ids[b * PLACES] != INT32_MAX;
        assert_int_equal(draw_logits(*state, &input, &sampling, o), GUMBEL_OK);
        check_step(d, o->tokens, step);
        for (int b = 0; b < B; b++) {
            d->text[b][step] = o->tokens[b];
            d->position[b]++;
            stopped += o->tokens[b] == stops[b];
        }
        assert_int_equal(
            gumbel_recent_append(*state, NULL, &d->recent, B, NULL, o->tokens, 1, NULL, NULL),
            GUMBEL_OK);
    }
    assert_true(late > STEPS / 4 && stopped > 0);
    outcome_free(o);
    free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_biases_by_hand),
        cmocka_unit_test(rows_whose_lists_have_no_room),
        cmocka_unit_test(decode_under_rules),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
