/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel generate: write text with a Hugging Face folder, every token drawn by the fused sampler.
 */
#define _GNU_SOURCE
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
#include "prompt_text.h"
#include "rank_group.h"
#include "report.h"
#include "request_options.h"
#include "seed.h"
#include "text_writer.h"
#include "gumbel/watermark.h"
#include "watermark_key.h"

struct generate_arguments {
    struct request_options request;
    const char *model, *prompt, *group, *seed, *watermark_key;
    struct text_list stops;
    int32_t max_tokens, samples, watermark_context, kept_ids;
    uint64_t key[2];
    uint32_t first_sample;
    float temperature;
    struct draft_choice draft;
    bool bos, no_bos, ignore_eos, echo, stats, screen;
};

#define AT(member) .offset = offsetof(struct generate_arguments, member)
static const struct argument accepted[] = {
    {.help = "The model and the prompt:"},
    {"model", 'm', "DIR",
     "Hugging Face folder of a Qwen3 or Llama model: config.json, safetensors, tokenizer.json",
     ARGUMENT_TEXT, AT(model)},
    {"prompt", 'p', "TEXT", "Prompt (default: stdin, without its last newline)", ARGUMENT_TEXT,
     AT(prompt)},
    {"bos", 0, NULL, "Begin with the model's bos token (default: as its tokenizer does)",
     ARGUMENT_FLAG, AT(bos)},
    {"no-bos", 0, NULL, "Add no special tokens to the prompt", ARGUMENT_FLAG, AT(no_bos)},
    {.help = "The draw:"},
    {"max-tokens", 0, "N", "Largest number of tokens to draw for each text (default 100)",
     ARGUMENT_INT32, AT(max_tokens), 1, INT32_MAX},
    {"temperature", 0, "X", "Temperature >= 0; 0 is greedy (default 1)", ARGUMENT_FLOAT,
     AT(temperature), .most = FLT_MAX},
    {"seed", 0, "N", "64-bit seed (default: random, printed on stderr)", ARGUMENT_TEXT, AT(seed)},
    {"samples", 0, "N", "Independent texts, 1 to 1024 (default 1)", ARGUMENT_INT32, AT(samples), 1,
     1024},
    {"first-sample", 0, "N", "Sample counter of the first text (default 0)", ARGUMENT_UINT32,
     AT(first_sample)},
    {"stop", 0, "TEXT", "End a text before this string, which is not printed; may be repeated",
     ARGUMENT_LIST, AT(stops)},
    {"ignore-eos", 0, NULL, "Do not stop at the model's end tokens", ARGUMENT_FLAG, AT(ignore_eos)},
    {"group", 0, "KIND",
     "Split the head over the processes of a group: 'mpi' for processes started by mpirun. The "
     "first process prints the text, which does not depend on the number of processes",
     ARGUMENT_TEXT, AT(group), .choices = "mpi"},
    {"screen", 0, NULL,
     "Draw with a screen, a quantized copy of the head: the same text, half the bytes read. CPU "
     "only; not with --json, which includes log-probabilities",
     ARGUMENT_FLAG, AT(screen)},
    {"watermark-key", 0, "HEX",
     "Watermark the texts by this secret key, 32 hexadecimal digits, which gumbel detect finds",
     ARGUMENT_TEXT, AT(watermark_key)},
    {"watermark-context", 0, "N",
     "Tokens that determine the noise of the next, 1 to 16 (default 4)", ARGUMENT_INT32,
     AT(watermark_context), 1, GUMBEL_CONTEXT_MAX},
    {.help = "Speculative decoding:"},
    {"draft", 0, "DIR",
     "Draft with the model in this folder, or with 'ngram': the tokens that followed an earlier "
     "occurrence of the last tokens",
     ARGUMENT_TEXT, AT(draft.from)},
    {"draft-tokens", 0, "N", "Largest number of tokens of a draft, 1 to 63 (default 4)",
     ARGUMENT_INT32, AT(draft.tokens), 1, DRAFT_TOKENS_MAX},
    {"draft-siblings", 0, "N",
     "Alternatives to each token of a draft, 0 to 15: its draw's next best scores (default 0)",
     ARGUMENT_INT32, AT(draft.siblings), 0, DRAFT_SIBLINGS_MAX},
    {"draft-rule", 0, "NAME",
     "Rule of acceptance: 'coupled' (default) accepts drafts that equal the model's own draws, so "
     "that the text does not change; 'rejection' and 'block' compare probabilities: another text "
     "of the same distribution",
     ARGUMENT_TEXT, AT(draft.rule), .choices = "coupled rejection block"},
    {"draft-temperature", 0, "X", "Multiplies the temperature of the drafter's draws (default 1)",
     ARGUMENT_FLOAT, AT(draft.temperature), .least = FLT_TRUE_MIN, .most = FLT_MAX},
    {"check", 0, NULL, "Write all texts again without drafts, and fail if one differs",
     ARGUMENT_FLAG, AT(draft.check)},
    {.help = "Output:"},
    {"echo", 0, NULL, "Print the prompt before each text", ARGUMENT_FLAG, AT(echo)},
    {"kept-ids", 0, "N",
     "List the tokens that truncation keeps, with their log-probabilities, of each token with at "
     "most N of them; as \"kept_sets\" of --json",
     ARGUMENT_INT32, AT(kept_ids), 1, INT32_MAX},
    {"stats", 0, NULL, "Print times on stderr, also of the materialised baseline", ARGUMENT_FLAG,
     AT(stats)},
    {0},
};

/* ------------------------------------------------------------------------------- output ---- */

/* The texts that a command wrote, with their seed, times and checks. */
struct written {
    const struct writer *writer;
    const token_list *prompt;
    uint64_t seed;
    generate_times times;
    draft_stats drafts;
    struct drafts_check check;
};

static void print_written(const struct generate_arguments *arguments, const struct written *written,
                          decoder *model, gumbel_device *device)
{
    const struct writer *writer = written->writer;
    const token_list *prompt = written->prompt;
    const generate_times *times = &written->times;
    json_t *root = NULL;

    if (arguments->request.common.json) {
        root = writer_to_json(writer, prompt);
        json_put(root, "seed", seed_to_json(written->seed));
    } else if (arguments->samples == 1) {
        putchar('\n');
        fflush(stdout);
    }
    if (arguments->draft.from) {
        const struct draft_report drafts =
            make_draft_report(&written->drafts, arguments->draft.tokens);
        char advice[ADVICE_BYTES];

        if (root) {
            json_t *entry = draft_report_to_json(&drafts);

            if (arguments->draft.check) {
                json_put(entry, "check", drafts_check_to_json(&written->check));
            }
            json_put(root, "drafts", entry);
        } else {
            print_draft_report(&drafts);
            if (arguments->draft.check) {
                print_drafts_check(&written->check);
            }
            if (draft_advice(&drafts, advice)) {
                fprintf(stderr, "%s\n", advice);
            }
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

/* Converts the arguments, and `request`, which was read from them, to options of generate().
 * `vocab` is the number of tokens that may be drawn. */
static generate_options fill_options(const struct generate_arguments *arguments,
                                     const token_list *prompt, const struct request *request,
                                     int64_t vocab, uint64_t seed)
{
    return (generate_options){
        .prompt = prompt->ids,
        .prompt_count = (int32_t)prompt->count,
        .max_tokens = arguments->max_tokens,
        .num_samples = arguments->samples,
        .first_sample = arguments->first_sample,
        .temperature = arguments->temperature,
        .seed = seed,
        .watermark_key = arguments->watermark_key ? arguments->key : NULL,
        .watermark_context = arguments->watermark_context,
        .ignore_eos = arguments->ignore_eos,
        .transforms = request->transformed ? &request->transforms : NULL,
        .truncation = request->truncated ? &request->truncation : NULL,
        .ranks = arguments->request.ranks,
        .kept = arguments->request.kept,
        .kept_ids = arguments->kept_ids < vocab ? arguments->kept_ids : (int32_t)vocab,
        .num_top = arguments->request.num_top,
        .logprobs_of = arguments->request.raw ? GUMBEL_RAW : GUMBEL_PROCESSED,
    };
}

/* fail() with tokenizer_encode()'s message about a stop string, with --stop as the field. */
static _Noreturn void fail_stop(const char *message)
{
    static const char argument[] = "text: ";
    const size_t length = sizeof argument - 1;

    fail("--stop", "%s", strncmp(message, argument, length) == 0 ? message + length : message);
}

/* fail() for arguments that the model does not support, before anything is drawn. */
static void check_with_model(const struct generate_arguments *arguments, const decoder *model,
                             const token_list *prompt)
{
    const int32_t limit = decoder_describe(model)->max_positions;
    decoder_error error = {""};
    token_list ids = {0};

    if ((int64_t)prompt->count + arguments->max_tokens > limit) {
        fail("--max-tokens",
             "%d, and the prompt has %zu tokens; the model supports %d tokens in total",
             (int)arguments->max_tokens, prompt->count, (int)limit);
    }
    for (int i = 0; i < arguments->stops.count; i++) {
        const char *stop = arguments->stops.items[i];

        if (!*stop) {
            fail("--stop", "the string is empty");
        }
        if (tokenizer_encode(decoder_tokenizer(model), stop, strlen(stop), false, &ids, &error) !=
            0) {
            fail_stop(error.message);
        }
    }
    token_list_free(&ids);
}

/* The value of --seed, or a random seed, which print_texts_seed() reports. */
static uint64_t choose_seed(const struct generate_arguments *arguments)
{
    return arguments->seed ? parse_unsigned("--seed", arguments->seed, UINT64_MAX) : draw_seed();
}

static void print_texts_seed(const struct generate_arguments *arguments, uint64_t seed)
{
    if (!arguments->seed && arguments->temperature > 0 && !arguments->request.common.json) {
        print_seed(seed, arguments->samples > 1 ? "these texts" : "this text");
    }
}

/* Number of tokens that may be drawn. Rows of the head after the tokenizer's last token are
 * padding. */
static int64_t count_tokens(const decoder *model)
{
    const int64_t rows = decoder_head(model).rows;
    const int64_t known = tokenizer_size(decoder_tokenizer(model));

    return known < rows ? known : rows;
}

/* The models and devices of a command. */
struct engine {
    decoder *model;
    gumbel_device *device;
    gumbel_device *host; /* holds the token histories: `device`, or a CPU if `device` is a GPU */
    struct cuda_head *head;
    struct rank_group *ranks;
    struct head_screen screen;
    decoder *draft; /* the draft model; NULL: no drafts, or n-grams */
};

static struct engine engine_new(const struct generate_arguments *arguments, decoder *model,
                                gumbel_device *device, uint64_t *seed)
{
    const gumbel_tensor weight = decoder_head(model);
    struct engine engine = {.model = model,
                            .device = device,
                            .host = device,
                            .draft = open_draft_model(&arguments->draft)};

    if (device_is_cuda(device)) {
        engine.head = cuda_head_new(device, weight);
        engine.host = open_device(&(struct device_choice){.device = NULL});
    }
    if (arguments->group) {
        engine.ranks = rank_group_open(arguments->group, device, 0, weight.rows, seed);
    }
    if (arguments->screen) {
        engine.screen = head_screen_new(device, &weight, GUMBEL_SCREEN_BYTES);
    }
    return engine;
}

static void engine_free(struct engine *engine)
{
    cuda_head_free(engine->head);
    rank_group_close(engine->ranks);
    head_screen_free(&engine->screen);
    decoder_close(engine->draft);
    if (engine->host != engine->device) {
        gumbel_close(engine->host);
    }
}

/* Writes the texts, and checks drafted texts if the arguments request it. */
static void write_and_check(const struct generate_arguments *arguments, const struct engine *engine,
                            const generate_options *options, struct written *written)
{
    decoder_error error = {""};

    if (arguments->draft.from) {
        written->drafts =
            write_drafted_texts(&arguments->draft, engine->draft, engine->model, engine->host,
                                options, engine->head ? cuda_head_verify : NULL, &written->times);
    } else if (generate(engine->model, engine->host, options, &written->times, &error) != 0) {
        fail_message("--model", error.message);
    }
    progress_clear();
    finish_stdout();
    if (arguments->draft.check) {
        written->check = check_drafted_texts(engine->model, engine->host, options, written->writer);
        written->check.with_drafts = written->drafts.drafting + written->drafts.verifying;
        /* Steps of a whole text give a more accurate time than the few timed before. */
        if (written->check.texts == 1) {
            written->drafts.plain = written->check.without / written->check.steps;
        }
    }
}

static void write_texts(const struct generate_arguments *arguments, decoder *model,
                        gumbel_device *device, const struct prompt_text *text)
{
    token_list prompt = prompt_encode(text, model,
                                      arguments->bos      ? PROMPT_BOS
                                      : arguments->no_bos ? PROMPT_BARE
                                                          : PROMPT_AS_TOKENIZER);
    struct request request;
    struct written written = {.seed = choose_seed(arguments), .prompt = &prompt};

    const int64_t vocab = count_tokens(model);

    request_read(&request, &arguments->request, 1, decoder_head(model).rows, vocab);
    check_with_model(arguments, model, &prompt);
    struct engine engine = engine_new(arguments, model, device, &written.seed);
    generate_options options = fill_options(arguments, &prompt, &request, vocab, written.seed);

    if (rank_group_writes(engine.ranks)) {
        print_texts_seed(arguments, written.seed);
    }
    struct writer writer = writer_new(model, text->bytes, text->size, arguments->samples,
                                      (struct writer_style){
                                          .quiet = arguments->request.common.json,
                                          .echo = arguments->echo,
                                          .ignore_eos = arguments->ignore_eos,
                                          .first_sample = arguments->first_sample,
                                          .max_tokens = arguments->max_tokens,
                                          .stops = &arguments->stops,
                                          .ranks = options.ranks,
                                          .kept = options.kept || options.kept_ids,
                                          .kept_sets = options.kept_ids > 0,
                                          .num_top = options.num_top,
                                      });
    written.writer = &writer;
    options.on_token = writer_add_token;
    options.context = &writer;
    options.screen = engine.screen.copy;
    options.draw = engine.head ? cuda_head_draw : engine.ranks ? rank_group_draw : NULL;
    options.draw_context = engine.head ? (void *)engine.head : (void *)engine.ranks;
    write_and_check(arguments, &engine, &options, &written);
    print_written(arguments, &written, model, device);
    writer_free(&writer);
    token_list_free(&prompt);
    request_free(&request);
    engine_free(&engine);
}

/* Opens the device. A CPU device runs on the threads of `model`, if not NULL. */
static gumbel_device *open_device_for(const struct generate_arguments *arguments, decoder *model)
{
    struct device_choice choice = arguments->request.common.device;

    if (choice.device && strncmp(choice.device, "cuda", strlen("cuda")) == 0) {
        choice.threads = 0;
        return open_device(&choice);
    }
    choice.threads = model ? decoder_describe(model)->threads : choice.threads;
    return model ? open_device_on(&choice, decoder_parallel_for, model) : open_device(&choice);
}

const struct command_line generate_line = {
    .doc =
        "Write text with a model folder; every token is drawn by the fused sampler. A single text "
        "is printed token by token; several texts are printed in order, each when it is complete.",
    .arguments = accepted,
    .shared = request_arguments,
    .examples = "  $ gumbel generate --model DIR --prompt \"In the beginning\" --echo\n"
                "  $ gumbel generate --model DIR --prompt And --top-k 40 --samples 3\n"
                "  $ gumbel generate --model DIR --prompt \"Blessed are\" --stop \";\"\n"
                "  $ echo \"In the beginning\" | gumbel generate --model DIR --json\n"
                "  $ gumbel generate --model DIR --prompt And --draft ngram --check\n"};

/* fail() for arguments that contradict each other, before anything is loaded. Parses the key. */
static void check_arguments(struct generate_arguments *arguments)
{
    const struct request_options *request = &arguments->request;
    const char *device = request->common.device.device;

    if (!arguments->model) {
        fail("--model", "missing");
    }
    if (!request->common.json && (request->num_top || request->ranks || request->kept ||
                                  request->raw || arguments->kept_ids)) {
        fail("--json", "required by --top-logprobs, --raw-logprobs, --ranks, --kept and "
                       "--kept-ids");
    }
    if (arguments->watermark_key) {
        parse_watermark_key("--watermark-key", arguments->watermark_key, arguments->key);
    }
    if (arguments->seed) {
        parse_unsigned("--seed", arguments->seed, UINT64_MAX);
    }
    check_draft_choice(&arguments->draft);
    if (arguments->watermark_key && arguments->draft.from) {
        fail("--watermark-key", "is not supported with --draft");
    }
    if (arguments->group && (arguments->draft.from || arguments->stats)) {
        fail("--group", "is not supported with --draft or --stats");
    }
    if (arguments->group && device && strcmp(device, "cpu") != 0) {
        fail("--group", "is supported on CPUs only");
    }
    if (arguments->group && !arguments->prompt) {
        fail("--prompt", "required with --group, because only the first process can read stdin");
    }
    if (arguments->screen && (request->common.json || arguments->group)) {
        fail("--screen", "is not supported with --json or --group");
    }
    if (arguments->screen && arguments->draft.from && arguments->draft.rule &&
        strcmp(arguments->draft.rule, "coupled") != 0) {
        fail("--screen", "is supported with --draft-rule coupled only, not %s",
             arguments->draft.rule);
    }
    if (arguments->bos && arguments->no_bos) {
        fail("--bos", "cannot be combined with --no-bos");
    }
}

int command_generate(int argc, char **argv)
{
    struct generate_arguments arguments = {.max_tokens = 100,
                                           .temperature = 1,
                                           .samples = 1,
                                           .watermark_context = GUMBEL_CONTEXT_DEFAULT,
                                           .draft = {.tokens = 4, .temperature = 1}};
    decoder *model = NULL;
    gumbel_device *device = NULL;
    decoder_error error = {""};

    parse_arguments(&generate_line, argc, argv, &arguments);
    arguments.draft.threads = arguments.request.common.device.threads;
    check_arguments(&arguments);
    gumbel_close(open_device_for(&arguments, NULL)); /* reports an unknown device before loading */
    if (decoder_open(arguments.model, arguments.request.common.device.threads, &model, &error) !=
        0) {
        fail("--model", "%s", error.message);
    }
    device = open_device_for(&arguments, model);
    struct prompt_text text = prompt_read(arguments.prompt);

    write_texts(&arguments, model, device, &text);
    prompt_free(&text);
    free((void *)arguments.stops.items);
    gumbel_close(device);
    decoder_close(model);
    return 0;
}
