/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists made from recent tokens: DRY, n-grams, bad words and minimum lengths against plain loops
 * over thousands of random histories; long repetitions; lists without room; llama.cpp's published
 * cases of DRY; errors.
 */
#include "list_calls.h"
#include "outcome.h"

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

/* ------------------------------------------------------------------------------- by hand ---- */

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

/* ----------------------------------------------------------------------------- arguments ---- */

/* Calls with one wrong argument return an error that names it, and write nothing. */
static void assert_refused(gumbel_device *device, const list_call *call,
                           const gumbel_recent *recent, const char *field)
{
    gumbel_error error = {"", ""};
    assert_int_equal(gumbel_make_lists(device, NULL, &call->rules, recent, call->batch,
                                       &call->slots, &call->lists, &error),
                     GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, field);
    for (int64_t b = 0; b < call->batch; b++)
        assert_int_equal((uint32_t)call->lists.status[b], 0xA5A5A5A5u);
}

/* A call with all rules on, of one row without slots. */
static list_call *make_whole_call(gumbel_device *device)
{
    for (uint64_t seed = 0;; seed++) {
        list_call *call = list_call_make(seed, device);
        const gumbel_list_rules *r = &call->rules;
        if (r->dry_multiplier.data && r->dry_breakers.count > 1 && !r->dry_breakers.of_row &&
            r->ngram_size.data && r->bad_words.count > 0 && r->min_position.data &&
            r->stop_tokens.offsets && r->stop_tokens.offsets[call->batch] > 0 &&
            !call->slots.of_row)
            return call;
        list_call_free(call);
    }
}

#define REFUSES(field, change)                                                                     \
    do {                                                                                           \
        list_call other = *call;                                                                   \
        gumbel_list_rules *r = &other.rules;                                                       \
        gumbel_row_lists *l = &other.lists;                                                        \
        gumbel_recent *q = &other.recent;                                                          \
        (void)r, (void)l, (void)q;                                                                 \
        change;                                                                                    \
        assert_refused(*state, &other, &other.recent, field);                                      \
    } while (0)

static void wrong_arguments(void **state)
{
    static const float nan_value[8] = {NAN, 1, 1, 1, 1, 1, 1, 1}, negative[8] = {-1};
    static const int32_t below[8] = {-2}, minus_one[8] = {-1}, unsorted[] = {3, 2};
    static const int64_t first_two[] = {0, 1, 2}, empty[] = {0, 0, 1},
                         decreasing[] = {1, 0, 0, 0, 0, 0, 0, 0},
                         beyond[] = {0, 9, 9, 9, 9, 9, 9, 9};
    list_call *call = make_whole_call(*state);
    REFUSES("recent.capacity", q->capacity = 0);
    REFUSES("recent.capacity", q->capacity = -1);
    REFUSES("recent.capacity", q->capacity = GUMBEL_RECENT_MAX + 1);
    REFUSES("recent.tokens", q->tokens = NULL);
    REFUSES("recent.count", q->count = NULL);
    REFUSES("recent.count", q->count = (uint64_t *)((char *)q->count + 4));
    REFUSES("lists.capacity", l->capacity = 0);
    REFUSES("lists.capacity", l->capacity = GUMBEL_LIST_MAX + 1);
    REFUSES("lists.offsets", l->offsets = NULL);
    REFUSES("lists.banned", l->banned = NULL);
    REFUSES("lists.late_ids", l->late_ids = NULL);
    REFUSES("lists.late_values", l->late_values = NULL);
    REFUSES("lists.late_ids", l->late_ids = (int32_t *)((char *)l->late_ids + 1));
    REFUSES("rules.dry_multiplier[0]", r->dry_multiplier.data = nan_value);
    REFUSES("rules.dry_multiplier[0]", r->dry_multiplier.data = negative);
    REFUSES("rules.dry_base[0]", r->dry_base = ((gumbel_row_f32){nan_value, 0}));
    REFUSES("rules.dry_allowed_length[0]",
            r->dry_allowed_length = ((gumbel_row_i32){minus_one, 0}));
    REFUSES("rules.dry_last_n[0]", r->dry_last_n = ((gumbel_row_i32){below, 0}));
    REFUSES("rules.ngram_size[0]", r->ngram_size = ((gumbel_row_i32){minus_one, 0}));
    REFUSES("rules.ngram_window[0]", r->ngram_window = ((gumbel_row_i32){below, 0}));
    REFUSES("rules.ngram_window.stride", r->ngram_window = ((gumbel_row_i32){below, -2}));
    REFUSES("rules.dry_breakers", r->dry_breakers.ids = minus_one);
    REFUSES("rules.dry_breakers", r->dry_breakers.offsets = NULL);
    REFUSES("rules.dry_breakers", r->dry_breakers.reserved = 1);
    REFUSES("rules.dry_breakers", r->dry_breakers.count = -1);
    REFUSES("rules.dry_breakers",
            r->dry_breakers = ((gumbel_sequences){first_two, unsorted, 2, NULL, 0}));
    REFUSES("rules.dry_breakers",
            r->dry_breakers = ((gumbel_sequences){empty, unsorted, 2, NULL, 0}));
    REFUSES("rules.bad_words", r->bad_words = ((gumbel_sequences){empty, unsorted, 2, NULL, 0}));
    REFUSES("rules.bad_words", r->bad_words = ((gumbel_sequences){first_two, NULL, 2, NULL, 0}));
    REFUSES("rules.bad_words",
            r->bad_words = ((gumbel_sequences){first_two, unsorted, 2, decreasing, 0}));
    REFUSES("rules.bad_words",
            r->bad_words = ((gumbel_sequences){first_two, unsorted, 2, beyond, 0}));
    REFUSES("rules.stop_tokens", r->stop_tokens.ids = NULL);
    REFUSES("rules.stop_tokens", r->stop_tokens.offsets = decreasing);
    REFUSES("slots", other.slots.count = 3);
    REFUSES("batch", other.batch = -1);
    assert_refused(*state, call, NULL, "recent");
    gumbel_error error;
    assert_int_equal(
        gumbel_make_lists(NULL, NULL, &call->rules, &call->recent, 1, NULL, &call->lists, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "device");
    assert_int_equal(
        gumbel_make_lists(*state, NULL, NULL, &call->recent, 1, NULL, &call->lists, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "rules");
    assert_int_equal(
        gumbel_make_lists(*state, NULL, &call->rules, &call->recent, 1, NULL, NULL, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "lists");
    assert_int_equal(
        gumbel_make_lists(*state, call, &call->rules, &call->recent, 1, NULL, &call->lists, &error),
        GUMBEL_ERROR_ARGUMENT);
    assert_string_equal(error.field, "stream");
    list_call_free(call);
}

/* Calls with what is not required left out. */
static void optional_arguments(void **state)
{
    list_call *call = make_whole_call(*state);
    gumbel_list_rules minimum = {.struct_size = sizeof minimum};
    minimum.min_position = call->rules.min_position;
    minimum.stop_tokens = call->rules.stop_tokens;
    assert_int_equal(
        gumbel_make_lists(*state, NULL, &minimum, NULL, call->batch, NULL, &call->lists, NULL),
        GUMBEL_OK);
    for (int64_t i = 0; i < call->batch * call->lists.capacity; i++)
        assert_int_equal(call->lists.late_ids[i], INT32_MAX);
    gumbel_row_lists late = list_call_outputs(call);
    gumbel_list_rules dry = {.struct_size = sizeof dry};
    dry.dry_multiplier = call->rules.dry_multiplier;
    late.banned = NULL;
    assert_int_equal(
        gumbel_make_lists(*state, NULL, &dry, &call->recent, call->batch, NULL, &late, NULL),
        GUMBEL_OK);
    assert_int_equal(gumbel_make_lists(*state, NULL, &dry, &call->recent, 0, NULL, &late, NULL),
                     GUMBEL_OK);
    list_call_free(call);
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
        cmocka_unit_test(rules_by_plain_definitions),
        cmocka_unit_test(published_cases_of_dry),
        cmocka_unit_test(long_repetitions),
        cmocka_unit_test(large_powers),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(optional_arguments),
        cmocka_unit_test(foreign_ids_in_rings),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
