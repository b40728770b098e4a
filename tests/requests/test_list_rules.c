/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists made from recent tokens: DRY, n-grams, bad words and minimum lengths against plain loops
 * over thousands of random histories; lists without room.
 */
#include "list_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixtures.h"

/* --------------------------------------------------------------------- plain definitions ---- */

/* The lists of a row, by the rules. */
typedef struct expected_row {
    int banned[LIST_CALL_TOKENS];
    int64_t length[LIST_CALL_TOKENS]; /* of the longest match that gives a late bias; -1: none */
    double value[LIST_CALL_TOKENS];
} expected_row;

/* A row's window: its last tokens, the oldest first. */
typedef struct window {
    int32_t *at;
    int64_t count;
} window;

static int64_t slot_of(const list_call *call, int64_t b)
{
    return call->slots.of_row ? call->slots.of_row[b] : b;
}

static int32_t integer_of(const list_call *call, const gumbel_row_i32 *rows, int64_t b,
                          int32_t otherwise)
{
    return rows->data ? rows->data[rows->stride == GUMBEL_SAME ? 0 : slot_of(call, b)] : otherwise;
}

static float float_of(const list_call *call, const gumbel_row_f32 *rows, int64_t b, float otherwise)
{
    return rows->data ? rows->data[rows->stride == GUMBEL_SAME ? 0 : slot_of(call, b)] : otherwise;
}

static uint64_t position_of(const list_call *call, const gumbel_row_u64 *rows, int64_t b)
{
    return rows->data ? rows->data[rows->stride == GUMBEL_SAME ? 0 : slot_of(call, b)] : 0;
}

/* The last `length` tokens of row b, or all that the ring has; -1 is all. Free its `at`. */
static window window_of(const list_call *call, int64_t b, int64_t length)
{
    const gumbel_recent *r = &call->recent;
    const uint64_t count = r->count[slot_of(call, b)], capacity = (uint64_t)r->capacity;
    uint64_t first = count > capacity ? count - capacity : 0;
    if (length >= 0 && count - first > (uint64_t)length)
        first = count - (uint64_t)length;
    window w = {make_zeroed(count - first + 1, sizeof *w.at), (int64_t)(count - first)};
    for (uint64_t i = first; i < count; i++)
        w.at[i - first] = r->tokens[(uint64_t)slot_of(call, b) * capacity + i % capacity];
    return w;
}

/* Whether sequence k stands in the window from `at` on. */
static int stands_at(const gumbel_sequences *s, int64_t k, const window *w, int64_t at)
{
    const int64_t length = s->offsets[k + 1] - s->offsets[k];
    if (at < 0 || at + length > w->count)
        return 0;
    for (int64_t i = 0; i < length; i++)
        if (w->at[at + i] != s->ids[s->offsets[k] + i])
            return 0;
    return 1;
}

static void sequences_of(const gumbel_sequences *s, int64_t b, int64_t *begin, int64_t *end)
{
    *begin = s->of_row ? s->of_row[b] : 0;
    *end = s->of_row ? s->of_row[b + 1] : s->count;
}

/* The number of tokens after the last breaker; the whole window without one. */
static int64_t tokens_after_breaker(const gumbel_sequences *s, int64_t b, const window *w)
{
    int64_t begin, end;
    sequences_of(s, b, &begin, &end);
    for (int64_t at = w->count - 1; at >= 0 && s->offsets; at--) {
        int64_t longest = 0;
        for (int64_t k = begin; k < end; k++)
            if (stands_at(s, k, w, at) && s->offsets[k + 1] - s->offsets[k] > longest)
                longest = s->offsets[k + 1] - s->offsets[k];
        if (longest > 0)
            return w->count - at - longest;
    }
    return w->count;
}

static int is_breaker(const gumbel_sequences *s, int64_t b, int32_t token)
{
    int64_t begin, end;
    sequences_of(s, b, &begin, &end);
    for (int64_t k = begin; k < end && s->offsets; k++)
        if (s->offsets[k + 1] - s->offsets[k] == 1 && s->ids[s->offsets[k]] == token)
            return 1;
    return 0;
}

/* DRY by its quadratic definition. */
static void expect_dry(const list_call *call, int64_t b, expected_row *row)
{
    const gumbel_list_rules *r = &call->rules;
    const double multiplier = (double)float_of(call, &r->dry_multiplier, b, 0);
    const double base = (double)float_of(call, &r->dry_base, b, 1.75f);
    const int64_t allowed = integer_of(call, &r->dry_allowed_length, b, 2);
    window w = window_of(call, b, integer_of(call, &r->dry_last_n, b, -1));
    const int64_t most = tokens_after_breaker(&r->dry_breakers, b, &w);
    if (multiplier > 0 && base >= 1 && w.count > allowed && most >= allowed)
        for (int64_t e = 0; e + 1 < w.count; e++) {
            int64_t length = 0;
            while (length < most && length <= e && w.at[e - length] == w.at[w.count - 1 - length])
                length++;
            const int32_t token = w.at[e + 1];
            if (length >= allowed && length > row->length[token] &&
                !is_breaker(&r->dry_breakers, b, token))
                row->length[token] = length;
        }
    for (int i = 0; i < LIST_CALL_TOKENS; i++) {
        double exponent = (double)(row->length[i] - allowed);
        if (base > 1.000001 && exponent > floor(88.7228 / log(base)))
            exponent = floor(88.7228 / log(base));
        row->value[i] = -fmin(multiplier * pow(base, exponent), 0x1.fffffep127);
    }
    free(w.at);
}

static int is_kept(const list_call *call, int64_t b, int32_t token)
{
    const gumbel_token_lists *keep = &call->rules.ngram_keep;
    for (int64_t i = keep->offsets ? keep->offsets[b] : 0;
         keep->offsets && i < keep->offsets[b + 1]; i++)
        if (keep->ids[i] == token)
            return 1;
    return 0;
}

static void expect_ngrams(const list_call *call, int64_t b, expected_row *row)
{
    const gumbel_list_rules *r = &call->rules;
    const int64_t n = integer_of(call, &r->ngram_size, b, 0);
    window w = window_of(call, b, integer_of(call, &r->ngram_window, b, -1));
    for (int64_t first = 0; n > 0 && first + n <= w.count; first++)
        if (memcmp(w.at + first, w.at + w.count - (n - 1), (size_t)(n - 1) * sizeof *w.at) == 0 &&
            !is_kept(call, b, w.at[first + n - 1]))
            row->banned[w.at[first + n - 1]] = 1;
    free(w.at);
}

static void expect_bad_words(const list_call *call, int64_t b, expected_row *row)
{
    const gumbel_sequences *s = &call->rules.bad_words;
    window w = window_of(call, b, -1);
    int64_t begin, end;
    sequences_of(s, b, &begin, &end);
    for (int64_t k = begin; k < end && s->offsets; k++) {
        /* As if the last token of the sequence were drawn. */
        const int64_t length = s->offsets[k + 1] - s->offsets[k];
        w.at[w.count] = s->ids[s->offsets[k + 1] - 1];
        const window then = {w.at, w.count + 1};
        if (stands_at(s, k, &then, then.count - length))
            row->banned[w.at[w.count]] = 1;
    }
    free(w.at);
}

static expected_row expect_row(const list_call *call, int64_t b)
{
    const gumbel_list_rules *r = &call->rules;
    expected_row row = {.banned = {0}};
    for (int i = 0; i < LIST_CALL_TOKENS; i++)
        row.length[i] = -1;
    expect_dry(call, b, &row);
    expect_ngrams(call, b, &row);
    expect_bad_words(call, b, &row);
    if (r->min_position.data && r->stop_tokens.offsets &&
        position_of(call, &r->position, b) < position_of(call, &r->min_position, b))
        for (int64_t i = r->stop_tokens.offsets[b]; i < r->stop_tokens.offsets[b + 1]; i++)
            row.banned[r->stop_tokens.ids[i]] = 1;
    return row;
}

/* -------------------------------------------------------------------------- random calls ---- */

typedef struct totals {
    int64_t banned, late, overflows;
} totals;

static void assert_row(const list_call *call, int64_t b, const char *what, totals *sum)
{
    const expected_row row = expect_row(call, b);
    const gumbel_row_lists *l = &call->lists;
    int64_t banned = 0, late = 0, place = b * l->capacity, last = place + l->capacity;
    for (int i = 0; i < LIST_CALL_TOKENS; i++) {
        banned += row.banned[i];
        late += row.length[i] >= 0;
    }
    const int overflows = banned > l->capacity || late > l->capacity;
    if (l->status[b] != (overflows ? GUMBEL_ROW_LISTS : GUMBEL_ROW_OK))
        fail_msg("%s: status %d with %d and %d ids", what, (int)l->status[b], (int)banned,
                 (int)late);
    int64_t at = place, place_late = place;
    for (int i = 0; i < LIST_CALL_TOKENS && !overflows; i++) {
        if (row.banned[i] && l->banned[at++] != i)
            fail_msg("%s: banned %d, not %d", what, (int)l->banned[at - 1], i);
        if (row.length[i] < 0)
            continue;
        const double value = (double)l->late_values[place_late];
        if (l->late_ids[place_late++] != i ||
            !(fabs(value / row.value[i] - 1) <= ldexp((double)row.length[i] + 4, -23)))
            fail_msg("%s: late %d by %g, not %d by %g", what, (int)l->late_ids[place_late - 1],
                     value, i, row.value[i]);
    }
    for (; at < last; at++)
        assert_int_equal(l->banned[at], INT32_MAX);
    for (; place_late < last; place_late++) {
        assert_int_equal(l->late_ids[place_late], INT32_MAX);
        assert_true(l->late_values[place_late] == 0);
    }
    sum->overflows += overflows;
    sum->banned += overflows ? 0 : banned;
    sum->late += overflows ? 0 : late;
}

static gumbel_status make_lists(gumbel_device *device, const list_call *call, gumbel_error *error)
{
    return gumbel_make_lists(device, NULL, &call->rules, &call->recent, call->batch, &call->slots,
                             &call->lists, error);
}

static void rules_by_plain_definitions(void **state)
{
    enum { CALLS = 4000 };
    totals sum = {0, 0, 0};
    for (int i = 0; i < CALLS; i++) {
        char what[40];
        list_call *call = list_call_make((uint64_t)i, *state);
        gumbel_error error = {"", ""};
        if (make_lists(*state, call, &error) != GUMBEL_OK)
            fail_msg("call %d: %s: %s", i, error.field, error.message);
        for (int64_t b = 0; b < call->batch; b++) {
            snprintf(what, sizeof what, "call %d, row %d", i, (int)b);
            assert_row(call, b, what, &sum);
        }
        for (int64_t b = 0; b <= call->batch; b++)
            assert_int_equal(call->lists.offsets[b], b * call->lists.capacity);
        list_call_free(call);
    }
    print_message("%d banned, %d late, %d rows without room\n", (int)sum.banned, (int)sum.late,
                  (int)sum.overflows);
    assert_true(sum.banned > CALLS && sum.late > CALLS && sum.overflows > CALLS / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_by_plain_definitions),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
