/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_token_ids.h"

#include "core/fail.h"
#include "validate/validate_features.h"
#include "validate/validate_fields.h"

#include <inttypes.h>
#include <stdio.h>

/* The first set field that names tokens of the vocabulary; NULL: none. */
static const char *find_token_field(const gumbel_problem *p)
{
    const uint32_t named = p->features & (GUMBEL_FEATURE_TRANSFORMS | GUMBEL_FEATURE_GIVEN);
    const gumbel_transforms *t = &p->transforms;
    if (named)
        return gumbel_feature_field((gumbel_feature)(named & -named));
    if (p->history.prompt)
        return "sampling.transforms.history";
    if (t->prompt_tokens.offsets)
        return "sampling.transforms.prompt_tokens";
    if (t->output_tokens.offsets)
        return "sampling.transforms.output_tokens";
    return p->programs.xtc_keep.offsets ? "programs.xtc_keep" : NULL;
}

gumbel_status gumbel_read_token_ids(const gumbel_problem *p, gumbel_error *error)
{
    const int32_t *ids = p->sampling.token_ids;
    const char *field = find_token_field(p);
    GUMBEL_FORWARD(gumbel_check_aligned(ids, sizeof *ids, "sampling.token_ids", error));
    if (!ids)
        return GUMBEL_OK;
    GUMBEL_REFUSE_IF(field, error, field,
                     "is not supported with sampling.token_ids: it names tokens of the vocabulary");
    GUMBEL_REFUSE_IF(p->sampling.noise, error, "sampling.noise",
                     "must be NULL with token_ids: the call computes the noise of their tokens");
    GUMBEL_REFUSE_IF(p->screen, error, "head.screen.data",
                     "must be NULL with sampling.token_ids, which do not support screens");
    GUMBEL_REFUSE_IF(p->first_token != 0, error,
                     p->hidden_size > 0   ? "head.first_token"
                     : p->logits.cols > 0 ? "logits.first_token"
                                          : "first_token",
                     "is %" PRId64 "; it must be 0 with sampling.token_ids", p->first_token);
    return GUMBEL_OK;
}

gumbel_status gumbel_refuse_token_ids(const gumbel_sampling *sampling, const char *reason,
                                      gumbel_error *error)
{
    GUMBEL_REFUSE_IF(sampling->token_ids, error, "sampling.token_ids", "must be NULL: %s", reason);
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_token_ids(const gumbel_problem *p, gumbel_error *error)
{
    const int32_t *ids = p->sampling.token_ids;
    for (int64_t i = 0; i < p->vocab && ids && p->batch > 0; i++)
        GUMBEL_REFUSE_IF(!gumbel_is_token_id(ids[i]), error,
                         gumbel_format_field("sampling.token_ids[%" PRId64 "]", i).text,
                         "is %d; it must be in 0..%d, the id of the token of row %" PRId64,
                         (int)ids[i], INT32_MAX - 1, i);
    return GUMBEL_OK;
}
