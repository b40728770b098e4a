/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of calls with a table of token ids: an error for each id out of range, for each field
 * and call that does not support a table; workspace sizes; callers built with an older header.
 */
#include "inputs.h"
#include "outcome.h"

#include <gumbel/drafts.h>
#include <gumbel/programs.h>
#include <gumbel/screen.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

enum { FEW = 8 };
static const float few_values[64];
static int32_t few_ids[FEW];

typedef struct refused_call {
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_programs programs;
} refused_call;

static refused_call make_call(void)
{
    for (int i = 0; i < FEW; i++)
        few_ids[i] = 3 * i;
    return (refused_call){
        .head = {.struct_size = sizeof(gumbel_head),
                 .hidden = tensor_of(few_values, GUMBEL_FLOAT32, 1, 2, 0),
                 .weight = tensor_of(few_values, GUMBEL_FLOAT32, FEW, 2, 0)},
        .logits = {.struct_size = sizeof(gumbel_logits),
                   .logits = tensor_of(few_values, GUMBEL_FLOAT32, 1, FEW, 0)},
        .sampling = {.struct_size = sizeof(gumbel_sampling), .token_ids = few_ids},
        .transforms = {.struct_size = sizeof(gumbel_transforms)},
        .truncation = {.struct_size = sizeof(gumbel_truncation)},
        .programs = {.struct_size = sizeof(gumbel_programs)}};
}

/* Draws from the head or from the logits. */
static gumbel_status call_sample(gumbel_device *device, const refused_call *c, int fused,
                                 int32_t *token, gumbel_error *error)
{
    static _Alignas(64) char workspace[1 << 20];
    const gumbel_output out = {.struct_size = sizeof out, .tokens = token};
    return fused ? gumbel_sample(device, NULL, &c->head, &c->sampling, &out, workspace,
                                 sizeof workspace, error)
                 : gumbel_sample_logits(device, NULL, &c->logits, &c->sampling, &out, workspace,
                                        sizeof workspace, error);
}

static void assert_refused(gumbel_device *device, const refused_call *c, int fused,
                           const char *field)
{
    gumbel_error error = {"", ""};
    int32_t token = -9;
    assert_int_equal(call_sample(device, c, fused, &token, &error), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, field);
    assert_true(strlen(error.message) > 8);
    assert_int_equal(token, -9);
}

static void ids_out_of_range_are_errors(void **state)
{
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (int fused = 0; fused < 2; fused++) {
            const refused_call c = make_call();
            gumbel_error error;
            float noise[FEW];
            few_ids[5] = wrong[i];
            assert_refused(*state, &c, fused, "sampling.token_ids[5]");
            assert_int_equal(
                gumbel_prepare_noise(*state, NULL, &c.sampling, 1, 0, FEW, noise, 0, &error),
                GUMBEL_ERROR_ARGUMENT);
            assert_string_equal(error.field, "sampling.token_ids[5]");
        }
}

/* Changes a call in the way that its field names. */
static void set_field(refused_call *c, const char *field)
{
    static const int32_t words[FEW] = {1}, tokens[1];
    static const int64_t offsets[2] = {0, 1};
    static const float values[FEW] = {1};
    static uint16_t counts[FEW];
    static uint32_t bits[1];
    static gumbel_history history = {.struct_size = sizeof history, .vocab_size = FEW};
    static const uint8_t rules[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TEMPERATURE};
    static const gumbel_token_lists list = {.offsets = offsets, .ids = tokens};
    static const gumbel_token_lists valued = {.offsets = offsets, .ids = tokens, .values = values};
    gumbel_transforms *t = &c->transforms;
    const char *last = strrchr(field, '.') + 1;
    history.prompt = history.output = bits;
    history.counts = counts;
    if (strstr(field, "transforms"))
        c->sampling.transforms = t;
    if (!strcmp(last, "mask"))
        t->mask = (gumbel_row_i32){words, 0};
    else if (!strcmp(last, "allowed"))
        t->allowed = list;
    else if (!strcmp(last, "banned"))
        t->banned = list;
    else if (!strcmp(last, "bias"))
        t->bias = valued;
    else if (!strcmp(last, "late_bias"))
        t->late_bias = valued;
    else if (!strcmp(last, "repetition")) {
        t->repetition = (gumbel_row_f32){values, 0};
        t->prompt_tokens = list;
    } else if (!strcmp(last, "history"))
        t->history = &history;
    else if (!strcmp(last, "prompt_tokens"))
        t->prompt_tokens = list;
    else if (!strcmp(last, "output_tokens"))
        t->output_tokens = list;
    else if (!strcmp(last, "given"))
        c->sampling.given = (gumbel_row_i32){tokens, 0};
    else if (!strcmp(last, "noise"))
        c->sampling.noise = values;
    else if (!strcmp(last, "first_token"))
        c->head.first_token = c->logits.first_token = 64;
    else if (!strcmp(last, "token_ids"))
        c->sampling.token_ids = (const int32_t *)((const char *)few_ids + 1);
    else if (!strcmp(last, "xtc_keep")) {
        c->sampling.truncation = &c->truncation;
        c->truncation.programs = &c->programs;
        c->programs.rules = rules;
        c->programs.count = 1;
        c->programs.xtc_keep = list;
    } else
        fail_msg("%s", field);
}

static void fields_that_name_tokens_are_errors(void **state)
{
    static const char *const fields[] = {"sampling.transforms.mask",
                                         "sampling.transforms.allowed",
                                         "sampling.transforms.banned",
                                         "sampling.transforms.bias",
                                         "sampling.transforms.late_bias",
                                         "sampling.transforms.repetition",
                                         "sampling.transforms.history",
                                         "sampling.transforms.prompt_tokens",
                                         "sampling.transforms.output_tokens",
                                         "sampling.given",
                                         "sampling.noise",
                                         "sampling.token_ids",
                                         "programs.xtc_keep"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (int fused = 0; fused < 2; fused++) {
            refused_call c = make_call();
            set_field(&c, fields[i]);
            assert_refused(*state, &c, fused, fields[i]);
        }
    refused_call c = make_call();
    set_field(&c, "head.first_token");
    assert_refused(*state, &c, 1, "head.first_token");
    assert_refused(*state, &c, 0, "logits.first_token");
}

static void screens_are_errors(void **state)
{
    refused_call c = make_call();
    size_t bytes;
    gumbel_error error;
    assert_int_equal(gumbel_screen_size(*state, &c.head.weight, &bytes, &error), GUMBEL_OK);
    void *screen = poisoned_workspace(bytes);
    c.head.screen = (gumbel_screen){.data = screen, .bytes = bytes};
    assert_refused(*state, &c, 1, "head.screen.data");
    free(screen);
}

static void other_calls_do_not_take_a_table(void **state)
{
    static _Alignas(64) char workspace[1 << 20];
    const refused_call c = make_call();
    const gumbel_draft draft = {
        .struct_size = sizeof draft, .tokens = few_ids, .requests = 1, .max_nodes = 1};
    int32_t emitted, token;
    const gumbel_verified to = {.struct_size = sizeof to, .tokens = &token, .emitted = &emitted};
    gumbel_summary summary;
    float rows[FEW];
    gumbel_error errors[6];
    const gumbel_status found[] = {
        gumbel_partial(*state, NULL, &c.head, &c.sampling, &summary, workspace, sizeof workspace,
                       &errors[0]),
        gumbel_partial_logits(*state, NULL, &c.logits, &c.sampling, &summary, workspace,
                              sizeof workspace, &errors[1]),
        gumbel_process_logits(*state, NULL, &c.logits, &c.sampling, rows, 0, workspace,
                              sizeof workspace, &errors[2]),
        gumbel_softmax(*state, NULL, &c.logits, &c.sampling, rows, 0, workspace, sizeof workspace,
                       &errors[3]),
        gumbel_verify(*state, NULL, &c.head, &c.sampling, &draft, &to, workspace, sizeof workspace,
                      &errors[4]),
        gumbel_verify_logits(*state, NULL, &c.logits, &c.sampling, &draft, &to, workspace,
                             sizeof workspace, &errors[5]),
    };
    for (int i = 0; i < 6; i++) {
        assert_int_equal(found[i], GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(errors[i].field, "sampling.token_ids");
    }
}

static void drafts_by_ratios_do_not_take_a_table(void **state)
{
    refused_call c = make_call();
    const gumbel_sampling drafted = c.sampling;
    int32_t emitted, token;
    const gumbel_draft draft = {.struct_size = sizeof draft,
                                .tokens = few_ids,
                                .requests = 1,
                                .max_nodes = 1,
                                .rule = GUMBEL_RULE_REJECTION,
                                .logits = &c.logits,
                                .sampling = &drafted};
    const gumbel_verified to = {.struct_size = sizeof to, .tokens = &token, .emitted = &emitted};
    gumbel_error error;
    size_t bytes;
    c.sampling.token_ids = NULL;
    assert_int_equal(gumbel_verify_workspace_size(*state, NULL, &c.logits, &c.sampling, &draft, &to,
                                                  &bytes, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "draft.sampling.token_ids");
}

static void edges(void **state)
{
    gumbel_error error;
    int32_t token = -9;
    refused_call c = make_call();
    c.sampling.struct_size -= sizeof c.sampling.token_ids; /* of a caller before the field */
    assert_int_equal(call_sample(*state, &c, 0, &token, &error), GUMBEL_OK);
    assert_true(token >= 0 && token < FEW);
    c.sampling.struct_size += 4;
    assert_refused(*state, &c, 0, "sampling");
    c = make_call(); /* no rows: nothing is read or written */
    few_ids[2] = -1;
    c.logits.logits.rows = c.head.hidden.rows = 0;
    token = -9;
    for (int fused = 0; fused < 2; fused++)
        assert_int_equal(call_sample(*state, &c, fused, &token, &error), GUMBEL_OK);
    assert_int_equal(token, -9);
    c = make_call(); /* one row of weights */
    few_ids[0] = INT32_MAX - 1;
    c.logits.logits.cols = c.head.weight.rows = 1;
    for (int fused = 0; fused < 2; fused++) {
        assert_int_equal(call_sample(*state, &c, fused, &token, &error), GUMBEL_OK);
        assert_int_equal(token, INT32_MAX - 1);
    }
}

static void sizes_include_the_noise(void **state)
{
    enum { B = 40, S = 3, V = 1000 };
    static float logits[B * V];
    static int32_t ids[V], tokens[B * S];
    const gumbel_logits in = {.struct_size = sizeof in,
                              .logits = tensor_of(logits, GUMBEL_FLOAT32, B, V, 0)};
    gumbel_sampling how = {.struct_size = sizeof how, .num_samples = S};
    const gumbel_output out = {.struct_size = sizeof out, .tokens = tokens};
    size_t plain, bytes, any;
    gumbel_error error;
    assert_int_equal(gumbel_workspace_size(*state, NULL, &in, &how, &out, &plain, NULL), GUMBEL_OK);
    how.token_ids = ids;
    assert_int_equal(gumbel_workspace_size(*state, NULL, &in, &how, &out, &bytes, NULL), GUMBEL_OK);
    assert_int_equal(bytes, plain + sizeof(float) * B * S * V);
    assert_int_equal(gumbel_workspace_size(*state, NULL, &in, &how, NULL, &any, NULL), GUMBEL_OK);
    assert_true(any >= bytes);
    void *workspace = poisoned_workspace(bytes);
    assert_int_equal(
        gumbel_sample_logits(*state, NULL, &in, &how, &out, workspace, bytes - 1, &error),
        GUMBEL_ERROR_WORKSPACE);
    assert_string_equal(error.field, "workspace_bytes");
    free(workspace);
    const gumbel_logits huge = {.struct_size = sizeof huge,
                                .logits =
                                    tensor_of(logits, GUMBEL_FLOAT32, INT64_C(1) << 40, V, 0)};
    how.num_samples = GUMBEL_SAMPLES_MAX;
    assert_int_equal(gumbel_workspace_size(*state, NULL, &huge, &how, &out, &bytes, &error),
                     GUMBEL_ERROR_ARGUMENT);
    gumbel_limits limits = {.struct_size = sizeof limits, .batch = 1, .token_ids = 1};
    assert_int_equal(gumbel_workspace_most(*state, &limits, &bytes, &error), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "limits.token_ids");
}

static void explanations_have_the_size_of_the_call(void **state)
{
    const refused_call c = make_call();
    char text[2048];
    int32_t token;
    const gumbel_output out = {.struct_size = sizeof out, .tokens = &token};
    assert_int_equal(
        gumbel_explain(*state, NULL, &c.logits, &c.sampling, &out, text, sizeof text, NULL),
        GUMBEL_OK);
    size_t bytes;
    assert_int_equal(
        gumbel_workspace_size(*state, NULL, &c.logits, &c.sampling, &out, &bytes, NULL), GUMBEL_OK);
    const char *draw = strstr(text, "workspace: "), *table = strstr(text, "token_ids: ");
    assert_true(draw && table);
    assert_int_equal(strtoull(draw + strlen("workspace: "), NULL, 10) +
                         strtoull(table + strlen("token_ids: "), NULL, 10),
                     bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_out_of_range_are_errors),
        cmocka_unit_test(fields_that_name_tokens_are_errors),
        cmocka_unit_test(screens_are_errors),
        cmocka_unit_test(other_calls_do_not_take_a_table),
        cmocka_unit_test(drafts_by_ratios_do_not_take_a_table),
        cmocka_unit_test(edges),
        cmocka_unit_test(sizes_include_the_noise),
        cmocka_unit_test(explanations_have_the_size_of_the_call),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
