/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rungs/rung.h"

#include "core/fail.h"
#include "core/row.h"
#include <stdarg.h>
#include <stdio.h>

/* Capabilities that top_p requires beside other rules. The host cannot know which rows turn off
 * top_k. */
static uint64_t capabilities_of_order(const gumbel_truncation *t)
{
    if (!t->top_p.data)
        return 0;
    if (t->top_k.data && !gumbel_order_is_in(t->order, GUMBEL_ORDERS_TOP_K_BEFORE_TOP_P))
        return GUMBEL_CAPABILITY_JOINT;
    if (t->min_p.data && !gumbel_order_is_in(t->order, GUMBEL_ORDERS_MIN_P_BEFORE_TOP_P))
        return t->top_k.data ? GUMBEL_CAPABILITY_MIN_P_LAST : GUMBEL_CAPABILITY_JOINT;
    return 0;
}

static uint64_t capabilities_of_truncation(const gumbel_problem *p)
{
    const gumbel_truncation *t = &p->truncation;
    uint64_t required = 0;
    if (!(p->features & GUMBEL_FEATURE_TRUNCATION))
        return 0;
    required |= t->min_p.data ? GUMBEL_CAPABILITY_MIN_P : 0;
    required |= t->top_k.data ? GUMBEL_CAPABILITY_TOP_K : 0;
    required |= t->top_p.data ? GUMBEL_CAPABILITY_TOP_P : 0;
    required |= t->ties == GUMBEL_TIES_EXACT ? GUMBEL_CAPABILITY_EXACT : 0;
    return required | capabilities_of_order(t);
}

/* Whether lists of tokens edit logits; without a history, penalties count lists. */
static int has_lists(const gumbel_problem *p)
{
    return (p->features &
            (GUMBEL_FEATURE_BANNED | GUMBEL_FEATURE_BIAS | GUMBEL_FEATURE_LATE_BIAS)) ||
           ((p->features & GUMBEL_FEATURE_PENALTIES) && (!p->history.prompt || p->with_path));
}

uint64_t gumbel_required_capabilities(const gumbel_problem *p)
{
    const gumbel_sampling *s = &p->sampling;
    uint64_t required = p->features | capabilities_of_truncation(p);
    GUMBEL_ASSERT(p->features < GUMBEL_FEATURE_END);
    required |= has_lists(p) ? GUMBEL_CAPABILITY_LISTS : 0;
    required |= p->with_mass ? GUMBEL_CAPABILITY_MASS : 0;
    required |= s->num_samples > 1 ? GUMBEL_CAPABILITY_SAMPLES : 0;
    required |= s->noise ? GUMBEL_CAPABILITY_NOISE : 0;
    required |= p->soft_cap != 0.0f ? GUMBEL_CAPABILITY_SOFT_CAP : 0;
    required |= !(p->scale > 0.0f) ? GUMBEL_CAPABILITY_SCALE : 0;
    required |= p->bias.data ? GUMBEL_CAPABILITY_BIAS : 0;
    required |= p->end_token <= p->first_token ? GUMBEL_CAPABILITY_EMPTY : 0;
    return required;
}

void gumbel_text_add(gumbel_text *text, const char *format, ...)
{
    size_t room = text->length < text->size ? text->size - text->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(room ? text->at + text->length : NULL, room, format, arguments);
    va_end(arguments);
    text->length += length > 0 ? (size_t)length : 0;
}

void gumbel_text_add_capabilities(gumbel_text *text, uint64_t capabilities)
{
    static const char *const names[] = {
        "mask",         "banned",         "bias",          "penalties",  "truncation",
        "ranks",        "kept",           "num_top",       "raw",        "top_logits",
        "given tokens", "allowed",        "num_best",      "programs",   "late bias",
        "kept_ids",     "entropy",        "lists",         "min_p",      "top_k",
        "top_p",        "joint",          "min_p last",    "exact",      "log-normaliser",
        "samples",      "given noise",    "soft-cap",      "scale <= 0", "head bias",
        "summaries",    "processed rows", "product alone", "no token",
    };
    _Static_assert(UINT64_C(1) << (sizeof names / sizeof *names) == GUMBEL_CAPABILITY_END,
                   "a name for each");
    const char *comma = "";
    for (int i = 0; capabilities >> i; i++)
        if (capabilities >> i & 1) {
            gumbel_text_add(text, "%s%s", comma, names[i]);
            comma = ", ";
        }
}

void gumbel_text_add_refusal(gumbel_text *text, const gumbel_rung *rung, uint64_t required,
                             const char *refusal)
{
    gumbel_text_add(text, "  not %s: ", rung->name);
    if (required & ~rung->supports) {
        gumbel_text_add(text, "does not support ");
        gumbel_text_add_capabilities(text, required & ~rung->supports);
    } else if (rung->requires_any && !(required & rung->requires_any)) {
        gumbel_text_add(text, "supports only calls with ");
        gumbel_text_add_capabilities(text, rung->requires_any);
    } else {
        gumbel_text_add(text, "%s", refusal);
    }
    gumbel_text_add(text, "\n");
}
