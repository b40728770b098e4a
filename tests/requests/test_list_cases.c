/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists made from recent tokens with known results: llama.cpp's published cases of DRY, long
 * repetitions, large powers, and ids that no list may hold.
 */
#include "inputs.h"

#include <gumbel/recent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fixtures.h"

/* One row: a ring of `count` tokens, and lists of eight places. */
typedef struct single_row {
    gumbel_recent recent;
    gumbel_list_rules rules;
    gumbel_row_lists lists;
    uint64_t count;
    int64_t offsets[2];
    int32_t banned[8], late_ids[8], status;
    float late_values[8], multiplier, base;
    int32_t allowed, last_n;
} single_row;

static void make_single(single_row *row, const int32_t *tokens, int64_t count)
{
    *row = (single_row){.count = (uint64_t)count};
    row->recent = (gumbel_recent){.struct_size = sizeof row->recent};
    row->recent.capacity = count;
    row->recent.tokens = (int32_t *)(uintptr_t)tokens;
    row->recent.count = &row->count;
    row->rules.struct_size = sizeof row->rules;
    row->lists = (gumbel_row_lists){.struct_size = sizeof row->lists,
                                    .capacity = 8,
                                    .offsets = row->offsets,
                                    .banned = row->banned,
                                    .late_ids = row->late_ids,
                                    .late_values = row->late_values,
                                    .status = &row->status};
}

static void set_dry(single_row *row, float multiplier, float base, int32_t allowed, int32_t last_n)
{
    row->multiplier = multiplier;
    row->base = base;
    row->allowed = allowed;
    row->last_n = last_n;
    row->rules.dry_multiplier = (gumbel_row_f32){&row->multiplier, 0};
    row->rules.dry_base = (gumbel_row_f32){&row->base, 0};
    row->rules.dry_allowed_length = (gumbel_row_i32){&row->allowed, 0};
    row->rules.dry_last_n = (gumbel_row_i32){&row->last_n, 0};
}

static void make_single_lists(gumbel_device *device, single_row *row)
{
    gumbel_error error = {"", ""};
    if (gumbel_make_lists(device, NULL, &row->rules, &row->recent, 1, NULL, &row->lists, &error) !=
        GUMBEL_OK)
        fail_msg("%s: %s", error.field, error.message);
}

/* The cases of llama.cpp's tests/test-sampling.cpp (commit 07e4038f). */
static void published_cases_of_dry(void **state)
{
    static const struct {
        int tokens, count;
        int32_t last[7];
        float multiplier;
        int32_t allowed, last_n, breaker;
        double expected[5];
    } cases[] = {
        {4, 2, {0, 1}, 1, 2, 4, -1, {.25, .25, .25, .25}},
        {4, 5, {0, 1, 2, 0, 1}, 1, 2, 5, -1, {.296923, .296923, .109232, .296923}},
        {5, 6, {0, 1, 3, 4, 0, 1}, 1, 2, 6, 3, {.2, .2, .2, .2, .2}},
        {5, 5, {0, 1, 2, 0, 1}, 2, 2, 5, -1, {.241818, .241818, .032727, .241818, .241818}},
        {5, 7, {0, 1, 2, 3, 4, 0, 1}, 1, 4, 7, -1, {.2, .2, .2, .2, .2}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t offsets[] = {0, 1};
        double mass = 0, p[5] = {0};
        single_row row;
        make_single(&row, cases[i].last, cases[i].count);
        set_dry(&row, cases[i].multiplier, 1.1f, cases[i].allowed, cases[i].last_n);
        if (cases[i].breaker >= 0)
            row.rules.dry_breakers = (gumbel_sequences){offsets, &cases[i].breaker, 1, NULL, 0};
        make_single_lists(*state, &row);
        for (int t = 0; t < cases[i].tokens; t++) {
            double late = 0;
            for (int k = 0; k < 8; k++)
                late += row.late_ids[k] == t ? (double)row.late_values[k] : 0;
            mass += p[t] = exp(late);
        }
        for (int t = 0; t < cases[i].tokens; t++)
            assert_true(fabs(p[t] / mass - cases[i].expected[t]) < 1e-5);
    }
}

/* Long repetitions, with periods and breaks, beyond the lengths that the CPU keeps, and bases whose
 * power never stops growing. */
static void long_repetitions(void **state)
{
    enum { COUNT = 12000 };
    int32_t *text = make_zeroed(COUNT, sizeof *text);
    uint64_t random = 5;
    for (int i = 0; i < 12; i++) {
        const int period = 1 + (int)random_below(&random, i < 6 ? 3 : 2000);
        single_row row;
        for (int k = 0; k < COUNT; k++)
            text[k] = k >= period ? text[k - period] : (int32_t)random_below(&random, 3);
        if (i % 2)
            text[random_below(&random, COUNT)] = 5;
        make_single(&row, text, COUNT);
        set_dry(&row, 1, i % 3 ? 1 : 1.75f, 3, -1);
        make_single_lists(*state, &row);
        for (int32_t token = 0; token < 6; token++) {
            int64_t longest = -1, at = 0;
            for (int64_t e = 0; e + 1 < COUNT; e++) {
                int64_t length = 0;
                while (length <= e && text[e - length] == text[COUNT - 1 - length] &&
                       (i % 3 || length < 3 + 158))
                    length++;
                if (text[e + 1] == token && length >= 3 && length > longest)
                    longest = length;
            }
            while (at < 8 && row.late_ids[at] != token)
                at++;
            assert_int_equal(at < 8, longest >= 3);
            if (at < 8) {
                const double value = i % 3 ? 1 : pow(1.75, (double)longest - 3);
                assert_true(fabs((double)row.late_values[at] / -value - 1) < 1e-4);
            }
        }
    }
    free(text);
}

/* A power is at most the largest float32, and no DRY value is -inf. */
static void large_powers(void **state)
{
    enum { COUNT = 300 };
    static const float bases[] = {1.75f, 2, 1.3f, 88, 3e38f, 1.000002f};
    static int32_t text[COUNT];
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        for (int large = 0; large < 2; large++) {
            single_row row;
            make_single(&row, text, COUNT);
            set_dry(&row, large ? 3e38f : 1, bases[i], 0, -1);
            make_single_lists(*state, &row);
            assert_int_equal(row.late_ids[0], 0);
            assert_true(isfinite(row.late_values[0]) && row.late_values[0] < 0);
            if (large || bases[i] > 1.2f)
                assert_true(row.late_values[0] < (bases[i] > 1.3f ? -1e36f : -1e30f));
        }
}

/* Ids in a ring that only its owner can have written there are never listed. */
static void foreign_ids_in_rings(void **state)
{
    static const int32_t one = 1, text[] = {-1, INT32_MAX, -7, -1, INT32_MAX, -7, -1, INT32_MAX};
    single_row row;
    make_single(&row, text, 8);
    set_dry(&row, 1, 2, 1, -1);
    row.rules.ngram_size = (gumbel_row_i32){&one, 0};
    make_single_lists(*state, &row);
    assert_int_equal(row.status, GUMBEL_ROW_OK);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(row.banned[i], INT32_MAX);
        assert_int_equal(row.late_ids[i], INT32_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_cases_of_dry),
        cmocka_unit_test(long_repetitions),
        cmocka_unit_test(large_powers),
        cmocka_unit_test(foreign_ids_in_rings),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
