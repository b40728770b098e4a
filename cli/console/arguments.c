/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "arguments.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "suggest.h"

enum {
    OPTIONS_MAX = 80,     /* of a command, headings and the common ones included */
    FIRST_KEY = 256,      /* keys of options without a letter, above all letters */
    FIELD_BYTES_MAX = 64, /* "--" and a name */
    DOC_BYTES_MAX = 4096, /* text of --help before and after the options */
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
     AT(device.device), .choices = "cpu cuda:0"},
    {"isa", 'i', "ISA", "auto, reference, avx2, avx512 or neon; all give the same bits",
     ARGUMENT_OTHER, AT(device.isa), .read = read_isa,
     .choices = "auto reference avx2 avx512 neon"},
    {"threads", 't', "N", "Threads, 1 to 1024 (default: the available CPUs)", ARGUMENT_INT32,
     AT(device.threads), 1, 1024},
    {.help = "Common to all commands:"},
    {"json", 'j', NULL, "Print one JSON object", ARGUMENT_FLAG, AT(json)},
    {0},
};
static const struct argument help_option = {
    .name = "help", .letter = 'h', .help = "Print this list"};

/* Argp's form of all tables, and the argument of each of its options. */
struct parsing {
    struct argp_option options[OPTIONS_MAX];
    const struct argument *arguments[OPTIONS_MAX];
    int count;
    int group;
    const struct command_line *line;
    void *into;
    bool has_operand;
};

static void add_arguments(struct parsing *parsing, const struct argument *arguments)
{
    for (const struct argument *next = arguments; next->help; next++) {
        struct argp_option *option = &parsing->options[parsing->count];

        if (parsing->count >= OPTIONS_MAX - 2) {
            fail(next->help, "the command has more than %d options", OPTIONS_MAX);
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

static void append_text(const char *field, const char *text, struct text_list *list)
{
    const char **grown = realloc((void *)list->items, ((size_t)list->count + 1) * sizeof *grown);

    if (!grown) {
        fail(field, "not enough memory");
    }
    grown[list->count++] = text;
    list->items = grown;
}

static void store_value(const struct argument *argument, const char *text, void *options)
{
    void *into = (char *)options + argument->offset;
    char field[FIELD_BYTES_MAX];

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
    case ARGUMENT_LIST:
        append_text(field, text, into);
        break;
    case ARGUMENT_OTHER:
        argument->read(field, text, into);
    }
}

/* --------------------------------------------------------------- arguments with errors ---- */

/* Reports a long option that getopt rejected: unknown, ambiguous, or with a wrong number of
 * values. */
static _Noreturn void reject_long_option(const struct parsing *parsing, const char *text,
                                         const char *program)
{
    const size_t size = strcspn(text + 2, "=");
    struct suggestion suggestion = {.given = text + 2, .size = size};
    const struct argp_option *match = NULL;
    char field[FIELD_BYTES_MAX], candidates[256] = "";
    size_t used = 0;
    int matches = 0;

    snprintf(field, sizeof field, "%.*s", (int)size + 2, text);
    for (const struct argp_option *option = parsing->options; option->name || option->doc;
         option++) {
        if (!option->name) {
            continue;
        }
        suggestion_consider(&suggestion, option->name);
        if (strncmp(option->name, text + 2, size) != 0) {
            continue;
        }
        if (used < sizeof candidates) {
            used += (size_t)snprintf(candidates + used, sizeof candidates - used, "%s--%s",
                                     matches ? ", " : "", option->name);
        }
        match = matches++ && option->name[size]
                    ? match
                    : option; /* prefers the complete name, else the first match */
    }
    if (match && (matches == 1 || !match->name[size])) {
        if (match->arg) {
            fail(field, "requires a value, %s (see %s --help)", match->arg, program);
        }
        fail(field, "takes no value (see %s --help)", program);
    }
    if (matches && size) {
        fail(field, "is ambiguous: it may be %s", candidates);
    }
    if (suggestion.closest) {
        fail(field, "is not an option of %s; did you mean --%s?", program, suggestion.closest);
    }
    fail(field, "is not an option of %s (see %s --help)", program, program);
}

static _Noreturn void reject_option(const struct parsing *parsing, const char *text,
                                    const char *program)
{
    if (strncmp(text, "--", 2) == 0) {
        reject_long_option(parsing, text, program);
    }
    for (const struct argp_option *option = parsing->options; option->name || option->doc;
         option++) {
        if (option->name && option->arg && option->key == text[strlen(text) - 1]) {
            fail(text, "requires a value, %s (see %s --help)", option->arg, program);
        }
    }
    fail(text, "is not an option of %s (see %s --help)", program, program);
}

/* Returns the argument that getopt rejected. Within a group of letters getopt has not advanced past
 * the argument yet. */
static const char *find_rejected_text(const struct argp_state *state)
{
    const char *text = state->argv[state->next > 1 ? state->next - 1 : 0];

    return *text != '-' && state->next < state->argc ? state->argv[state->next] : text;
}

static void store_operand(struct parsing *parsing, const char *text, const char *program)
{
    const struct argument *operand = &parsing->line->operand;

    if (!operand->name || parsing->has_operand) {
        fail(text, "unexpected argument; options begin with -- (see %s --help)", program);
    }
    parsing->has_operand = true;
    *(const char **)((char *)parsing->into + operand->offset) = text;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct parsing *parsing = state->input;

    switch (key) {
    case 'h':
        argp_help(state->root_argp, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_DOC | ARGP_HELP_LONG,
                  state->name);
        finish_stdout();
        exit(0);
    case ARGP_KEY_ARG:
        store_operand(parsing, text, state->name);
        return 0;
    case ARGP_KEY_ERROR:
        reject_option(parsing, find_rejected_text(state), state->name);
    default:
        for (int i = 0; i < parsing->count; i++) {
            if (parsing->options[i].name && parsing->options[i].key == key) {
                store_value(parsing->arguments[i], text, parsing->into);
                return 0;
            }
        }
        return ARGP_ERR_UNKNOWN;
    }
}

static struct parsing command_parsing;

/* True if the command has the option "--name". */
static bool has_option(const char *option)
{
    for (int i = 0; i < command_parsing.count; i++) {
        const char *name = command_parsing.options[i].name;

        if (name && strcmp(name, option + 2) == 0) {
            return true;
        }
    }
    return false;
}

/* The text of --help: `doc`, the options, the examples. */
static const char *compose_doc(const struct command_line *line)
{
    static char doc[DOC_BYTES_MAX];

    snprintf(doc, sizeof doc, "%s%s%s", line->doc, line->examples ? "\vExamples:\n" : "",
             line->examples ? line->examples : "");
    return doc;
}

void parse_arguments(const struct command_line *line, int argc, char **argv, void *options)
{
    struct parsing *parsing = &command_parsing;
    const struct argp argp = {.options = parsing->options,
                              .parser = parse_option,
                              .args_doc = line->operand.name,
                              .doc = compose_doc(line)};
    char name[FIELD_BYTES_MAX];

    parsing->line = line;
    parsing->into = options;
    set_has_option(has_option);
    add_arguments(parsing, line->arguments);
    if (line->shared) {
        add_arguments(parsing, line->shared);
    }
    if (!line->operand.name) {
        add_arguments(parsing, common);
    }
    parsing->options[parsing->count] = (struct argp_option){
        help_option.name, help_option.letter, 0, 0, help_option.help, parsing->group};
    snprintf(name, sizeof name, "gumbel %s", argv[0]);
    argv[0] = name;
    /* parse_option prints errors and help: Argp would print two lines for an error. */
    if (argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP, NULL, parsing) != 0) {
        fail("arguments", "cannot be parsed (see %s --help)", name);
    }
    if (line->operand.name && !parsing->has_operand) {
        fail(line->operand.name, "missing; %s (see %s --help)", line->operand.help, name);
    }
}

void visit_arguments(const struct command_line *line, void *context,
                     void (*visit)(void *context, const struct argument *argument))
{
    const struct argument *const tables[] = {line->arguments, line->shared,
                                             line->operand.name ? NULL : common};

    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        for (const struct argument *next = tables[i]; next && next->help; next++) {
            if (next->name) {
                visit(context, next);
            }
        }
    }
    visit(context, &help_option);
}
