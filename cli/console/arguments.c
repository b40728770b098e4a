/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "arguments.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

enum {
    MOST_OPTIONS = 72,     /* of a command, headings and the common ones included */
    FIRST_KEY = 256,       /* keys of options without a letter begin behind all letters */
    MOST_FIELD_BYTES = 64, /* "--" and a name */
};

static void read_isa(const char *field, const char *text, void *into)
{
    for (int isa = GUMBEL_ISA_AUTO; isa <= GUMBEL_ISA_NEON; isa++) {
        if (strcmp(text, gumbel_isa_name((gumbel_isa)isa)) == 0) {
            *(gumbel_isa *)into = (gumbel_isa)isa;
            return;
        }
    }
    fail(field, "'%s' is not auto, reference, avx2, avx512 or neon", text);
}

#define AT(member) .offset = offsetof(struct common_options, member)
static const struct argument common[] = {
    {.help = "The device:"},
    {"device", 'd', "NAME", "Device to run on: cpu, or cuda:0 and so on", ARGUMENT_TEXT,
     AT(device.device)},
    {"isa", 'i', "ISA", "auto, reference, avx2, avx512 or neon; all give the same bits",
     ARGUMENT_OTHER, AT(device.isa), .read = read_isa},
    {"threads", 't', "N", "Threads, 1 to 1024 (default: the CPUs this process may use)",
     ARGUMENT_INT32, AT(device.threads), 1, 1024},
    {.help = "Every command has:"},
    {"json", 'j', NULL, "Print one JSON object", ARGUMENT_FLAG, AT(json)},
    {0},
};

/* Argp's form of all tables, and where an option came from. */
struct parsing {
    struct argp_option options[MOST_OPTIONS];
    const struct argument *arguments[MOST_OPTIONS];
    int count;
    int group;
    void *into;
};

static void add_arguments(struct parsing *parsing, const struct argument *arguments)
{
    for (const struct argument *next = arguments; next->help; next++) {
        struct argp_option *option = &parsing->options[parsing->count];

        if (parsing->count >= MOST_OPTIONS - 2) {
            fail(next->help, "more options than %d", MOST_OPTIONS);
        }
        parsing->group += !next->name;
        *option = (struct argp_option){
            .name = next->name,
            .key = next->name && !next->letter ? FIRST_KEY + parsing->count : next->letter,
            .arg = next->value,
            .doc = next->help,
            .group = parsing->group,
        };
        parsing->arguments[parsing->count++] = next;
    }
}

static void store(const struct argument *argument, const char *text, void *options)
{
    void *into = (char *)options + argument->offset;
    char field[MOST_FIELD_BYTES];

    snprintf(field, sizeof field, "--%s", argument->name);
    switch (argument->kind) {
    case ARGUMENT_FLAG:
        *(bool *)into = true;
        break;
    case ARGUMENT_TEXT:
        *(const char **)into = text;
        break;
    case ARGUMENT_INT32:
        *(int32_t *)into = (int32_t)parse_integer(field, text, argument->low, argument->high);
        break;
    case ARGUMENT_INT64:
        *(int64_t *)into = parse_integer(field, text, argument->low, argument->high);
        break;
    case ARGUMENT_UINT32:
        *(uint32_t *)into = (uint32_t)parse_unsigned(
            field, text, argument->high ? (uint64_t)argument->high : UINT32_MAX);
        break;
    case ARGUMENT_UINT64:
        *(uint64_t *)into = parse_unsigned(field, text, UINT64_MAX);
        break;
    case ARGUMENT_FLOAT:
        *(float *)into = parse_float(field, text, argument->least, argument->most);
        break;
    case ARGUMENT_OTHER:
        argument->read(field, text, into);
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    const struct parsing *parsing = state->input;

    switch (key) {
    case 'h':
        argp_help(state->root_argp, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_DOC | ARGP_HELP_LONG,
                  state->name);
        finish_stdout();
        exit(0);
    case ARGP_KEY_ARG:
        fail(text, "unexpected argument");
    case ARGP_KEY_ERROR:
        fail(state->argv[state->next > 1 ? state->next - 1 : 0],
             "not an option of this command, or without its value (see %s --help)", state->name);
    default:
        for (int i = 0; i < parsing->count; i++) {
            if (parsing->options[i].name && parsing->options[i].key == key) {
                store(parsing->arguments[i], text, parsing->into);
                return 0;
            }
        }
        return ARGP_ERR_UNKNOWN;
    }
}

void parse_arguments(const struct command_line *line, int argc, char **argv, void *options)
{
    static struct parsing parsing;
    const struct argp argp = {.options = parsing.options, .parser = parse_option, .doc = line->doc};
    char name[MOST_FIELD_BYTES];

    parsing.into = options;
    add_arguments(&parsing, line->arguments);
    if (line->shared) {
        add_arguments(&parsing, line->shared);
    }
    add_arguments(&parsing, common);
    parsing.options[parsing.count] =
        (struct argp_option){"help", 'h', 0, 0, "Print this list", parsing.group};
    snprintf(name, sizeof name, "gumbel %s", argv[0]);
    argv[0] = name;
    /* Argp would print two lines for an error, and without errors no help: parse_option does both.
     */
    if (argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, &parsing) != 0) {
        fail("arguments", "not understood (see %s --help)", name);
    }
}
