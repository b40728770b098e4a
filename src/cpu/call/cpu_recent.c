/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings of recent tokens, and the lists that follow from them.
 */
#include "cpu/call/cpu_calls.h"

#include "core/fail.h"
#include "cpu/call/cpu_edits.h"
#include "cpu/cpu_policy.h"

/* ---------------------------------------------------------------------------------- rings ---- */

static void push_list(const gumbel_recent_call *call, int64_t slot, cpu_list list)
{
    for (int64_t i = 0; i < list.count; i++)
        gumbel_recent_push(call, slot, list.ids[i]);
}

gumbel_status cpu_start_recent(gumbel_device *device, void *stream, const gumbel_recent_call *call,
                               gumbel_error *error)
{
    static const gumbel_token_lists none = {0};
    if (call->history.prompt)
        GUMBEL_FORWARD(cpu_start_history(device, stream, &call->history, call->batch, &call->slots,
                                         &none, &none, error));
    for (int64_t b = 0; b < call->batch; b++) {
        const int64_t slot = gumbel_slot_of_row(&call->slots, b);
        GUMBEL_ASSERT(slot >= 0);
        call->recent.count[slot] = 0;
        push_list(call, slot, cpu_get_list(&call->prompts, b));
        push_list(call, slot, cpu_get_list(&call->outputs, b));
    }
    return GUMBEL_OK;
}

gumbel_status cpu_append_recent(gumbel_device *device, void *stream, const gumbel_recent_call *call,
                                gumbel_error *error)
{
    (void)device;
    (void)stream;
    (void)error;
    for (int64_t b = 0; b < call->batch; b++)
        for (int32_t i = 0; i < (call->counts ? call->counts[b] : 1); i++) {
            const int64_t slot = gumbel_slot_of_row(&call->slots, b);
            GUMBEL_ASSERT(slot >= 0 && i < call->token_stride);
            gumbel_recent_push(call, slot, call->tokens[b * call->token_stride + i]);
        }
    return GUMBEL_OK;
}

/* ---------------------------------------------------------------------------------- lists ---- */

/* A list of distinct ids in ascending order. */
typedef struct id_list {
    int32_t *ids;
    float *values; /* the bits of match lengths until the list is complete; or NULL */
    int64_t count;
    int64_t capacity;
    int overflows;
} id_list;

/* Adds an id, or raises the length of one that the list has. */
static void add_id(id_list *list, int32_t id, uint32_t length)
{
    int64_t at = 0;
    for (int64_t end = list->count; at < end;) {
        int64_t middle = at + (end - at) / 2;
        if (list->ids[middle] < id)
            at = middle + 1;
        else
            end = middle;
    }
    const size_t after = (size_t)(list->count - at) * sizeof *list->ids;
    if (at < list->count && list->ids[at] == id) {
        if (list->values && gumbel_bits_of(list->values[at]) < length)
            list->values[at] = gumbel_float_of(length);
        return;
    }
    if (list->count == list->capacity) {
        list->overflows = 1;
        return;
    }
    memmove(list->ids + at + 1, list->ids + at, after);
    list->ids[at] = id;
    list->count++;
    if (list->values) {
        memmove(list->values + at + 1, list->values + at, after);
        list->values[at] = gumbel_float_of(length);
    }
}

static void fill_unused_places(id_list *list)
{
    for (int64_t i = list->count; i < list->capacity; i++) {
        if (list->ids)
            list->ids[i] = GUMBEL_LIST_UNUSED;
        if (list->values)
            list->values[i] = 0.0f;
    }
}

/* How many tokens follow the last breaker; the window if it has none. */
static int64_t count_after_breaker(const gumbel_lists_call *c, const gumbel_recent_view *v,
                                   const gumbel_dry *d)
{
    for (int64_t i = 0; i < d->window && d->begin < d->end; i++) {
        int64_t length = gumbel_find_breaker(&c->rules.dry_breakers, d->begin, d->end, v, i);
        if (length > 0)
            return i + 1 - length;
    }
    return d->window;
}

/* Lists the tokens that would continue a repetition. The lengths of matches follow by the
 * Z-algorithm from the last token backwards: a match of the last tokens is also one of its own
 * later parts, which are known, so that each token is compared about twice. */
static void list_dry_tokens(const gumbel_lists_call *c, const gumbel_recent_view *v,
                            const gumbel_dry *d, id_list *into)
{
    uint32_t lengths[CPU_DRY_LENGTHS];
    const gumbel_sequences *breakers = &c->rules.dry_breakers;
    int64_t begin = 0, end = 0; /* tokens i in [begin, end) equal tokens i - begin */
    int64_t most = count_after_breaker(c, v, d);
    if (most < d->allowed)
        return;
    most = most < d->longest ? most : d->longest;
    for (int64_t i = 1; i < d->window && !into->overflows; i++) {
        const int64_t room = most < d->window - i ? most : d->window - i;
        int64_t length = 0;
        int exact = 0;
        if (i < end && i - begin < CPU_DRY_LENGTHS) {
            const int64_t known = lengths[i - begin];
            exact = known < end - i;
            length = exact ? known : end - i;
        }
        if (!exact)
            length = gumbel_recent_match(v, i, length, room);
        GUMBEL_ASSERT(length <= room);
        if (i < CPU_DRY_LENGTHS)
            lengths[i] = (uint32_t)length;
        if (i + length > end) {
            begin = i;
            end = i + length;
        }
        const int32_t token = gumbel_recent_token(v, i - 1);
        if (length >= d->allowed && gumbel_token_is_listable(token) &&
            !gumbel_is_breaker(breakers, d->begin, d->end, token))
            add_id(into, token, (uint32_t)length);
    }
}

static void list_banned_tokens(const gumbel_lists_call *c, const gumbel_recent_view *v, int64_t b,
                               int64_t slot, id_list *into)
{
    const gumbel_list_rules *r = &c->rules;
    int64_t size, begin, end;
    const int64_t places = gumbel_ngrams_of_row(c, slot, v, &size);
    int32_t token;
    for (int64_t i = 1; i <= places && !into->overflows; i++)
        if (gumbel_ngram_bans(c, v, b, size, i, &token))
            add_id(into, token, 0);
    gumbel_sequences_of_row(&r->bad_words, b, &begin, &end);
    for (int64_t k = begin; k < end && !into->overflows; k++)
        if (gumbel_is_bad_word(&r->bad_words, k, v, &token))
            add_id(into, token, 0);
    if (!gumbel_stops_are_banned(r, slot))
        return;
    cpu_list stops = cpu_get_list(&r->stop_tokens, b);
    for (int64_t i = 0; i < stops.count && !into->overflows; i++)
        if (gumbel_token_is_listable(stops.ids[i]))
            add_id(into, stops.ids[i], 0);
}

static void make_row_lists(const gumbel_lists_call *c, int64_t b)
{
    const gumbel_row_lists *out = &c->lists;
    const int64_t slot = gumbel_slot_of_row(&c->slots, b), place = b * out->capacity;
    const gumbel_recent_view view = gumbel_recent_of_slot(&c->recent, slot);
    const gumbel_dry dry = gumbel_dry_of_row(c, b, slot, &view);
    id_list banned = {.capacity = out->capacity}, late = banned;
    banned.ids = out->banned ? out->banned + place : NULL;
    late.ids = out->late_ids ? out->late_ids + place : NULL;
    late.values = out->late_values ? out->late_values + place : NULL;
    GUMBEL_ASSERT(slot >= 0);
    if (banned.ids)
        list_banned_tokens(c, &view, b, slot, &banned);
    if (late.ids && dry.window > 0)
        list_dry_tokens(c, &view, &dry, &late);
    const int overflows = banned.overflows || late.overflows;
    if (overflows)
        banned.count = late.count = 0;
    for (int64_t i = 0; i < late.count; i++)
        late.values[i] = gumbel_dry_value(&dry, gumbel_bits_of(late.values[i]));
    fill_unused_places(&banned);
    fill_unused_places(&late);
    out->status[b] = overflows ? GUMBEL_ROW_LISTS : GUMBEL_ROW_OK;
    out->offsets[b] = place;
}

typedef struct lists_job {
    const gumbel_lists_call *call;
    _Atomic int64_t next; /* row to claim */
} lists_job;

static void make_claimed_rows(void *argument, int32_t thread)
{
    lists_job *job = argument;
    (void)thread;
    for (int64_t b; cpu_claim_item(&job->next, job->call->batch, &b);)
        make_row_lists(job->call, b);
}

gumbel_status cpu_make_lists(gumbel_device *device, void *stream, const gumbel_lists_call *call,
                             gumbel_error *error)
{
    lists_job job = {.call = call};
    (void)stream;
    (void)error;
    cpu_run_task((cpu_device *)device, call->batch >= CPU_PARALLEL_LISTS, make_claimed_rows, &job);
    call->lists.offsets[call->batch] = call->batch * call->lists.capacity;
    return GUMBEL_OK;
}
