/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of a command: a table that says what each option is and where its value goes. Argp
 * reads the command line and prints --help; every failure ends the program (options.h).
 */
#ifndef GUMBEL_CLI_ARGUMENTS_H
#define GUMBEL_CLI_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

/* What an option's value is; the type that it is stored as. */
enum argument_kind {
    ARGUMENT_FLAG,   /* bool: no value, true where the option is given */
    ARGUMENT_TEXT,   /* const char * */
    ARGUMENT_INT32,  /* int32_t in [low, high] */
    ARGUMENT_INT64,  /* int64_t in [low, high] */
    ARGUMENT_UINT32, /* uint32_t up to `high`, or UINT32_MAX where that is 0 */
    ARGUMENT_UINT64, /* uint64_t */
    ARGUMENT_FLOAT,  /* float in [least, most] */
    ARGUMENT_LIST,   /* struct text_list: the option may come more than once */
    ARGUMENT_OTHER,  /* what `read` makes of it */
};

/* Values of an option that may come more than once, in their order; release `items` with free(). */
struct text_list {
    const char **items; /* [count] */
    int count;
};

struct argument {
    const char *name;  /* without "--"; NULL: `help` heads the options that follow */
    int letter;        /* short form, or 0 */
    const char *value; /* the value's name in --help; NULL for a flag */
    const char *help;
    enum argument_kind kind;
    size_t offset; /* in the command's options */
    int64_t low, high;
    float least, most;
    void (*read)(const char *field, const char *text, void *into); /* `into`: at `offset` */
    const char *choices; /* values to complete, separated by blanks; NULL: by `value` */
};

/* A command line. Tables end with {0}; each name stands once. */
struct command_line {
    const char *doc;
    const struct argument *arguments;
    const struct argument *shared; /* with other commands; NULL: nothing */
    const char *examples;          /* lines that begin with "  $ ", as help2man knows them */
    /* An operand that must be given; its `name` is NULL where there is none. A command with one
     * has no common options. */
    struct argument operand;
};

/* What every command's options begin with: --device, --isa, --threads, and --json. */
struct common_options {
    struct device_choice device;
    bool json;
};

/* Read a command's arguments into `options`, which begins with a struct common_options and holds
 * the defaults. --help prints the list and exits. */
void parse_arguments(const struct command_line *line, int argc, char **argv, void *options);

/* Call `visit` for each option of a command, --help included. */
void visit_arguments(const struct command_line *line, void *context,
                     void (*visit)(void *context, const struct argument *argument));

#endif
