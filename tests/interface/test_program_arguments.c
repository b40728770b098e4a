/* SPDX-License-Identifier: Apache-2.0
 *
 * Every invalid argument of programs returns an error that names its field, and no output is
 * written. Workspace sizes: those of calls with an output, of all calls, and of limits.
 */
#include "fixtures.h"
#include "requests.h"

#include <gumbel/drafts.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 3, V = 40, LISTED = 4, PROGRAMS = 2 };

enum {
    T = GUMBEL_PROGRAM_TEMPERATURE,
    TOP_K = GUMBEL_PROGRAM_TOP_K,
    XTC = GUMBEL_PROGRAM_XTC,
    ADAPTIVE_P = GUMBEL_PROGRAM_ADAPTIVE_P,
};

/* The float parameters and values that are not valid. */
static const struct {
    const char *name;
    size_t offset;
    float valid, low, high;
} floats[] = {
#define FLOAT(name, valid, low, high)                                                              \
    {                                                                                              \
        "programs." #name, offsetof(gumbel_programs, name), valid, low, high                       \
    }
    FLOAT(temperature_range, 0.5f, -0x1p-149f, INFINITY),
    FLOAT(temperature_exponent, 1, -0x1p-149f, INFINITY),
    FLOAT(typical_p, 0.9f, 0, 1 + 0x1p-23f),
    FLOAT(top_n_sigma, 1, -0x1p-149f, INFINITY),
    FLOAT(epsilon, 0.01f, -0x1p-149f, 1),
    FLOAT(eta, 0.01f, -0x1p-149f, 1),
    FLOAT(top_a, 0.1f, -0x1p-149f, 1 + 0x1p-23f),
    FLOAT(surprise, 5, -0x1p-149f, -INFINITY),
    FLOAT(xtc_probability, 0.5f, -0x1p-149f, 1 + 0x1p-23f),
    FLOAT(xtc_threshold, 0.1f, 0, 1 + 0x1p-23f),
    FLOAT(smoothing_factor, 0.1f, -0x1p-149f, INFINITY),
    FLOAT(smoothing_curve, 1, 1 - 0x1p-24f, 3 + 0x1p-22f),
    FLOAT(adaptive_target, 0.5f, -1 - 0x1p-23f, 1 + 0x1p-23f),
#undef FLOAT
};
#define FLOATS ((int)(sizeof floats / sizeof *floats))

/* A valid call with all parameters, of which a test makes one invalid. */
typedef struct call {
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_truncation truncation;
    gumbel_programs programs;
    outcome *drawn;
    uint8_t rules[PROGRAMS][GUMBEL_PROGRAM_LENGTH];
    float values[FLOATS][B];
    int32_t program[B], min_keep[B];
    int64_t offsets[B + 1];
    int32_t ids[LISTED];
    float listed[LISTED];
    float row[B * V];
} call;

static gumbel_row_f32 *float_rows(call *c, int k)
{
    return (gumbel_row_f32 *)(void *)((char *)&c->programs + floats[k].offset);
}

static call *make_valid_call(void)
{
    static const uint8_t rules[PROGRAMS][4] = {{TOP_K, T, XTC, 0}, {T, 0, 0, 0}};
    const int64_t offsets[B + 1] = {0, 1, 1, LISTED};
    call *c = make_zeroed(1, sizeof *c);
    c->logits = (gumbel_logits){.struct_size = sizeof c->logits,
                                .logits = tensor_of(c->row, GUMBEL_FLOAT32, B, V, 0)};
    c->programs = (gumbel_programs){.struct_size = sizeof c->programs,
                                    .rules = c->rules[0],
                                    .count = PROGRAMS,
                                    .program = {c->program, 0},
                                    .min_keep = {c->min_keep, 0},
                                    .xtc_keep = {.offsets = c->offsets, .ids = c->ids}};
    for (int b = 0; b < B; b++) {
        memcpy(c->rules[b % PROGRAMS], rules[b % PROGRAMS], sizeof rules[0]);
        c->program[b] = b % PROGRAMS;
        c->min_keep[b] = 1 + b;
        for (int k = 0; k < FLOATS; k++) {
            c->values[k][b] = floats[k].valid;
            *float_rows(c, k) = (gumbel_row_f32){c->values[k], 0};
        }
    }
    memcpy(c->offsets, offsets, sizeof offsets);
    c->truncation =
        (gumbel_truncation){.struct_size = sizeof c->truncation, .programs = &c->programs};
    c->sampling =
        (gumbel_sampling){.struct_size = sizeof c->sampling, .truncation = &c->truncation};
    c->drawn = outcome_make(B, 1);
    outcome_widen(c->drawn, 5, GUMBEL_PROCESSED);
    return c;
}

static void free_call(call *c)
{
    outcome_free(c->drawn);
    free(c);
}

enum { DRAW, PROCESS, SOFTMAX, VERIFY, ENTRY_POINTS };

static gumbel_status make_call(gumbel_device *device, call *c, int entry, float *rows,
                               gumbel_error *error)
{
    const size_t bytes = 1 << 20;
    int32_t tokens[B], emitted[B];
    gumbel_draft draft = {
        .struct_size = sizeof draft, .requests = B, .max_nodes = 1, .tokens = tokens};
    gumbel_verified to = {
        .struct_size = sizeof to, .tokens = tokens, .emitted = emitted, .rows = &c->drawn->output};
    void *workspace = poisoned_workspace(bytes);
    gumbel_status status;
    switch (entry) {
    case DRAW:
        status = gumbel_sample_logits(device, NULL, &c->logits, &c->sampling, &c->drawn->output,
                                      workspace, bytes, error);
        break;
    case PROCESS:
        status = gumbel_process_logits(device, NULL, &c->logits, &c->sampling, rows, 0, workspace,
                                       bytes, error);
        break;
    case SOFTMAX:
        status = gumbel_softmax(device, NULL, &c->logits, &c->sampling, rows, 0, workspace, bytes,
                                error);
        break;
    default:
        status = gumbel_verify_logits(device, NULL, &c->logits, &c->sampling, &draft, &to,
                                      workspace, bytes, error);
    }
    free(workspace);
    return status;
}

/* Makes an invalid call by every entry point, and frees it. */
static void assert_refused(gumbel_device *device, call *c, const char *field)
{
    for (int entry = 0; entry < ENTRY_POINTS; entry++) {
        float rows[B * V], before[B * V];
        gumbel_error error = {"", ""};
        memset(rows, 0xA7, sizeof rows);
        memcpy(before, rows, sizeof rows);
        if (make_call(device, c, entry, rows, &error) != GUMBEL_ERROR_ARGUMENT)
            fail_msg("%s, entry point %d: no error", field, entry);
        assert_string_equal(error.field, field);
        assert_true(strlen(error.message) > 0 && !strchr(error.message, '\n'));
        assert_true(outcome_untouched(c->drawn));
        assert_memory_equal(rows, before, sizeof rows);
    }
    free_call(c);
}

/* Makes one change of a valid call, given by statements, and fails unless the field is named. */
#define REFUSE(field, ...)                                                                         \
    do {                                                                                           \
        call *c = make_valid_call();                                                               \
        __VA_ARGS__;                                                                               \
        assert_refused(*state, c, field);                                                          \
    } while (0)

static void valid_calls_succeed(void **state)
{
    for (int entry = 0; entry < ENTRY_POINTS; entry++) {
        call *c = make_valid_call();
        float rows[B * V];
        gumbel_error error = {"", ""};
        assert_int_equal(
            report_call("the valid call", make_call(*state, c, entry, rows, &error), &error),
            GUMBEL_OK);
        free_call(c);
    }
}

static void invalid_rules(void **state)
{
    REFUSE("sampling.truncation.programs", c->programs.struct_size = 3);
    REFUSE("programs.count", c->programs.count = 0);
    REFUSE("programs.count", c->programs.count = -1);
    REFUSE("programs.count", c->programs.count = GUMBEL_PROGRAMS_MAX + 1);
    REFUSE("programs.reserved", c->programs.reserved = 1);
    REFUSE("programs.rules", c->programs.rules = NULL);
    REFUSE("programs.rules[0][0]", c->rules[0][0] = GUMBEL_PROGRAM_ADAPTIVE_P + 1);
    REFUSE("programs.rules[1][1]", c->rules[1][1] = 255);
    REFUSE("programs.rules[1][1]", c->rules[1][1] = T);
    REFUSE("programs.rules[0][2]", c->rules[0][2] = TOP_K);
    REFUSE("programs.rules[0][3]", c->rules[0][3] = GUMBEL_PROGRAM_MIN_P);
    REFUSE("programs.rules[0][3]", c->rules[0][3] = XTC);
    REFUSE("programs.rules[0]", c->rules[0][1] = GUMBEL_PROGRAM_END);
    REFUSE("programs.rules[1]", c->rules[1][0] = GUMBEL_PROGRAM_END);
    REFUSE("programs.rules[1]", c->rules[1][0] = GUMBEL_PROGRAM_P_LESS);
    REFUSE("programs.rules[0][3]", c->rules[0][3] = GUMBEL_PROGRAM_MIN_P;
           c->programs.temperature_range = ((gumbel_row_f32){NULL, 0}));
    /* TEMPERATURE after XTC is valid without a range alone. */
    REFUSE("programs.rules[1][1]", c->rules[1][0] = XTC; c->rules[1][1] = T);
    call *valid = make_valid_call();
    valid->rules[1][0] = XTC;
    valid->rules[1][1] = T;
    valid->programs.temperature_range = (gumbel_row_f32){NULL, 0};
    assert_int_equal(make_call(*state, valid, DRAW, NULL, NULL), GUMBEL_OK);
    free_call(valid);
}

/* ADAPTIVE_P is last, in a program without XTC. */
static void invalid_places_of_adaptive_p(void **state)
{
    REFUSE("programs.rules[0][3]", c->rules[0][3] = ADAPTIVE_P);
    REFUSE("programs.rules[0][2]", c->rules[0][1] = ADAPTIVE_P; c->rules[0][2] = T);
    REFUSE("programs.rules[1][1]", c->rules[1][0] = ADAPTIVE_P; c->rules[1][1] = T);
    REFUSE("programs.rules[1][2]", c->rules[1][1] = c->rules[1][2] = ADAPTIVE_P);
    REFUSE("programs.rules[1][2]", c->rules[1][1] = ADAPTIVE_P; c->rules[1][2] = XTC);
    call *valid = make_valid_call();
    valid->rules[1][1] = ADAPTIVE_P;
    assert_int_equal(make_call(*state, valid, DRAW, NULL, NULL), GUMBEL_OK);
    free_call(valid);
}

static void invalid_float_parameters(void **state)
{
    for (int k = 0; k < FLOATS; k++) {
        char field[64];
        snprintf(field, sizeof field, "%s[1]", floats[k].name);
        REFUSE(field, c->values[k][1] = floats[k].low);
        REFUSE(field, c->values[k][1] = floats[k].high);
        REFUSE(field, c->values[k][1] = NAN);
        snprintf(field, sizeof field, "%s[0]", floats[k].name);
        REFUSE(field, float_rows(c, k)->stride = GUMBEL_SAME; c->values[k][0] = -2);
        REFUSE(floats[k].name,
               float_rows(c, k)->data = (const float *)(const void *)((const char *)c->values + 2));
        snprintf(field, sizeof field, "%s.stride", floats[k].name);
        REFUSE(field, float_rows(c, k)->stride = -2);
        REFUSE(field, float_rows(c, k)->stride = INT64_MAX / 2);
        REFUSE(field, *float_rows(c, k) = ((gumbel_row_f32){NULL, 1}));
    }
}

static void invalid_integer_parameters(void **state)
{
    REFUSE("programs.program[2]", c->program[2] = -1);
    REFUSE("programs.program[1]", c->program[1] = PROGRAMS);
    REFUSE("programs.program.stride", c->programs.program.stride = -2);
    REFUSE("programs.program", c->programs.program.data = (const void *)((char *)c->program + 1));
    REFUSE("programs.min_keep[0]", c->min_keep[0] = 0);
    REFUSE("programs.min_keep[2]", c->min_keep[2] = -1);
    REFUSE("programs.min_keep.stride", c->programs.min_keep.stride = -2);
    REFUSE("programs.min_keep",
           c->programs.min_keep.data = (const void *)((char *)c->min_keep + 1));
}

static void invalid_lists(void **state)
{
    REFUSE("programs.xtc_keep", c->ids[3] = -1);
    REFUSE("programs.xtc_keep", c->offsets[2] = 0);
    REFUSE("programs.xtc_keep", c->offsets[0] = -1);
    REFUSE("programs.xtc_keep", c->programs.xtc_keep.values = c->listed);
    REFUSE("programs.xtc_keep", c->programs.xtc_keep.ids = NULL);
    REFUSE("programs.xtc_keep", c->programs.xtc_keep.offsets = NULL);
    REFUSE("programs.xtc_keep", c->programs.xtc_keep.reserved = 1);
    REFUSE("programs.xtc_keep", c->programs.xtc_keep.ids = (const void *)((char *)c->ids + 2));
}

/* Parameters of rows that are not live are not read; with slots, those of the slots are. */
static void parameters_of_live_rows(void **state)
{
    static const int32_t live = 1, slots[] = {2, 0, 1};
    call *valid = make_valid_call();
    valid->program[1] = valid->program[2] = 77;
    valid->values[0][1] = NAN;
    valid->sampling.live_rows = &live;
    assert_int_equal(make_call(*state, valid, DRAW, NULL, NULL), GUMBEL_OK);
    free_call(valid);
    REFUSE("programs.program[2]", c->sampling.live_rows = &live; c->program[2] = 77;
           c->sampling.slots = ((gumbel_slots){slots, B}));
}

/* ------------------------------------------------------------------------------ workspaces ---- */

/* The size of all calls is sufficient for a call with any output, and that of limits for both. */
static void check_sizes(gumbel_device *device, const request *req)
{
    const request_plan *plan = &req->plan;
    const gumbel_head *head = req->product ? &req->head : NULL;
    const gumbel_logits *logits = head ? NULL : &req->logits;
    const gumbel_limits limits = {.struct_size = sizeof limits,
                                  .batch = plan->batch,
                                  .vocab_size = plan->vocab,
                                  .hidden_size = plan->hidden_size,
                                  .num_samples = plan->samples,
                                  .requests = 1};
    size_t any, most, one;
    assert_int_equal(gumbel_workspace_size(device, head, logits, &req->sampling, NULL, &any, NULL),
                     GUMBEL_OK);
    assert_int_equal(gumbel_workspace_most(device, &limits, &most, NULL), GUMBEL_OK);
    assert_true(most >= any);
    outcome *full = request_outcome(req);
    for (unsigned set = 0; set < 32; set++) {
        gumbel_output output = full->output;
        output.ranks = set & 1 ? full->ranks : NULL;
        output.kept = set & 2 ? full->kept : NULL;
        output.lse = set & 4 ? full->lse : NULL;
        output.logprobs = set & 8 ? full->logprobs : NULL;
        output.num_top = set & 16 ? plan->num_top : 0;
        if (output.num_top == 0)
            output.top_ids = NULL, output.top_logprobs = NULL;
        assert_int_equal(
            gumbel_workspace_size(device, head, logits, &req->sampling, &output, &one, NULL),
            GUMBEL_OK);
        if (one > any)
            fail_msg("%s, outputs %u: %zu bytes, more than the %zu of all calls",
                     request_describe(plan), set, one, any);
        void *workspace = poisoned_workspace(one);
        assert_int_equal(
            head ? gumbel_sample(device, NULL, head, &req->sampling, &output, workspace, one, NULL)
                 : gumbel_sample_logits(device, NULL, logits, &req->sampling, &output, workspace,
                                        one, NULL),
            GUMBEL_OK);
        free(workspace);
    }
    outcome_free(full);
}

/* Programs that are walked, and programs that an order draws unless there are ranks. */
static void workspace_sizes(void **state)
{
    static const uint8_t by_order[GUMBEL_PROGRAM_LENGTH] = {TOP_K, GUMBEL_PROGRAM_TOP_P, T};
    for (int i = 0; i < 40; i++) {
        request_plan plan = request_plan_at_random(60000 + i, i % 3 == 0);
        plan.truncation = 1;
        plan.programs = 1 + i % 3;
        plan.logprobs_of = GUMBEL_PROCESSED; /* the size of all calls has no room for raw ones */
        request *req = request_make(&plan, *state);
        if (i % 2) {
            req->programs = (gumbel_programs){
                .struct_size = sizeof req->programs, .rules = by_order, .count = 1};
            req->truncation.min_p = (gumbel_row_f32){NULL, 0};
        }
        check_sizes(*state, req);
        request_free(req);
    }
}

/* A struct of a newer caller is accepted if the fields that this version does not know are 0; one
 * that ends after `rules` has defaults. */
static void struct_sizes(void **state)
{
    struct newer {
        gumbel_programs known;
        int64_t unknown;
    } newer = {.unknown = 0};
    call *c = make_valid_call();
    newer.known = c->programs;
    newer.known.struct_size = sizeof newer;
    c->truncation.programs = &newer.known;
    assert_int_equal(make_call(*state, c, DRAW, NULL, NULL), GUMBEL_OK);
    newer.unknown = 1;
    outcome_poison(c->drawn);
    assert_refused(*state, c, "sampling.truncation.programs");
    c = make_valid_call();
    c->programs.struct_size = offsetof(gumbel_programs, program);
    c->programs.program.stride = c->programs.epsilon.stride = -5; /* not read */
    assert_int_equal(make_call(*state, c, DRAW, NULL, NULL), GUMBEL_OK);
    free_call(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_calls_succeed),
        cmocka_unit_test(invalid_rules),
        cmocka_unit_test(invalid_places_of_adaptive_p),
        cmocka_unit_test(invalid_float_parameters),
        cmocka_unit_test(invalid_integer_parameters),
        cmocka_unit_test(invalid_lists),
        cmocka_unit_test(parameters_of_live_rows),
        cmocka_unit_test(workspace_sizes),
        cmocka_unit_test(struct_sizes),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
