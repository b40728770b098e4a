/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of a command: a table of its options and of the fields that store their values.
 * Argp parses the command line and prints --help; every failure ends the program (options.h).
 */
#ifndef GUMBEL_CLI_ARGUMENTS_H
#define GUMBEL_CLI_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

/* The kind of an option's value, and the type that stores it. */
enum argument_kind {
    ARGUMENT_FLAG,   /* bool: no value, true where the option is given */
    ARGUMENT_TEXT,   /* const char * */
    ARGUMENT_INT32,  /* int32_t in [low, high] */
    ARGUMENT_INT64,  /* int64_t in [low, high] */
    ARGUMENT_UINT32, /* uint32_t up to `high`, or UINT32_MAX where that is 0 */
    ARGUMENT_UINT64, /* uint64_t */
    ARGUMENT_FLOAT,  /* float in [least, most] */
    ARGUMENT_LIST,   /* struct text_list: the option may come more than once */
    ARGUMENT_OTHER,  /* parsed by `read` */
};

/* Values of a repeated option, in order; release `items` with free(). */
struct text_list {
    const char **items; /* [count] */
    int count;
};

struct argument {
    const char *name;  /* without "--"; NULL: `help` is the heading of the next options */
    int letter;        /* short form, or 0 */
    const char *value; /* the value's name in --help; NULL for a flag */
    const char *help;
    enum argument_kind kind;
    size_t offset; /* of the field in the command's options */
    int64_t low, high;
    float least, most;
    void (*read)(const char *field, const char *text, void *into); /* `into`: the field */
    const char *choices; /* values for completion, separated by blanks; NULL: by `value` */
};

/* A command line. Tables end with {0}; names are unique. */
struct command_line {
    const char *doc;
    const struct argument *arguments;
    const struct argument *shared; /* options shared with other commands; NULL: none */
    const char *examples;          /* lines that begin with "  $ ", which help2man recognises */
    /* A required operand; `name` NULL: none. A command with an operand has no common options. */
    struct argument operand;
};

/* The first member of every command's options: --device, --isa, --threads, and --json. */
struct common_options {
    struct device_choice device;
    bool json;
};

/* Parses a command's arguments into `options`, whose first member is a struct common_options and
 * which holds the defaults. --help prints the options and exits. */
void parse_arguments(const struct command_line *line, int argc, char **argv, void *options);

/* Calls `visit` for each option of a command, including --help. */
void visit_arguments(const struct command_line *line, void *context,
                     void (*visit)(void *context, const struct argument *argument));

#endif
