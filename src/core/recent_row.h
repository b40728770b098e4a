/* SPDX-License-Identifier: Apache-2.0
 *
 * Rings of recent tokens, and the rules of the lists that follow from them, for one row: shared by
 * all backends. The host does not check parameters in GPU memory, so an invalid rule counts as off.
 */
#ifndef GUMBEL_CORE_RECENT_ROW_H
#define GUMBEL_CORE_RECENT_ROW_H

#include "core/row.h"
#include "gumbel/recent.h"

/* Arguments of the calls that fill rings. */
typedef struct gumbel_recent_call {
    gumbel_recent recent;   /* history is NULL; the stride of `window` is explicit */
    gumbel_history history; /* prompt is NULL if there is none */
    int64_t batch;
    gumbel_slots slots;
    gumbel_token_lists prompts, outputs; /* of a start */
    const int32_t *tokens;               /* of an append: [B] rows at token_stride */
    int64_t token_stride;
    const int32_t *counts; /* [B], or NULL: 1 a row */
} gumbel_recent_call;

/* Arguments of a call that makes lists. Strides of row parameters are explicit. */
typedef struct gumbel_lists_call {
    gumbel_list_rules rules;
    gumbel_recent recent; /* capacity is 0 if there is none */
    int64_t batch;
    gumbel_slots slots;
    gumbel_row_lists lists;
} gumbel_lists_call;

/* An unused place of a list, which is no token of any vocabulary that a list serves. */
#define GUMBEL_LIST_UNUSED INT32_MAX

/* The slot of row b; -1 if it is out of range. */
GUMBEL_INLINE int64_t gumbel_slot_of_row(const gumbel_slots *slots, int64_t b)
{
    if (!slots->of_row)
        return b;
    int64_t slot = slots->of_row[b];
    return slot >= 0 && slot < slots->count ? slot : -1;
}

/* ---------------------------------------------------------------------------------- rings ---- */

/* The tokens that a history counts of a slot's ring. */
GUMBEL_INLINE int64_t gumbel_window_of_slot(const gumbel_recent *r, int64_t slot)
{
    int64_t most = r->capacity < GUMBEL_COUNT_MAX ? r->capacity : GUMBEL_COUNT_MAX;
    int64_t window = r->window.data ? r->window.data[slot * r->window.stride] : 64;
    return window < 0 ? 0 : window < most ? window : most;
}

/* Adds `change`, 1 or -1, to a token's count in the output, by the only thread that writes the
 * slot's row. */
GUMBEL_INLINE void gumbel_history_change(const gumbel_history *h, int64_t slot, int64_t token,
                                         int change)
{
    if (token < 0 || token >= h->vocab_size)
        return;
    uint32_t seen = gumbel_history_count(h, slot, token), count = seen;
    uint32_t *word = &h->output[slot * gumbel_mask_words_of(h->vocab_size) + (token >> 5)];
    int64_t at = slot * h->vocab_size + token;
    if (change > 0 && seen < GUMBEL_COUNT_MAX)
        count = seen + 1;
    if (change < 0 && seen > 0)
        count = seen - 1;
    *word = count > 0 ? *word | 1u << (token & 31) : *word & ~(1u << (token & 31));
    if (h->count_bits == 16)
        ((uint16_t *)h->counts)[at] = (uint16_t)count;
    else
        ((int32_t *)h->counts)[at] = (int32_t)count;
}

/* Appends a token to a slot's ring, and moves the window of its history. */
GUMBEL_INLINE void gumbel_recent_push(const gumbel_recent_call *c, int64_t slot, int32_t token)
{
    const gumbel_recent *r = &c->recent;
    int32_t *ring = r->tokens + slot * r->capacity;
    const uint64_t count = r->count[slot], capacity = (uint64_t)r->capacity;
    if (token < 0)
        return;
    if (c->history.prompt) {
        const uint64_t window = (uint64_t)gumbel_window_of_slot(r, slot);
        if (window > 0 && count >= window)
            gumbel_history_change(&c->history, slot, ring[(count - window) % capacity], -1);
        if (window > 0)
            gumbel_history_change(&c->history, slot, token, 1);
    }
    ring[count % capacity] = token;
    r->count[slot] = count + 1;
}

/* The tokens that a slot's ring has. */
typedef struct gumbel_recent_view {
    const int32_t *ring;
    int32_t capacity, last; /* index of the last token; below GUMBEL_RECENT_MAX */
    int64_t count;
} gumbel_recent_view;

GUMBEL_INLINE gumbel_recent_view gumbel_recent_of_slot(const gumbel_recent *r, int64_t slot)
{
    gumbel_recent_view view = {NULL, 1, 0, 0};
    uint64_t count = r->capacity > 0 ? r->count[slot] : 0;
    if (count == 0)
        return view;
    view.ring = r->tokens + slot * r->capacity;
    view.capacity = (int32_t)r->capacity;
    view.last = (int32_t)((count - 1) % (uint64_t)r->capacity);
    view.count = count < (uint64_t)r->capacity ? (int64_t)count : r->capacity;
    return view;
}

/* The token with i tokens after it. */
GUMBEL_INLINE int32_t gumbel_recent_token(const gumbel_recent_view *v, int64_t i)
{
    int32_t at = v->last - (int32_t)i;
    return v->ring[at < 0 ? at + v->capacity : at];
}

/* Whether a list may hold the token. */
GUMBEL_INLINE int gumbel_token_is_listable(int32_t token)
{
    return token >= 0 && token != GUMBEL_LIST_UNUSED;
}

/* How many of the last tokens equal those that end i tokens earlier, at most `most`; the first
 * `from` are known to be equal. i + most <= count. */
GUMBEL_INLINE int64_t gumbel_recent_match(const gumbel_recent_view *v, int64_t i, int64_t from,
                                          int64_t most)
{
    const int32_t end = (int32_t)most, back = (int32_t)i;
    int32_t k = (int32_t)from;
    /* Four at a time, as loads of a GPU then wait together. */
    for (; k + 4 <= end; k += 4) {
        int32_t differ = 0;
        for (int j = 0; j < 4; j++)
            differ |= gumbel_recent_token(v, k + j) ^ gumbel_recent_token(v, back + k + j);
        if (differ)
            break;
    }
    while (k < end && gumbel_recent_token(v, k) == gumbel_recent_token(v, back + k))
        k++;
    return k;
}

/* The length of a window of the ring: -1 is all of it. */
GUMBEL_INLINE int64_t gumbel_recent_window(const gumbel_recent_view *v, int64_t window)
{
    return window == -1 ? v->count : window < 0 ? 0 : window < v->count ? window : v->count;
}

/* ------------------------------------------------------------------------------ sequences ---- */

/* The sequences of row b: [*begin, *end). */
GUMBEL_INLINE void gumbel_sequences_of_row(const gumbel_sequences *s, int64_t b, int64_t *begin,
                                           int64_t *end)
{
    *begin = *end = 0;
    if (!s->offsets)
        return;
    *begin = s->of_row ? s->of_row[b] : 0;
    *end = s->of_row ? s->of_row[b + 1] : s->count;
}

/* Whether the first `length` ids are the tokens that have `after` or more tokens after them; the
 * last of them has exactly `after`. */
GUMBEL_INLINE int gumbel_recent_has(const gumbel_recent_view *v, const int32_t *ids, int64_t length,
                                    int64_t after)
{
    if (length + after > v->count)
        return 0;
    for (int64_t k = 0; k < length; k++)
        if (ids[length - 1 - k] != gumbel_recent_token(v, after + k))
            return 0;
    return 1;
}

/* The first of the sorted sequences [begin, end) whose first id is not below `token`. */
GUMBEL_INLINE int64_t gumbel_find_sequence(const gumbel_sequences *s, int64_t begin, int64_t end,
                                           int32_t token)
{
    while (begin < end) {
        int64_t middle = begin + (end - begin) / 2;
        if (s->ids[s->offsets[middle]] < token)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* The length of the longest of the sorted sequences [begin, end) that begins at the token with i
 * tokens after it; 0 if there is none. */
GUMBEL_INLINE int64_t gumbel_find_breaker(const gumbel_sequences *s, int64_t begin, int64_t end,
                                          const gumbel_recent_view *v, int64_t i)
{
    const int32_t token = gumbel_recent_token(v, i);
    int64_t longest = 0;
    for (int64_t k = gumbel_find_sequence(s, begin, end, token);
         k < end && s->ids[s->offsets[k]] == token; k++) {
        int64_t length = s->offsets[k + 1] - s->offsets[k];
        if (length > longest && length <= i + 1 &&
            gumbel_recent_has(v, s->ids + s->offsets[k], length, i + 1 - length))
            longest = length;
    }
    return longest;
}

/* Whether a token alone is one of the sorted sequences [begin, end). */
GUMBEL_INLINE int gumbel_is_breaker(const gumbel_sequences *s, int64_t begin, int64_t end,
                                    int32_t token)
{
    for (int64_t k = gumbel_find_sequence(s, begin, end, token);
         k < end && s->ids[s->offsets[k]] == token; k++)
        if (s->offsets[k + 1] - s->offsets[k] == 1)
            return 1;
    return 0;
}

/* Whether the last id of sequence k, *token, would complete it. */
GUMBEL_INLINE int gumbel_is_bad_word(const gumbel_sequences *s, int64_t k,
                                     const gumbel_recent_view *v, int32_t *token)
{
    const int32_t *ids = s->ids + s->offsets[k];
    const int64_t length = s->offsets[k + 1] - s->offsets[k];
    if (length < 1)
        return 0;
    *token = ids[length - 1];
    return gumbel_token_is_listable(*token) && gumbel_recent_has(v, ids, length - 1, 0);
}

/* ---------------------------------------------------------------------------------- rules ---- */

/* The DRY rule of a row. */
typedef struct gumbel_dry {
    float multiplier, base;
    int64_t window;     /* 0: off */
    int64_t allowed;    /* shortest match that counts */
    int64_t longest;    /* longest match that makes a difference */
    int64_t begin, end; /* of the row's breakers */
} gumbel_dry;

GUMBEL_INLINE gumbel_dry gumbel_dry_of_row(const gumbel_lists_call *c, int64_t b, int64_t slot,
                                           const gumbel_recent_view *v)
{
    const gumbel_list_rules *r = &c->rules;
    gumbel_dry d = {0.0f, 1.75f, 0, 2, 0, 0, 0};
    if (!r->dry_multiplier.data)
        return d;
    d.multiplier = r->dry_multiplier.data[slot * r->dry_multiplier.stride];
    if (r->dry_base.data)
        d.base = r->dry_base.data[slot * r->dry_base.stride];
    if (r->dry_allowed_length.data)
        d.allowed = r->dry_allowed_length.data[slot * r->dry_allowed_length.stride];
    int64_t window = r->dry_last_n.data ? r->dry_last_n.data[slot * r->dry_last_n.stride] : -1;
    window = gumbel_recent_window(v, window);
    if (!(d.multiplier > 0.0f && d.multiplier < INFINITY) ||
        !(d.base >= 1.0f && d.base < INFINITY) || d.allowed < 0 || window <= d.allowed)
        return d;
    d.window = window;
    /* The power's exponent is limited, so that the power is a float32. */
    d.longest = d.base > 1.000001f ? d.allowed + (int64_t)(88.7228f / gumbel_log(d.base)) : window;
    gumbel_sequences_of_row(&r->dry_breakers, b, &d.begin, &d.end);
    return d;
}

/* The late bias of a token with a match of `length` >= allowed tokens. */
GUMBEL_INLINE float gumbel_dry_value(const gumbel_dry *d, int64_t length)
{
    int64_t exponent = (length < d->longest ? length : d->longest) - d->allowed;
    float power = 1.0f, square = d->base;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2)
            power = power * square;
        square = square * square;
    }
    return -fminf(d->multiplier * power, 0x1.fffffep127f);
}

/* The n-gram rule of a row: the largest number of tokens after the end of an (n - 1)-gram, with the
 * whole n-gram in the window; 0 if the rule is off. *size is n. */
GUMBEL_INLINE int64_t gumbel_ngrams_of_row(const gumbel_lists_call *c, int64_t slot,
                                           const gumbel_recent_view *v, int64_t *size)
{
    const gumbel_list_rules *r = &c->rules;
    *size = r->ngram_size.data ? r->ngram_size.data[slot * r->ngram_size.stride] : 0;
    int64_t window =
        r->ngram_window.data ? r->ngram_window.data[slot * r->ngram_window.stride] : -1;
    int64_t places = gumbel_recent_window(v, window) - *size + 1;
    return *size > 0 && places > 0 ? places : 0;
}

/* Whether row b's list of kept tokens has the token. */
GUMBEL_INLINE int gumbel_ngram_is_kept(const gumbel_token_lists *keep, int64_t b, int32_t token)
{
    for (int64_t k = keep->offsets ? keep->offsets[b] : 0;
         keep->offsets && k < keep->offsets[b + 1]; k++)
        if (keep->ids[k] == token)
            return 1;
    return 0;
}

/* Whether the token that has i - 1 tokens after it ends a repeated n-gram and is to be banned. */
GUMBEL_INLINE int gumbel_ngram_bans(const gumbel_lists_call *c, const gumbel_recent_view *v,
                                    int64_t b, int64_t size, int64_t i, int32_t *token)
{
    *token = gumbel_recent_token(v, i - 1);
    return gumbel_token_is_listable(*token) && gumbel_recent_match(v, i, 0, size - 1) == size - 1 &&
           !gumbel_ngram_is_kept(&c->rules.ngram_keep, b, *token);
}

/* Whether row b's stop tokens are banned. */
GUMBEL_INLINE int gumbel_stops_are_banned(const gumbel_list_rules *r, int64_t slot)
{
    uint64_t position = r->position.data ? r->position.data[slot * r->position.stride] : 0;
    return r->min_position.data && position < r->min_position.data[slot * r->min_position.stride];
}

#endif
