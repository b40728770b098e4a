/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request asks for beyond plain sampling: its bits, and the range of every row parameter.
 */
#include "core/fail.h"
#include "validate/validate.h"

#include <inttypes.h>
#include <stdio.h>

const char *gumbel_request_field(gumbel_request bit)
{
    switch (bit) {
    case GUMBEL_REQUEST_MASK:
        return "sampling.transforms.mask";
    case GUMBEL_REQUEST_BANNED:
        return "sampling.transforms.banned";
    case GUMBEL_REQUEST_BIAS:
        return "sampling.transforms.bias";
    case GUMBEL_REQUEST_PENALTIES:
        return "sampling.transforms.repetition";
    case GUMBEL_REQUEST_TRUNCATION:
        return "sampling.truncation";
    case GUMBEL_REQUEST_RANKS:
        return "output.ranks";
    case GUMBEL_REQUEST_KEPT:
        return "output.kept";
    case GUMBEL_REQUEST_TOP:
        return "output.num_top";
    case GUMBEL_REQUEST_RAW:
        return "output.logprobs_of";
    case GUMBEL_REQUEST_LOGITS:
        return "output.top_logits";
    case GUMBEL_REQUEST_END:
        break;
    }
    return "sampling";
}

uint32_t gumbel_output_request(const gumbel_output *out)
{
    int top = out->num_top > 0 && (out->top_ids || out->top_logprobs);
    int listed = out->num_top > 0 && out->top_logprobs;
    int raw = out->logprobs_of == GUMBEL_RAW && (out->logprobs || out->lse || listed);
    return (uint32_t)((out->ranks ? GUMBEL_REQUEST_RANKS : 0) |
                      (out->kept ? GUMBEL_REQUEST_KEPT : 0) | (top ? GUMBEL_REQUEST_TOP : 0) |
                      (raw ? GUMBEL_REQUEST_RAW : 0) |
                      (out->num_top > 0 && out->top_logits ? GUMBEL_REQUEST_LOGITS : 0));
}

static gumbel_status read_mask(gumbel_problem *p, gumbel_error *error)
{
    const gumbel_transforms *t = &p->transforms;
    int64_t words = (p->first_token + p->vocab + 31) / 32, elements;
    GUMBEL_FORWARD(gumbel_check_rows(t->mask, sizeof *t->mask, t->mask_stride,
                                     "sampling.transforms.mask", error));
    GUMBEL_REFUSE_IF(t->mask_stride != 0 && t->mask_stride < words, error,
                     "sampling.transforms.mask_stride",
                     "stride is %" PRId64 ", less than the %" PRId64 " words of %" PRId64 " tokens",
                     t->mask_stride, words, p->first_token + p->vocab);
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(p->batch, t->mask_stride, &elements) ||
                         elements > INT64_MAX / (int64_t)sizeof *t->mask,
                     error, "sampling.transforms.mask_stride",
                     "%" PRId64 " rows with stride %" PRId64 " are larger than any memory",
                     p->batch, t->mask_stride);
    return GUMBEL_OK;
}

/* Penalties and what they count. */
static gumbel_status read_penalties(gumbel_problem *p, gumbel_error *error)
{
    gumbel_transforms *t = &p->transforms;
    GUMBEL_FORWARD(gumbel_check_rows(t->repetition, sizeof *t->repetition, t->repetition_stride,
                                     "sampling.transforms.repetition", error));
    GUMBEL_FORWARD(gumbel_check_rows(t->frequency, sizeof *t->frequency, t->frequency_stride,
                                     "sampling.transforms.frequency", error));
    GUMBEL_FORWARD(gumbel_check_rows(t->presence, sizeof *t->presence, t->presence_stride,
                                     "sampling.transforms.presence", error));
    GUMBEL_FORWARD(
        gumbel_check_lists(&t->prompt_tokens, 0, "sampling.transforms.prompt_tokens", error));
    GUMBEL_FORWARD(
        gumbel_check_lists(&t->output_tokens, 0, "sampling.transforms.output_tokens", error));
    int listed = t->prompt_tokens.offsets || t->output_tokens.offsets;
    if (t->history) {
        GUMBEL_REFUSE_IF(listed, error, "sampling.transforms.history",
                         "penalties count a history or lists of tokens, not both");
        GUMBEL_FORWARD(gumbel_read_history(&p->history, t->history, p->batch,
                                           "sampling.transforms.history", error));
    }
    int penalties = t->repetition || t->frequency || t->presence;
    GUMBEL_REFUSE_IF(penalties && !t->history && !listed, error, "sampling.transforms.history",
                     "penalties need a history or lists of tokens");
    if (penalties)
        p->request |= GUMBEL_REQUEST_PENALTIES;
    t->history = NULL;
    return GUMBEL_OK;
}

static gumbel_status read_transforms(gumbel_problem *p, gumbel_error *error)
{
    gumbel_transforms *t = &p->transforms;
    GUMBEL_FORWARD(
        gumbel_read_options(t, sizeof *t, p->sampling.transforms, "sampling.transforms", error));
    p->sampling.transforms = NULL;
    GUMBEL_FORWARD(read_mask(p, error));
    GUMBEL_FORWARD(gumbel_check_lists(&t->banned, 0, "sampling.transforms.banned", error));
    GUMBEL_FORWARD(gumbel_check_lists(&t->bias, 1, "sampling.transforms.bias", error));
    if (t->mask)
        p->request |= GUMBEL_REQUEST_MASK;
    if (t->banned.offsets)
        p->request |= GUMBEL_REQUEST_BANNED;
    if (t->bias.offsets)
        p->request |= GUMBEL_REQUEST_BIAS;
    return read_penalties(p, error);
}

static gumbel_status read_truncation(gumbel_problem *p, gumbel_error *error)
{
    gumbel_truncation *t = &p->truncation;
    GUMBEL_FORWARD(
        gumbel_read_options(t, sizeof *t, p->sampling.truncation, "sampling.truncation", error));
    p->sampling.truncation = NULL;
    GUMBEL_FORWARD(gumbel_check_rows(t->min_p, sizeof *t->min_p, t->min_p_stride,
                                     "sampling.truncation.min_p", error));
    GUMBEL_FORWARD(gumbel_check_rows(t->top_k, sizeof *t->top_k, t->top_k_stride,
                                     "sampling.truncation.top_k", error));
    GUMBEL_FORWARD(gumbel_check_rows(t->top_p, sizeof *t->top_p, t->top_p_stride,
                                     "sampling.truncation.top_p", error));
    GUMBEL_REFUSE_IF((int)t->order < 0 || t->order > GUMBEL_ORDER_BEFORE_TEMPERATURE, error,
                     "sampling.truncation.order", "order is %d, which no gumbel_order has",
                     (int)t->order);
    GUMBEL_REFUSE_IF((int)t->ties < 0 || t->ties > GUMBEL_TIES_EXACT, error,
                     "sampling.truncation.ties", "ties is %d, which no gumbel_ties has",
                     (int)t->ties);
    if (t->min_p || t->top_k || t->top_p)
        p->request |= GUMBEL_REQUEST_TRUNCATION;
    return GUMBEL_OK;
}

gumbel_status gumbel_read_request(gumbel_problem *p, gumbel_error *error)
{
    if (p->sampling.transforms)
        GUMBEL_FORWARD(read_transforms(p, error));
    if (p->sampling.truncation)
        GUMBEL_FORWARD(read_truncation(p, error));
    return GUMBEL_OK;
}

/* A row parameter's range: low <= value <= high, both finite. */
typedef struct range {
    const char *name; /* the field without "sampling." */
    float low, high;
    const char *text;
} range;

static gumbel_status check_rows(const float *data, int64_t stride, int64_t batch,
                                const range *allowed, gumbel_error *error)
{
    int64_t values = !data ? 0 : stride ? batch : batch > 0;
    for (int64_t b = 0; b < values; b++) {
        float value = data[b * stride];
        if (!(value >= allowed->low && value <= allowed->high)) {
            char field[64];
            snprintf(field, sizeof field, "sampling.%s[%" PRId64 "]", allowed->name, b);
            return gumbel_fail(error, GUMBEL_ERROR_ARGUMENT, field, "it is %g; it must be %s",
                               (double)value, allowed->text);
        }
    }
    return GUMBEL_OK;
}

static gumbel_status check_host_transforms(const gumbel_problem *p, gumbel_error *error)
{
    /* The smallest positive floats are positive too; a least value above 0 says "> 0". */
    static const range repetition = {"transforms.repetition", 0x1p-149f, 0x1.fffffep127f,
                                     "finite and > 0"};
    static const range frequency = {"transforms.frequency", -0x1.fffffep127f, 0x1.fffffep127f,
                                    "finite"};
    static const range presence = {"transforms.presence", -0x1.fffffep127f, 0x1.fffffep127f,
                                   "finite"};
    const gumbel_transforms *t = &p->transforms;
    GUMBEL_FORWARD(check_rows(t->repetition, t->repetition_stride, p->batch, &repetition, error));
    GUMBEL_FORWARD(check_rows(t->frequency, t->frequency_stride, p->batch, &frequency, error));
    GUMBEL_FORWARD(check_rows(t->presence, t->presence_stride, p->batch, &presence, error));
    GUMBEL_FORWARD(
        gumbel_check_host_lists(&t->banned, p->batch, "sampling.transforms.banned", error));
    GUMBEL_FORWARD(gumbel_check_host_lists(&t->bias, p->batch, "sampling.transforms.bias", error));
    GUMBEL_FORWARD(gumbel_check_host_lists(&t->prompt_tokens, p->batch,
                                           "sampling.transforms.prompt_tokens", error));
    return gumbel_check_host_lists(&t->output_tokens, p->batch, "sampling.transforms.output_tokens",
                                   error);
}

static gumbel_status check_host_truncation(const gumbel_problem *p, gumbel_error *error)
{
    static const range min_p = {"truncation.min_p", 0.0f, 1.0f, "in [0, 1]"};
    static const range top_p = {"truncation.top_p", 0x1p-149f, 1.0f, "in (0, 1]"};
    const gumbel_truncation *t = &p->truncation;
    GUMBEL_FORWARD(check_rows(t->min_p, t->min_p_stride, p->batch, &min_p, error));
    GUMBEL_FORWARD(check_rows(t->top_p, t->top_p_stride, p->batch, &top_p, error));
    int64_t counts = !t->top_k ? 0 : t->top_k_stride ? p->batch : p->batch > 0;
    for (int64_t b = 0; b < counts; b++) {
        int32_t k = t->top_k[b * t->top_k_stride];
        if (k < 0) {
            char field[64];
            snprintf(field, sizeof field, "sampling.truncation.top_k[%" PRId64 "]", b);
            return gumbel_fail(error, GUMBEL_ERROR_ARGUMENT, field, "it is %d; it must be >= 0",
                               (int)k);
        }
    }
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_request(const gumbel_problem *p, gumbel_error *error)
{
    GUMBEL_FORWARD(check_host_transforms(p, error));
    return check_host_truncation(p, error);
}
