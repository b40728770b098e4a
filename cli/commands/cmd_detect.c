/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel detect: search for a watermark in a text.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "commands.h"
#include "decoder/tokenizer/tokenizer.h"
#include "gumbel/watermark.h"
#include "report.h"
#include "standard_input.h"
#include "token_rows.h"
#include "watermark_key.h"

struct detect_arguments {
    struct common_options common;
    const char *key, *tokens, *text, *tokenizer;
    int32_t context;
    uint32_t sample;
    int64_t first;
};

#define AT(member) .offset = offsetof(struct detect_arguments, member)
static const struct argument accepted[] = {
    {.help = "The watermark:"},
    {"key", 'k', "HEX", "Secret key, 32 hexadecimal digits", ARGUMENT_TEXT, AT(key)},
    {"context", 0, "N", "Tokens that determine the noise of the next, 1 to 16 (default 4)",
     ARGUMENT_INT32, AT(context), 1, GUMBEL_CONTEXT_MAX},
    {"sample", 0, "N", "Sample counter with which the text was drawn (default 0)", ARGUMENT_UINT32,
     AT(sample)},
    {.help = "The text, as it was generated, without its prompt (default: ids on stdin, separated "
             "by blanks or commas):"},
    {"tokens", 0, "IDS", "Token ids ID,ID,.. or a .npy file of int32 [N]", ARGUMENT_TEXT,
     AT(tokens)},
    {"tokenizer", 0, "DIR",
     "Folder with a tokenizer.json, which encodes --text, or stdin. Ids are more reliable: another "
     "split of a text into tokens changes the contexts",
     ARGUMENT_TEXT, AT(tokenizer)},
    {"text", 0, "TEXT", "Text to encode (default: stdin)", ARGUMENT_TEXT, AT(text)},
    {"first", 0, "N", "Tokens to skip: contexts that are not scored (default 0)", ARGUMENT_INT64,
     AT(first), 0, GUMBEL_DETECT_MAX},
    {0},
};

/* -------------------------------------------------------------------------------- input ---- */

enum { MAX_BYTES = 1 << 28 };

/* The ids in a text, separated by blanks or commas. */
static token_list parse_ids(char *text)
{
    token_list list = {0};
    char *rest = NULL;

    for (char *item = strtok_r(text, " ,\t\r\n", &rest); item;
         item = strtok_r(NULL, " ,\t\r\n", &rest)) {
        const int32_t id = (int32_t)parse_integer("--tokens", item, 0, INT32_MAX);

        if (token_list_append(&list, &id, 1) != 0) {
            fail("--tokens", "not enough memory");
        }
    }
    return list;
}

static token_list encode_text(const char *folder, const char *text, size_t size)
{
    tokenizer *with = NULL;
    token_list list = {0};
    decoder_error error = {""};

    if (tokenizer_open(folder, &with, &error) != 0) {
        fail_message("--tokenizer", error.message);
    }
    if (tokenizer_encode(with, text, size, false, &list, &error) != 0) {
        fail_message("--text", error.message);
    }
    tokenizer_close(with);
    return list;
}

static token_list read_tokens(const struct detect_arguments *arguments)
{
    const char *text = arguments->text;
    size_t size = text ? strlen(text) : 0;
    token_list list = {0};
    char *input = NULL;

    if (arguments->tokens) {
        gumbel_token_lists lists = read_token_rows("--tokens", arguments->tokens, 1, INT32_MAX);

        if (token_list_append(&list, lists.ids, (size_t)lists.offsets[1]) != 0) {
            fail("--tokens", "not enough memory");
        }
        token_rows_free(&lists);
        return list;
    }
    if (!text) {
        input =
            read_standard_input(arguments->tokenizer ? "--text" : "--tokens",
                                arguments->tokenizer ? "the text" : "token ids", MAX_BYTES, &size);
        text = input;
    }
    if (!arguments->tokenizer && strlen(text) != size) {
        fail("--tokens", "stdin has a NUL byte; it must have token ids in decimal");
    }
    list = arguments->tokenizer ? encode_text(arguments->tokenizer, text, size) : parse_ids(input);
    free(input);
    return list;
}

/* ------------------------------------------------------------------------------- output ---- */

static void print_detection(const gumbel_detection *found, size_t count)
{
    printf("tokens     %zu, of which %lld are scored\n", count, (long long)found->scored);
    if (found->scored == 0) {
        printf("p-value    1: the text is too short\n");
        return;
    }
    printf("statistic  %.3f, a mean score of %.3f; without a watermark it is about 1\n",
           found->statistic, found->statistic / (double)found->scored);
    if (found->p_value > 0) {
        printf("p-value    %.3g", found->p_value);
    } else {
        printf("p-value    10^%.1f", found->log10_p);
    }
    printf(": the probability of such a text without this key\n");
}

static json_t *to_json(const gumbel_detection *found, size_t count, const double *scores)
{
    json_t *root = json_object();
    json_t *list = json_array();

    for (size_t i = 0; i < count; i++) {
        json_array_append_new(list, json_number(scores[i]));
    }
    json_put(root, "tokens", json_integer((json_int_t)count));
    json_put(root, "scored", json_integer(found->scored));
    json_put(root, "statistic", json_number(found->statistic));
    json_put(root, "p_value", json_number(found->p_value));
    json_put(root, "log10_p", json_number(found->log10_p));
    json_put(root, "scores", list);
    return root;
}

/* ------------------------------------------------------------------------------ command ---- */

const struct command_line detect_line = {
    .doc = "Search for the watermark of a secret key in a text, and print how probable such a text "
           "is without the watermark.",
    .arguments = accepted,
    .examples = "  $ gumbel detect --key HEX --tokens ids.npy --json\n"
                "  $ gumbel detect --key HEX --tokenizer DIR < text.txt\n"
                "  $ gumbel detect --key HEX --context 2 < ids.txt\n"};

int command_detect(int argc, char **argv)
{
    struct detect_arguments arguments = {.context = GUMBEL_CONTEXT_DEFAULT};
    gumbel_detector with = {.struct_size = sizeof with};
    gumbel_detection found = {.struct_size = sizeof found};
    gumbel_error error = {"", ""};

    parse_arguments(&detect_line, argc, argv, &arguments);
    gumbel_close(open_device(&arguments.common.device)); /* reports an unknown device */
    if (!arguments.key) {
        fail("--key", "missing");
    }
    parse_watermark_key("--key", arguments.key, with.key);
    if (arguments.tokens && (arguments.text || arguments.tokenizer)) {
        fail("--tokens", "cannot be combined with --text or --tokenizer");
    }
    if (arguments.text && !arguments.tokenizer) {
        fail("--tokenizer", "required by --text");
    }
    token_list tokens = read_tokens(&arguments);

    if ((size_t)arguments.first > tokens.count) {
        fail("--first", "is %lld, and the text has %zu tokens", (long long)arguments.first,
             tokens.count);
    }
    with.context = arguments.context;
    with.sample = arguments.sample;
    with.first = arguments.first;
    double *scores = require_memory("scores", (int64_t)tokens.count + 1, sizeof *scores);

    require_ok(
        gumbel_detect_watermark(&with, tokens.ids, (int64_t)tokens.count, scores, &found, &error),
        &error);
    if (arguments.common.json) {
        print_json(to_json(&found, tokens.count, scores));
    } else {
        print_detection(&found, tokens.count);
    }
    free(scores);
    token_list_free(&tokens);
    return 0;
}
