/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of gumbel_explain(), its truncation, and its errors.
 */
#include "fixtures.h"
#include "outcome.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* gumbel_explain() truncates its text at the end of the buffer. */
static void explanations_fit_the_buffer(void **state)
{
    const float values[4] = {0};
    const int32_t k[1] = {2};
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = tensor_of(values, GUMBEL_FLOAT32, 1, 4, 0)};
    const gumbel_truncation cut = {.struct_size = sizeof cut, .top_k = {k, 0}};
    const gumbel_sampling sampling = {.struct_size = sizeof sampling, .truncation = &cut};
    gumbel_error error;
    char text[1024], few[8];
    assert_int_equal(gumbel_explain(*state, NULL, &logits, NULL, NULL, text, sizeof text, &error),
                     GUMBEL_OK);
    assert_non_null(strstr(text, "rows: tiles: "));
    assert_int_equal(
        gumbel_explain(*state, NULL, &logits, &sampling, NULL, text, sizeof text, &error),
        GUMBEL_OK);
    assert_non_null(strstr(text, "rows: rows: "));
    assert_non_null(strstr(text, "not tiles: does not support truncation, top_k"));
    assert_int_equal(gumbel_explain(*state, NULL, &logits, NULL, NULL, few, sizeof few, &error),
                     GUMBEL_OK);
    assert_string_equal(few, "rows: t");
    assert_int_equal(gumbel_explain(*state, NULL, &logits, NULL, NULL, NULL, 0, &error), GUMBEL_OK);
    assert_int_equal(gumbel_explain(*state, NULL, &logits, NULL, NULL, NULL, 1, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "text");
    assert_int_equal(gumbel_explain(*state, NULL, NULL, NULL, NULL, text, 9, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "head");
}

/* gumbel_explain() returns an error for the values that the call rejects, and prints them
 * exactly. */
static void explanations_reject_invalid_values(void **state)
{
    static const struct {
        float value;
        const char *message;
    } cases[] = {
        {1.0000001f, "is 1.0000001; it must be in (0, 1]"},
        {2.0f, "is 2; it must be in (0, 1]"},
        {-0.1f, "is -0.1; it must be in (0, 1]"},
        {1234567.5f, "is 1234567.5; it must be in (0, 1]"},
        {INFINITY, "is inf; it must be in (0, 1]"},
    };
    const float values[4] = {0};
    const gumbel_logits logits = {.struct_size = sizeof logits,
                                  .logits = tensor_of(values, GUMBEL_FLOAT32, 1, 4, 0)};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const gumbel_truncation cut = {.struct_size = sizeof cut, .top_p = {&cases[i].value, 0}};
        const gumbel_sampling sampling = {.struct_size = sizeof sampling, .truncation = &cut};
        gumbel_error error;
        char text[1024];
        assert_int_equal(
            gumbel_explain(*state, NULL, &logits, &sampling, NULL, text, sizeof text, &error),
            GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, "sampling.truncation.top_p[0]");
        assert_string_equal(error.message, cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(explanations_fit_the_buffer),
        cmocka_unit_test(explanations_reject_invalid_values),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
