/* SPDX-License-Identifier: Apache-2.0
 *
 * Arguments of gumbel_make_lists(): every invalid one returns an error that names it, and nothing
 * is written; those that are not required may be left out.
 */
#include "list_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include "fixtures.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(optional_arguments),
    };
    return cmocka_run_group_tests(tests, open_two_threads, close_device);
}
