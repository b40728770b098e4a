/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of draws with a screen on an NVIDIA GPU: samples, masks, truncation and outputs of rows.
 */
#pragma once

#include "screen_calls.cuh"

constexpr int32_t KEPT = 128; /* places of a row in lists of kept tokens */

enum truncation { NONE, TOP_K_50, TOP_K_100, MIN_P, PENALTIES };
constexpr const char *TRUNCATION_NAMES[] = {"none", "k 50", "k 100", "min_p .05", "penalties"};

/* Outputs of rows, each with those before it. */
enum row_outputs { TOKENS, LOGPROBS, KEPT_SETS };

struct draw_shape {
    int64_t batch;
    int32_t samples;
    bool masked;
    truncation rules;
    row_outputs outputs = TOKENS;
};

struct bench_data : head_data {
    gumbel_screen screen;
    gumbel_screen_certificate certificate;
    int32_t *masks; /* [MAX_BATCH][VOCAB / 32] */
    /* One value for all rows: */
    int32_t *top_ks[2]; /* 50; 100 */
    float *top_p, *min_p, *repetition, *presence;
    gumbel_history history;   /* of MAX_BATCH rows */
    int32_t *kept, *kept_ids; /* [MAX_BATCH], [MAX_BATCH][KEPT] */
    float *kept_logprobs;
};

/* Sets the outputs of rows. */
static void set_outputs(const bench_data &m, row_outputs which, gumbel_output &output)
{
    if (which >= LOGPROBS)
        output.logprobs = m.rows.logprobs;
    if (which == KEPT_SETS) {
        output.kept = m.kept;
        output.kept_ids = m.kept_ids;
        output.kept_logprobs = m.kept_logprobs;
        output.kept_capacity = KEPT;
    }
}

static void queue_draw(const bench_data &m, const draw_shape &shape, int64_t hidden_size,
                       bool screened)
{
    const gumbel_head head =
        make_head(m, shape.batch, hidden_size, screened ? m.screen : gumbel_screen{});
    gumbel_sampling sampling = make_sampling(m.rows.temperature, m.rows.seed, m.rows.position);
    gumbel_output output = make_output(m.rows.tokens, nullptr);
    gumbel_transforms transforms = {};
    transforms.struct_size = sizeof transforms;
    if (shape.masked)
        transforms.mask = {m.masks, VOCAB / 32};
    if (shape.rules == PENALTIES) {
        transforms.history = &m.history;
        transforms.repetition = {m.repetition, GUMBEL_SAME};
        transforms.presence = {m.presence, GUMBEL_SAME};
    }
    set_outputs(m, shape.outputs, output);
    sampling.num_samples = shape.samples;
    sampling.transforms = shape.masked || shape.rules == PENALTIES ? &transforms : nullptr;
    gumbel_truncation truncation = {};
    truncation.struct_size = sizeof truncation;
    if (shape.rules == MIN_P) {
        truncation.min_p = {m.min_p, GUMBEL_SAME};
    } else {
        truncation.top_k = {m.top_ks[shape.rules == TOP_K_100], GUMBEL_SAME};
        truncation.top_p = {m.top_p, GUMBEL_SAME};
    }
    sampling.truncation = shape.rules != NONE ? &truncation : nullptr;
    CHECKED(gumbel_sample, m.rows.gpu, m.rows.stream, &head, &sampling, &output, m.rows.workspace,
            m.rows.workspace_bytes, &error);
}

static int32_t *make_masks()
{
    std::vector<int32_t> masks(MAX_BATCH * VOCAB / 32);
    uint64_t state = 1;
    for (int32_t &word : masks) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        word = int32_t(state >> 32);
    }
    return copy_in(masks);
}

/* A history that has seen each token with a chance of 1/64, half of these in the output. */
static gumbel_history make_history()
{
    std::vector<uint32_t> masks[2];
    std::vector<uint16_t> counts(MAX_BATCH * VOCAB);
    uint64_t state = 2;
    for (auto &mask : masks)
        mask.resize(MAX_BATCH * VOCAB / 32);
    for (int64_t i = 0; i < MAX_BATCH * VOCAB; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        if (state >> 58 != 0)
            continue;
        const bool output = state >> 57 & 1;
        masks[output][i / 32] |= 1u << i % 32; /* VOCAB is a multiple of 32 */
        counts[i] = output;
    }
    gumbel_history history = {};
    history.struct_size = sizeof history;
    history.vocab_size = VOCAB;
    history.prompt = copy_in(masks[0]);
    history.output = copy_in(masks[1]);
    history.counts = copy_in(counts);
    return history;
}

/* Data of these hidden sizes. */
static bench_data make_data(const std::vector<int64_t> &sizes, bool certain)
{
    const int64_t hidden_max = *std::max_element(sizes.begin(), sizes.end());
    bench_data m = {open_head(hidden_max)};
    m.certificate = certain ? GUMBEL_SCREEN_CERTAIN : GUMBEL_SCREEN_PROBABLE;
    m.screen = allocate_screen(hidden_max, GUMBEL_SCREEN_BYTES);
    make_random(m.hidden, MAX_BATCH * hidden_max, 1, 1);
    m.masks = make_masks();
    m.top_ks[0] = copy_in(std::vector<int32_t>{50});
    m.top_ks[1] = copy_in(std::vector<int32_t>{100});
    m.top_p = copy_in(std::vector<float>{0.95f});
    m.min_p = copy_in(std::vector<float>{0.05f});
    m.repetition = copy_in(std::vector<float>{1.05f});
    m.presence = copy_in(std::vector<float>{0.5f});
    m.history = make_history();
    m.kept = allocate<int32_t>(MAX_BATCH);
    m.kept_ids = allocate<int32_t>(MAX_BATCH * KEPT);
    m.kept_logprobs = allocate<float>(MAX_BATCH * KEPT);
    return m;
}

/* Makes weights of a hidden size and their screen, and returns the time of preparing the screen. */
static double prepare_weights(const bench_data &m, int64_t hidden_size)
{
    make_random(m.weight, size_t(VOCAB * hidden_size), 3, 2.5f / sqrtf(float(hidden_size)));
    return prepare_screen(m, hidden_size, m.certificate, m.screen);
}

/* Captures calls of a draw, each after a norm. */
static captured capture_draws(const bench_data &m, int64_t hidden_size, const draw_shape &shape,
                              bool screened)
{
    return captured(m.rows.stream, [&] {
        queue_norm(m.rows.stream, m.hidden, shape.batch * hidden_size);
        queue_draw(m, shape, hidden_size, screened);
    });
}

static int count_differing_tokens(const bench_data &m, int64_t hidden_size, const draw_shape &shape)
{
    return count_differing(
        m, shape.batch * shape.samples, [&] { queue_draw(m, shape, hidden_size, false); },
        [&] { queue_draw(m, shape, hidden_size, true); });
}
