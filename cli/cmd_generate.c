/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel generate: write text with a Hugging Face folder, every token drawn by the fused sampler.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <float.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "generate_stats.h"
#include "options.h"
#include "report.h"
#include "text_writer.h"

enum bos_rule { BOS_OF_MODEL, BOS_ALWAYS, BOS_NEVER };

struct generate_arguments {
    struct device_choice device;
    const char *model, *prompt;
    int32_t max_tokens, samples;
    uint32_t first_sample;
    float temperature;
    uint64_t seed;
    enum bos_rule bos;
    bool ignore_eos, echo, json, stats;
};

enum option_key {
    KEY_MAX_TOKENS = 256,
    KEY_TEMPERATURE,
    KEY_SEED,
    KEY_SAMPLES,
    KEY_FIRST_SAMPLE,
    KEY_BOS,
    KEY_NO_BOS,
    KEY_IGNORE_EOS,
    KEY_ECHO,
    KEY_STATS,
};

static const struct argp_option entries[] = {
    {0, 0, 0, 0, "The model and the prompt:", 1},
    {"model", 'm', "DIR", 0, "Hugging Face folder (Qwen3 or Llama)", 1},
    {"prompt", 'p', "TEXT", 0, "Prompt; without it stdin is read, less one newline at its end", 1},
    {"bos", KEY_BOS, 0, 0, "Begin with the model's bos token (default: as its tokenizer says)", 1},
    {"no-bos", KEY_NO_BOS, 0, 0, "Put no special tokens around the prompt", 1},
    {0, 0, 0, 0, "The draw:", 2},
    {"max-tokens", KEY_MAX_TOKENS, "N", 0, "Tokens to draw at most (default 100)", 2},
    {"temperature", KEY_TEMPERATURE, "X", 0, "Temperature >= 0; 0 is greedy (default 1)", 2},
    {"seed", KEY_SEED, "N", 0, "64-bit seed (default 0)", 2},
    {"samples", KEY_SAMPLES, "N", 0, "Independent texts, 1 to 1024 (default 1)", 2},
    {"first-sample", KEY_FIRST_SAMPLE, "N", 0, "Sample counter of the first text (default 0)", 2},
    {"ignore-eos", KEY_IGNORE_EOS, 0, 0, "Do not stop at the model's end tokens", 2},
    {0, 0, 0, 0, "Output:", 3},
    {"echo", KEY_ECHO, 0, 0, "Print the prompt before each text", 3},
    {"stats", KEY_STATS, 0, 0, "Say on stderr how long it took, and what other ways take", 3},
    {"json", 'j', 0, 0, "Print one JSON object at the end", 3},
    {0},
};

static error_t parse_draw_option(int key, char *argument, struct generate_arguments *arguments)
{
    switch (key) {
    case KEY_MAX_TOKENS:
        arguments->max_tokens = (int32_t)parse_integer("--max-tokens", argument, 1, INT32_MAX);
        return 0;
    case KEY_TEMPERATURE:
        arguments->temperature = parse_float("--temperature", argument, 0, FLT_MAX);
        return 0;
    case KEY_SEED:
        arguments->seed = parse_unsigned("--seed", argument, UINT64_MAX);
        return 0;
    case KEY_SAMPLES:
        arguments->samples = (int32_t)parse_integer("--samples", argument, 1, 1024);
        return 0;
    case KEY_FIRST_SAMPLE:
        arguments->first_sample = (uint32_t)parse_unsigned("--first-sample", argument, UINT32_MAX);
        return 0;
    case KEY_IGNORE_EOS:
        arguments->ignore_eos = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct generate_arguments *arguments = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &arguments->device;
        return 0;
    case 'm':
        arguments->model = argument;
        return 0;
    case 'p':
        arguments->prompt = argument;
        return 0;
    case KEY_BOS:
        arguments->bos = BOS_ALWAYS;
        return 0;
    case KEY_NO_BOS:
        arguments->bos = BOS_NEVER;
        return 0;
    case KEY_ECHO:
        arguments->echo = true;
        return 0;
    case KEY_STATS:
        arguments->stats = true;
        return 0;
    case 'j':
        arguments->json = true;
        return 0;
    case ARGP_KEY_ARG:
        fail(argument, "unexpected argument");
    case ARGP_KEY_END:
        if (!arguments->model) {
            fail("--model", "missing");
        }
        return 0;
    default:
        return parse_draw_option(key, argument, arguments);
    }
}

/* ------------------------------------------------------------------------------- prompt ---- */

/* All of stdin, ended by NUL, in memory that the caller frees. */
static char *read_stdin(size_t *size)
{
    enum { MOST_BYTES = 1 << 26 };
    size_t capacity = 1 << 16;
    char *text = malloc(capacity);

    *size = 0;
    for (size_t got = 1; got > 0; *size += got) {
        if (text && *size + 1 == capacity) {
            capacity *= 2;
            text = capacity <= MOST_BYTES ? realloc(text, capacity) : NULL;
        }
        if (!text) {
            fail("stdin", "a prompt of more than %d bytes", MOST_BYTES / 2);
        }
        got = fread(text + *size, 1, capacity - *size - 1, stdin);
    }
    if (ferror(stdin)) {
        fail("stdin", "%s", strerror(errno));
    }
    if (*size > 0 && text[*size - 1] == '\n') {
        --*size;
    }
    text[*size] = '\0';
    return text;
}

static token_list encode_prompt(const struct generate_arguments *arguments, const decoder *model,
                                const char *text, size_t size)
{
    const int32_t bos = decoder_describe(model)->bos_id;
    const bool special = arguments->bos != BOS_NEVER;
    token_list list = {0};
    token_list plain = {0};
    decoder_error error = {""};

    if (arguments->bos == BOS_ALWAYS && bos < 0) {
        fail("--bos", "%s: the model has no bos token", arguments->model);
    }
    if (tokenizer_encode(decoder_tokenizer(model), text, size, special, &plain, &error) != 0) {
        fail("--prompt", "%s", error.message);
    }
    if ((arguments->bos == BOS_ALWAYS && (plain.count == 0 || plain.ids[0] != bos) &&
         token_list_append(&list, &bos, 1) != 0) ||
        token_list_append(&list, plain.ids, plain.count) != 0) {
        fail("--prompt", "not enough memory");
    }
    token_list_free(&plain);
    if (list.count == 0) {
        fail("--prompt", "no tokens; give some text or --bos");
    }
    return list;
}

/* ------------------------------------------------------------------------------- output ---- */

static void report(const struct generate_arguments *arguments, const struct writer *writer,
                   decoder *model, gumbel_device *device, const token_list *prompt,
                   const generate_times *times)
{
    json_t *root = NULL;

    if (arguments->json) {
        root = writer_to_json(writer, prompt);
    } else if (arguments->samples == 1) {
        putchar('\n');
        fflush(stdout);
    }
    if (arguments->stats) {
        token_list *drawn = require_memory("samples", arguments->samples, sizeof *drawn);
        struct generate_stats stats;

        for (int32_t j = 0; j < arguments->samples; j++) {
            drawn[j] = writer->writings[j].ids;
        }
        stats = measure_generate_stats(model, device,
                                       &(struct written_texts){prompt, drawn, arguments->samples},
                                       times, arguments->temperature);
        print_generate_stats(&stats);
        if (root) {
            json_put(root, "stats", generate_stats_to_json(&stats));
        }
        free(drawn);
    }
    if (root) {
        print_json(root);
    }
}

/* ------------------------------------------------------------------------------ command ---- */

static void write_texts(const struct generate_arguments *arguments, decoder *model,
                        gumbel_device *device, const char *text, size_t size)
{
    token_list prompt = encode_prompt(arguments, model, text, size);
    struct writer writer = writer_new(model, text, size, arguments->samples,
                                      (struct writer_style){
                                          .quiet = arguments->json,
                                          .echo = arguments->echo,
                                          .ignore_eos = arguments->ignore_eos,
                                          .first_sample = arguments->first_sample,
                                      });
    const generate_options options = {
        .prompt = prompt.ids,
        .prompt_count = (int32_t)prompt.count,
        .max_tokens = arguments->max_tokens,
        .num_samples = arguments->samples,
        .first_sample = arguments->first_sample,
        .temperature = arguments->temperature,
        .seed = arguments->seed,
        .ignore_eos = arguments->ignore_eos,
        .on_token = writer_take,
        .context = &writer,
    };
    generate_times times = {0};
    decoder_error error = {""};

    if (generate(model, device, &options, &times, &error) != 0) {
        fail("--model", "%s", error.message);
    }
    finish_stdout();
    report(arguments, &writer, model, device, &prompt, &times);
    writer_free(&writer);
    token_list_free(&prompt);
}

int command_generate(int argc, char **argv)
{
    static const struct argp_child children[] = {{&device_argp, 0, "The device:", 4}, {0}};
    static const struct argp argp = {
        .options = entries,
        .parser = parse_option,
        .doc = "Write text with a model folder, every token drawn by the fused sampler. One text "
               "is printed as it comes; several are printed one after another, each when it and "
               "those before it are complete.",
        .children = children,
    };
    struct generate_arguments arguments = {.max_tokens = 100, .temperature = 1, .samples = 1};
    decoder *model = NULL;
    gumbel_device *device = NULL;
    decoder_error error = {""};
    char *from_stdin = NULL;
    size_t size = 0;

    parse_arguments(&argp, argc, argv, &arguments);
    gumbel_close(open_device(&arguments.device)); /* a wrong device is told before loading */
    if (decoder_open(arguments.model, arguments.device.threads, &model, &error) != 0) {
        fail("--model", "%s", error.message);
    }
    arguments.device.threads = decoder_describe(model)->threads;
    device = open_device_on(&arguments.device, decoder_parallel_for, model);
    if (arguments.prompt) {
        size = strlen(arguments.prompt);
    } else {
        from_stdin = read_stdin(&size);
    }
    write_texts(&arguments, model, device, from_stdin ? from_stdin : arguments.prompt, size);
    free(from_stdin);
    gumbel_close(device);
    decoder_close(model);
    return 0;
}
