/* SPDX-License-Identifier: Apache-2.0
 *
 * Invalid screens, options and sizes return an error that names the field. Verification finds
 * changed weights and bytes, and gumbel_explain() reports why a screen does not serve a call.
 */
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

static void refused(gumbel_device *device, const gumbel_head *head, const char *field)
{
    float temperature = 1.0f;
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {&temperature, GUMBEL_SAME}};
    outcome *out = plain_outcome(head->hidden.rows, 1);
    print_message("this must be refused: ");
    assert_int_equal(draw(device, head, &how, out), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(out->error.field, field);
    outcome_free(out);
}

/* Two heads draw the same tokens. On a CPU the screen's header has the format, whatever the field
 * states. */
static void draws_as(gumbel_device *device, const gumbel_head *head, const gumbel_head *other)
{
    float temperature = 1.0f;
    gumbel_sampling how = {.struct_size = sizeof how, .temperature = {&temperature, GUMBEL_SAME}};
    outcome *out = plain_outcome(head->hidden.rows, 1),
            *again = plain_outcome(head->hidden.rows, 1);
    assert_int_equal(draw(device, head, &how, out), GUMBEL_OK);
    assert_int_equal(draw(device, other, &how, again), GUMBEL_OK);
    assert_memory_equal(out->tokens, again->tokens,
                        (size_t)head->hidden.rows * sizeof *out->tokens);
    outcome_free(out);
    outcome_free(again);
}

static void screens_are_checked(void **state)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 300, 64, 2, 8);
    gumbel_screen screen = make_screen(*state, &generated.weight);
    gumbel_screen_header *header = screen.data, kept = *header;
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = generated.hidden,
                        .weight = generated.weight,
                        .screen = screen};
    gumbel_head fewer = head, other = head;
    fewer.weight.rows = 299;
    refused(*state, &fewer, "head.screen");
    other.weight.dtype = GUMBEL_FLOAT16;
    refused(*state, &other, "head.screen");
    other = head;
    other.screen.data = (char *)screen.data + 1;
    refused(*state, &other, "head.screen.data");
    other.screen = (gumbel_screen){screen.data, screen.bytes - 1, 0};
    refused(*state, &other, "head.screen.bytes");
    for (int32_t format = -1; format <= GUMBEL_SCREEN_NIBBLES + 1; format++) {
        other.screen = screen;
        other.screen.format = format;
        if (format < GUMBEL_SCREEN_BYTES || format > GUMBEL_SCREEN_NIBBLES)
            refused(*state, &other, "head.screen.format");
        else
            draws_as(*state, &head, &other);
        other.screen.data = NULL; /* no screen: the format is not read */
        draws_as(*state, &head, &other);
    }
    for (size_t i = 0; i < sizeof *header; i++) {
        ((unsigned char *)screen.data)[i] ^= 4;
        refused(*state, &head, "head.screen");
        *header = kept;
    }
    set_list_max(screen.data, 0);
    refused(*state, &head, "head.screen");
    set_list_max(screen.data, GUMBEL_SCREEN_LIST_MAX + 1);
    refused(*state, &head, "head.screen");
    *header = kept;
    free(screen.data);
    free_generated_head(&generated);
}

static void sizes_are_checked(void **state)
{
    gumbel_error error;
    size_t bytes = 0;
    uint16_t one[64] = {0};
    static char room[1 << 16] __attribute__((aligned(64)));
    gumbel_tensor weight = {.data = one, .dtype = GUMBEL_BFLOAT16, .rows = 1, .cols = 64};
    const struct {
        int64_t rows, cols;
    } hostile[] = {{0, 64},    {-1, 64},       {1, 0},
                   {1, 65536}, {INT64_MAX, 2}, {(INT64_C(1) << 31) + 1, 1}};
    assert_int_equal(gumbel_screen_size(NULL, &weight, &bytes, &error), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "device");
    assert_int_equal(gumbel_screen_size(*state, NULL, &bytes, &error), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "weight");
    assert_int_equal(gumbel_screen_size(*state, &weight, NULL, &error), GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "bytes");
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        gumbel_tensor bad = weight;
        bad.rows = hostile[i].rows;
        bad.cols = hostile[i].cols;
        assert_int_equal(gumbel_screen_size(*state, &bad, &bytes, &error), GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, "weight");
    }
    assert_int_equal(gumbel_screen_size(*state, &weight, &bytes, &error), GUMBEL_OK);
    assert_true(bytes <= sizeof room);
    const gumbel_screen screen = {room, bytes, 0}, small = {room, bytes - 1, 0},
                        odd = {room + 4, bytes, 0}, unknown = {room, bytes, 2};
    assert_int_equal(gumbel_screen_prepare(*state, NULL, &weight, NULL, NULL, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "screen");
    assert_int_equal(gumbel_screen_prepare(*state, NULL, &weight, NULL, &small, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "screen.bytes");
    assert_int_equal(gumbel_screen_prepare(*state, NULL, &weight, NULL, &odd, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "screen.data");
    assert_int_equal(gumbel_screen_prepare(*state, NULL, &weight, NULL, &unknown, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "screen.format");
    assert_int_equal(gumbel_screen_verify(*state, NULL, &weight, &unknown, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "screen.format");
    assert_int_equal(gumbel_screen_prepare(*state, room, &weight, NULL, &screen, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "stream");
    const struct {
        gumbel_screen_options options;
        const char *field;
    } wrong[] = {{{8 + 1, 0, 0, NULL}, "options"},
                 {{sizeof(gumbel_screen_options), 2, 0, NULL}, "options.certificate"},
                 {{sizeof(gumbel_screen_options), -1, 0, NULL}, "options.certificate"},
                 {{sizeof(gumbel_screen_options), 0, 2, NULL}, "options.format"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(
            gumbel_screen_prepare(*state, NULL, &weight, &wrong[i].options, &screen, &error),
            GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, wrong[i].field);
    }
    memset(room, 0x5a, sizeof room);
    assert_int_equal(gumbel_screen_prepare(*state, NULL, &weight, NULL, &screen, &error),
                     GUMBEL_OK);
    for (size_t i = bytes; i < sizeof room; i++)
        assert_int_equal(room[i], 0x5a);
    assert_int_equal(gumbel_screen_verify(*state, NULL, &weight, &screen, &error), GUMBEL_OK);
}

/* Weights that change behind a screen's back, and bytes that do: verify names the first row. */
static void changed_weights_are_found(void **state)
{
    generated_head generated = generate_head(HEAD_STRUCTURED, GUMBEL_BFLOAT16, 500, 100, 1, 8);
    gumbel_screen screen = make_screen(*state, &generated.weight);
    gumbel_error error;
    size_t bytes;
    gumbel_screen_offsets offsets;
    assert_int_equal(gumbel_screen_verify(*state, NULL, &generated.weight, &screen, &error),
                     GUMBEL_OK);
    uint16_t *weight = (uint16_t *)(uintptr_t)generated.weight.data, kept = weight[123 * 100 + 7];
    dtype_store(weight, GUMBEL_BFLOAT16, 123 * 100 + 7, 5.0f);
    assert_int_equal(gumbel_screen_verify(*state, NULL, &generated.weight, &screen, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_non_null(strstr(error.message, "row 123 "));
    weight[123 * 100 + 7] = kept;
    assert_true(gumbel_screen_find_offsets(500, 100, &offsets));
    assert_int_equal(gumbel_screen_size(*state, &generated.weight, &bytes, &error), GUMBEL_OK);
    assert_int_equal(bytes, offsets.bytes);
    /* The second one is among the low nibbles, if the screen has these. */
    const size_t changed[] = {70 * (size_t)offsets.columns, 300 * (size_t)offsets.columns};
    for (int i = 0; i < 2; i++) {
        unsigned char *byte = (unsigned char *)screen.data + offsets.copy + changed[i];
        *byte ^= 64;
        assert_int_equal(gumbel_screen_verify(*state, NULL, &generated.weight, &screen, &error),
                         GUMBEL_ERROR_ARGUMENT);
        *byte ^= 64;
        assert_int_equal(gumbel_screen_verify(*state, NULL, &generated.weight, &screen, &error),
                         GUMBEL_OK);
    }
    free(screen.data);
    free_generated_head(&generated);
}

/* explain() reports why a screen does not serve a call. */
static void explained(void **state)
{
    generated_head generated = generate_head(HEAD_GAUSSIAN, GUMBEL_BFLOAT16, 300, 64, 2, 8);
    gumbel_screen screen = make_screen(*state, &generated.weight);
    char text[4096];
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = generated.hidden,
                        .weight = generated.weight,
                        .screen = screen};
    outcome *out = outcome_make(2, 1);
    assert_int_equal(
        gumbel_explain(*state, &head, NULL, NULL, &out->output, text, sizeof text, NULL),
        GUMBEL_OK);
    assert_non_null(strstr(text, "not screen: does not support log-normaliser"));
    gumbel_sampling how = {.struct_size = sizeof how, .num_samples = 100};
    outcome *plain = plain_outcome(2, 100);
    assert_int_equal(
        gumbel_explain(*state, &head, NULL, &how, &plain->output, text, sizeof text, NULL),
        GUMBEL_OK);
    assert_non_null(strstr(text, "not screen: more than 64 draws (rows times samples) are "));
    head.screen = (gumbel_screen){NULL, 0, 0};
    assert_int_equal(
        gumbel_explain(*state, &head, NULL, NULL, &out->output, text, sizeof text, NULL),
        GUMBEL_OK);
    assert_null(strstr(text, "screen"));
    outcome_free(out);
    outcome_free(plain);
    free(screen.data);
    free_generated_head(&generated);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(screens_are_checked),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(changed_weights_are_found),
        cmocka_unit_test(explained),
    };
    int failures;
    RUN_ON_EVERY_FORMAT(tests, failures);
    return failures;
}
