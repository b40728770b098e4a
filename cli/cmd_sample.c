/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel sample: draw tokens from tensors in files.
 */
#include <float.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "cuda_source.h"
#include "options.h"
#include "report.h"
#include "sample_results.h"
#include "source.h"
#include "tensor_file.h"

struct sample_options {
    struct device_choice device;
    const char *weights, *hidden, *bias, *logits;
    const char *temperature, *seed, *position;
    struct result_paths out;
    float scale, soft_cap;
    int64_t vocab_size, first_token, chunk;
    int32_t num_samples;
    uint32_t first_sample, domain;
    bool json;
};

enum option_key {
    KEY_WEIGHTS = 256,
    KEY_HIDDEN,
    KEY_BIAS,
    KEY_LOGITS,
    KEY_TEMPERATURE,
    KEY_SEED,
    KEY_POSITION,
    KEY_SCALE,
    KEY_SOFT_CAP,
    KEY_VOCAB_SIZE,
    KEY_FIRST_TOKEN,
    KEY_CHUNK,
    KEY_NUM_SAMPLES,
    KEY_FIRST_SAMPLE,
    KEY_DOMAIN,
    KEY_OUT_TOKENS,
    KEY_OUT_LOGPROBS,
    KEY_OUT_SCORES,
    KEY_OUT_LSE,
    KEY_OUT_STATUS,
};

static const struct argp_option entries[] = {
    {0, 0, 0, 0, "What to draw from. FILE is .safetensors, or FILE:TENSOR, or .npy:", 1},
    {"weights", KEY_WEIGHTS, "FILE", 0, "LM head [V, D], float32, float16 or bfloat16", 1},
    {"hidden", KEY_HIDDEN, "FILE", 0, "Hidden states [B, D]", 1},
    {"bias", KEY_BIAS, "FILE", 0, "Bias of the head [V]", 1},
    {"logits", KEY_LOGITS, "FILE", 0, "Logits [B, V], in place of weights and hidden states", 1},
    {0, 0, 0, 0, "The logits:", 2},
    {"scale", KEY_SCALE, "X", 0, "Factor of the logits (default 1)", 2},
    {"soft-cap", KEY_SOFT_CAP, "X", 0, "cap * tanh(logit / cap); 0 is off (default 0)", 2},
    {"vocab-size", KEY_VOCAB_SIZE, "N", 0, "Tokens from N on never count (default: all count)", 2},
    {"first-token", KEY_FIRST_TOKEN, "N", 0, "Token id of the first weight row (default 0)", 2},
    {0, 0, 0, 0, "The draw. X is a number, or a .npy file with one value for each row:", 3},
    {"temperature", KEY_TEMPERATURE, "X", 0, "Temperature >= 0; 0 is greedy (default 1)", 3},
    {"seed", KEY_SEED, "X", 0, "64-bit seed; one for all rows is mixed with the row (default 0)",
     3},
    {"position", KEY_POSITION, "X", 0, "Step of the row in its sequence (default 0)", 3},
    {"num-samples", KEY_NUM_SAMPLES, "N", 0, "Draws of each row, 1 to 65536 (default 1)", 3},
    {"first-sample", KEY_FIRST_SAMPLE, "N", 0, "Sample counter of the first draw (default 0)", 3},
    {"domain", KEY_DOMAIN, "N", 0, "Stream of randomness, below 2^31 (default 0)", 3},
    {"chunk", KEY_CHUNK, "ROWS", 0,
     "Stream the vocabulary, ROWS at a time; the tokens stay the same, and with multiples of 64 so "
     "does every bit",
     3},
    {0, 0, 0, 0, "Results. Without any of these JSON goes to stdout:", 4},
    {"out-tokens", KEY_OUT_TOKENS, "FILE.npy", 0, "Tokens, int32 [B, S]", 4},
    {"out-logprobs", KEY_OUT_LOGPROBS, "FILE.npy", 0, "Log-probabilities, float32 [B, S]", 4},
    {"out-scores", KEY_OUT_SCORES, "FILE.npy", 0, "Perturbed scores, float32 [B, S]", 4},
    {"out-lse", KEY_OUT_LSE, "FILE.npy", 0, "Log-normalisers, float32 [B]", 4},
    {"out-status", KEY_OUT_STATUS, "FILE.npy", 0, "Row statuses, int32 [B]; 0 is good", 4},
    {"json", 'j', 0, 0, "Print JSON to stdout also beside these", 4},
    {0},
};

static error_t parse_draw_option(int key, char *argument, struct sample_options *options)
{
    switch (key) {
    case KEY_TEMPERATURE:
        options->temperature = argument;
        return 0;
    case KEY_SEED:
        options->seed = argument;
        return 0;
    case KEY_POSITION:
        options->position = argument;
        return 0;
    case KEY_SCALE:
        options->scale = parse_float("--scale", argument, -FLT_MAX, FLT_MAX);
        if (options->scale == 0) {
            fail("--scale", "0 would make all tokens equal");
        }
        return 0;
    case KEY_SOFT_CAP:
        options->soft_cap = parse_float("--soft-cap", argument, 0, FLT_MAX);
        return 0;
    case KEY_VOCAB_SIZE:
        options->vocab_size = parse_integer("--vocab-size", argument, 1, INT64_C(1) << 31);
        return 0;
    case KEY_FIRST_TOKEN:
        options->first_token = parse_integer("--first-token", argument, 0, INT32_MAX);
        return 0;
    case KEY_CHUNK:
        options->chunk = parse_integer("--chunk", argument, 1, INT64_C(1) << 31);
        return 0;
    case KEY_NUM_SAMPLES:
        options->num_samples = (int32_t)parse_integer("--num-samples", argument, 1, 65536);
        return 0;
    case KEY_FIRST_SAMPLE:
        options->first_sample = (uint32_t)parse_unsigned("--first-sample", argument, UINT32_MAX);
        return 0;
    case KEY_DOMAIN:
        options->domain = (uint32_t)parse_unsigned("--domain", argument, INT32_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct sample_options *options = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &options->device;
        return 0;
    case KEY_WEIGHTS:
        options->weights = argument;
        return 0;
    case KEY_HIDDEN:
        options->hidden = argument;
        return 0;
    case KEY_BIAS:
        options->bias = argument;
        return 0;
    case KEY_LOGITS:
        options->logits = argument;
        return 0;
    case KEY_OUT_TOKENS:
        options->out.tokens = argument;
        return 0;
    case KEY_OUT_LOGPROBS:
        options->out.logprobs = argument;
        return 0;
    case KEY_OUT_SCORES:
        options->out.scores = argument;
        return 0;
    case KEY_OUT_LSE:
        options->out.lse = argument;
        return 0;
    case KEY_OUT_STATUS:
        options->out.status = argument;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    case ARGP_KEY_ARG:
        fail(argument, "unexpected argument");
    default:
        return parse_draw_option(key, argument, options);
    }
}

/* ------------------------------------------------------------------------------- inputs ---- */

struct sample_files {
    struct tensor_file weights, hidden, bias, logits;
};

static void require_width(const char *field, const char *name, int64_t found, int64_t wanted,
                          const char *whose)
{
    if (found != wanted) {
        fail(field, "%s: has %lld columns, %s %lld", name, (long long)found, whose,
             (long long)wanted);
    }
}

static struct source open_source(const struct sample_options *options, struct sample_files *files)
{
    struct source source;

    if (options->logits) {
        if (options->weights || options->hidden || options->bias) {
            fail("--logits", "stands in place of --weights, --hidden and --bias");
        }
        tensor_file_open(&files->logits, "--logits", options->logits);
        source = source_from_logits(files->logits.matrix);
    } else {
        if (!options->weights || !options->hidden) {
            fail(options->weights ? "--hidden" : "--weights",
                 "missing; give --weights and --hidden, or --logits");
        }
        tensor_file_open(&files->weights, "--weights", options->weights);
        tensor_file_open(&files->hidden, "--hidden", options->hidden);
        require_width("--hidden", options->hidden, files->hidden.matrix.cols,
                      files->weights.matrix.cols, "--weights has");
        source = source_from_head(files->hidden.matrix, files->weights.matrix);
    }
    if (options->bias) {
        tensor_file_open(&files->bias, "--bias", options->bias);
        if (files->bias.matrix.rows != 1) {
            fail("--bias", "%s: has %lld rows; it must have one", options->bias,
                 (long long)files->bias.matrix.rows);
        }
        require_width("--bias", options->bias, files->bias.matrix.cols, files->weights.matrix.rows,
                      "--weights has as many rows:");
        source.head.bias = files->bias.matrix;
    }
    source.head.scale = source.logits.scale = options->scale;
    source.head.soft_cap = source.logits.soft_cap = options->soft_cap;
    source.head.first_token = source.logits.first_token = options->first_token;
    source.head.vocab_size = source.logits.vocab_size = options->vocab_size;
    return source;
}

/* ------------------------------------------------------------------------------ command ---- */

static void draw(const struct sample_options *options, const struct source *source,
                 gumbel_device *device, const gumbel_output *output)
{
    const int64_t batch = source_batch(source);
    const struct row_floats temperature =
        read_row_floats("--temperature", options->temperature, batch);
    const struct row_uint64s seed = read_row_uint64s("--seed", options->seed, batch);
    const struct row_uint32s position = read_row_uint32s("--position", options->position, batch);
    const gumbel_sampling sampling = {
        .struct_size = sizeof sampling,
        .temperature = temperature.data,
        .temperature_stride = temperature.stride,
        .seed = seed.data,
        .seed_stride = seed.stride,
        .position = position.data,
        .position_stride = position.stride,
        .num_samples = options->num_samples,
        .first_sample = options->first_sample,
        .domain = options->domain,
    };

    gumbel_device_info info = {.struct_size = sizeof info};

    gumbel_describe(device, &info);
    if (strncmp(info.name, "cuda", strlen("cuda")) == 0) {
        cuda_source_sample(source, device, info.name, &sampling, output, options->chunk);
    } else if (options->chunk) {
        source_sample_chunks(source, device, &sampling, output, options->chunk, true, "sampling");
    } else {
        source_sample(source, device, &sampling, output);
    }
    free(temperature.data);
    free(seed.data);
    free(position.data);
}

int command_sample(int argc, char **argv)
{
    static const struct argp_child children[] = {{&device_argp, 0, "The device:", 5}, {0}};
    static const struct argp argp = {
        .options = entries,
        .parser = parse_option,
        .doc = "Draw tokens from weights and hidden states, or from logits, in safetensors or .npy "
               "files. The files are mapped, not read; with --chunk they may be larger than the "
               "memory.",
        .children = children,
    };
    struct sample_options options = {.num_samples = 1};
    struct sample_files files = {0};
    struct source source;
    struct results results;
    gumbel_device *device = NULL;

    parse_arguments(&argp, argc, argv, &options);
    results_check_paths(&options.out);
    source = open_source(&options, &files);
    device = open_device(&options.device);
    results = results_new(source_batch(&source), options.num_samples);
    draw(&options, &source, device, &results.output);
    results_write(&results, &options.out);
    if (options.json || !results_have_path(&options.out)) {
        print_json(results_to_json(&results));
    }
    results_free(&results);
    gumbel_close(device);
    tensor_file_close(&files.weights);
    tensor_file_close(&files.hidden);
    tensor_file_close(&files.bias);
    tensor_file_close(&files.logits);
    return 0;
}
