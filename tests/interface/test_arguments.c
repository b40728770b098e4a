/* SPDX-License-Identifier: Apache-2.0
 *
 * Every invalid argument of a draw returns an error that names its field, and no output is written.
 */
#include "outcome.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define HUGE_SIZE (INT64_C(1) << 62)

/* A valid call, of which a test makes one field invalid. */
typedef struct call {
    gumbel_device *device;
    problem *generated;
    gumbel_head head;
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_output output;
    void *workspace;
    size_t workspace_bytes;
} call;

static gumbel_device *device_;
static outcome *outputs;
static void *workspace_;
static size_t workspace_size_;

static call make_valid_call(problem *generated)
{
    call c = {.device = device_,
              .generated = generated,
              .head = generated->head,
              .logits = {.struct_size = sizeof(gumbel_logits),
                         .logits = tensor_of(generated->weight, GUMBEL_FLOAT32, 2, 20, 0)},
              .sampling = generated->sampling,
              .output = outputs->output,
              .workspace = workspace_,
              .workspace_bytes = workspace_size_};
    return c;
}

typedef void (*field_change)(call *c);

typedef struct invalid_field {
    const char *field;
    field_change change;
    int ways; /* 1: from hidden states, 2: from logits, 3: both */
} invalid_field;

static float bad_temperatures[2];

/* One change a line: SPOIL(name, statements that make the call c invalid). */
#define CHANGE(name, ...)                                                                          \
    static void name(call *c) { __VA_ARGS__; }

CHANGE(no_device, c->device = NULL)
CHANGE(head_size_zero, c->head.struct_size = 0)
CHANGE(head_size_odd, c->head.struct_size = sizeof(gumbel_head) - 3)
CHANGE(hidden_null, c->head.hidden.data = NULL)
CHANGE(hidden_dtype, c->head.hidden.dtype = (gumbel_dtype)0)
CHANGE(hidden_dtype_unknown, c->head.hidden.dtype = (gumbel_dtype)99)
CHANGE(hidden_rows, c->head.hidden.rows = -1)
CHANGE(hidden_cols, c->head.hidden.cols = 0)
CHANGE(hidden_cols_negative, c->head.hidden.cols = -5)
CHANGE(hidden_stride, c->head.hidden.stride = c->head.hidden.cols - 1)
CHANGE(hidden_stride_negative, c->head.hidden.stride = -40)
CHANGE(hidden_huge, c->head.hidden.rows = HUGE_SIZE)
CHANGE(hidden_misaligned, c->head.hidden.data = (const char *)c->head.hidden.data + 1)
CHANGE(weight_null, c->head.weight.data = NULL)
CHANGE(weight_dtype, c->head.weight.dtype = (gumbel_dtype)-1)
CHANGE(weight_rows, c->head.weight.rows = 0)
CHANGE(weight_rows_negative, c->head.weight.rows = INT64_MIN)
CHANGE(weight_cols, c->head.weight.cols -= 1)
CHANGE(weight_stride, c->head.weight.stride = 1)
CHANGE(weight_huge, c->head.weight.rows = HUGE_SIZE)
CHANGE(weight_stride_huge, c->head.weight.stride = INT64_MAX)
CHANGE(weight_misaligned, c->head.weight.data = (const char *)c->head.weight.data + 1)
CHANGE(bias_rows, c->head.bias.rows = 2)
CHANGE(bias_cols, c->head.bias.cols -= 1)
CHANGE(bias_dtype, c->head.bias.dtype = (gumbel_dtype)7)
CHANGE(bias_null, c->head.bias.data = NULL)
CHANGE(scale_nan, c->head.scale = c->logits.scale = NAN)
CHANGE(scale_infinite, c->head.scale = c->logits.scale = INFINITY)
CHANGE(soft_cap_negative, c->head.soft_cap = c->logits.soft_cap = -1)
CHANGE(soft_cap_nan, c->head.soft_cap = c->logits.soft_cap = NAN)
CHANGE(soft_cap_infinite, c->head.soft_cap = c->logits.soft_cap = INFINITY)
CHANGE(first_negative, c->head.first_token = c->logits.first_token = -1)
CHANGE(first_too_large, c->head.first_token = c->logits.first_token = (INT64_C(1) << 31) - 19)
CHANGE(first_huge, c->head.first_token = c->logits.first_token = INT64_MAX)
CHANGE(vocab_negative, c->head.vocab_size = c->logits.vocab_size = -1)
CHANGE(logits_size, c->logits.struct_size = 1)
CHANGE(logits_null, c->logits.logits.data = NULL)
CHANGE(logits_dtype, c->logits.logits.dtype = (gumbel_dtype)0)
CHANGE(logits_rows, c->logits.logits.rows = -2)
CHANGE(logits_cols, c->logits.logits.cols = 0)
CHANGE(logits_stride, c->logits.logits.stride = 19)
CHANGE(logits_huge, c->logits.logits.stride = HUGE_SIZE)
CHANGE(logits_misaligned, c->logits.logits.data = (const char *)c->logits.logits.data + 2)
CHANGE(sampling_size, c->sampling.struct_size = 4)
CHANGE(temperature_negative, bad_temperatures[0] = 1; bad_temperatures[1] = -0.5f;
       c->sampling.temperature.data = bad_temperatures)
CHANGE(temperature_nan, bad_temperatures[0] = NAN; bad_temperatures[1] = 1;
       c->sampling.temperature.data = bad_temperatures)
CHANGE(temperature_infinite, bad_temperatures[0] = 1; bad_temperatures[1] = INFINITY;
       c->sampling.temperature.data = bad_temperatures)
CHANGE(temperature_stride, c->sampling.temperature.stride = -2)
CHANGE(seed_stride, c->sampling.seed.stride = -2)
CHANGE(position_stride, c->sampling.position.stride = -2)
CHANGE(first_sample_stride, c->sampling.first_sample.stride = -2)
CHANGE(first_sample_null, c->sampling.first_sample = (gumbel_row_u32){NULL, 1})
CHANGE(sampling_reserved, c->sampling.reserved = 1)
CHANGE(sampling_reserved2, c->sampling.reserved2 = 1)
CHANGE(samples_negative, c->sampling.num_samples = -1)
CHANGE(samples_many, c->sampling.num_samples = 65537)
CHANGE(domain_reserved, c->sampling.domain = 0x80000000u)
CHANGE(noise_misaligned, c->sampling.noise = (const float *)((uintptr_t)workspace_ + 2))
CHANGE(noise_stride_alone, c->sampling.noise_stride = 20)
CHANGE(noise_stride_short, c->sampling.noise = workspace_; c->sampling.noise_stride = 1)
CHANGE(noise_stride_negative, c->sampling.noise = workspace_; c->sampling.noise_stride = -20)
CHANGE(noise_huge, c->sampling.noise = workspace_; c->sampling.noise_stride = HUGE_SIZE)
CHANGE(output_size, c->output.struct_size = 0)
CHANGE(tokens_null, c->output.tokens = NULL)
CHANGE(workspace_null, c->workspace = NULL)
CHANGE(workspace_misaligned, c->workspace = (char *)c->workspace + 32)
CHANGE(workspace_small, c->workspace_bytes = 0)

static const invalid_field invalid_fields[] = {
    {"device", no_device, 3},
    {"head", head_size_zero, 1},
    {"head", head_size_odd, 1},
    {"head.hidden", hidden_null, 1},
    {"head.hidden", hidden_dtype, 1},
    {"head.hidden", hidden_dtype_unknown, 1},
    {"head.hidden", hidden_rows, 1},
    {"head.hidden", hidden_cols, 1},
    {"head.hidden", hidden_cols_negative, 1},
    {"head.hidden", hidden_stride, 1},
    {"head.hidden", hidden_stride_negative, 1},
    {"head.hidden", hidden_huge, 1},
    {"head.hidden", hidden_misaligned, 1},
    {"head.weight", weight_null, 1},
    {"head.weight", weight_dtype, 1},
    {"head.weight", weight_rows, 1},
    {"head.weight", weight_rows_negative, 1},
    {"head.weight", weight_cols, 1},
    {"head.weight", weight_stride, 1},
    {"head.weight", weight_huge, 1},
    {"head.weight", weight_stride_huge, 1},
    {"head.weight", weight_misaligned, 1},
    {"head.bias", bias_rows, 1},
    {"head.bias", bias_cols, 1},
    {"head.bias", bias_dtype, 1},
    {"head.bias", bias_null, 1},
    {"head.scale|logits.scale", scale_nan, 3},
    {"head.scale|logits.scale", scale_infinite, 3},
    {"head.soft_cap|logits.soft_cap", soft_cap_negative, 3},
    {"head.soft_cap|logits.soft_cap", soft_cap_nan, 3},
    {"head.soft_cap|logits.soft_cap", soft_cap_infinite, 3},
    {"head.first_token|logits.first_token", first_negative, 3},
    {"head.first_token|logits.first_token", first_too_large, 3},
    {"head.first_token|logits.first_token", first_huge, 3},
    {"head.vocab_size|logits.vocab_size", vocab_negative, 3},
    {"logits", logits_size, 2},
    {"logits.logits", logits_null, 2},
    {"logits.logits", logits_dtype, 2},
    {"logits.logits", logits_rows, 2},
    {"logits.logits", logits_cols, 2},
    {"logits.logits", logits_stride, 2},
    {"logits.logits", logits_huge, 2},
    {"logits.logits", logits_misaligned, 2},
    {"sampling", sampling_size, 3},
    {"sampling.temperature[1]", temperature_negative, 3},
    {"sampling.temperature[0]", temperature_nan, 3},
    {"sampling.temperature[1]", temperature_infinite, 3},
    {"sampling.temperature.stride", temperature_stride, 3},
    {"sampling.seed.stride", seed_stride, 3},
    {"sampling.position.stride", position_stride, 3},
    {"sampling.first_sample.stride", first_sample_stride, 3},
    {"sampling.first_sample.stride", first_sample_null, 3},
    {"sampling.reserved", sampling_reserved, 3},
    {"sampling.reserved2", sampling_reserved2, 3},
    {"sampling.num_samples", samples_negative, 3},
    {"sampling.num_samples", samples_many, 3},
    {"sampling.domain", domain_reserved, 3},
    {"sampling.noise", noise_misaligned, 3},
    {"sampling.noise_stride", noise_stride_alone, 3},
    {"sampling.noise_stride", noise_stride_short, 3},
    {"sampling.noise_stride", noise_stride_negative, 3},
    {"sampling.noise_stride", noise_huge, 3},
    {"output", output_size, 3},
    {"output.tokens", tokens_null, 3},
    {"workspace", workspace_null, 3},
    {"workspace", workspace_misaligned, 3},
    {"workspace_bytes", workspace_small, 3},
};

static gumbel_status make_call(const call *c, int way, gumbel_error *error)
{
    return way == 1 ? gumbel_sample(c->device, NULL, &c->head, &c->sampling, &c->output,
                                    c->workspace, c->workspace_bytes, error)
                    : gumbel_sample_logits(c->device, NULL, &c->logits, &c->sampling, &c->output,
                                           c->workspace, c->workspace_bytes, error);
}

static problem *small_problem(void)
{
    return problem_make(&(problem_plan){.batch = 2,
                                        .vocab = 20,
                                        .hidden_size = 9,
                                        .weight_dtype = GUMBEL_FLOAT32,
                                        .bias_dtype = GUMBEL_FLOAT32,
                                        .seed = 41});
}

/* `field` is one name, or one for each entry point. */
static void assert_names(const char *field, int way, const char *found)
{
    const char *second = strchr(field, '|');
    size_t length = second ? (size_t)(second - field) : strlen(field);
    if (way == 2 && second) {
        field = second + 1;
        length = strlen(field);
    }
    if (strlen(found) != length || memcmp(field, found, length) != 0)
        fail_msg("the error names %s, not %.*s", found, (int)length, field);
}

/* The message names the functions that return the size, and the limit that truncation requires; the
 * buffer holds all of it. */
static void small_workspace_error_names_the_size_functions(void **state)
{
    (void)state;
    problem *generated = small_problem();
    call c = make_valid_call(generated);
    gumbel_error error;
    outcome_poison(outputs);
    c.workspace_bytes = 0;
    for (int way = 1; way <= 2; way++) {
        assert_int_equal(make_call(&c, way, &error), GUMBEL_ERROR_WORKSPACE);
        assert_non_null(strstr(error.message, "are needed; use gumbel_workspace_size(), or "));
        assert_non_null(strstr(error.message, "limits.requests = 1 for transforms, truncation"));
        assert_int_equal(error.message[strlen(error.message) - 1], ')');
        assert_true(strlen(error.message) + 30 <
                    sizeof error.message); /* room for larger numbers */
    }
    problem_free(generated);
}

static void every_invalid_field_is_named(void **state)
{
    (void)state;
    problem *generated = small_problem();
    for (size_t i = 0; i < sizeof invalid_fields / sizeof *invalid_fields; i++)
        for (int way = 1; way <= 2; way++) {
            if (!(invalid_fields[i].ways & way))
                continue;
            call c = make_valid_call(generated);
            gumbel_error error;
            memset(&error, 0xA7, sizeof error);
            outcome_poison(outputs);
            invalid_fields[i].change(&c);
            gumbel_status status = make_call(&c, way, &error);
            int of_workspace = strncmp(invalid_fields[i].field, "workspace", 9) == 0;
            if (status != (of_workspace ? GUMBEL_ERROR_WORKSPACE : GUMBEL_ERROR_ARGUMENT))
                fail_msg("refusal %zu (%s), way %d: status %d", i, invalid_fields[i].field, way,
                         (int)status);
            assert_names(invalid_fields[i].field, way, error.field);
            assert_non_null(memchr(error.message, 0, sizeof error.message));
            assert_true(strlen(error.message) > 0 && !strchr(error.message, '\n'));
            assert_true(outcome_untouched(outputs));
            assert_int_equal(make_call(&c, way, NULL), status); /* `error` may be NULL */
        }
    /* The unchanged call succeeds. */
    for (int way = 1; way <= 2; way++) {
        call c = make_valid_call(generated);
        gumbel_error error, before;
        memset(&error, 0xA7, sizeof error);
        before = error;
        assert_int_equal(make_call(&c, way, &error), GUMBEL_OK);
        assert_memory_equal(&error, &before, sizeof error);
        assert_false(outcome_untouched(outputs));
    }
    problem_free(generated);
}

static void null_structs_are_named(void **state)
{
    (void)state;
    problem *generated = small_problem();
    call c = make_valid_call(generated);
    gumbel_error error;
    outcome_poison(outputs);
    assert_int_equal(gumbel_sample(c.device, NULL, NULL, &c.sampling, &c.output, c.workspace,
                                   c.workspace_bytes, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "head");
    assert_int_equal(gumbel_sample_logits(c.device, NULL, NULL, &c.sampling, &c.output, c.workspace,
                                          c.workspace_bytes, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "logits");
    assert_int_equal(gumbel_sample(c.device, NULL, &c.head, &c.sampling, NULL, c.workspace,
                                   c.workspace_bytes, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "output");
    assert_int_equal(gumbel_partial(c.device, NULL, &c.head, &c.sampling, NULL, c.workspace,
                                    c.workspace_bytes, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "summaries");
    assert_true(outcome_untouched(outputs));
    problem_free(generated);
}

static int open_shared(void **state)
{
    (void)state;
    device_ = open_device(GUMBEL_ISA_AUTO, 2, 0);
    outputs = outcome_make(2, 1);
    workspace_ = make_workspace(device_, 2, 9, 1, &workspace_size_);
    return 0;
}

static int close_shared(void **state)
{
    (void)state;
    gumbel_close(device_);
    outcome_free(outputs);
    free(workspace_);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_workspace_error_names_the_size_functions),
        cmocka_unit_test(every_invalid_field_is_named),
        cmocka_unit_test(null_structs_are_named),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
