/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel completion: prints a script that completes commands, options and values in bash, zsh or
 * fish. The scripts are generated from the argument tables.
 */
#include <stdio.h>
#include <string.h>

#include "arguments.h"
#include "commands.h"

struct completion_options {
    const char *shell;
};

static const struct argument accepted[] = {{0}};
const struct command_line completion_line = {
    .doc = "Print a script for completion of commands, options and values in a shell.",
    .arguments = accepted,
    .examples = "  $ source <(gumbel completion bash)\n"
                "  $ gumbel completion zsh > \"${fpath[1]}/_gumbel\"\n"
                "  $ gumbel completion fish > ~/.config/fish/completions/gumbel.fish\n",
    .operand = {"SHELL", 0, NULL, "one of bash, zsh, fish", ARGUMENT_TEXT,
                .offset = offsetof(struct completion_options, shell), .choices = "bash zsh fish"},
};

/* How a shell completes the value of an option. */
enum completion { COMPLETE_NOTHING, COMPLETE_CHOICES, COMPLETE_FILE, COMPLETE_FOLDER };

static enum completion find_completion(const struct argument *argument)
{
    if (argument->choices) {
        return COMPLETE_CHOICES;
    }
    if (!argument->value) {
        return COMPLETE_NOTHING;
    }
    return strncmp(argument->value, "DIR", 3) == 0    ? COMPLETE_FOLDER
           : strncmp(argument->value, "FILE", 4) == 0 ? COMPLETE_FILE
                                                      : COMPLETE_NOTHING;
}

/* Prints `text` for use within single quotes of a POSIX shell, with a backslash before each
 * character of `special`. */
static void print_escaped(const char *text, const char *special)
{
    for (; *text; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
            continue;
        }
        if (strchr(special, *text)) {
            putchar('\\');
        }
        putchar(*text);
    }
}

/* --------------------------------------------------------------------------------- bash ---- */

static void print_bash_name(void *context, const struct argument *argument)
{
    (void)context;
    printf(" --%s", argument->name);
}

/* Prints the `case` branch that completes the value of one option. */
static void print_bash_value(void *context, const struct argument *argument)
{
    const struct command *command = context;
    static const char *const actions[] = {
        [COMPLETE_NOTHING] = "return",
        [COMPLETE_FILE] = "_gumbel_reply -f -- \"$word\"; compopt -o filenames 2>/dev/null; return",
        [COMPLETE_FOLDER] =
            "_gumbel_reply -d -- \"$word\"; compopt -o filenames 2>/dev/null; return",
    };

    if (!argument->value) {
        return;
    }
    printf("    %s:--%s", command->name, argument->name);
    if (argument->letter) {
        printf(" | %s:-%c", command->name, argument->letter);
    }
    if (find_completion(argument) == COMPLETE_CHOICES) {
        printf(") _gumbel_reply -W '%s' -- \"$word\"; return ;;\n", argument->choices);
    } else {
        printf(") %s ;;\n", actions[find_completion(argument)]);
    }
}

static void print_bash(void)
{
    puts("# bash completion for gumbel\n"
         "_gumbel_reply() { mapfile -t COMPREPLY < <(compgen \"$@\"); }\n"
         "_gumbel() {\n"
         "    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]}\n"
         "    COMPREPLY=()\n"
         "    if [[ $word == = ]]; then\n"
         "        word=\n"
         "    elif [[ $option == = ]]; then\n"
         "        option=${COMP_WORDS[COMP_CWORD - 2]}\n"
         "    fi");
    fputs("    if ((COMP_CWORD == 1)); then\n        _gumbel_reply -W '--help --version", stdout);
    for (const struct command *command = commands; command->name; command++) {
        printf(" %s", command->name);
    }
    puts("' -- \"$word\"\n        return\n    fi\n    case ${COMP_WORDS[1]}:$option in");
    for (const struct command *command = commands; command->name; command++) {
        visit_arguments(command->line, (void *)(uintptr_t)command, print_bash_value);
    }
    puts("    esac\n    case ${COMP_WORDS[1]} in");
    for (const struct command *command = commands; command->name; command++) {
        const char *choices = command->line->operand.choices;

        printf("    %s) _gumbel_reply -W '%s", command->name, choices ? choices : "");
        visit_arguments(command->line, NULL, print_bash_name);
        puts("' -- \"$word\" ;;");
    }
    puts("    esac\n}\ncomplete -F _gumbel gumbel");
}

/* ---------------------------------------------------------------------------------- zsh ---- */

static void print_zsh_value(const struct argument *argument)
{
    static const char *const actions[] = {
        [COMPLETE_NOTHING] = " ", [COMPLETE_FILE] = "_files", [COMPLETE_FOLDER] = "_files -/"};

    putchar(':');
    print_escaped(argument->value, ":");
    putchar(':');
    if (find_completion(argument) == COMPLETE_CHOICES) {
        printf("(%s)", argument->choices);
    } else {
        fputs(actions[find_completion(argument)], stdout);
    }
}

static void print_zsh_option(void *context, const struct argument *argument)
{
    (void)context;
    for (int is_short = 0; is_short <= (argument->letter != 0); is_short++) {
        fputs(" \\\n            '", stdout);
        if (argument->kind == ARGUMENT_LIST) {
            putchar('*');
        }
        if (is_short) {
            printf("-%c%s[", argument->letter, argument->value ? "+" : "");
        } else {
            printf("--%s%s[", argument->name, argument->value ? "=" : "");
        }
        print_escaped(argument->help, "[]:\\");
        putchar(']');
        if (argument->value) {
            print_zsh_value(argument);
        }
        putchar('\'');
    }
}

static void print_zsh(void)
{
    puts("#compdef gumbel\n"
         "_gumbel() {\n"
         "    local -a commands\n"
         "    commands=(");
    for (const struct command *command = commands; command->name; command++) {
        printf("        '%s:", command->name);
        print_escaped(command->summary, ":");
        puts("'");
    }
    puts("    )\n"
         "    if ((CURRENT == 2)); then\n"
         "        _describe command commands\n"
         "        return\n"
         "    fi\n"
         "    local name=$words[2]\n"
         "    shift words\n"
         "    ((CURRENT--))\n"
         "    case $name in");
    for (const struct command *command = commands; command->name; command++) {
        const char *choices = command->line->operand.choices;

        printf("    %s)\n        _arguments", command->name);
        if (choices) {
            printf(" \\\n            '1:%s:(%s)'", command->line->operand.name, choices);
        }
        visit_arguments(command->line, NULL, print_zsh_option);
        puts(" ;;");
    }
    puts("    esac\n"
         "}\n"
         "if [[ $funcstack[1] == _gumbel ]]; then\n"
         "    _gumbel \"$@\"\n"
         "else\n"
         "    compdef _gumbel gumbel\n"
         "fi");
}

/* --------------------------------------------------------------------------------- fish ---- */

static void print_fish_option(void *context, const struct argument *argument)
{
    const struct command *command = context;

    printf("complete -c gumbel -n '__fish_seen_subcommand_from %s' -l %s", command->name,
           argument->name);
    if (argument->letter) {
        printf(" -s %c", argument->letter);
    }
    switch (argument->value ? find_completion(argument) : COMPLETE_NOTHING) {
    case COMPLETE_CHOICES:
        printf(" -x -a '%s'", argument->choices);
        break;
    case COMPLETE_FILE:
        fputs(" -r -F", stdout);
        break;
    case COMPLETE_FOLDER:
        fputs(" -x -a '(__fish_complete_directories)'", stdout);
        break;
    default:
        fputs(argument->value ? " -x" : "", stdout);
    }
    fputs(" -d '", stdout);
    for (const char *letter = argument->help; *letter; letter++) {
        printf(*letter == '\'' || *letter == '\\' ? "\\%c" : "%c", *letter);
    }
    puts("'");
}

static void print_fish(void)
{
    puts("# fish completion for gumbel\ncomplete -c gumbel -f");
    for (const struct command *command = commands; command->name; command++) {
        const char *choices = command->line->operand.choices;

        printf("complete -c gumbel -n __fish_use_subcommand -a %s -d \"%s\"\n", command->name,
               command->summary);
        if (choices) {
            printf("complete -c gumbel -n '__fish_seen_subcommand_from %s' -a '%s'\n",
                   command->name, choices);
        }
        visit_arguments(command->line, (void *)(uintptr_t)command, print_fish_option);
    }
}

int command_completion(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};
    struct completion_options options = {NULL};

    parse_arguments(&completion_line, argc, argv, &options);
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (strcmp(options.shell, shells[i].name) == 0) {
            shells[i].print();
            return 0;
        }
    }
    fail("SHELL", "'%s' is not bash, zsh or fish", options.shell);
}
