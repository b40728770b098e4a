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

#include "arguments.h"
#include "commands.h"
#include "cuda_head_verify.h"
#include "cuda_head.h"
#include "draft_report.h"
#include "drafted_texts.h"
#include "generate_stats.h"
#include "head_screen.h"
#include "rank_group.h"
#include "report.h"
#include "request_options.h"
#include "text_writer.h"

struct generate_arguments {
    struct request_options request;
    const char *model, *prompt, *group;
    int32_t max_tokens, samples;
    uint32_t first_sample;
    float temperature;
    uint64_t seed;
    struct draft_choice draft;
    bool bos, no_bos, ignore_eos, echo, stats, screen;
};

#define AT(member) .offset = offsetof(struct generate_arguments, member)
static const struct argument accepted[] = {
    {.help = "The model and the prompt:"},
    {"model", 'm', "DIR", "Hugging Face folder (Qwen3 or Llama)", ARGUMENT_TEXT, AT(model)},
    {"prompt", 'p', "TEXT", "Prompt; without it stdin is read, less one newline at its end",
     ARGUMENT_TEXT, AT(prompt)},
    {"bos", 0, NULL, "Begin with the model's bos token (default: as its tokenizer says)",
     ARGUMENT_FLAG, AT(bos)},
    {"no-bos", 0, NULL, "Put no special tokens around the prompt", ARGUMENT_FLAG, AT(no_bos)},
    {.help = "The draw:"},
    {"max-tokens", 0, "N", "Tokens to draw at most (default 100)", ARGUMENT_INT32, AT(max_tokens),
     1, INT32_MAX},
    {"temperature", 0, "X", "Temperature >= 0; 0 is greedy (default 1)", ARGUMENT_FLOAT,
     AT(temperature), .most = FLT_MAX},
    {"seed", 0, "N", "64-bit seed (default 0)", ARGUMENT_UINT64, AT(seed)},
    {"samples", 0, "N", "Independent texts, 1 to 1024 (default 1)", ARGUMENT_INT32, AT(samples), 1,
     1024},
    {"first-sample", 0, "N", "Sample counter of the first text (default 0)", ARGUMENT_UINT32,
     AT(first_sample)},
    {"ignore-eos", 0, NULL, "Do not stop at the model's end tokens", ARGUMENT_FLAG, AT(ignore_eos)},
    {"group", 0, "KIND",
     "Split the head over the processes of a group: 'mpi', those that mpirun has started. The "
     "first one prints the text, which is the same for any number of them",
     ARGUMENT_TEXT, AT(group)},
    {"screen", 0, NULL,
     "Draw by a screen of the head: the same text, the head read at half the bytes. On a CPU, "
     "without --json, which shows log-probabilities",
     ARGUMENT_FLAG, AT(screen)},
    {.help = "Speculative decoding:"},
    {"draft", 0, "DIR",
     "Draft with this model folder, or with 'ngram': what followed the last "
     "tokens earlier in the text",
     ARGUMENT_TEXT, AT(draft.from)},
    {"draft-tokens", 0, "N", "Tokens of a draft, 1 to 63 (default 4)", ARGUMENT_INT32,
     AT(draft.tokens), 1, DRAFT_TOKENS_MOST},
    {"draft-siblings", 0, "N",
     "Siblings of each token of a draft, 0 to 15: the next best of its draw (default 0)",
     ARGUMENT_INT32, AT(draft.siblings), 0, DRAFT_SIBLINGS_MOST},
    {"draft-rule", 0, "NAME",
     "How drafts are accepted: 'coupled', while they are what the model draws, so that the text is "
     "the same (default); 'rejection' or 'block', by probabilities: another text of the same law",
     ARGUMENT_TEXT, AT(draft.rule)},
    {"draft-temperature", 0, "X", "A factor on the temperature of the draft's draws (default 1)",
     ARGUMENT_FLOAT, AT(draft.temperature), .least = FLT_MIN, .most = FLT_MAX},
    {"check", 0, NULL, "Write all once more without drafts, and fail if a text differs",
     ARGUMENT_FLAG, AT(draft.check)},
    {.help = "Output:"},
    {"echo", 0, NULL, "Print the prompt before each text", ARGUMENT_FLAG, AT(echo)},
    {"stats", 0, NULL, "Say on stderr how long it took, and what other ways take", ARGUMENT_FLAG,
     AT(stats)},
    {0},
};

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
    const bool special = !arguments->no_bos;
    token_list list = {0};
    token_list plain = {0};
    decoder_error error = {""};

    if (arguments->bos && bos < 0) {
        fail("--bos", "%s: the model has no bos token", arguments->model);
    }
    if (tokenizer_encode(decoder_tokenizer(model), text, size, special, &plain, &error) != 0) {
        fail("--prompt", "%s", error.message);
    }
    if ((arguments->bos && (plain.count == 0 || plain.ids[0] != bos) &&
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

/* What a command has written. */
struct written {
    const struct writer *writer;
    const token_list *prompt;
    generate_times times;
    draft_stats drafts;
};

static void report(const struct generate_arguments *arguments, const struct written *written,
                   decoder *model, gumbel_device *device)
{
    const struct writer *writer = written->writer;
    const token_list *prompt = written->prompt;
    const generate_times *times = &written->times;
    json_t *root = NULL;

    if (arguments->request.common.json) {
        root = writer_to_json(writer, prompt);
    } else if (arguments->samples == 1) {
        putchar('\n');
        fflush(stdout);
    }
    if (arguments->draft.from) {
        const struct draft_report drafts =
            draft_report_of(&written->drafts, arguments->draft.tokens);

        if (root) {
            json_put(root, "drafts", draft_report_to_json(&drafts));
        } else {
            print_draft_report(&drafts);
        }
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

/* The draw that the arguments ask for; `request` is theirs. */
static generate_options options_of(const struct generate_arguments *arguments,
                                   const token_list *prompt, const struct request *request)
{
    return (generate_options){
        .prompt = prompt->ids,
        .prompt_count = (int32_t)prompt->count,
        .max_tokens = arguments->max_tokens,
        .num_samples = arguments->samples,
        .first_sample = arguments->first_sample,
        .temperature = arguments->temperature,
        .seed = arguments->seed,
        .ignore_eos = arguments->ignore_eos,
        .transforms = request->transformed ? &request->transforms : NULL,
        .truncation = request->truncated ? &request->truncation : NULL,
        .ranks = arguments->request.ranks,
        .kept = arguments->request.kept,
        .num_top = arguments->request.num_top,
        .logprobs_of = arguments->request.raw ? GUMBEL_RAW : GUMBEL_PROCESSED,
    };
}

static void write_texts(const struct generate_arguments *arguments, decoder *model,
                        gumbel_device *device, const char *text, size_t size)
{
    struct cuda_head *head =
        device_is_cuda(device) ? cuda_head_new(device, decoder_head(model)) : NULL;
    struct rank_group *ranks =
        arguments->group ? rank_group_open(arguments->group, device, 0, decoder_head(model).rows)
                         : NULL;
    /* Histories are kept in host memory. */
    gumbel_device *host = head ? open_device(&(struct device_choice){.device = NULL}) : device;
    token_list prompt = encode_prompt(arguments, model, text, size);
    struct request request = request_read(&arguments->request, 1, decoder_head(model).rows);
    generate_options options = options_of(arguments, &prompt, &request);
    struct writer writer = writer_new(model, text, size, arguments->samples,
                                      (struct writer_style){
                                          .quiet = arguments->request.common.json,
                                          .echo = arguments->echo,
                                          .ignore_eos = arguments->ignore_eos,
                                          .first_sample = arguments->first_sample,
                                          .ranks = options.ranks,
                                          .kept = options.kept,
                                          .num_top = options.num_top,
                                      });
    struct written written = {.writer = &writer, .prompt = &prompt};
    struct head_screen screen = {0};
    decoder_error error = {""};

    if (arguments->screen) {
        const gumbel_tensor weight = decoder_head(model);

        screen = head_screen_new(device, &weight);
        options.screen = screen.bytes;
    }
    options.on_token = writer_take;
    options.context = &writer;
    options.draw = head ? cuda_head_draw : ranks ? rank_group_draw : NULL;
    options.draw_context = head ? (void *)head : (void *)ranks;
    if (arguments->draft.from) {
        written.drafts = write_drafted_texts(&arguments->draft, model, host, &options,
                                             head ? cuda_head_verify : NULL, &written.times);
    } else if (generate(model, host, &options, &written.times, &error) != 0) {
        fail("--model", "%s", error.message);
    }
    finish_stdout();
    if (arguments->draft.check) {
        check_drafted_texts(model, host, &options, &writer);
    }
    report(arguments, &written, model, device);
    writer_free(&writer);
    token_list_free(&prompt);
    request_free(&request);
    cuda_head_free(head);
    rank_group_close(ranks);
    head_screen_free(&screen);
    if (host != device) {
        gumbel_close(host);
    }
}

/* The CPU draws on the decoder's threads; a GPU has its own. */
static gumbel_device *open_for(const struct generate_arguments *arguments, decoder *model)
{
    struct device_choice choice = arguments->request.common.device;

    if (choice.device && strncmp(choice.device, "cuda", strlen("cuda")) == 0) {
        choice.threads = 0;
        return open_device(&choice);
    }
    choice.threads = model ? decoder_describe(model)->threads : choice.threads;
    return model ? open_device_on(&choice, decoder_parallel_for, model) : open_device(&choice);
}

int command_generate(int argc, char **argv)
{
    static const struct command_line line = {
        "Write text with a model folder, every token drawn by the fused sampler. One text is "
        "printed as it comes; several are printed one after another, each when it and those before "
        "it are complete.",
        accepted, request_arguments};
    struct generate_arguments arguments = {.max_tokens = 100,
                                           .temperature = 1,
                                           .samples = 1,
                                           .draft = {.tokens = 4, .temperature = 1}};
    decoder *model = NULL;
    gumbel_device *device = NULL;
    decoder_error error = {""};
    char *from_stdin = NULL;
    size_t size = 0;

    parse_arguments(&line, argc, argv, &arguments);
    if (!arguments.model) {
        fail("--model", "missing");
    }
    if (!arguments.request.common.json && (arguments.request.num_top || arguments.request.ranks ||
                                           arguments.request.kept || arguments.request.raw)) {
        fail("--json",
             "missing; it alone shows --top-logprobs, --raw-logprobs, --ranks and --kept");
    }
    arguments.draft.threads = arguments.request.common.device.threads;
    check_draft_choice(&arguments.draft);
    if (arguments.group && (arguments.draft.from || arguments.stats)) {
        fail("--group", "it does not go with --draft and --stats");
    }
    if (arguments.group && arguments.request.common.device.device &&
        strcmp(arguments.request.common.device.device, "cpu") != 0) {
        fail("--group", "it is served on CPUs alone");
    }
    if (arguments.screen && (arguments.request.common.json || arguments.group)) {
        fail("--screen", "it does not go with --json and --group");
    }
    if (arguments.screen && arguments.draft.from && arguments.draft.rule &&
        strcmp(arguments.draft.rule, "coupled") != 0) {
        fail("--screen", "it serves the coupled rule of drafts, not %s", arguments.draft.rule);
    }
    if (arguments.bos && arguments.no_bos) {
        fail("--bos", "contradicts --no-bos");
    }
    gumbel_close(open_for(&arguments, NULL)); /* a wrong device is told before loading */
    if (decoder_open(arguments.model, arguments.request.common.device.threads, &model, &error) !=
        0) {
        fail("--model", "%s", error.message);
    }
    device = open_for(&arguments, model);
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
