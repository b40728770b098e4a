/* SPDX-License-Identifier: Apache-2.0
 *
 * Every invalid argument of a request returns an error that names its field, and no output is
 * written: from hidden states, from logits, and by gumbel_process_logits().
 */
#include "fixtures.h"
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 3, V = 40, D = 8, LISTED = 4 };

/* A valid request with all transforms, of which a test makes one field invalid. */
typedef struct call {
    problem *generated;
    gumbel_logits logits;
    gumbel_sampling sampling;
    gumbel_transforms transforms;
    gumbel_truncation truncation;
    gumbel_history history;
    outcome *drawn;
    int32_t mask[2 * B];
    int64_t offsets[5][B + 1]; /* of banned, bias, prompt_tokens, output_tokens and late_bias */
    int32_t ids[5][LISTED], list_status[B];
    float biases[LISTED];
    float repetition[B], frequency[B], presence[B], min_p[B], top_p[B];
    int32_t top_k[B];
    uint32_t prompt[2 * B], output[2 * B];
    uint16_t counts[V * B];
} call;

static gumbel_token_lists lists_of(call *c, int which, const float *values)
{
    const int64_t offsets[B + 1] = {0, 1, 1, LISTED};
    for (int b = 0; b <= B; b++)
        c->offsets[which][b] = offsets[b];
    for (int k = 0; k < LISTED; k++)
        c->ids[which][k] = 3 * k + which;
    return (gumbel_token_lists){
        .offsets = c->offsets[which], .ids = c->ids[which], .values = values};
}

static void make_rows(call *c)
{
    for (int b = 0; b < B; b++) {
        c->repetition[b] = 1.25f;
        c->frequency[b] = 0.5f;
        c->presence[b] = -0.5f;
        c->min_p[b] = 0.01f;
        c->top_p[b] = 0.9f;
        c->top_k[b] = 20;
        c->mask[2 * b] = c->mask[2 * b + 1] = -1;
    }
}

static call *make_valid_call(void)
{
    call *c = make_zeroed(1, sizeof *c);
    c->generated = problem_make(&(problem_plan){
        .batch = B, .vocab = V, .hidden_size = D, .weight_dtype = GUMBEL_FLOAT32, .seed = 61});
    make_rows(c);
    /* The weights are also used as logits. */
    c->logits = (gumbel_logits){.struct_size = sizeof c->logits,
                                .logits = tensor_of(c->generated->weight, GUMBEL_FLOAT32, B, V, 0)};
    c->transforms = (gumbel_transforms){.struct_size = sizeof c->transforms,
                                        .mask = {c->mask, 2},
                                        .banned = lists_of(c, 0, NULL),
                                        .bias = lists_of(c, 1, c->biases),
                                        .repetition = {c->repetition, 0},
                                        .frequency = {c->frequency, 0},
                                        .presence = {c->presence, 0},
                                        .prompt_tokens = lists_of(c, 2, NULL),
                                        .output_tokens = lists_of(c, 3, NULL),
                                        .late_bias = lists_of(c, 4, c->biases),
                                        .list_status = c->list_status};
    c->truncation = (gumbel_truncation){.struct_size = sizeof c->truncation,
                                        .min_p = {c->min_p, 0},
                                        .top_k = {c->top_k, 0},
                                        .top_p = {c->top_p, 0}};
    c->history = (gumbel_history){.struct_size = sizeof c->history,
                                  .vocab_size = V,
                                  .prompt = c->prompt,
                                  .output = c->output,
                                  .counts = c->counts};
    c->sampling = c->generated->sampling;
    c->sampling.transforms = &c->transforms;
    c->sampling.truncation = &c->truncation;
    c->drawn = outcome_make(B, 1);
    outcome_widen(c->drawn, 5, GUMBEL_PROCESSED);
    return c;
}

static void free_call(call *c)
{
    problem_free(c->generated);
    outcome_free(c->drawn);
    free(c);
}

/* Replaces the token lists by a history. */
static void use_history(call *c)
{
    c->transforms.history = &c->history;
    c->transforms.prompt_tokens = c->transforms.output_tokens = (gumbel_token_lists){0};
}

typedef void (*field_change)(call *c);

typedef struct invalid_field {
    const char *field;
    field_change change;
} invalid_field;

/* One change a line: SPOIL(name, statements that make the call c invalid). */
#define CHANGE(name, ...)                                                                          \
    static void name(call *c) { __VA_ARGS__; }

CHANGE(transforms_size, c->transforms.struct_size = 3)
CHANGE(mask_misaligned, c->transforms.mask.data = (const int32_t *)((const char *)c->mask + 1))
CHANGE(mask_stride_short, c->transforms.mask.stride = 1)
CHANGE(mask_stride_negative, c->transforms.mask.stride = -2)
CHANGE(mask_stride_alone, c->transforms.mask.data = NULL)
CHANGE(mask_stride_huge, c->transforms.mask.stride = INT64_MAX / 2)
CHANGE(repetition_zero, c->repetition[1] = 0)
CHANGE(repetition_negative, c->repetition[2] = -1)
CHANGE(repetition_nan, c->repetition[0] = NAN)
CHANGE(repetition_infinite, c->repetition[1] = INFINITY)
CHANGE(repetition_stride, c->transforms.repetition.stride = -2)
CHANGE(frequency_nan, c->frequency[1] = NAN)
CHANGE(frequency_infinite, c->frequency[2] = -INFINITY)
CHANGE(frequency_stride, c->transforms.frequency.stride = -2)
CHANGE(presence_nan, c->presence[0] = NAN)
CHANGE(presence_infinite, c->presence[2] = INFINITY)
CHANGE(presence_stride_alone, c->transforms.presence = ((gumbel_row_f32){NULL, 1}))
CHANGE(banned_negative, c->ids[0][3] = -1)
CHANGE(banned_falling, c->offsets[0][2] = 0; c->offsets[0][1] = 2)
CHANGE(banned_values, c->transforms.banned.values = c->biases)
CHANGE(banned_no_ids, c->transforms.banned.ids = NULL)
CHANGE(banned_no_offsets, c->transforms.banned.offsets = NULL)
CHANGE(bias_nan, c->biases[2] = NAN)
CHANGE(bias_infinite, c->biases[0] = INFINITY)
CHANGE(bias_no_values, c->transforms.bias.values = NULL)
CHANGE(bias_first_negative, c->offsets[1][0] = -1)
CHANGE(late_bias_no_values, c->transforms.late_bias.values = NULL)
CHANGE(late_bias_negative, c->ids[4][1] = -1)
CHANGE(late_bias_falling, c->offsets[4][2] = 0)
CHANGE(list_status_alone,
       c->transforms.banned = c->transforms.late_bias = ((gumbel_token_lists){.offsets = NULL}))
CHANGE(prompt_negative, c->ids[2][0] = INT32_MIN)
CHANGE(prompt_values, c->transforms.prompt_tokens.values = c->biases)
CHANGE(output_falling, c->offsets[3][3] = 0)
CHANGE(output_misaligned,
       c->transforms.output_tokens.ids = (const int32_t *)((const char *)c->ids[3] + 2))
CHANGE(both_memories, c->transforms.history = &c->history)
CHANGE(history_size, use_history(c); c->history.struct_size = 0)
CHANGE(history_vocab, use_history(c); c->history.vocab_size = 0)
CHANGE(history_vocab_huge, use_history(c); c->history.vocab_size = (INT64_C(1) << 31) + 1)
CHANGE(history_prompt, use_history(c); c->history.prompt = NULL)
CHANGE(history_output, use_history(c); c->history.output = NULL)
CHANGE(history_counts, use_history(c); c->history.counts = NULL)
CHANGE(truncation_size, c->truncation.struct_size = sizeof c->truncation - 3)
CHANGE(min_p_negative, c->min_p[1] = -0.25f)
CHANGE(min_p_large, c->min_p[0] = nextafterf(1, 2))
CHANGE(min_p_nan, c->min_p[2] = NAN)
CHANGE(min_p_stride, c->truncation.min_p.stride = -3)
CHANGE(top_k_negative, c->top_k[2] = -1)
CHANGE(top_k_stride, c->truncation.top_k.stride = -3)
CHANGE(top_k_stride_alone, c->truncation.top_k = ((gumbel_row_i32){NULL, 1}))
CHANGE(top_p_zero, c->top_p[0] = 0)
CHANGE(top_p_negative, c->top_p[1] = -0.5f)
CHANGE(top_p_large, c->top_p[2] = nextafterf(1, 2))
CHANGE(top_p_nan, c->top_p[1] = NAN)
CHANGE(top_p_stride, c->truncation.top_p.stride = -3)
CHANGE(order_unknown, c->truncation.order = (gumbel_order)6)
CHANGE(order_negative, c->truncation.order = (gumbel_order)-1)
CHANGE(ties_unknown, c->truncation.ties = (gumbel_ties)2)
CHANGE(num_top_negative, c->drawn->output.num_top = -1)
CHANGE(num_top_large, c->drawn->output.num_top = 129)
CHANGE(distribution_unknown, c->drawn->output.logprobs_of = (gumbel_distribution)2)

static const invalid_field invalid_fields[] = {
    {"sampling.transforms", transforms_size},
    {"sampling.transforms.mask", mask_misaligned},
    {"sampling.transforms.mask.stride", mask_stride_short},
    {"sampling.transforms.mask.stride", mask_stride_negative},
    {"sampling.transforms.mask.stride", mask_stride_alone},
    {"sampling.transforms.mask.stride", mask_stride_huge},
    {"sampling.transforms.repetition[1]", repetition_zero},
    {"sampling.transforms.repetition[2]", repetition_negative},
    {"sampling.transforms.repetition[0]", repetition_nan},
    {"sampling.transforms.repetition[1]", repetition_infinite},
    {"sampling.transforms.repetition.stride", repetition_stride},
    {"sampling.transforms.frequency[1]", frequency_nan},
    {"sampling.transforms.frequency[2]", frequency_infinite},
    {"sampling.transforms.frequency.stride", frequency_stride},
    {"sampling.transforms.presence[0]", presence_nan},
    {"sampling.transforms.presence[2]", presence_infinite},
    {"sampling.transforms.presence.stride", presence_stride_alone},
    {"sampling.transforms.banned", banned_negative},
    {"sampling.transforms.banned", banned_falling},
    {"sampling.transforms.banned", banned_values},
    {"sampling.transforms.banned", banned_no_ids},
    {"sampling.transforms.banned", banned_no_offsets},
    {"sampling.transforms.bias", bias_nan},
    {"sampling.transforms.bias", bias_infinite},
    {"sampling.transforms.bias", bias_no_values},
    {"sampling.transforms.bias", bias_first_negative},
    {"sampling.transforms.late_bias", late_bias_no_values},
    {"sampling.transforms.late_bias", late_bias_negative},
    {"sampling.transforms.late_bias", late_bias_falling},
    {"sampling.transforms.list_status", list_status_alone},
    {"sampling.transforms.prompt_tokens", prompt_negative},
    {"sampling.transforms.prompt_tokens", prompt_values},
    {"sampling.transforms.output_tokens", output_falling},
    {"sampling.transforms.output_tokens", output_misaligned},
    {"sampling.transforms.history", both_memories},
    {"sampling.transforms.history", history_size},
    {"sampling.transforms.history.vocab_size", history_vocab},
    {"sampling.transforms.history.vocab_size", history_vocab_huge},
    {"sampling.transforms.history.prompt", history_prompt},
    {"sampling.transforms.history.output", history_output},
    {"sampling.transforms.history.counts", history_counts},
    {"sampling.truncation", truncation_size},
    {"sampling.truncation.min_p[1]", min_p_negative},
    {"sampling.truncation.min_p[0]", min_p_large},
    {"sampling.truncation.min_p[2]", min_p_nan},
    {"sampling.truncation.min_p.stride", min_p_stride},
    {"sampling.truncation.top_k[2]", top_k_negative},
    {"sampling.truncation.top_k.stride", top_k_stride},
    {"sampling.truncation.top_k.stride", top_k_stride_alone},
    {"sampling.truncation.top_p[0]", top_p_zero},
    {"sampling.truncation.top_p[1]", top_p_negative},
    {"sampling.truncation.top_p[2]", top_p_large},
    {"sampling.truncation.top_p[1]", top_p_nan},
    {"sampling.truncation.top_p.stride", top_p_stride},
    {"sampling.truncation.order", order_unknown},
    {"sampling.truncation.order", order_negative},
    {"sampling.truncation.ties", ties_unknown},
    {"output.num_top", num_top_negative},
    {"output.num_top", num_top_large},
    {"output.logprobs_of", distribution_unknown},
};

/* The entry points: from hidden states, from logits, and gumbel_process_logits(), which has no
 * gumbel_output. */
enum { WAYS = 3 };

static gumbel_status make_call(gumbel_device *device, call *c, int way, float *processed,
                               gumbel_error *error)
{
    size_t bytes = 1 << 22;
    void *workspace = poisoned_workspace(bytes);
    gumbel_status status = way == 0 ? gumbel_sample(device, NULL, &c->generated->head, &c->sampling,
                                                    &c->drawn->output, workspace, bytes, error)
                           : way == 1
                               ? gumbel_sample_logits(device, NULL, &c->logits, &c->sampling,
                                                      &c->drawn->output, workspace, bytes, error)
                               : gumbel_process_logits(device, NULL, &c->logits, &c->sampling,
                                                       processed, 0, workspace, bytes, error);
    free(workspace);
    return status;
}

static void every_invalid_field_is_named(void **state)
{
    for (size_t i = 0; i < sizeof invalid_fields / sizeof *invalid_fields; i++)
        for (int way = 0; way < WAYS; way++) {
            call *c = make_valid_call();
            float processed[B * V], before[B * V];
            gumbel_error error = {"", ""};
            int32_t num_top = c->drawn->output.num_top;
            memset(processed, 0xA7, sizeof processed);
            memset(before, 0xA7, sizeof before);
            invalid_fields[i].change(c);
            int of_output = strncmp(invalid_fields[i].field, "output.", 7) == 0;
            if (!of_output || way < 2) {
                if (make_call(*state, c, way, processed, &error) != GUMBEL_ERROR_ARGUMENT)
                    fail_msg("case %zu (%s), entry point %d: no error", i, invalid_fields[i].field,
                             way);
                assert_string_equal(error.field, invalid_fields[i].field);
                assert_true(strlen(error.message) > 0 && !strchr(error.message, '\n'));
            }
            c->drawn->output.num_top = num_top;
            assert_true(outcome_untouched(c->drawn));
            assert_memory_equal(processed, before, sizeof before);
            free_call(c);
        }
}

/* The unchanged call succeeds, with lists and with a history. */
static void valid_calls_succeed(void **state)
{
    float processed[B * V];
    for (int way = 0; way < WAYS; way++)
        for (int remembered = 0; remembered < 2; remembered++) {
            call *c = make_valid_call();
            if (remembered)
                use_history(c);
            assert_int_equal(make_call(*state, c, way, processed, NULL), GUMBEL_OK);
            free_call(c);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_invalid_field_is_named),
        cmocka_unit_test(valid_calls_succeed),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
