/* SPDX-License-Identifier: Apache-2.0 */
#include "generate_stats.h"

#include <stdio.h>
#include <stdlib.h>

#include "materialised.h"
#include "options.h"
#include "report.h"
#include "source.h"

enum { ROWS_MAX = 16, MAX_STEPS = 32 };

/* Hidden states of `steps` steps of `rows` rows, step by step: [steps, rows, D]. */
struct step_states {
    int64_t steps;
    int64_t rows;
    int64_t width;
    float *hidden;
};

/* Feeds the prompt and all drawn tokens of sample `sample` except the last; writes the hidden
 * states that the last `steps` tokens were drawn from to [steps, D] at `hidden`. */
static void feed_text(decoder *model, const struct written_texts *texts, int32_t sample,
                      int64_t steps, float *hidden)
{
    const token_list *drawn = &texts->drawn[sample];
    const int32_t count = (int32_t)(texts->prompt->count + drawn->count - 1);
    token_list all = {0};
    decoder_sequence *sequence = NULL;
    decoder_error error = {""};

    if (token_list_append(&all, texts->prompt->ids, texts->prompt->count) != 0 ||
        token_list_append(&all, drawn->ids, drawn->count - 1) != 0) {
        fail("--stats", "not enough memory");
    }
    if (decoder_sequence_new(model, count, &sequence, &error) != 0 ||
        decoder_feed(model, sequence, all.ids, count, count - (int32_t)steps, hidden, &error) !=
            0) {
        fail("--stats", "%s", error.message);
    }
    decoder_sequence_free(sequence);
    token_list_free(&all);
}

static struct step_states gather_states(decoder *model, const struct written_texts *texts)
{
    struct step_states states = {
        .steps = MAX_STEPS,
        .rows = texts->samples < ROWS_MAX ? texts->samples : ROWS_MAX,
        .width = decoder_describe(model)->hidden_size,
    };
    float *text = require_memory("hidden states", states.steps * states.width, sizeof *text);

    for (int64_t j = 0; j < states.rows; j++) {
        if ((int64_t)texts->drawn[j].count < states.steps) {
            states.steps = (int64_t)texts->drawn[j].count;
        }
    }
    states.hidden = require_memory("hidden states", states.steps * states.rows * states.width,
                                   sizeof *states.hidden);
    progress_start("timing the materialised baseline");
    for (int64_t j = 0; j < states.rows; j++) {
        feed_text(model, texts, (int32_t)j, states.steps, text);
        for (int64_t step = 0; step < states.steps; step++) {
            float *row = states.hidden + (step * states.rows + j) * states.width;

            for (int64_t d = 0; d < states.width; d++) {
                row[d] = text[step * states.width + d];
            }
        }
        progress_update(j + 1, states.rows);
    }
    progress_clear();
    free(text);
    return states;
}

/* Buffers of the steps to time. */
struct timing {
    gumbel_device *device;
    gumbel_sampling sampling;
    gumbel_output output;
    void *workspace;
    size_t workspace_bytes;
    struct materialised materialised;
};

static void time_step(struct timing *timing, const struct source *source, double *fused,
                      double *product, double *materialised)
{
    gumbel_error error = {"", ""};
    const double start = seconds_now();
    double drawn = 0;
    double multiplied = 0;

    require_ok(gumbel_sample(timing->device, NULL, &source->head, &timing->sampling,
                             &timing->output, timing->workspace, timing->workspace_bytes, &error),
               &error);
    drawn = seconds_now();
    require_ok(gumbel_multiply(timing->device, NULL, &source->head, timing->workspace,
                               timing->workspace_bytes, &error),
               &error);
    multiplied = seconds_now();
    materialised_draw(&timing->materialised);
    *fused = drawn - start;
    *product = multiplied - drawn;
    *materialised = seconds_now() - drawn;
}

static void time_steps(struct timing *timing, const struct step_states *states,
                       const struct source *all, struct generate_stats *stats)
{
    double fused[MAX_STEPS + 1], product[MAX_STEPS + 1], materialised[MAX_STEPS + 1];

    /* The first step warms the caches and is not timed. */
    for (int64_t step = -1; step < states->steps; step++) {
        const int64_t first = (step < 0 ? 0 : step) * states->rows;
        const struct source source = source_rows(all, first, states->rows);

        time_step(timing, &source, &fused[step + 1], &product[step + 1], &materialised[step + 1]);
    }
    stats->step_rows = states->rows;
    stats->step_fused = compute_spread(fused + 1, (int)states->steps).median;
    stats->step_product = compute_spread(product + 1, (int)states->steps).median;
    stats->step_materialised = compute_spread(materialised + 1, (int)states->steps).median;
}

static void compare_routes(decoder *model, gumbel_device *device, const struct step_states *states,
                           float temperature, struct generate_stats *stats)
{
    const gumbel_tensor hidden = {.data = states->hidden,
                                  .dtype = GUMBEL_FLOAT32,
                                  .rows = states->steps * states->rows,
                                  .cols = states->width};
    const struct source all = source_from_head(hidden, decoder_head(model));
    const struct source first = source_rows(&all, 0, states->rows);
    const int64_t logits = states->rows * source_vocab(&all);
    static const double uniforms[ROWS_MAX] = {0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875, 0.0625,
                                              0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875, 0.0625};
    int32_t tokens[ROWS_MAX];
    float logprobs[ROWS_MAX];
    float *exact = require_memory("logits", logits, sizeof(float));
    const gumbel_device_info info = describe_device(device);
    struct timing timing = {
        .device = device,
        .sampling = {.struct_size = sizeof(gumbel_sampling),
                     .temperature = {&temperature, GUMBEL_SAME}},
        .output = {.struct_size = sizeof(gumbel_output), .tokens = tokens, .logprobs = logprobs},
        .materialised = {.batch = states->rows,
                         .vocab = source_vocab(&all),
                         .logits = exact,
                         .stored = require_memory("logits", logits, sizeof(float)),
                         .probabilities = require_memory("logits", logits, sizeof(float)),
                         .uniforms = uniforms,
                         .inverse_temperature = temperature > 0 ? 1 / temperature : 1,
                         .tokens = tokens},
    };

    timing.workspace = source_workspace(&first, device, 1, &timing.workspace_bytes);
    timing.materialised.threads = info.threads;
    timing.materialised.isa = info.isa;
    source_logits(&first, device, exact);
    time_steps(&timing, states, &all, stats);
    free(timing.materialised.probabilities);
    free(timing.materialised.stored);
    free(timing.workspace);
    free(exact);
}

struct generate_stats measure_generate_stats(decoder *model, gumbel_device *device,
                                             const struct written_texts *texts,
                                             const generate_times *times, float temperature)
{
    const double decode = times->trunk + times->head;
    struct generate_stats stats = {
        .times = *times,
        .tokens_per_second = decode > 0 ? (double)times->drawn / decode : 0,
        .head_fraction = decode > 0 ? times->head / decode : 0,
    };

    stats.where = describe_device(device);
    if (!device_is_cuda(device)) {
        struct step_states states = gather_states(model, texts);

        compare_routes(model, device, &states, temperature, &stats);
        free(states.hidden);
    }
    return stats;
}

void print_generate_stats(const struct generate_stats *stats)
{
    fprintf(stderr, "%lld tokens, %.1f tokens/s (prompt: %.3f s, then %.3f s)\n",
            (long long)stats->times.drawn, stats->tokens_per_second, stats->times.prefill,
            stats->times.trunk + stats->times.head);
    if (stats->step_rows == 0) {
        fprintf(stderr,
                "head and sampling on %s (%s): %.1f%% of the time; %.0f us a step, copies to and "
                "from it included\n",
                stats->where.name, stats->where.description, 100 * stats->head_fraction,
                stats->times.head / stats->times.steps * 1e6);
        return;
    }
    fprintf(stderr, "head and sampling, fused: %.1f%% of the time; %.0f us a step of %lld row%s\n",
            100 * stats->head_fraction, stats->step_fused * 1e6, (long long)stats->step_rows,
            stats->step_rows == 1 ? "" : "s");
    fprintf(stderr,
            "materialised baseline beside it: %.0f us a step, %.2f times as much "
            "(product %.0f us; [B, V] stores, softmax and inverse CDF %.0f us)\n",
            stats->step_materialised * 1e6, stats->step_materialised / stats->step_fused,
            stats->step_product * 1e6, (stats->step_materialised - stats->step_product) * 1e6);
}

json_t *generate_stats_to_json(const struct generate_stats *stats)
{
    json_t *root = json_object();

    json_put(root, "tokens", json_integer(stats->times.drawn));
    json_put(root, "steps", json_integer(stats->times.steps));
    json_put(root, "prefill_seconds", json_number(stats->times.prefill));
    json_put(root, "trunk_seconds", json_number(stats->times.trunk));
    json_put(root, "head_seconds", json_number(stats->times.head));
    json_put(root, "tokens_per_second", json_number(stats->tokens_per_second));
    json_put(root, "head_share", json_number(stats->head_fraction));
    json_put(root, "device", json_string(stats->where.name));
    if (stats->step_rows == 0) {
        return root;
    }
    json_put(root, "step_rows", json_integer(stats->step_rows));
    json_put(root, "step_fused_us", json_number(stats->step_fused * 1e6));
    json_put(root, "step_product_us", json_number(stats->step_product * 1e6));
    json_put(root, "step_materialised_us", json_number(stats->step_materialised * 1e6));
    return root;
}
