/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate.h"

#include "core/fail.h"
#include "core/row.h"
#include "validate/validate_token_ids.h"

#include <inttypes.h>
#include <stdio.h>

#define VOCAB_END (INT64_C(1) << 31)

/* Reads scale, soft-cap and the token range of a head or of logits; `name` is "head" or "logits".
 */
static gumbel_status read_token_range(gumbel_problem *p, float scale, float soft_cap,
                                      int64_t vocab_size, const char *name, gumbel_error *error)
{
#define FIELD(member) gumbel_format_field("%s.%s", name, member).text
    GUMBEL_REFUSE_IF(!isfinite(scale), error, FIELD("scale"), "is %s; it must be finite",
                     gumbel_format_float(scale).text);
    GUMBEL_REFUSE_IF(!isfinite(soft_cap) || soft_cap < 0, error, FIELD("soft_cap"),
                     "is %s; it must be finite and >= 0", gumbel_format_float(soft_cap).text);
    GUMBEL_REFUSE_IF(
        p->first_token < 0 || p->first_token > VOCAB_END - p->vocab, error, FIELD("first_token"),
        "tokens %" PRId64 " .. + %" PRId64 " do not fit below 2^31", p->first_token, p->vocab);
    GUMBEL_REFUSE_IF(vocab_size < 0 || vocab_size > VOCAB_END, error, FIELD("vocab_size"),
                     "is %" PRId64 "; it must be in 0..2^31", vocab_size);
#undef FIELD
    p->scale = scale == 0.0f ? 1.0f : scale;
    p->soft_cap = soft_cap;
    p->end_token = p->first_token + p->vocab;
    if (vocab_size != 0 && vocab_size < p->end_token)
        p->end_token = vocab_size;
    return GUMBEL_OK;
}

/* Reads noise from memory: makes its stride explicit, and checks its size for overflow. */
static gumbel_status read_given_noise(gumbel_problem *p, gumbel_error *error)
{
    gumbel_sampling *s = &p->sampling;
    int64_t elements, bytes;
    GUMBEL_FORWARD(gumbel_check_aligned(s->noise, sizeof *s->noise, "sampling.noise", error));
    GUMBEL_REFUSE_IF(!s->noise && s->noise_stride != 0, error, "sampling.noise_stride",
                     "is %" PRId64 "; it must be 0 without noise", s->noise_stride);
    GUMBEL_REFUSE_IF(s->noise_stride != 0 && s->noise_stride < p->vocab, error,
                     "sampling.noise_stride",
                     "is %" PRId64 "; it must be at least %" PRId64 ", the number of tokens",
                     s->noise_stride, p->vocab);
    if (s->noise && s->noise_stride == 0)
        s->noise_stride = p->vocab;
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(p->batch, s->noise_stride, &elements) ||
                         __builtin_mul_overflow(elements, s->num_samples, &elements) ||
                         __builtin_mul_overflow(elements, (int64_t)sizeof(float), &bytes),
                     error, "sampling.noise_stride",
                     "noise [%" PRId64 ", %d] with stride %" PRId64 " is larger than any memory",
                     p->batch, (int)s->num_samples, s->noise_stride);
    return GUMBEL_OK;
}

/* Reads given tokens, which are scored instead of drawn. */
static gumbel_status read_given_tokens(gumbel_problem *p, gumbel_error *error)
{
    gumbel_sampling *s = &p->sampling;
    GUMBEL_FORWARD(gumbel_read_rows(s->given.data, sizeof *s->given.data, s->num_samples, p->batch,
                                    &s->given.stride, "sampling.given", error));
    GUMBEL_REFUSE_IF(s->given.data && s->noise, error, "sampling.noise",
                     "must be NULL: given tokens are scored, not drawn");
    if (s->given.data)
        p->features |= GUMBEL_FEATURE_GIVEN;
    return GUMBEL_OK;
}

gumbel_status gumbel_read_sampling(gumbel_problem *p, const gumbel_sampling *sampling,
                                   gumbel_error *error)
{
    gumbel_sampling *s = &p->sampling;
    *s = (gumbel_sampling){0};
    if (sampling)
        GUMBEL_FORWARD(gumbel_read_options(s, sizeof *s, sampling, "sampling", error));
    if (s->num_samples == 0)
        s->num_samples = 1;
    GUMBEL_REFUSE_IF(s->num_samples < 1 || s->num_samples > GUMBEL_SAMPLES_MAX, error,
                     "sampling.num_samples", "is %d; it must be in 1..%d", (int)s->num_samples,
                     GUMBEL_SAMPLES_MAX);
    GUMBEL_REFUSE_IF(s->reserved, error, "sampling.reserved", "is not 0");
    GUMBEL_REFUSE_IF(s->reserved2, error, "sampling.reserved2", "is not 0");
    GUMBEL_REFUSE_IF(s->domain >= GUMBEL_BLOCK_DOMAIN, error, "sampling.domain",
                     "is %#x; it must be below 2^31", (unsigned)s->domain);
    GUMBEL_FORWARD(gumbel_check_slots(&s->slots, "sampling.slots", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(s->live_rows, sizeof *s->live_rows, "sampling.live_rows", error));
    int64_t places = gumbel_slot_count(&s->slots, p->batch);
    GUMBEL_FORWARD(gumbel_read_rows(s->temperature.data, sizeof *s->temperature.data, 1, places,
                                    &s->temperature.stride, "sampling.temperature", error));
    GUMBEL_FORWARD(gumbel_read_rows(s->seed.data, sizeof *s->seed.data, 1, places, &s->seed.stride,
                                    "sampling.seed", error));
    GUMBEL_FORWARD(gumbel_read_rows(s->position.data, sizeof *s->position.data, 1, places,
                                    &s->position.stride, "sampling.position", error));
    GUMBEL_FORWARD(gumbel_read_rows(s->first_sample.data, sizeof *s->first_sample.data, 1, places,
                                    &s->first_sample.stride, "sampling.first_sample", error));
    GUMBEL_FORWARD(read_given_noise(p, error));
    GUMBEL_FORWARD(read_given_tokens(p, error));
    GUMBEL_FORWARD(gumbel_read_features(p, error));
    return gumbel_read_token_ids(p, error);
}

gumbel_status gumbel_check_host_sampling(const gumbel_problem *p, gumbel_error *error)
{
    const gumbel_sampling *s = &p->sampling;
    GUMBEL_REFUSE_IF(s->live_rows && (*s->live_rows < 0 || *s->live_rows > p->batch), error,
                     "sampling.live_rows", "is %d; it must be in 0..%" PRId64, (int)*s->live_rows,
                     p->batch);
    int64_t live = s->live_rows ? *s->live_rows : p->batch;
    GUMBEL_FORWARD(gumbel_check_host_slots(&s->slots, live, "sampling.slots", error));
    int64_t temperatures = s->temperature.stride ? live : live > 0;
    for (int64_t b = 0; b < temperatures; b++)
        if (gumbel_problem_row_flags(p, b) & GUMBEL_FLAG_TEMPERATURE) {
            const int64_t slot = gumbel_problem_slot(p, b);
            return gumbel_fail(error, GUMBEL_ERROR_ARGUMENT,
                               gumbel_format_field("sampling.temperature[%" PRId64 "]",
                                                   s->temperature.stride ? slot : 0)
                                   .text,
                               "is %s; it must be finite and >= 0",
                               gumbel_format_float(gumbel_temperature_at(p, slot)).text);
        }
    GUMBEL_FORWARD(gumbel_check_host_features(p, error));
    GUMBEL_FORWARD(gumbel_check_host_token_ids(p, error));
    return gumbel_check_host_stream(p->stream, error);
}

gumbel_status gumbel_read_head(gumbel_problem *p, gumbel_screen_layout layout,
                               const gumbel_head *head, const gumbel_sampling *sampling,
                               gumbel_error *error)
{
    gumbel_head h;
    GUMBEL_REFUSE_IF(!head, error, "head", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(&h, sizeof h, head, "head", error));
    GUMBEL_FORWARD(gumbel_read_tensor(&h.hidden, "head.hidden", error));
    GUMBEL_FORWARD(gumbel_read_tensor(&h.weight, "head.weight", error));
    GUMBEL_REFUSE_IF(h.hidden.cols < 1, error, "head.hidden", "has no columns");
    GUMBEL_REFUSE_IF(h.weight.rows < 1, error, "head.weight", "has no rows");
    GUMBEL_REFUSE_IF(h.weight.cols != h.hidden.cols, error, "head.weight",
                     "has %" PRId64 " columns, but head.hidden has %" PRId64, h.weight.cols,
                     h.hidden.cols);
    if (h.bias.data) {
        GUMBEL_FORWARD(gumbel_read_tensor(&h.bias, "head.bias", error));
        GUMBEL_REFUSE_IF(h.bias.rows != 1 || h.bias.cols != h.weight.rows, error, "head.bias",
                         "shape is [%" PRId64 ", %" PRId64 "]; it must be [1, %" PRId64 "]",
                         h.bias.rows, h.bias.cols, h.weight.rows);
    } else {
        GUMBEL_REFUSE_IF(h.bias.rows != 0, error, "head.bias", "data is NULL");
    }
    *p = (gumbel_problem){.batch = h.hidden.rows,
                          .vocab = h.weight.rows,
                          .hidden_size = h.hidden.cols,
                          .hidden = h.hidden,
                          .weight = h.weight,
                          .bias = h.bias,
                          .screen = h.screen.data,
                          .screen_format = h.screen.format,
                          .first_token = h.first_token};
    gumbel_screen_offsets offsets;
    int has_screens = layout != GUMBEL_SCREEN_LAYOUT_NONE &&
                      gumbel_screen_find_offsets_as(layout, h.weight.rows, h.weight.cols, &offsets);
    if (h.screen.data)
        GUMBEL_FORWARD(gumbel_check_screen(&h.screen, has_screens ? offsets.bytes : 0,
                                           "head.screen.data", "head.screen.bytes",
                                           "head.screen.format", error));
    GUMBEL_FORWARD(read_token_range(p, h.scale, h.soft_cap, h.vocab_size, "head", error));
    return gumbel_read_sampling(p, sampling, error);
}

gumbel_status gumbel_read_logits(gumbel_problem *p, const gumbel_logits *logits,
                                 const gumbel_sampling *sampling, gumbel_error *error)
{
    gumbel_logits l;
    GUMBEL_REFUSE_IF(!logits, error, "logits", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(&l, sizeof l, logits, "logits", error));
    GUMBEL_FORWARD(gumbel_read_tensor(&l.logits, "logits.logits", error));
    GUMBEL_REFUSE_IF(l.logits.cols < 1, error, "logits.logits", "has no columns");
    *p = (gumbel_problem){.batch = l.logits.rows,
                          .vocab = l.logits.cols,
                          .logits = l.logits,
                          .first_token = l.first_token};
    GUMBEL_FORWARD(read_token_range(p, l.scale, l.soft_cap, l.vocab_size, "logits", error));
    return gumbel_read_sampling(p, sampling, error);
}

gumbel_status gumbel_read_noise(gumbel_problem *p, const gumbel_sampling *sampling, int64_t batch,
                                int64_t first_token, int64_t count, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(batch < 0 || batch > GUMBEL_SIZE_END, error, "batch",
                     "is %" PRId64 "; it must be in 0..2^40", batch);
    GUMBEL_REFUSE_IF(
        count < 0 || first_token < 0 || count > VOCAB_END || first_token > VOCAB_END - count, error,
        "first_token", "tokens %" PRId64 " .. + %" PRId64 " do not fit in 0..2^31", first_token,
        count);
    *p = (gumbel_problem){.batch = batch, .vocab = count, .first_token = first_token};
    GUMBEL_FORWARD(gumbel_read_sampling(p, sampling, error));
    GUMBEL_REFUSE_IF(p->sampling.noise, error, "sampling.noise",
                     "must be NULL: this call computes the noise");
    p->sampling.temperature = (gumbel_row_f32){0};
    p->features = 0;
    return GUMBEL_OK;
}

gumbel_status gumbel_read_step(gumbel_step *into, const gumbel_step *step, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!step, error, "step", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, step, "step", error));
    if (into->num_samples == 0)
        into->num_samples = 1;
    GUMBEL_REFUSE_IF(into->batch < 0 || into->batch > GUMBEL_SIZE_END, error, "step.batch",
                     "is %" PRId64 "; it must be in 0..2^40", into->batch);
    GUMBEL_REFUSE_IF(into->num_samples < 1 || into->num_samples > GUMBEL_SAMPLES_MAX, error,
                     "step.num_samples", "is %d; it must be in 1..%d", (int)into->num_samples,
                     GUMBEL_SAMPLES_MAX);
    GUMBEL_REFUSE_IF(!into->position && into->batch > 0, error, "step.position", "is NULL");
    GUMBEL_FORWARD(
        gumbel_check_aligned(into->position, sizeof *into->position, "step.position", error));
    GUMBEL_FORWARD(gumbel_check_aligned(into->tokens, sizeof *into->tokens, "step.tokens", error));
    GUMBEL_FORWARD(gumbel_check_aligned(into->ring, sizeof *into->ring, "step.ring", error));
    GUMBEL_FORWARD(gumbel_check_slots(&into->slots, "step.slots", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(into->live_rows, sizeof *into->live_rows, "step.live_rows", error));
    GUMBEL_REFUSE_IF(into->reserved, error, "step.reserved", "is not 0");
    int64_t places = gumbel_slot_count(&into->slots, into->batch);
    if (into->position)
        GUMBEL_FORWARD(gumbel_read_rows(into->position, sizeof *into->position, 1, places,
                                        &into->position_stride, "step.position", error));
    GUMBEL_REFUSE_IF(into->ring ? into->ring_length < 1 || into->ring_length > GUMBEL_SIZE_END
                                : into->ring_length != 0,
                     error, "step.ring_length",
                     "is %" PRId64 "; it must be in 1..2^40, and 0 without a ring",
                     into->ring_length);
    GUMBEL_REFUSE_IF(into->ring && !into->tokens && into->batch > 0, error, "step.tokens",
                     "is NULL");
    int64_t elements;
    GUMBEL_REFUSE_IF(
        __builtin_mul_overflow(places * into->num_samples, into->ring_length, &elements) ||
            elements > INT64_MAX / (int64_t)sizeof(int32_t),
        error, "step.ring_length",
        "a ring [%" PRId64 ", %" PRId64 ", %d] is larger than any memory", into->ring_length,
        places, (int)into->num_samples);
    return GUMBEL_OK;
}

/* Checks the alignment of outputs; all have elements of four bytes. */
static gumbel_status check_output_alignment(const gumbel_output *o, gumbel_error *error)
{
    const struct {
        const void *data;
        const char *field;
    } places[] = {{o->tokens, "output.tokens"},
                  {o->logprobs, "output.logprobs"},
                  {o->scores, "output.scores"},
                  {o->lse, "output.lse"},
                  {o->status, "output.status"},
                  {o->ranks, "output.ranks"},
                  {o->kept, "output.kept"},
                  {o->top_ids, "output.top_ids"},
                  {o->top_logprobs, "output.top_logprobs"},
                  {o->top_logits, "output.top_logits"},
                  {o->best_ids, "output.best_ids"},
                  {o->best_scores, "output.best_scores"},
                  {o->kept_ids, "output.kept_ids"},
                  {o->kept_logprobs, "output.kept_logprobs"},
                  {o->entropy, "output.entropy"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        GUMBEL_FORWARD(
            gumbel_check_aligned(places[i].data, sizeof(int32_t), places[i].field, error));
    return GUMBEL_OK;
}

gumbel_status gumbel_read_output(gumbel_output *into, const gumbel_output *output, int64_t batch,
                                 gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!output, error, "output", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, output, "output", error));
    GUMBEL_REFUSE_IF(!into->tokens && batch > 0, error, "output.tokens", "is NULL");
    GUMBEL_FORWARD(check_output_alignment(into, error));
    GUMBEL_REFUSE_IF(into->num_top < 0 || into->num_top > GUMBEL_TOP_MAX, error, "output.num_top",
                     "is %d; it must be in 0..%d", (int)into->num_top, GUMBEL_TOP_MAX);
    GUMBEL_REFUSE_IF((int)into->logprobs_of < 0 || into->logprobs_of > GUMBEL_RAW, error,
                     "output.logprobs_of", "is %d; it must be a gumbel_distribution",
                     (int)into->logprobs_of);
    GUMBEL_REFUSE_IF(into->top_logits && into->num_top > 0 && !into->top_ids, error,
                     "output.top_logits", "requires output.top_ids, which is NULL");
    GUMBEL_REFUSE_IF(into->num_best < 0 || into->num_best > GUMBEL_BEST_MAX, error,
                     "output.num_best", "is %d; it must be in 0..%d", (int)into->num_best,
                     GUMBEL_BEST_MAX);
    GUMBEL_REFUSE_IF(into->kept_capacity < (into->kept_ids != NULL), error, "output.kept_capacity",
                     "is %d; it must be at least %d", (int)into->kept_capacity,
                     into->kept_ids != NULL);
    GUMBEL_REFUSE_IF(into->kept_ids && !into->kept, error, "output.kept_ids",
                     "requires output.kept, which is NULL");
    GUMBEL_REFUSE_IF(into->kept_logprobs && !into->kept_ids, error, "output.kept_logprobs",
                     "requires output.kept_ids, which is NULL");
    return GUMBEL_OK;
}
