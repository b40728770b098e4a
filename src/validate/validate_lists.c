/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_lists.h"

#include "core/fail.h"

#include <inttypes.h>
#include <stdio.h>

#define TOKENS_END (INT64_C(1) << 31)

gumbel_status gumbel_check_lists(const gumbel_token_lists *lists, int takes_values,
                                 const char *name, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!lists->offsets && (lists->ids || lists->values), error, name,
                     "offsets is NULL, and ids or values are not");
    GUMBEL_REFUSE_IF(lists->reserved, error, name, "a reserved field is not 0");
    GUMBEL_REFUSE_IF(lists->values && !takes_values, error, name, "values must be NULL");
    GUMBEL_REFUSE_IF(lists->ids && !lists->values && takes_values, error, name, "values is NULL");
    GUMBEL_REFUSE_IF((uintptr_t)lists->offsets % sizeof *lists->offsets != 0 ||
                         (uintptr_t)lists->ids % sizeof *lists->ids != 0 ||
                         (uintptr_t)lists->values % sizeof *lists->values != 0,
                     error, name, "a pointer is not aligned to its elements");
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_lists(const gumbel_token_lists *lists, int64_t batch,
                                      const char *name, gumbel_error *error)
{
    if (!lists->offsets)
        return GUMBEL_OK;
    for (int64_t b = 0; b <= batch; b++)
        GUMBEL_REFUSE_IF(lists->offsets[b] < (b > 0 ? lists->offsets[b - 1] : 0), error, name,
                         "offsets[%" PRId64 "] is %" PRId64
                         "; offsets must start at 0 or above, and must not decrease",
                         b, lists->offsets[b]);
    int64_t first = lists->offsets[0], end = lists->offsets[batch];
    GUMBEL_REFUSE_IF(first < end && !lists->ids, error, name, "ids is NULL");
    for (int64_t i = first; i < end; i++)
        GUMBEL_REFUSE_IF(lists->ids[i] < 0, error, name,
                         "ids[%" PRId64 "] is %d; it must be in [0, 2^31)", i, (int)lists->ids[i]);
    for (int64_t i = first; i < end && lists->values; i++)
        GUMBEL_REFUSE_IF(!(lists->values[i] < INFINITY), error, name,
                         "values[%" PRId64 "] is %s; it must be finite or -inf", i,
                         gumbel_format_float(lists->values[i]).text);
    return GUMBEL_OK;
}

gumbel_status gumbel_read_history(gumbel_history *into, const gumbel_history *history,
                                  int64_t batch, const char *name, gumbel_error *error)
{
    int64_t counts;
    GUMBEL_REFUSE_IF(!history, error, name, "the pointer is NULL");
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, history, name, error));
#define FIELD(member) gumbel_format_field("%s.%s", name, member).text
#define CHECK_ALIGNED(member, size)                                                                \
    if ((uintptr_t)into->member % (size) != 0)                                                     \
    return gumbel_check_aligned(into->member, size, FIELD(#member), error)
    GUMBEL_REFUSE_IF(into->vocab_size < 1 || into->vocab_size > TOKENS_END, error,
                     FIELD("vocab_size"), "is %" PRId64 "; it must be in 1..2^31",
                     into->vocab_size);
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(batch, into->vocab_size, &counts) ||
                         counts > INT64_MAX / (int64_t)sizeof(uint32_t),
                     error, FIELD("vocab_size"),
                     "[%" PRId64 ", %" PRId64 "] is larger than any memory", batch,
                     into->vocab_size);
    GUMBEL_REFUSE_IF(!into->prompt, error, FIELD("prompt"), "is NULL");
    GUMBEL_REFUSE_IF(!into->output, error, FIELD("output"), "is NULL");
    GUMBEL_REFUSE_IF(!into->counts, error, FIELD("counts"), "is NULL");
    CHECK_ALIGNED(prompt, sizeof *into->prompt);
    CHECK_ALIGNED(output, sizeof *into->output);
    if (into->count_bits == 0)
        into->count_bits = 16;
    GUMBEL_REFUSE_IF(into->count_bits != 16 && into->count_bits != 32, error, FIELD("count_bits"),
                     "is %d; it must be 16 or 32", (int)into->count_bits);
    GUMBEL_REFUSE_IF(into->reserved, error, FIELD("reserved"), "is not 0");
    CHECK_ALIGNED(counts, (size_t)into->count_bits / 8);
#undef CHECK_ALIGNED
#undef FIELD
    return GUMBEL_OK;
}

gumbel_status gumbel_read_tokens(const int32_t *tokens, int64_t *stride, const int32_t *counts,
                                 int64_t batch, int host, gumbel_error *error)
{
    int64_t elements;
    if (*stride == 0)
        *stride = 1;
    GUMBEL_REFUSE_IF(*stride < 0 || __builtin_mul_overflow(batch, *stride, &elements) ||
                         elements > INT64_MAX / (int64_t)sizeof *tokens,
                     error, "token_stride",
                     "is %" PRId64 "; it must be >= 0, and the tokens must fit in memory", *stride);
    if (batch == 0)
        return GUMBEL_OK;
    GUMBEL_REFUSE_IF(!tokens, error, "tokens", "is NULL");
    GUMBEL_FORWARD(gumbel_check_aligned(tokens, sizeof *tokens, "tokens", error));
    GUMBEL_FORWARD(gumbel_check_aligned(counts, sizeof *counts, "counts", error));
    for (int64_t b = 0; b < batch && counts && host; b++)
        GUMBEL_REFUSE_IF(counts[b] < 0 || counts[b] > *stride, error, "counts",
                         "counts[%" PRId64 "] is %d; it must be in 0..%" PRId64, b, (int)counts[b],
                         *stride);
    return GUMBEL_OK;
}
