/* SPDX-License-Identifier: Apache-2.0
 *
 * The watermark of one row, shared by all backends and the detector: its text and context, and the
 * seed and position that a key and a context give (docs/maths.md, section 17).
 */
#ifndef GUMBEL_CORE_WATERMARK_ROW_H
#define GUMBEL_CORE_WATERMARK_ROW_H

#include "core/recent_row.h"
#include "gumbel/watermark.h"
#include "maths/siphash.h"

/* The low byte of a message's first word: its purpose. The next byte is h. */
typedef enum gumbel_keyed_purpose {
    GUMBEL_KEYED_SEED = 1,     /* no more words */
    GUMBEL_KEYED_CONTEXT = 2,  /* the tokens of the context, two a word */
    GUMBEL_KEYED_FALLBACK = 3, /* the request's own seed and position */
} gumbel_keyed_purpose;

GUMBEL_INLINE gumbel_siphash gumbel_keyed_begin(const uint64_t key[2], int32_t length,
                                                gumbel_keyed_purpose purpose)
{
    gumbel_siphash s = gumbel_siphash_begin(key);
    gumbel_siphash_absorb(&s, (uint64_t)purpose | (uint64_t)length << 8);
    return s;
}

/* The seed of all draws of a row with this key. */
GUMBEL_INLINE uint64_t gumbel_keyed_seed(const uint64_t key[2], int32_t length)
{
    gumbel_siphash s = gumbel_keyed_begin(key, length, GUMBEL_KEYED_SEED);
    return gumbel_siphash_end(&s);
}

/* The position of the draw after a context of `length` tokens, the newest first. */
GUMBEL_INLINE uint64_t gumbel_keyed_position(const uint64_t key[2], int32_t length,
                                             const int32_t *context)
{
    gumbel_siphash s = gumbel_keyed_begin(key, length, GUMBEL_KEYED_CONTEXT);
    for (int32_t i = 0; i < length; i += 2) {
        const uint64_t low = (uint32_t)context[i];
        const uint64_t high = i + 1 < length ? (uint32_t)context[i + 1] : 0;
        gumbel_siphash_absorb(&s, low | high << 32);
    }
    return gumbel_siphash_end(&s);
}

/* The position of a draw that is not watermarked. */
GUMBEL_INLINE uint64_t gumbel_fallback_position(const uint64_t key[2], int32_t length,
                                                uint64_t seed, uint64_t position)
{
    gumbel_siphash s = gumbel_keyed_begin(key, length, GUMBEL_KEYED_FALLBACK);
    gumbel_siphash_absorb(&s, seed);
    gumbel_siphash_absorb(&s, position);
    return gumbel_siphash_end(&s);
}

/* ----------------------------------------------------------------------------- parameters ---- */

/* The parameters of a slot. */
typedef struct gumbel_row_key {
    uint64_t key[2];
    int32_t length; /* h; 0: no watermark */
    uint64_t text_start, seed, position;
} gumbel_row_key;

/* Strides are explicit, 0 if one value serves all rows. */
GUMBEL_INLINE gumbel_row_key gumbel_key_of_slot(const gumbel_watermark *w, int64_t slot)
{
    gumbel_row_key k;
    const uint64_t *key = w->key + slot * w->key_stride;
    int32_t length = GUMBEL_CONTEXT_DEFAULT;
    if (w->context.data)
        length = w->context.data[slot * w->context.stride];
    k.key[0] = key[0];
    k.key[1] = key[1];
    k.length = length >= 0 && length <= GUMBEL_CONTEXT_MAX ? length : 0;
    k.text_start = w->text_start.data ? w->text_start.data[slot * w->text_start.stride] : 0;
    k.seed = w->seed.data ? w->seed.data[slot * w->seed.stride] : 0;
    if (w->seed.stride == 0)
        k.seed = gumbel_mix_seed(k.seed, (uint64_t)slot);
    k.position = w->position.data ? w->position.data[slot * w->position.stride] : 0;
    return k;
}

/* ----------------------------------------------------------------------------------- text ---- */

/* The text of a row: the ring's tokens, then drafts. */
typedef struct gumbel_row_text {
    gumbel_recent_view ring;
    const int32_t *last_draft; /* the draft i tokens before the end is last_draft[i * step] */
    int32_t step;
    int32_t drafts;
    int64_t count; /* tokens of the text, those that the ring has forgotten excluded */
} gumbel_row_text;

/* The text of a slot after `text_start` tokens of its ring. */
GUMBEL_INLINE gumbel_row_text gumbel_text_of_slot(const gumbel_recent *r, int64_t slot,
                                                  uint64_t text_start, const int32_t *last_draft,
                                                  int32_t step, int32_t drafts)
{
    gumbel_row_text t = {gumbel_recent_of_slot(r, slot), last_draft, step, drafts, 0};
    const uint64_t total = r->count[slot] + (uint64_t)drafts;
    const uint64_t known = (uint64_t)t.ring.count + (uint64_t)drafts;
    const uint64_t count = total > text_start ? total - text_start : 0;
    t.count = (int64_t)(count < known ? count : known);
    return t;
}

/* The token with i tokens after it. */
GUMBEL_INLINE int32_t gumbel_text_token(const gumbel_row_text *t, int64_t i)
{
    return i < t->drafts ? t->last_draft[i * t->step]
                         : gumbel_recent_token(&t->ring, i - t->drafts);
}

/* Whether the text has `length` >= 1 tokens and i more, and the context, the newest token first,
 * also ends i tokens before the end. */
GUMBEL_INLINE int gumbel_text_has_context(const gumbel_row_text *t, const int32_t *context,
                                          int32_t length, int64_t i)
{
    if (i + length > t->count)
        return 0;
    for (int32_t k = 0; k < length; k++)
        if (gumbel_text_token(t, i + k) != context[k])
            return 0;
    return 1;
}

#endif
