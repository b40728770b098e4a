/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_features.h"

#include "core/fail.h"
#include "core/output.h"
#include "core/row.h"
#include "validate/validate_lists.h"
#include "validate/validate_programs.h"
#include "validate/validate_rows.h"

#include <inttypes.h>

const char *gumbel_feature_field(gumbel_feature bit)
{
    switch (bit) {
    case GUMBEL_FEATURE_MASK:
        return "sampling.transforms.mask";
    case GUMBEL_FEATURE_BANNED:
        return "sampling.transforms.banned";
    case GUMBEL_FEATURE_BIAS:
        return "sampling.transforms.bias";
    case GUMBEL_FEATURE_PENALTIES:
        return "sampling.transforms.repetition";
    case GUMBEL_FEATURE_TRUNCATION:
        return "sampling.truncation";
    case GUMBEL_FEATURE_RANKS:
        return "output.ranks";
    case GUMBEL_FEATURE_KEPT:
        return "output.kept";
    case GUMBEL_FEATURE_TOP:
        return "output.num_top";
    case GUMBEL_FEATURE_RAW:
        return "output.logprobs_of";
    case GUMBEL_FEATURE_LOGITS:
        return "output.top_logits";
    case GUMBEL_FEATURE_GIVEN:
        return "sampling.given";
    case GUMBEL_FEATURE_ALLOWED:
        return "sampling.transforms.allowed";
    case GUMBEL_FEATURE_BEST:
        return "output.num_best";
    case GUMBEL_FEATURE_PROGRAM:
        return "sampling.truncation.programs";
    case GUMBEL_FEATURE_LATE_BIAS:
        return "sampling.transforms.late_bias";
    case GUMBEL_FEATURE_KEPT_IDS:
        return "output.kept_ids";
    case GUMBEL_FEATURE_ENTROPY:
        return "output.entropy";
    case GUMBEL_FEATURE_END:
        break;
    }
    return "sampling";
}

uint32_t gumbel_output_features(const gumbel_output *out)
{
    int top = out->num_top > 0 && (out->top_ids || out->top_logprobs);
    int top_logprobs = out->num_top > 0 && out->top_logprobs;
    int raw = out->logprobs_of == GUMBEL_RAW &&
              (gumbel_output_has_lse(out) || top_logprobs || out->entropy);
    return (uint32_t)((out->ranks ? GUMBEL_FEATURE_RANKS : 0) |
                      (out->kept ? GUMBEL_FEATURE_KEPT : 0) | (top ? GUMBEL_FEATURE_TOP : 0) |
                      (raw ? GUMBEL_FEATURE_RAW : 0) |
                      (out->num_top > 0 && out->top_logits ? GUMBEL_FEATURE_LOGITS : 0) |
                      (gumbel_output_has_best(out) ? GUMBEL_FEATURE_BEST : 0) |
                      (out->kept_ids ? GUMBEL_FEATURE_KEPT_IDS : 0) |
                      (out->entropy ? GUMBEL_FEATURE_ENTROPY : 0));
}

void gumbel_problem_request(gumbel_problem *problem, const gumbel_output *output)
{
    const uint32_t features = gumbel_output_features(output);
    problem->features |= features;
    problem->num_top = features & GUMBEL_FEATURE_TOP ? output->num_top : 0;
    problem->with_mass = gumbel_output_has_lse(output);
}

/* Reads a row parameter with one value a row; `field` is its name in "sampling". */
#define READ_ROWS(of, field)                                                                       \
    GUMBEL_FORWARD(gumbel_read_rows((of).data, sizeof *(of).data, 1,                               \
                                    gumbel_slot_count(&p->sampling.slots, p->batch), &(of).stride, \
                                    "sampling." field, error))

/* Reads penalties, and the history or lists that they count. */
static gumbel_status read_penalties(gumbel_problem *p, gumbel_error *error)
{
    gumbel_transforms *t = &p->transforms;
    READ_ROWS(t->repetition, "transforms.repetition");
    READ_ROWS(t->frequency, "transforms.frequency");
    READ_ROWS(t->presence, "transforms.presence");
    GUMBEL_FORWARD(
        gumbel_check_lists(&t->prompt_tokens, 0, "sampling.transforms.prompt_tokens", error));
    GUMBEL_FORWARD(
        gumbel_check_lists(&t->output_tokens, 0, "sampling.transforms.output_tokens", error));
    int has_lists = t->prompt_tokens.offsets || t->output_tokens.offsets;
    if (t->history) {
        GUMBEL_REFUSE_IF(has_lists, error, "sampling.transforms.history",
                         "penalties take a history or lists of tokens, not both");
        GUMBEL_FORWARD(gumbel_read_history(&p->history, t->history,
                                           gumbel_slot_count(&p->sampling.slots, p->batch),
                                           "sampling.transforms.history", error));
    }
    int penalties = t->repetition.data || t->frequency.data || t->presence.data;
    GUMBEL_REFUSE_IF(penalties && !t->history && !has_lists, error, "sampling.transforms.history",
                     "penalties require a history or lists of tokens");
    if (penalties)
        p->features |= GUMBEL_FEATURE_PENALTIES;
    t->history = NULL;
    return GUMBEL_OK;
}

static gumbel_status read_transforms(gumbel_problem *p, gumbel_error *error)
{
    gumbel_transforms *t = &p->transforms;
    GUMBEL_FORWARD(
        gumbel_read_options(t, sizeof *t, p->sampling.transforms, "sampling.transforms", error));
    p->sampling.transforms = NULL;
    GUMBEL_FORWARD(gumbel_read_rows(t->mask.data, sizeof *t->mask.data,
                                    gumbel_mask_words_of(p->first_token + p->vocab),
                                    gumbel_slot_count(&p->sampling.slots, p->batch),
                                    &t->mask.stride, "sampling.transforms.mask", error));
    GUMBEL_FORWARD(gumbel_check_lists(&t->allowed, 0, "sampling.transforms.allowed", error));
    GUMBEL_FORWARD(gumbel_check_lists(&t->banned, 0, "sampling.transforms.banned", error));
    GUMBEL_FORWARD(gumbel_check_lists(&t->bias, 1, "sampling.transforms.bias", error));
    GUMBEL_FORWARD(gumbel_check_lists(&t->late_bias, 1, "sampling.transforms.late_bias", error));
    GUMBEL_FORWARD(gumbel_check_aligned(t->list_status, sizeof *t->list_status,
                                        "sampling.transforms.list_status", error));
    GUMBEL_REFUSE_IF(t->list_status && !t->banned.offsets && !t->late_bias.offsets, error,
                     "sampling.transforms.list_status", "requires banned or late_bias");
    GUMBEL_REFUSE_IF(t->max_allowed < 0, error, "sampling.transforms.max_allowed",
                     "is %" PRId64 "; it must be >= 0", t->max_allowed);
    GUMBEL_REFUSE_IF(t->max_allowed > 0 && !t->mask.data && !t->allowed.offsets, error,
                     "sampling.transforms.max_allowed", "requires mask or allowed");
    if (t->mask.data)
        p->features |= GUMBEL_FEATURE_MASK;
    if (t->allowed.offsets)
        p->features |= GUMBEL_FEATURE_ALLOWED;
    if (t->banned.offsets)
        p->features |= GUMBEL_FEATURE_BANNED;
    if (t->bias.offsets)
        p->features |= GUMBEL_FEATURE_BIAS;
    if (t->late_bias.offsets)
        p->features |= GUMBEL_FEATURE_LATE_BIAS;
    return read_penalties(p, error);
}

static gumbel_status read_truncation(gumbel_problem *p, gumbel_error *error)
{
    gumbel_truncation *t = &p->truncation;
    GUMBEL_FORWARD(
        gumbel_read_options(t, sizeof *t, p->sampling.truncation, "sampling.truncation", error));
    p->sampling.truncation = NULL;
    READ_ROWS(t->min_p, "truncation.min_p");
    READ_ROWS(t->top_k, "truncation.top_k");
    READ_ROWS(t->top_p, "truncation.top_p");
    GUMBEL_REFUSE_IF((int)t->order < 0 || t->order > GUMBEL_ORDER_JOINT_TEMPERATURE, error,
                     "sampling.truncation.order", "is %d; it must be a gumbel_order",
                     (int)t->order);
    GUMBEL_REFUSE_IF((int)t->ties < 0 || t->ties > GUMBEL_TIES_EXACT, error,
                     "sampling.truncation.ties", "is %d; it must be a gumbel_ties", (int)t->ties);
    if (t->programs)
        return gumbel_read_programs(p, error);
    if (t->min_p.data || t->top_k.data || t->top_p.data)
        p->features |= GUMBEL_FEATURE_TRUNCATION;
    return GUMBEL_OK;
}

gumbel_status gumbel_read_features(gumbel_problem *p, gumbel_error *error)
{
    if (p->sampling.transforms)
        GUMBEL_FORWARD(read_transforms(p, error));
    if (p->sampling.truncation)
        GUMBEL_FORWARD(read_truncation(p, error));
    return GUMBEL_OK;
}

static gumbel_status check_host_transforms(const gumbel_problem *p, gumbel_error *error)
{
    /* The smallest positive float as lower limit means "> 0". */
    static const gumbel_range repetition = {"sampling.transforms.repetition", 0x1p-149f,
                                            0x1.fffffep127f, "finite and > 0"};
    static const gumbel_range frequency = {"sampling.transforms.frequency", -0x1.fffffep127f,
                                           0x1.fffffep127f, "finite"};
    static const gumbel_range presence = {"sampling.transforms.presence", -0x1.fffffep127f,
                                          0x1.fffffep127f, "finite"};
    const gumbel_transforms *t = &p->transforms;
    GUMBEL_FORWARD(gumbel_check_row_range(p, &t->repetition, &repetition, error));
    GUMBEL_FORWARD(gumbel_check_row_range(p, &t->frequency, &frequency, error));
    GUMBEL_FORWARD(gumbel_check_row_range(p, &t->presence, &presence, error));
    GUMBEL_FORWARD(
        gumbel_check_host_lists(&t->allowed, p->batch, "sampling.transforms.allowed", error));
    GUMBEL_FORWARD(
        gumbel_check_host_lists(&t->banned, p->batch, "sampling.transforms.banned", error));
    GUMBEL_FORWARD(gumbel_check_host_lists(&t->bias, p->batch, "sampling.transforms.bias", error));
    GUMBEL_FORWARD(
        gumbel_check_host_lists(&t->late_bias, p->batch, "sampling.transforms.late_bias", error));
    GUMBEL_FORWARD(gumbel_check_host_lists(&t->prompt_tokens, p->batch,
                                           "sampling.transforms.prompt_tokens", error));
    return gumbel_check_host_lists(&t->output_tokens, p->batch, "sampling.transforms.output_tokens",
                                   error);
}

static gumbel_status check_host_truncation(const gumbel_problem *p, gumbel_error *error)
{
    static const gumbel_range min_p = {"sampling.truncation.min_p", 0.0f, 1.0f, "in [0, 1]"};
    static const gumbel_range top_p = {"sampling.truncation.top_p", 0x1p-149f, 1.0f, "in (0, 1]"};
    const gumbel_truncation *t = &p->truncation;
    GUMBEL_FORWARD(gumbel_check_row_range(p, &t->min_p, &min_p, error));
    GUMBEL_FORWARD(gumbel_check_row_range(p, &t->top_p, &top_p, error));
    GUMBEL_FORWARD(
        gumbel_check_row_integers(p, &t->top_k, "sampling.truncation.top_k", 0, INT32_MAX, error));
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_features(const gumbel_problem *p, gumbel_error *error)
{
    GUMBEL_FORWARD(check_host_transforms(p, error));
    GUMBEL_FORWARD(check_host_truncation(p, error));
    return p->features & GUMBEL_FEATURE_PROGRAM ? gumbel_check_host_programs(p, error) : GUMBEL_OK;
}
