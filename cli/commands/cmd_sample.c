/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel sample: draw tokens from tensors in files.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "commands.h"
#include "cuda_source.h"
#include "rank_group.h"
#include "report.h"
#include "request_options.h"
#include "sample_results.h"
#include "seed.h"
#include "source.h"
#include "tensor_file.h"
#include "token_rows.h"

struct sample_options {
    struct request_options request;
    const char *weights, *hidden, *bias, *logits;
    const char *temperature, *seed, *position, *first_sample, *given, *group;
    struct result_paths out;
    float scale, soft_cap;
    int64_t vocab_size, first_token, chunk;
    int32_t num_samples;
    uint32_t domain;
    int32_t num_best;
};

#define AT(member) .offset = offsetof(struct sample_options, member)
static const struct argument accepted[] = {
    {.help = "Inputs. FILE is .safetensors, FILE:TENSOR or .npy, or - for stdin:"},
    {"weights", 0, "FILE", "LM head [V, D], float32, float16 or bfloat16", ARGUMENT_TEXT,
     AT(weights)},
    {"hidden", 0, "FILE", "Hidden states [B, D]", ARGUMENT_TEXT, AT(hidden)},
    {"bias", 0, "FILE", "Bias of the head [V]", ARGUMENT_TEXT, AT(bias)},
    {"logits", 0, "FILE", "Logits [B, V], instead of weights and hidden states", ARGUMENT_TEXT,
     AT(logits)},
    {.help = "The logits:"},
    {"scale", 0, "X", "Multiplies the logits; not 0 (default 1)", ARGUMENT_FLOAT, AT(scale),
     .least = -FLT_MAX, .most = FLT_MAX},
    {"soft-cap", 0, "X", "Soft-cap X of the logits: X * tanh(logit / X); 0 is off (default 0)",
     ARGUMENT_FLOAT, AT(soft_cap), .most = FLT_MAX},
    {"vocab-size", 0, "N", "Token ids >= N are padding and never drawn (default: no padding)",
     ARGUMENT_INT64, AT(vocab_size), 1, INT64_C(1) << 31},
    {"first-token", 0, "N", "Token id of the first weight row (default 0)", ARGUMENT_INT64,
     AT(first_token), 0, INT32_MAX},
    {.help = "The draw. X is a number, or a .npy file with one value for each row:"},
    {"temperature", 0, "X", "Temperature >= 0; 0 is greedy (default 1)", ARGUMENT_TEXT,
     AT(temperature)},
    {"seed", 0, "X",
     "64-bit seed; from one number each row's seed is derived (default: random, printed)",
     ARGUMENT_TEXT, AT(seed)},
    {"position", 0, "X", "Step of the row in its sequence (default 0)", ARGUMENT_TEXT,
     AT(position)},
    {"num-samples", 0, "N", "Draws of each row, 1 to 65536 (default 1)", ARGUMENT_INT32,
     AT(num_samples), 1, 65536},
    {"first-sample", 0, "X", "Sample counter of a row's first draw (default 0)", ARGUMENT_TEXT,
     AT(first_sample)},
    {"domain", 0, "N", "Number of the random stream, below 2^31 (default 0)", ARGUMENT_UINT32,
     AT(domain), .high = INT32_MAX},
    {"group", 0, "KIND",
     "Split the vocabulary over the processes of a group: 'mpi' for processes started by mpirun. "
     "The first process writes the results, which do not depend on the number of processes",
     ARGUMENT_TEXT, AT(group), .choices = "mpi"},
    {"chunk", 0, "ROWS",
     "Process ROWS vocabulary rows at a time. The tokens are the same; with a multiple of 64 all "
     "outputs have the same bits",
     ARGUMENT_INT64, AT(chunk), 1, INT64_C(1) << 31},
    {"given", 0, "FILE.npy",
     "Score these tokens instead of drawing: int32 [B, S], or [S] for every row; -1 is no token",
     ARGUMENT_TEXT, AT(given)},
    {"prompt-tokens", 0, "ID,..",
     "Prompt tokens that penalties count, for every row; or a .npy file as for --ban",
     ARGUMENT_TEXT, AT(request.prompt_tokens)},
    {"output-tokens", 0, "ID,..", "Output tokens that penalties count, as --prompt-tokens",
     ARGUMENT_TEXT, AT(request.output_tokens)},
    {"num-best", 0, "N",
     "Number of best scores of each draw, 0 to 16: draws without replacement (default 0)",
     ARGUMENT_INT32, AT(num_best), 0, GUMBEL_BEST_MAX},
    {.help = "Results. Without any of these, and with --json, JSON is printed on stdout:"},
    {"out-tokens", 0, "FILE.npy", "Tokens, int32 [B, S]", ARGUMENT_TEXT, AT(out.of[RESULT_TOKENS])},
    {"out-logprobs", 0, "FILE.npy", "Log-probabilities, float32 [B, S]", ARGUMENT_TEXT,
     AT(out.of[RESULT_LOGPROBS])},
    {"out-scores", 0, "FILE.npy", "Perturbed scores, float32 [B, S]", ARGUMENT_TEXT,
     AT(out.of[RESULT_SCORES])},
    {"out-lse", 0, "FILE.npy", "Log-normalisers, float32 [B]", ARGUMENT_TEXT,
     AT(out.of[RESULT_LSE])},
    {"out-status", 0, "FILE.npy", "Row statuses, int32 [B]; 0 is OK", ARGUMENT_TEXT,
     AT(out.of[RESULT_STATUS])},
    {"out-ranks", 0, "FILE.npy", "Ranks of the tokens, int32 [B, S]", ARGUMENT_TEXT,
     AT(out.of[RESULT_RANKS])},
    {"out-kept", 0, "FILE.npy", "Number of tokens that truncation keeps, int32 [B]", ARGUMENT_TEXT,
     AT(out.of[RESULT_KEPT])},
    {"out-top-ids", 0, "FILE.npy", "The likeliest tokens, int32 [B, N]", ARGUMENT_TEXT,
     AT(out.of[RESULT_TOP_IDS])},
    {"out-top-logprobs", 0, "FILE.npy", "Log-probabilities of the likeliest tokens, float32 [B, N]",
     ARGUMENT_TEXT, AT(out.of[RESULT_TOP_LOGPROBS])},
    {"out-best-ids", 0, "FILE.npy", "Tokens of the best scores, int32 [B, N]", ARGUMENT_TEXT,
     AT(out.of[RESULT_BEST_IDS])},
    {"out-best-scores", 0, "FILE.npy", "Best scores, float32 [B, N]", ARGUMENT_TEXT,
     AT(out.of[RESULT_BEST_SCORES])},
    {0},
};

/* ------------------------------------------------------------------------------- inputs ---- */

struct sample_files {
    struct tensor_file weights, hidden, bias, logits;
};

static void require_width(const char *field, const char *name, int64_t found, int64_t expected,
                          const char *unit)
{
    if (found != expected) {
        fail(field, "%s: has %lld columns, but --weights has %lld %s", name, (long long)found,
             (long long)expected, unit);
    }
}

static struct source open_source(const struct sample_options *options, struct sample_files *files)
{
    struct source source;

    if (options->logits) {
        if (options->weights || options->hidden || options->bias) {
            fail("--logits", "cannot be combined with --weights, --hidden and --bias");
        }
        tensor_file_open(&files->logits, "--logits", options->logits);
        source = source_from_logits(files->logits.matrix);
    } else {
        if (!options->weights || !options->hidden) {
            fail(options->weights ? "--hidden" : "--weights",
                 "missing; pass --weights and --hidden, or --logits");
        }
        tensor_file_open(&files->weights, "--weights", options->weights);
        tensor_file_open(&files->hidden, "--hidden", options->hidden);
        require_width("--hidden", options->hidden, files->hidden.matrix.cols,
                      files->weights.matrix.cols, "columns");
        source = source_from_head(files->hidden.matrix, files->weights.matrix);
    }
    if (options->bias) {
        tensor_file_open(&files->bias, "--bias", options->bias);
        if (files->bias.matrix.rows != 1) {
            fail("--bias", "%s: expected one row, got %lld", options->bias,
                 (long long)files->bias.matrix.rows);
        }
        require_width("--bias", options->bias, files->bias.matrix.cols, files->weights.matrix.rows,
                      "rows");
        source.head.bias = files->bias.matrix;
    }
    source.head.scale = source.logits.scale = options->scale;
    source.head.soft_cap = source.logits.soft_cap = options->soft_cap;
    source.head.first_token = source.logits.first_token = options->first_token;
    source.head.vocab_size = source.logits.vocab_size = options->vocab_size;
    return source;
}

/* ------------------------------------------------------------------------------ command ---- */

/* Reads the tokens to score: [B, S], or [S] for every row. */
static gumbel_row_i32 read_given(const char *path, int64_t rows, int32_t samples, int64_t vocab)
{
    npy *array = NULL;
    const tensor_view *view = NULL;
    int32_t *data = NULL;
    gumbel_row_i32 given = {NULL, 0};

    if (!path) {
        return given;
    }
    array = open_int32_rows("--given", path, rows, samples);
    view = npy_tensor(array);
    data = require_memory("--given", 1, view->bytes);
    memcpy(data, view->data, view->bytes);
    for (size_t i = 0; i < view->bytes / sizeof *data; i++) {
        require_token("--given", data[i], vocab);
    }
    given = (gumbel_row_i32){data, view->rank == 2 ? 0 : GUMBEL_SAME};
    npy_close(array);
    return given;
}

/* The seeds of the rows: one value for all, or values in a file. */
struct row_seed {
    uint64_t value;
    bool random; /* drawn, as there is no --seed */
    bool same;   /* `value` is for all rows; else the file --seed has one for each */
};

static struct row_seed choose_seed(const struct sample_options *options)
{
    if (!options->seed) {
        return (struct row_seed){draw_seed(), true, true};
    }
    return names_npy(options->seed)
               ? (struct row_seed){.same = false}
               : (struct row_seed){parse_unsigned("--seed", options->seed, UINT64_MAX), false,
                                   true};
}

static gumbel_row_u64 read_seeds(const struct sample_options *options, const struct row_seed *seed,
                                 int64_t rows)
{
    return seed->same ? (gumbel_row_u64){&seed->value, GUMBEL_SAME}
                      : read_row_uint64s("--seed", options->seed, rows);
}

static void draw_source(const struct sample_options *options, const struct source *source,
                        const struct row_seed *seed, gumbel_device *device,
                        struct rank_group *ranks, const gumbel_output *output)
{
    const int64_t batch = source_batch(source);
    const int64_t width = options->first_token + source_vocab(source);
    /* The weights may be a shard, but options may name any token of the whole vocabulary, whose
     * size is --vocab-size. */
    const int64_t vocab = options->vocab_size ? options->vocab_size : width;
    struct request request;
    gumbel_sampling sampling = {
        .struct_size = sizeof sampling,
        .temperature = read_row_floats("--temperature", options->temperature, 0, FLT_MAX, batch),
        .seed = read_seeds(options, seed, batch),
        .position = read_row_uint64s("--position", options->position, batch),
        .given = read_given(options->given, batch, options->num_samples, vocab),
        .num_samples = options->num_samples,
        .first_sample = read_row_uint32s("--first-sample", options->first_sample, batch),
        .domain = options->domain,
    };

    request_read(&request, &options->request, batch, width, vocab);
    request_attach(&request, &sampling);
    if (ranks) {
        rank_group_sample(ranks, source, &sampling, output);
    } else if (device_is_cuda(device)) {
        cuda_source_sample(source, device, describe_device(device).name, &sampling, output,
                           options->chunk);
    } else if (options->chunk) {
        source_sample_chunks(source, device, &sampling, output, options->chunk,
                             !reads_stdin(options->weights), "sampling");
    } else {
        source_sample(source, device, &sampling, output);
    }
    request_free(&request);
    free((void *)sampling.temperature.data);
    if (!seed->same) {
        free((void *)sampling.seed.data);
    }
    free((void *)sampling.position.data);
    free((void *)sampling.first_sample.data);
    free((void *)sampling.given.data);
}

/* An option that may name an input file, and its value. */
struct named_input {
    const char *option, *name;
};

/* fail() if an output would replace an input file. */
static void check_outputs_spare_inputs(const struct sample_options *options)
{
    const struct request_options *request = &options->request;
    const struct named_input tensors[] = {
        {"--weights", options->weights},
        {"--hidden", options->hidden},
        {"--bias", options->bias},
        {"--logits", options->logits},
    };
    const struct named_input arrays[] = {
        {"--temperature", options->temperature},
        {"--seed", options->seed},
        {"--position", options->position},
        {"--first-sample", options->first_sample},
        {"--given", options->given},
        {"--top-k", request->top_k},
        {"--top-p", request->top_p},
        {"--min-p", request->min_p},
        {"--repetition-penalty", request->repetition},
        {"--frequency-penalty", request->frequency},
        {"--presence-penalty", request->presence},
        {"--logit-bias", request->logit_bias},
        {"--allow", request->allowed},
        {"--ban", request->banned},
        {"--mask", request->mask},
        {"--prompt-tokens", request->prompt_tokens},
        {"--output-tokens", request->output_tokens},
    };

    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        results_check_input(&options->out, tensors[i].option, tensors[i].name);
    }
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        /* A value that does not end in .npy is a number or list, even if a file has that name. */
        if (arrays[i].name && names_npy(arrays[i].name)) {
            results_check_input(&options->out, arrays[i].option, arrays[i].name);
        }
    }
}

/* fail() for options that contradict each other, before any file is opened. */
static void check_options(const struct sample_options *options)
{
    const struct request_options *request = &options->request;
    const char *const *out = options->out.of;

    if (options->scale == 0) {
        fail("--scale", "0 would make all tokens equally likely; expected another number");
    }
    if ((out[RESULT_TOP_IDS] || out[RESULT_TOP_LOGPROBS]) && request->num_top == 0) {
        fail("--top-logprobs",
             "missing; it is the number of columns of --out-top-ids and --out-top-logprobs");
    }
    if ((out[RESULT_BEST_IDS] || out[RESULT_BEST_SCORES]) && options->num_best == 0) {
        fail("--num-best",
             "missing; it is the number of columns of --out-best-ids and --out-best-scores");
    }
    if (options->num_best && (options->num_samples > 1 || options->given || options->chunk)) {
        fail("--num-best", "is not supported with --num-samples, --given or --chunk: it lists the "
                           "scores of one draw");
    }
    if (options->chunk &&
        (request_truncates(request) || request->num_top || request->raw || request->ranks ||
         request->kept || out[RESULT_RANKS] || out[RESULT_KEPT])) {
        fail("--chunk",
             "is not supported with truncation, --top-logprobs, --raw-logprobs, ranks or kept "
             "counts, which require the whole vocabulary at once");
    }
    if (options->group && (options->chunk || (request->common.device.device &&
                                              strcmp(request->common.device.device, "cpu") != 0))) {
        fail("--group", "is not supported with --chunk or on a GPU");
    }
    if (options->group && (reads_stdin(options->weights) || reads_stdin(options->hidden) ||
                           reads_stdin(options->bias) || reads_stdin(options->logits))) {
        fail("--group", "only the first process of a group can read stdin; pass files");
    }
    if (options->chunk && options->given) {
        fail("--chunk", "is not supported with --given");
    }
    if ((request->repetition || request->frequency || request->presence) &&
        !request->prompt_tokens && !request->output_tokens) {
        fail("--prompt-tokens",
             "missing; penalties require --prompt-tokens or --output-tokens, the tokens to count");
    }
}

const struct command_line sample_line = {
    .doc =
        "Draw tokens from weights and hidden states, or from logits, in safetensors or .npy files. "
        "Files are mapped; with --chunk they may be larger than the memory.",
    .arguments = accepted,
    .shared = request_arguments,
    .examples = "  $ gumbel sample --logits logits.npy --temperature 0.8 --top-k 40\n"
                "  $ gumbel sample --weights head.safetensors --hidden hidden.npy\n"
                "  $ gumbel sample --logits logits.npy --out-tokens tokens.npy\n"
                "  $ make-logits | gumbel sample --logits - --seed 7\n"};

int command_sample(int argc, char **argv)
{
    struct sample_options options = {.num_samples = 1, .scale = 1};
    struct sample_files files = {0};
    struct source source;
    struct results results;
    struct row_seed seed;
    struct rank_group *ranks = NULL;
    gumbel_device *device = NULL;
    bool json = false;

    parse_arguments(&sample_line, argc, argv, &options);
    json = options.request.common.json || !results_have_path(&options.out);
    results_check_paths(&options.out, json);
    check_outputs_spare_inputs(&options);
    check_options(&options);
    source = open_source(&options, &files);
    device = open_device(&options.request.common.device);
    results = results_new(source_batch(&source), options.num_samples,
                          &(struct result_choice){
                              .ranks = options.request.ranks || options.out.of[RESULT_RANKS],
                              .kept = options.request.kept || options.out.of[RESULT_KEPT],
                              .num_top = options.request.num_top,
                              .num_best = options.num_best,
                              .raw = options.request.raw,
                          });
    seed = choose_seed(&options);
    ranks = options.group ? rank_group_open(options.group, device, options.first_token,
                                            source_vocab(&source), &seed.value)
                          : NULL;
    draw_source(&options, &source, &seed, device, ranks, &results.output);
    if (rank_group_writes(ranks)) {
        results_write(&results, &options.out);
    }
    if (json) {
        json_t *root = results_to_json(&results);

        if (seed.same && !options.given) {
            json_put(root, "seed", seed_to_json(seed.value));
        }
        print_json(root);
    } else if (seed.random && !options.given && rank_group_writes(ranks)) {
        print_seed(seed.value, "these draws");
    }
    results_free(&results);
    rank_group_close(ranks);
    gumbel_close(device);
    tensor_file_close(&files.weights);
    tensor_file_close(&files.hidden);
    tensor_file_close(&files.bias);
    tensor_file_close(&files.logits);
    return 0;
}
