/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that gumbel_process_logits_into() rounds to float16 and bfloat16: every value of a format,
 * every midpoint of two neighbours, and rows with a NaN or an infinity, on every instruction set.
 * test_request_guards compares all kinds of requests with their rounded float32 rows.
 */
#include "requests.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "every_isa.h"

/* Bits of the largest finite value of a format. */
static uint16_t largest_bits(gumbel_dtype dtype)
{
    return dtype == GUMBEL_FLOAT16 ? 0x7bff : 0x7f7f;
}

/* y values of one row, and the bits that each must be rounded to. */
typedef struct rounding_case {
    float *y;
    uint16_t *wanted;
    int64_t count;
} rounding_case;

static void add_value(rounding_case *c, float y, uint16_t wanted)
{
    c->y[c->count] = y;
    c->wanted[c->count++] = wanted;
}

/* Adds a value of the format, its midpoint with the next one, and the floats around the midpoint,
 * with a sign. The value after the largest one is the power of two that overflows. */
static void add_neighbours(rounding_case *c, gumbel_dtype dtype, uint16_t bits, uint16_t sign)
{
    const uint16_t next = (uint16_t)(bits + 1);
    const int overflows = bits == largest_bits(dtype);
    const double low = (double)dtype_load(&bits, dtype, 0);
    const double high = !overflows                ? (double)dtype_load(&next, dtype, 0)
                        : dtype == GUMBEL_FLOAT16 ? 0x1p16
                                                  : 0x1p128;
    const float middle = (float)((low + high) / 2), way = sign ? -1.0f : 1.0f;
    assert_true((double)middle == (low + high) / 2);
    add_value(c, way * (float)low, sign | bits);
    add_value(c, way * nextafterf(middle, 0.0f), sign | bits);
    add_value(c, way * middle, sign | (bits % 2 ? next : bits));
    add_value(c, way * nextafterf(middle, INFINITY), sign | next);
}

static rounding_case make_case(gumbel_dtype dtype)
{
    const size_t most = 8 * 0x8000;
    rounding_case c = {make_zeroed(most, sizeof *c.y), make_zeroed(most, sizeof *c.wanted), 0};
    for (uint16_t bits = 0; bits <= largest_bits(dtype); bits++) {
        add_neighbours(&c, dtype, bits, 0);
        add_neighbours(&c, dtype, bits, 0x8000);
    }
    return c;
}

/* y = 0 + bias: a row of zeros, in whose place the result is written. */
static void every_midpoint_rounds_to_even(void **state)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    for (int k = 0; k < 2; k++) {
        rounding_case c = make_case(dtypes[k]);
        uint16_t *row = make_zeroed((size_t)c.count, sizeof *row);
        int32_t *ids = make_zeroed((size_t)c.count, sizeof *ids);
        int64_t offsets[] = {0, c.count};
        for (int64_t i = 0; i < c.count; i++)
            ids[i] = (int32_t)i;
        gumbel_transforms edits = {.struct_size = sizeof edits};
        edits.bias = (gumbel_token_lists){.offsets = offsets, .ids = ids, .values = c.y};
        gumbel_sampling how = {.struct_size = sizeof how, .transforms = &edits};
        gumbel_logits logits = {.struct_size = sizeof logits,
                                .logits = tensor_of(row, dtypes[k], 1, c.count, 0)};
        assert_int_equal(request_process_into(*state, &logits, &how, row, dtypes[k], 0), GUMBEL_OK);
        for (int64_t i = 0; i < c.count; i++)
            if ((row[i] ^ c.wanted[i]) & (c.y[i] == 0 ? 0x7fff : 0xffff))
                fail_msg("%s: %a is %#x, not %#x", dtype_name(dtypes[k]), (double)c.y[i], row[i],
                         c.wanted[i]);
        free(ids);
        free(row);
        free(c.wanted);
        free(c.y);
    }
}

enum { B = 5, V = 203 };

/* A NaN, +inf, no token, -inf beside tokens, and only subnormals, with and without truncation. */
static void odd_rows_in_place(void **state)
{
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    static const int32_t top_k = V;
    for (int k = 0; k < 4; k++) {
        const gumbel_dtype dtype = dtypes[k % 2];
        uint16_t rows[B][V], before[B][V];
        const uint16_t lowest = dtype == GUMBEL_FLOAT16 ? 0xfc00 : 0xff80;
        for (int i = 0; i < V; i++) {
            rows[0][i] = rows[1][i] = (uint16_t)(0x3c00 + i);
            rows[2][i] = lowest;
            rows[3][i] = i % 3 ? lowest : (uint16_t)(0xbc00 + i);
            rows[4][i] = (uint16_t)(1 + i % 100);
        }
        dtype_store_nan(rows[0], dtype, V - 1);
        dtype_store_infinite(rows[1], dtype, 3, 1);
        memcpy(before, rows, sizeof rows);
        gumbel_truncation cut = {.struct_size = sizeof cut, .top_k = {&top_k, GUMBEL_SAME}};
        gumbel_sampling how = {.struct_size = sizeof how, .truncation = k < 2 ? NULL : &cut};
        gumbel_logits logits = {.struct_size = sizeof logits,
                                .logits = tensor_of(rows, dtype, B, V, 0)};
        assert_int_equal(request_process_into(*state, &logits, &how, rows, dtype, V), GUMBEL_OK);
        for (int i = 0; i < 2 * V; i++)
            assert_true(isnan(dtype_load(rows, dtype, i)));
        assert_memory_equal(rows[2], before[2], 3 * sizeof rows[0]);
    }
}

/* Rows that are not live become NaN; the gaps between rows keep their contents. */
static void unused_rows_are_nan(void **state)
{
    enum { GAP = 3 };
    static const gumbel_dtype dtypes[] = {GUMBEL_FLOAT32, GUMBEL_FLOAT16, GUMBEL_BFLOAT16};
    for (int k = 0; k < 3; k++)
        for (int32_t live = 0; live <= B; live++) {
            const int64_t stride = V + GAP;
            float rows[B * (V + GAP)]; /* room for any dtype */
            for (int64_t i = 0; i < B * stride; i++)
                dtype_store(rows, dtypes[k], i, 1.5f);
            gumbel_sampling how = {.struct_size = sizeof how, .live_rows = &live};
            gumbel_logits logits = {.struct_size = sizeof logits,
                                    .logits = tensor_of(rows, dtypes[k], B, V, stride)};
            assert_int_equal(request_process_into(*state, &logits, &how, rows, dtypes[k], stride),
                             GUMBEL_OK);
            for (int64_t i = 0; i < B * stride; i++) {
                float found = dtype_load(rows, dtypes[k], i);
                int unused = i / stride >= live && i % stride < V;
                assert_true(unused ? isnan(found) : found == 1.5f);
            }
        }
}

/* Fields of the errors, and rows that stay as they are. */
static void other_dtypes_are_errors(void **state)
{
    static const struct {
        gumbel_dtype logits, rows;
        int64_t stride;
        int in_place;
        const char *field;
    } cases[] = {
        {GUMBEL_FLOAT32, GUMBEL_FLOAT16, 0, 0, "dtype"},
        {GUMBEL_BFLOAT16, GUMBEL_FLOAT16, 0, 0, "dtype"},
        {GUMBEL_FLOAT16, (gumbel_dtype)0, 0, 0, "dtype"},
        {GUMBEL_FLOAT16, (gumbel_dtype)9, 0, 0, "dtype"},
        {GUMBEL_FLOAT16, GUMBEL_FLOAT32, 0, 1, "processed"},
        {GUMBEL_BFLOAT16, GUMBEL_BFLOAT16, V + 1, 1, "processed"},
        {GUMBEL_BFLOAT16, GUMBEL_BFLOAT16, V - 1, 0, "stride"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *data = make_zeroed(2 * V, 4), *apart = make_zeroed(2 * V, 4);
        gumbel_error error = {"", ""};
        gumbel_logits logits = {.struct_size = sizeof logits,
                                .logits = tensor_of(data, cases[i].logits, 1, V, 0)};
        size_t bytes;
        void *workspace = call_workspace(*state, NULL, &logits, NULL, NULL, &bytes);
        assert_int_equal(gumbel_process_logits_into(*state, NULL, &logits, NULL,
                                                    cases[i].in_place ? data : apart, cases[i].rows,
                                                    cases[i].stride, workspace, bytes, &error),
                         GUMBEL_ERROR_ARGUMENT);
        assert_string_equal(error.field, cases[i].field);
        free(workspace);
        free(apart);
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_midpoint_rounds_to_even),
        cmocka_unit_test(odd_rows_in_place),
        cmocka_unit_test(unused_rows_are_nan),
        cmocka_unit_test(other_dtypes_are_errors),
    };
    int failures;
    RUN_ON_EVERY_ISA(tests, failures);
    return failures;
}
