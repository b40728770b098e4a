/* SPDX-License-Identifier: Apache-2.0 */
#include "core/backend.h"
#include "core/fail.h"
#include "validate/validate.h"
#include "validate/validate_rows.h"

#include <inttypes.h>

/* Makes strides explicit. */
static gumbel_status read_parameters(gumbel_rule_updates *u, gumbel_error *error)
{
    const int64_t rows = gumbel_slot_count(&u->slots, u->batch);
#define READ(data, stride, name)                                                                   \
    GUMBEL_FORWARD(                                                                                \
        gumbel_read_rows(data, sizeof *(data), 1, rows, &(stride), "updates." name, error))
    READ(u->surprise, u->surprise_stride, "surprise");
    READ(u->surprise_target.data, u->surprise_target.stride, "surprise_target");
    READ(u->surprise_rate.data, u->surprise_rate.stride, "surprise_rate");
    READ(u->top_p, u->top_p_stride, "top_p");
    READ(u->top_p_first.data, u->top_p_first.stride, "top_p_first");
    READ(u->top_p_decay.data, u->top_p_decay.stride, "top_p_decay");
    READ(u->top_p_min.data, u->top_p_min.stride, "top_p_min");
    READ(u->top_p_reset.data, u->top_p_reset.stride, "top_p_reset");
    READ(u->adaptive_target, u->adaptive_target_stride, "adaptive_target");
    READ(u->adaptive_sum, u->adaptive_sum_stride, "adaptive_sum");
    READ(u->adaptive_weight, u->adaptive_weight_stride, "adaptive_weight");
    READ(u->adaptive_goal.data, u->adaptive_goal.stride, "adaptive_goal");
    READ(u->adaptive_decay.data, u->adaptive_decay.stride, "adaptive_decay");
#undef READ
    const struct {
        const float *data;
        int64_t stride;
        const char *field;
    } changed[] = {
        {u->surprise, u->surprise_stride, "updates.surprise_stride"},
        {u->top_p, u->top_p_stride, "updates.top_p_stride"},
        {u->adaptive_target, u->adaptive_target_stride, "updates.adaptive_target_stride"},
        {u->adaptive_sum, u->adaptive_sum_stride, "updates.adaptive_sum_stride"},
        {u->adaptive_weight, u->adaptive_weight_stride, "updates.adaptive_weight_stride"},
    };
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++)
        GUMBEL_REFUSE_IF(changed[i].data && changed[i].stride == 0 && u->batch > 1, error,
                         changed[i].field, "is GUMBEL_SAME; each row changes its own value");
    return GUMBEL_OK;
}

/* Checks which arrays of ADAPTIVE_P are set. */
static gumbel_status check_adaptive(const gumbel_rule_updates *u, gumbel_error *error)
{
    if (!u->adaptive_target)
        return GUMBEL_OK;
    GUMBEL_REFUSE_IF(u->surprise, error, "updates.adaptive_target",
                     "is set, and so is `surprise`; they require different log-probabilities");
    GUMBEL_REFUSE_IF(!u->logprobs, error, "updates.logprobs",
                     "is NULL; `adaptive_target` requires the tokens' log-probabilities");
    GUMBEL_REFUSE_IF(!u->adaptive_sum, error, "updates.adaptive_sum",
                     "is NULL; `adaptive_target` requires it");
    GUMBEL_REFUSE_IF(!u->adaptive_weight, error, "updates.adaptive_weight",
                     "is NULL; `adaptive_target` requires it");
    GUMBEL_REFUSE_IF(!u->adaptive_goal.data, error, "updates.adaptive_goal",
                     "is not set; `adaptive_target` requires a goal");
    return GUMBEL_OK;
}

static gumbel_status read_updates(gumbel_rule_updates *u, const gumbel_rule_updates *updates,
                                  gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!updates, error, "updates", "is NULL");
    GUMBEL_FORWARD(gumbel_read_options(u, sizeof *u, updates, "updates", error));
    GUMBEL_REFUSE_IF(u->batch < 0 || u->batch > GUMBEL_SIZE_END, error, "updates.batch",
                     "is %" PRId64 "; it must be in 0..2^40", u->batch);
    GUMBEL_REFUSE_IF(!u->tokens && u->batch > 0, error, "updates.tokens", "is NULL");
    GUMBEL_REFUSE_IF(u->surprise && !u->logprobs, error, "updates.logprobs",
                     "is NULL; `surprise` requires the tokens' log-probabilities");
    GUMBEL_REFUSE_IF(u->surprise && !u->surprise_target.data, error, "updates.surprise_target",
                     "is not set; `surprise` requires a target");
    GUMBEL_FORWARD(check_adaptive(u, error));
    GUMBEL_FORWARD(gumbel_check_slots(&u->slots, "updates.slots", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(u->live_rows, sizeof *u->live_rows, "updates.live_rows", error));
    GUMBEL_FORWARD(
        gumbel_check_aligned(u->logprobs, sizeof *u->logprobs, "updates.logprobs", error));
    GUMBEL_FORWARD(gumbel_read_rows(u->tokens, sizeof *u->tokens, 1, u->batch, &u->token_stride,
                                    "updates.tokens", error));
    GUMBEL_REFUSE_IF(u->tokens && u->token_stride == 0 && u->batch > 1, error,
                     "updates.token_stride", "is GUMBEL_SAME; each row has its own token");
    return read_parameters(u, error);
}

/* Checks values in host memory. */
static gumbel_status check_host_updates(const gumbel_rule_updates *u, const void *stream,
                                        gumbel_error *error)
{
    const float positive = 0x1p-149f, most = 0x1.fffffep127f;
    const gumbel_problem p = {.batch = u->batch,
                              .sampling = {.slots = u->slots, .live_rows = u->live_rows}};
    const struct {
        const gumbel_row_f32 *rows;
        gumbel_range range;
    } floats[] = {
        {&u->surprise_target, {"updates.surprise_target", 0, most, "finite and >= 0"}},
        {&u->surprise_rate, {"updates.surprise_rate", 0, most, "finite and >= 0"}},
        {&u->top_p_first, {"updates.top_p_first", positive, 1, "in (0, 1]"}},
        {&u->top_p_decay, {"updates.top_p_decay", positive, 1, "in (0, 1]"}},
        {&u->top_p_min, {"updates.top_p_min", positive, 1, "in (0, 1]"}},
        {&u->adaptive_goal, {"updates.adaptive_goal", -1, 1, "in [-1, 1]"}},
        {&u->adaptive_decay, {"updates.adaptive_decay", 0, 0.99f, "in [0, 0.99]"}},
    };
    GUMBEL_FORWARD(gumbel_check_host_stream(stream, error));
    GUMBEL_REFUSE_IF(u->live_rows && (*u->live_rows < 0 || *u->live_rows > u->batch), error,
                     "updates.live_rows", "is %d; it must be in 0..%" PRId64, (int)*u->live_rows,
                     u->batch);
    GUMBEL_FORWARD(gumbel_check_host_slots(&u->slots, u->live_rows ? *u->live_rows : u->batch,
                                           "updates.slots", error));
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        GUMBEL_FORWARD(gumbel_check_row_range(&p, floats[i].rows, &floats[i].range, error));
    return GUMBEL_OK;
}

gumbel_status gumbel_update_rules(gumbel_device *device, void *stream,
                                  const gumbel_rule_updates *updates, gumbel_error *error)
{
    gumbel_rule_updates full;
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_FORWARD(read_updates(&full, updates, error));
    if (device->backend->host_memory)
        GUMBEL_FORWARD(check_host_updates(&full, stream, error));
    return full.batch == 0 ? GUMBEL_OK
                           : device->backend->update_rules(device, stream, &full, error);
}
