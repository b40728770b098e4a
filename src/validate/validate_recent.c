/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_recent.h"

#include "core/fail.h"
#include "validate/validate_lists.h"
#include "validate/validate_rows.h"

#include <inttypes.h>
#include <stdio.h>

/* The slots of a call as a problem, for the checks of row parameters. */
static gumbel_problem problem_of_rows(int64_t batch, const gumbel_slots *slots)
{
    gumbel_problem p = {.batch = batch};
    p.sampling.slots = *slots;
    return p;
}

/* ---------------------------------------------------------------------------------- rings ---- */

gumbel_status gumbel_read_ring(gumbel_recent *r, const gumbel_recent *recent, int64_t rows,
                               gumbel_error *error)
{
    int64_t tokens;
    GUMBEL_FORWARD(gumbel_read_options(r, sizeof *r, recent, "recent", error));
    GUMBEL_REFUSE_IF(r->capacity < 1 || r->capacity > GUMBEL_RECENT_MAX, error, "recent.capacity",
                     "is %" PRId64 "; it must be in 1..2^30", r->capacity);
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(rows, r->capacity, &tokens) ||
                         tokens > INT64_MAX / (int64_t)sizeof *r->tokens,
                     error, "recent.capacity",
                     "[%" PRId64 ", %" PRId64 "] is larger than any memory", rows, r->capacity);
    GUMBEL_REFUSE_IF(!r->tokens, error, "recent.tokens", "is NULL");
    GUMBEL_REFUSE_IF(!r->count, error, "recent.count", "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(r->tokens, sizeof *r->tokens, "recent.tokens", error));
    GUMBEL_FORWARD(gumbel_check_aligned(r->count, sizeof *r->count, "recent.count", error));
    return gumbel_read_rows(r->window.data, sizeof *r->window.data, 1, rows, &r->window.stride,
                            "recent.window", error);
}

gumbel_status gumbel_read_recent(gumbel_recent_call *call, const gumbel_recent *recent,
                                 gumbel_error *error)
{
    const int64_t rows = gumbel_slot_count(&call->slots, call->batch);
    GUMBEL_REFUSE_IF(!recent, error, "recent", "is NULL");
    GUMBEL_FORWARD(gumbel_read_ring(&call->recent, recent, rows, error));
    GUMBEL_REFUSE_IF(call->recent.window.data && !call->recent.history, error, "recent.window",
                     "requires recent.history, which is NULL");
    if (call->recent.history)
        GUMBEL_FORWARD(gumbel_read_history(&call->history, call->recent.history, rows,
                                           "recent.history", error));
    call->recent.history = NULL;
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_recent(const gumbel_recent_call *call, gumbel_error *error)
{
    const gumbel_problem p = problem_of_rows(call->batch, &call->slots);
    const int64_t capacity = call->recent.capacity;
    const int32_t most = capacity < GUMBEL_COUNT_MAX ? (int32_t)capacity : GUMBEL_COUNT_MAX;
    return gumbel_check_row_integers(&p, &call->recent.window, "recent.window", 0, most, error);
}

/* ---------------------------------------------------------------------------------- rules ---- */

static gumbel_status check_sequences(const gumbel_sequences *s, const char *name,
                                     gumbel_error *error)
{
    GUMBEL_REFUSE_IF(s->count < 0 || s->count > GUMBEL_RECENT_MAX, error, name,
                     "count is %" PRId64 "; it must be in 0..2^30", s->count);
    GUMBEL_REFUSE_IF(!s->offsets && (s->ids || s->of_row || s->count), error, name,
                     "offsets is NULL, and other fields are not 0");
    GUMBEL_REFUSE_IF(s->reserved, error, name, "a reserved field is not 0");
    GUMBEL_REFUSE_IF((uintptr_t)s->offsets % sizeof *s->offsets != 0 ||
                         (uintptr_t)s->ids % sizeof *s->ids != 0 ||
                         (uintptr_t)s->of_row % sizeof *s->of_row != 0,
                     error, name, "a pointer is not aligned to its elements");
    return GUMBEL_OK;
}

/* Makes the strides of the rules' row parameters explicit. */
static gumbel_status read_rules(gumbel_list_rules *r, const gumbel_list_rules *rules, int64_t rows,
                                gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!rules, error, "rules", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(r, sizeof *r, rules, "rules", error));
#define READ(of)                                                                                   \
    GUMBEL_FORWARD(gumbel_read_rows(r->of.data, sizeof *r->of.data, 1, rows, &r->of.stride,        \
                                    "rules." #of, error))
    READ(dry_multiplier);
    READ(dry_base);
    READ(dry_allowed_length);
    READ(dry_last_n);
    READ(ngram_size);
    READ(ngram_window);
    READ(position);
    READ(min_position);
#undef READ
    GUMBEL_FORWARD(check_sequences(&r->dry_breakers, "rules.dry_breakers", error));
    GUMBEL_FORWARD(check_sequences(&r->bad_words, "rules.bad_words", error));
    GUMBEL_FORWARD(gumbel_check_lists(&r->ngram_keep, 0, "rules.ngram_keep", error));
    return gumbel_check_lists(&r->stop_tokens, 0, "rules.stop_tokens", error);
}

static gumbel_status read_lists(gumbel_row_lists *l, const gumbel_list_rules *rules,
                                const gumbel_row_lists *lists, int64_t batch, gumbel_error *error)
{
    const int bans = rules->ngram_size.data || rules->bad_words.offsets || rules->min_position.data;
    GUMBEL_REFUSE_IF(!lists, error, "lists", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(l, sizeof *l, lists, "lists", error));
    GUMBEL_REFUSE_IF(l->capacity < 1 || l->capacity > GUMBEL_LIST_MAX, error, "lists.capacity",
                     "is %" PRId64 "; it must be in 1..%d", l->capacity, GUMBEL_LIST_MAX);
    GUMBEL_FORWARD(gumbel_check_aligned(l->offsets, sizeof *l->offsets, "lists.offsets", error));
    GUMBEL_FORWARD(gumbel_check_aligned(l->banned, sizeof *l->banned, "lists.banned", error));
    GUMBEL_FORWARD(gumbel_check_aligned(l->late_ids, sizeof *l->late_ids, "lists.late_ids", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(l->late_values, sizeof *l->late_values, "lists.late_values", error));
    GUMBEL_FORWARD(gumbel_check_aligned(l->status, sizeof *l->status, "lists.status", error));
    if (batch == 0)
        return GUMBEL_OK;
    GUMBEL_REFUSE_IF(!l->offsets, error, "lists.offsets", "is NULL");
    GUMBEL_REFUSE_IF(!l->status, error, "lists.status", "is NULL");
    GUMBEL_REFUSE_IF(!l->banned && bans, error, "lists.banned",
                     "is NULL, but rules other than DRY are set");
    GUMBEL_REFUSE_IF(!l->late_ids && rules->dry_multiplier.data, error, "lists.late_ids",
                     "is NULL, but rules.dry_multiplier is set");
    GUMBEL_REFUSE_IF(!l->late_ids != !l->late_values, error, "lists.late_values",
                     "must be set if, and only if, lists.late_ids is");
    return GUMBEL_OK;
}

gumbel_status gumbel_read_lists_call(gumbel_lists_call *call, const gumbel_list_rules *rules,
                                     const gumbel_recent *recent, const gumbel_row_lists *lists,
                                     gumbel_error *error)
{
    const int64_t rows = gumbel_slot_count(&call->slots, call->batch);
    gumbel_list_rules *r = &call->rules;
    GUMBEL_FORWARD(read_rules(r, rules, rows, error));
    if (recent)
        GUMBEL_FORWARD(gumbel_read_ring(&call->recent, recent, rows, error));
    GUMBEL_REFUSE_IF(!recent &&
                         (r->dry_multiplier.data || r->ngram_size.data || r->bad_words.offsets),
                     error, "recent", "is NULL, but rules other than min_position are set");
    return read_lists(&call->lists, r, lists, call->batch, error);
}

/* ------------------------------------------------------------------- values in host memory ---- */

static gumbel_status check_host_sequences(const gumbel_sequences *s, int64_t batch, int sorted,
                                          const char *name, gumbel_error *error)
{
    if (!s->offsets)
        return GUMBEL_OK;
    for (int64_t k = 0; k < s->count; k++)
        GUMBEL_REFUSE_IF(s->offsets[k] < 0 || s->offsets[k + 1] <= s->offsets[k], error, name,
                         "offsets[%" PRId64 "] is %" PRId64
                         "; offsets must start at 0 or above, and must increase",
                         k + 1, s->offsets[k + 1]);
    GUMBEL_REFUSE_IF(s->count > 0 && !s->ids, error, name, "ids is NULL");
    for (int64_t i = s->offsets[0]; s->count > 0 && i < s->offsets[s->count]; i++)
        GUMBEL_REFUSE_IF(s->ids[i] < 0, error, name,
                         "ids[%" PRId64 "] is %d; it must be in [0, 2^31)", i, (int)s->ids[i]);
    for (int64_t b = 0; b <= batch && s->of_row; b++)
        GUMBEL_REFUSE_IF(
            s->of_row[b] < (b > 0 ? s->of_row[b - 1] : 0) || s->of_row[b] > s->count, error, name,
            "of_row[%" PRId64 "] is %" PRId64 "; it must not decrease, and must be in 0..%" PRId64,
            b, s->of_row[b], s->count);
    for (int64_t b = 0; b < (s->of_row ? batch : 1) && sorted; b++)
        for (int64_t k = s->of_row ? s->of_row[b] : 0;
             k + 1 < (s->of_row ? s->of_row[b + 1] : s->count); k++)
            GUMBEL_REFUSE_IF(s->ids[s->offsets[k + 1]] < s->ids[s->offsets[k]], error, name,
                             "sequence %" PRId64 " begins with %d, and the next with %d; the "
                             "sequences must be sorted by the first id",
                             k, (int)s->ids[s->offsets[k]], (int)s->ids[s->offsets[k + 1]]);
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_rules(const gumbel_lists_call *call, gumbel_error *error)
{
    const gumbel_problem p = problem_of_rows(call->batch, &call->slots);
    const gumbel_list_rules *r = &call->rules;
    const struct {
        const gumbel_row_i32 *rows;
        const char *field;
        int32_t low;
    } integers[] = {{&r->dry_allowed_length, "rules.dry_allowed_length", 0},
                    {&r->dry_last_n, "rules.dry_last_n", -1},
                    {&r->ngram_size, "rules.ngram_size", 0},
                    {&r->ngram_window, "rules.ngram_window", -1}};
    static const gumbel_range multiplier = {"rules.dry_multiplier", 0.0f, 0x1.fffffep127f,
                                            "finite and >= 0"},
                              base = {"rules.dry_base", 0.0f, 0x1.fffffep127f, "finite and >= 0"};
    GUMBEL_FORWARD(gumbel_check_row_range(&p, &r->dry_multiplier, &multiplier, error));
    GUMBEL_FORWARD(gumbel_check_row_range(&p, &r->dry_base, &base, error));
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        GUMBEL_FORWARD(gumbel_check_row_integers(&p, integers[i].rows, integers[i].field,
                                                 integers[i].low, INT32_MAX, error));
    GUMBEL_FORWARD(check_host_sequences(&r->dry_breakers, p.batch, 1, "rules.dry_breakers", error));
    GUMBEL_FORWARD(check_host_sequences(&r->bad_words, p.batch, 0, "rules.bad_words", error));
    GUMBEL_FORWARD(gumbel_check_host_lists(&r->ngram_keep, p.batch, "rules.ngram_keep", error));
    return gumbel_check_host_lists(&r->stop_tokens, p.batch, "rules.stop_tokens", error);
}
