/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel verify: checks that draws are exact, on the user's machine and optionally with their
 * model.
 */
#define _GNU_SOURCE
#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "number_pages.h"
#include "commands.h"
#include "decoder/decoder.h"
#include "report.h"
#include "tensor_file.h"
#include "verify.h"

struct verify_options {
    struct common_options common;
    const char *model, *prompt, *weights, *hidden, *logits;
    float temperature;
    int64_t row; /* -1: chosen */
    int64_t draws;
    uint64_t seed;
    bool screen;
};

#define AT(member) .offset = offsetof(struct verify_options, member)
static const struct argument accepted[] = {
    {.help = "Inputs (default: a synthetic head):"},
    {"model", 'm', "DIR", "Hugging Face folder; the rows are the positions of the prompt",
     ARGUMENT_TEXT, AT(model)},
    {"prompt", 'p', "TEXT", "Prompt (default: In the beginning God created)", ARGUMENT_TEXT,
     AT(prompt)},
    {"weights", 0, "FILE", "LM head [V, D], as for `gumbel sample`", ARGUMENT_TEXT, AT(weights)},
    {"hidden", 0, "FILE", "Hidden states [B, D]", ARGUMENT_TEXT, AT(hidden)},
    {"logits", 0, "FILE", "Logits [B, V], instead of weights and hidden states", ARGUMENT_TEXT,
     AT(logits)},
    {"row", 0, "N",
     "Row whose draws are counted (default: with a prompt the most sensitive one, else 0)",
     ARGUMENT_INT64, AT(row), 0, INT64_MAX},
    {.help = "The draws:"},
    {"temperature", 0, "X", "Temperature > 0 (default 1)", ARGUMENT_FLOAT, AT(temperature),
     .least = FLT_TRUE_MIN, .most = FLT_MAX},
    {"seed", 0, "N", "64-bit seed (default 0)", ARGUMENT_UINT64, AT(seed)},
    {"draws", 0, "N", "Draws for each test (default: as many as take a few seconds)",
     ARGUMENT_INT64, AT(draws), 1, INT64_C(1) << 32},
    {"screen", 0, NULL,
     "Also verify a screen, a quantized copy of the head: its error bounds, and equal tokens",
     ARGUMENT_FLAG, AT(screen)},
    {0},
};

/* -------------------------------------------------------------------------------- inputs ---- */

/* Owner of the data of a source. Start from {0}. */
struct verify_rows {
    decoder *model;
    void *hidden; /* [B, D], by the model or synthetic */
    void *weights;
    struct tensor_file hidden_file, weights_file, logits_file;
    float *logits; /* [B, V] of a head */
    char description[256];
};

static void load_model_rows(const struct verify_options *options, struct verify_rows *rows,
                            struct source *source)
{
    const char *prompt = options->prompt ? options->prompt : "In the beginning God created";
    decoder_error error = {""};
    decoder_sequence *sequence = NULL;
    token_list list = {0};
    gumbel_tensor hidden = {.dtype = GUMBEL_FLOAT32};

    if (decoder_open(options->model, options->common.device.threads, &rows->model, &error) != 0) {
        fail("--model", "%s", error.message);
    }
    if (tokenizer_encode(decoder_tokenizer(rows->model), prompt, strlen(prompt), true, &list,
                         &error) != 0) {
        fail_message("--prompt", error.message);
    }
    if (list.count == 0 || list.count > (size_t)decoder_describe(rows->model)->max_positions) {
        fail("--prompt", "has %zu tokens; the model supports 1 to %d", list.count,
             decoder_describe(rows->model)->max_positions);
    }
    hidden.rows = (int64_t)list.count;
    hidden.cols = decoder_describe(rows->model)->hidden_size;
    rows->hidden = require_memory("hidden states", hidden.rows * hidden.cols, sizeof(float));
    hidden.data = rows->hidden;
    if (decoder_sequence_new(rows->model, (int32_t)list.count, &sequence, &error) != 0 ||
        decoder_feed(rows->model, sequence, list.ids, (int32_t)list.count, 0, rows->hidden,
                     &error) != 0) {
        fail("--model", "%s", error.message);
    }
    decoder_sequence_free(sequence);
    token_list_free(&list);
    *source = source_from_head(hidden, decoder_head(rows->model));
    snprintf(rows->description, sizeof rows->description, "model %s", options->model);
}

static void load_file_rows(const struct verify_options *options, struct verify_rows *rows,
                           struct source *source)
{
    if (options->logits) {
        if (options->weights || options->hidden) {
            fail("--logits", "cannot be combined with --weights and --hidden");
        }
        tensor_file_open(&rows->logits_file, "--logits", options->logits);
        *source = source_from_logits(rows->logits_file.matrix);
        snprintf(rows->description, sizeof rows->description, "logits %s", options->logits);
        return;
    }
    if (!options->weights || !options->hidden) {
        fail(options->weights ? "--hidden" : "--weights",
             "missing; --weights and --hidden require each other");
    }
    tensor_file_open(&rows->weights_file, "--weights", options->weights);
    tensor_file_open(&rows->hidden_file, "--hidden", options->hidden);
    if (rows->hidden_file.matrix.cols != rows->weights_file.matrix.cols) {
        fail("--hidden", "%s: has %lld columns, --weights has %lld", options->hidden,
             (long long)rows->hidden_file.matrix.cols, (long long)rows->weights_file.matrix.cols);
    }
    *source = source_from_head(rows->hidden_file.matrix, rows->weights_file.matrix);
    snprintf(rows->description, sizeof rows->description, "weights %s", options->weights);
}

/* Makes a head as large as a small model's, whose logits have a standard deviation of 4.5. */
static void make_synthetic_rows(struct verify_rows *rows, struct source *source)
{
    enum { VOCAB = 8192, WIDTH = 256, ROWS = 8 };
    const size_t hidden_bytes = sizeof(uint16_t) * ROWS * WIDTH;
    const size_t weight_bytes = sizeof(uint16_t) * VOCAB * WIDTH;

    rows->hidden = require_memory("hidden states", (int64_t)hidden_bytes, 1);
    rows->weights = require_memory("weights", (int64_t)weight_bytes, 1);
    fill_numbers(rows->hidden, hidden_bytes, GUMBEL_BFLOAT16, 2, 1, 1);
    fill_numbers(rows->weights, weight_bytes, GUMBEL_BFLOAT16, -5, 0, 1);
    *source = source_from_head(
        (gumbel_tensor){
            .data = rows->hidden, .dtype = GUMBEL_BFLOAT16, .rows = ROWS, .cols = WIDTH},
        (gumbel_tensor){
            .data = rows->weights, .dtype = GUMBEL_BFLOAT16, .rows = VOCAB, .cols = WIDTH});
    snprintf(rows->description, sizeof rows->description, "a synthetic head");
}

static void open_rows(const struct verify_options *options, struct verify_rows *rows,
                      struct verify_input *input)
{
    const bool files = options->weights || options->hidden || options->logits;

    if (options->model && files) {
        fail("--model", "cannot be combined with --weights, --hidden and --logits");
    }
    if (options->prompt && !options->model) {
        fail("--prompt", "requires --model");
    }
    if (options->model) {
        load_model_rows(options, rows, &input->source);
    } else if (files) {
        load_file_rows(options, rows, &input->source);
    } else {
        make_synthetic_rows(rows, &input->source);
    }
    input->row = options->row >= 0 ? options->row : 0;
    if (input->row >= source_batch(&input->source)) {
        fail("--row", "%lld; there are %lld rows", (long long)input->row,
             (long long)source_batch(&input->source));
    }
}

/* Computes the rows' logits with the bits of the fused draw. */
static void add_logits(struct verify_rows *rows, struct verify_input *input)
{
    const int64_t batch = source_batch(&input->source);
    const int64_t vocab = source_vocab(&input->source);

    if (input->source.from_logits) {
        input->logits = input->source;
        return;
    }
    rows->logits = require_memory("logits", batch * vocab, sizeof *rows->logits);
    source_logits(&input->source, input->device, rows->logits);
    input->logits = source_from_logits((gumbel_tensor){
        .data = rows->logits, .dtype = GUMBEL_FLOAT32, .rows = batch, .cols = vocab});
}

/* Chooses the row whose draws are counted, keeps at most eight rows with it, and computes their
 * logits. With a model, the row is the one of the prompt's last eight that shows a wrong
 * temperature with the fewest draws. */
static void choose_row(const struct verify_options *options, struct verify_rows *rows,
                       struct verify_input *input)
{
    enum { KEPT = 8 };
    const int64_t batch = source_batch(&input->source);
    const bool choose = options->row < 0 && options->model;
    const int64_t last = choose ? batch - 1 : input->row;
    const int64_t first = last < KEPT ? 0 : last - KEPT + 1;

    input->source = source_rows(&input->source, first, batch - first < KEPT ? batch - first : KEPT);
    add_logits(rows, input);
    input->row = choose ? verify_choose_row(input) : input->row - first;
    if (!options->common.json) {
        printf("%s: V = %lld, D = %lld, row %lld of %lld, temperature %g\n", rows->description,
               (long long)source_vocab(&input->source),
               (long long)source_hidden_size(&input->source), (long long)(first + input->row),
               (long long)batch, (double)input->temperature);
        fflush(stdout);
    }
}

static void close_rows(struct verify_rows *rows)
{
    decoder_close(rows->model);
    free(rows->hidden);
    free(rows->weights);
    free(rows->logits);
    tensor_file_close(&rows->hidden_file);
    tensor_file_close(&rows->weights_file);
    tensor_file_close(&rows->logits_file);
}

/* ------------------------------------------------------------------------------- command ---- */

static void print_summary(const struct verify_options *options, struct verdicts *verdicts)
{
    if (!options->common.json) {
        printf("%d passed, %d failed, %d skipped\n", verdicts->count[PASSED],
               verdicts->count[FAILED], verdicts->count[SKIPPED]);
        json_decref(verdicts->checks);
        return;
    }
    json_t *root = json_object();

    json_put(root, "passed", json_integer(verdicts->count[PASSED]));
    json_put(root, "failed", json_integer(verdicts->count[FAILED]));
    json_put(root, "skipped", json_integer(verdicts->count[SKIPPED]));
    json_put(root, "checks", verdicts->checks);
    print_json(root);
}

const struct command_line verify_line = {
    .doc = "Check that draws are exact on this machine: chi-squared of many draws of one row, the "
           "power of that test, the tail of the noise, and equal bits from every instruction set, "
           "thread count, chunk size and input. The tail is how often a rare token wins against a "
           "likely one; the gap is the difference of their logits, divided by the temperature, and "
           "the rare token must win at the rate 1 / (1 + e^gap). Exit code 1 if a check fails.",
    .arguments = accepted,
    .examples = "  $ gumbel verify\n"
                "  $ gumbel verify --model DIR --prompt \"In the beginning\"\n"
                "  $ gumbel verify --logits logits.npy --row 3 --draws 1000000\n"};

int command_verify(int argc, char **argv)
{
    struct verify_options options = {.temperature = 1.0f, .row = -1};
    struct verify_rows rows = {0};
    struct verify_input input = {0};
    struct verdicts verdicts = {.checks = json_array()};
    int code = 0;

    parse_arguments(&verify_line, argc, argv, &options);
    verdicts.print = !options.common.json;
    input.choice = options.common.device;
    input.device = open_device(&options.common.device);
    if (device_is_cuda(input.device)) {
        fail("--device", "gumbel verify supports CPU devices only");
    }
    input.temperature = options.temperature;
    input.seed = options.seed;
    input.draws = options.draws;
    open_rows(&options, &rows, &input);
    choose_row(&options, &rows, &input);
    verify_draws(&input, &verdicts);
    verify_agreement(&input, &verdicts);
    if (options.screen) {
        verify_screen(&input, &verdicts);
    }
    verify_tail(options.seed, &verdicts);
    print_summary(&options, &verdicts);
    code = verdicts.count[FAILED] ? EXIT_FAILED : 0;
    close_rows(&rows);
    gumbel_close(input.device);
    return code;
}
