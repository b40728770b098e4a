/* SPDX-License-Identifier: Apache-2.0
 *
 * Truncated rows for kernels that run as fibers: launch parameters as the backend prepares them,
 * and the comparison of rows with the CPU backend's.
 */
#ifndef TESTS_EMULATOR_TRUNCATED_ROWS_H
#define TESTS_EMULATOR_TRUNCATED_ROWS_H

#include "cuda/common/cuda_truncated_params.h"
#include "problems.h"

extern "C" {
#include "validate/validate.h"
#include "requests.h"
}

#include <string.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace
{

/* Sets where the tokens of a plan begin, past 0 half of the time, and rarely where they end. */
inline void choose_range(request_plan *plan, uint64_t *random)
{
    plan->first_token = one_in(random, 2) ? random_below(random, 3000) : 0;
    if (one_in(random, 4))
        plan->vocab_size = plan->first_token + 1 + random_below(random, (uint32_t)plan->vocab);
}

/* Chooses a plan of draws from logits, without its edits, noise and seed. */
inline request_plan plan_logits_draw(uint32_t vocab_max, uint64_t *random)
{
    request_plan plan = {};
    plan.batch = 1 + random_below(random, 4);
    plan.vocab = 1 + random_below(random, one_in(random, 3) ? vocab_max : 1500);
    choose_range(&plan, random);
    plan.samples = one_in(random, 10) ? 35 : 1 + random_below(random, 3);
    plan.dtype = (gumbel_dtype)(GUMBEL_FLOAT32 + random_below(random, 3));
    plan.kind = one_in(random, 2) ? 1 + ROW_GAUSSIAN : 0;
    plan.scale = one_in(random, 4) ? -0.5f : 0.0f;
    plan.soft_cap = one_in(random, 4) ? 4.0f : 0.0f;
    return plan;
}

/* Makes a request whose edits are masks and penalties only. */
inline request *make_request_without_lists(const request_plan &plan, gumbel_device *cpu)
{
    request *generated = request_make(&plan, cpu);
    generated->transforms.banned = generated->transforms.bias = {};
    generated->transforms.late_bias = {};
    return generated;
}

/* Makes the logits of row 0 consecutive floats just below 16: many differ in value but have equal z
 * at most temperatures, and many tokens have one value. */
inline void set_adjacent_logits(request *req, uint64_t *random)
{
    const gumbel_tensor &t = req->logits.logits;
    const uint32_t values = 20 + random_below(random, 400);
    for (int64_t i = 0; t.dtype == GUMBEL_FLOAT32 && i < t.cols; i++)
        ((float *)t.data)[i] = 16.0f - 0x1p-20f * (float)(1 + random_below(random, values));
}

/* Sets the logits of row 0 so that the first guesses of a search are far off. */
inline void set_hostile_logits(request *req, uint32_t shape)
{
    const gumbel_tensor &t = req->logits.logits;
    for (int64_t i = 0; t.dtype == GUMBEL_FLOAT32 && i < t.cols; i++)
        ((float *)t.data)[i] = request_hostile_logit((int)shape, i, t.cols);
}

/* Clears the rules; keeps their order and the handling of ties. */
inline void clear_truncation(gumbel_truncation *truncation)
{
    gumbel_truncation none = {};
    none.struct_size = truncation->struct_size;
    none.order = truncation->order;
    none.ties = truncation->ties;
    *truncation = none;
}

/* Truncation as in llama.cpp or transformers, for rows of a usual temperature. */
struct engine_truncation {
    int32_t top_k;
    float top_p, min_p, temperature;
};

/* Truncates by top_k, a nucleus of the rest, and min_p, which usually truncates more: the nucleus
 * of the tokens that min_p keeps would differ. */
inline void truncate_as_engines(request *req, int32_t top_k, engine_truncation *storage,
                                uint64_t *random)
{
    gumbel_truncation *truncation = &req->truncation;
    storage->top_k = top_k;
    storage->top_p = 0.3f + 0.05f * (float)random_below(random, 14);
    storage->min_p = 0.05f * (float)(1 + random_below(random, 12));
    storage->temperature = 0.6f + 0.3f * (float)random_below(random, 5);
    req->sampling.temperature = {&storage->temperature, GUMBEL_SAME};
    truncation->top_k = {&storage->top_k, GUMBEL_SAME};
    truncation->top_p = {&storage->top_p, GUMBEL_SAME};
    truncation->min_p = {&storage->min_p, GUMBEL_SAME};
    truncation->order = one_in(random, 2) ? GUMBEL_ORDER_TOP_K_TOP_P_MIN_P
                                          : GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE;
}

/* Requests all outputs that kernels of rows write, or tokens and some others. A launch of its own
 * writes entropies of raw logits. */
inline gumbel_output choose_outputs(const outcome *from, uint64_t *random)
{
    gumbel_output requested = from->output;
    if (requested.logprobs_of == GUMBEL_RAW)
        requested.entropy = NULL;
    if (one_in(random, 2))
        return requested;
    if (!one_in(random, 3))
        requested.lse = requested.logprobs = requested.top_logprobs = NULL;
    if (!one_in(random, 3)) {
        requested.kept = requested.kept_ids = NULL;
        requested.kept_logprobs = NULL;
    }
    if (one_in(random, 2))
        requested.kept_logprobs = NULL;
    if (one_in(random, 2))
        requested.scores = NULL;
    if (one_in(random, 2))
        requested.ranks = NULL;
    return requested;
}

/* Launch parameters as the CUDA backend begins to prepare them. */
inline cuda_truncated_params params_of(const request &req, const gumbel_output &output)
{
    cuda_truncated_params p = {};
    gumbel_error error = {"", ""};
    gumbel_status status = gumbel_read_logits(&p.problem, &req.logits, &req.sampling, &error);
    if (report_call("gumbel_read_logits", status, &error))
        exit(1);
    p.problem.features |= gumbel_output_features(&output);
    p.inverse_cap = p.problem.soft_cap > 0.0f ? 1.0f / p.problem.soft_cap : 0.0f;
    p.output = output;
    return p;
}

/* Rows of a dtype, which a kernel or the CPU backend writes. */
struct processed_rows {
    gumbel_dtype dtype;
    int64_t stride;
    std::vector<uint32_t> memory;

    processed_rows(int64_t batch, int64_t stride_, gumbel_dtype dtype_, float value)
        : dtype(dtype_), stride(stride_), memory((size_t)(batch * stride_))
    {
        for (int64_t i = 0; i < batch * stride; i++)
            dtype_store(data(), dtype, i, value);
    }
    void *data() { return memory.data(); }
    float load(int64_t b, int64_t i) const
    {
        return dtype_load(memory.data(), dtype, b * stride + i);
    }
};

bool same_float(float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); }

/* ---------------------------------------------------------------------------- comparison ---- */

/* Numbers of rows by their entropy, of those whose entropy was compared. */
struct entropy_counts {
    int positive, zero, none; /* several survivors, one, and rows that cannot be drawn */

    void add(const outcome *host, const gumbel_output &ours, int64_t b)
    {
        if (!ours.entropy)
            return;
        positive += host->entropy[b] > 0.0f;
        zero += host->entropy[b] == 0.0f;
        none += std::isnan(host->entropy[b]);
    }

    /* Prints the numbers; returns whether each is at least `least`. */
    bool check(const char *kernel, int least) const
    {
        const bool good = std::min({positive, zero, none}) >= least;
        printf("%s: %d entropies of several tokens, %d of one, %d rows without%s\n", kernel,
               positive, zero, none, good ? "" : ": too few");
        return good;
    }
};

/* A row's output of four-byte elements, and its tolerance. */
struct output_field {
    const char *name;
    const void *host, *ours; /* of the row; `ours` NULL: not requested */
    int64_t count;
    bool is_float;
    float bound; /* relative to the value, the row's log-normaliser, or 1 */
};

const void *at(const void *field, int64_t index) { return (const char *)field + 4 * index; }

std::vector<output_field> fields_of(const outcome *host, const gumbel_output &ours, int64_t b)
{
    const gumbel_output &h = host->output;
    const int64_t samples = host->samples, top = h.num_top, places = h.kept_capacity;
    const float two_ulps = 0x1p-22f;
    std::vector<output_field> all = {
        {"status", h.status, ours.status, 1, false, 0},
        {"kept", h.kept, ours.kept, 1, false, 0},
        {"tokens", h.tokens, ours.tokens, samples, false, 0},
        {"scores", h.scores, ours.scores, samples, true, 0},
        {"ranks", h.ranks, ours.ranks, samples, false, 0},
        {"top_ids", h.top_ids, ours.top_ids, top, false, 0},
        {"lse", h.lse, ours.lse, 1, true, two_ulps},
        {"logprobs", h.logprobs, ours.logprobs, samples, true, two_ulps},
        {"top_logprobs", h.top_logprobs, ours.top_logprobs, top, true, two_ulps},
        {"kept_ids", h.kept_ids, ours.kept_ids, places, false, 0},
        {"kept_logprobs", h.kept_logprobs, ours.kept_logprobs, places, true, two_ulps},
        {"entropy", h.entropy, ours.entropy, 1, true, 0},
    };
    for (output_field &field : all) {
        field.host = at(field.host, b * field.count);
        field.ours = field.ours ? at(field.ours, b * field.count) : NULL;
    }
    return all;
}

bool value_agrees(const output_field &field, int64_t i, float lse)
{
    if (memcmp(at(field.host, i), at(field.ours, i), 4) == 0)
        return true;
    float x = ((const float *)field.host)[i], y = ((const float *)field.ours)[i];
    float scale = std::max({1.0f, std::fabs(x), std::isfinite(lse) ? std::fabs(lse) : 0.0f});
    return field.is_float && (same_float(x, y) || std::fabs(x - y) <= field.bound * scale);
}

/* Whether row b equals that of `host`, which is poison for a fallback row. */
inline bool row_agrees(const outcome *host, const gumbel_output &ours, int64_t b, const char *what)
{
    for (const output_field &field : fields_of(host, ours, b))
        for (int64_t i = 0; field.ours && i < field.count; i++) {
            if (value_agrees(field, i, host->lse[b]))
                continue;
            int32_t x = ((const int32_t *)field.host)[i], y = ((const int32_t *)field.ours)[i];
            printf("%s: row %d: %s[%d] is %d, %a as a float, not %d, %a\n", what, (int)b,
                   field.name, (int)i, (int)y, (double)((const float *)field.ours)[i], (int)x,
                   (double)((const float *)field.host)[i]);
            return false;
        }
    return true;
}

} // namespace

#endif
