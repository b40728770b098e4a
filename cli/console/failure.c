/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *command = "";
static void (*before_line)(void);
static bool (*command_has_option)(const char *option);

void set_command(const char *name) { command = name; }

void set_has_option(bool (*has_option)(const char *option)) { command_has_option = has_option; }

void set_before_failure(void (*clear)(void)) { before_line = clear; }

/* Flushes stdout and exits without freeing: the process ends. */
static _Noreturn void end_program(int code, const char *field, const char *format,
                                  va_list arguments)
{
    char line[1024];
    int used = snprintf(line, sizeof line, "gumbel%s%s: %s: ", *command ? " " : "", command, field);

    if (used > 0 && (size_t)used < sizeof line) {
        vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    }
    for (char *byte = line; *byte; byte++) {
        if ((unsigned char)*byte < 32) {
            *byte = '?';
        }
    }
    if (before_line) {
        before_line();
    }
    fflush(stdout);
    fprintf(stderr, "%s\n", line);
    _exit(code);
}

void fail(const char *field, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    end_program(EXIT_INPUT, field, format, arguments);
}

/* ------------------------------------------------------------------ fields of the library ---- */

/* The option that sets a field, by the end of the field's path: the first match whose option the
 * command has. */
static const struct {
    const char *path, *option;
} options_of_fields[] = {
    {"device", "--device"},
    {"isa", "--isa"},
    {"threads", "--threads"},
    {"temperature", "--temperature"},
    {"seed", "--seed"},
    {"position", "--position"},
    {"domain", "--domain"},
    {"given", "--given"},
    {"first_sample", "--first-sample"},
    {"num_samples", "--num-samples"},
    {"num_samples", "--samples"},
    {"max_tokens", "--max-tokens"},
    {"prompt", "--prompt"},
    {"text", "--prompt"},
    {"mask", "--mask"},
    {"allowed", "--allow"},
    {"banned", "--ban"},
    {"transforms.bias", "--logit-bias"},
    {"prompt_tokens", "--prompt-tokens"},
    {"output_tokens", "--output-tokens"},
    {"repetition", "--repetition-penalty"},
    {"frequency", "--frequency-penalty"},
    {"presence", "--presence-penalty"},
    {"top_k", "--top-k"},
    {"top_p", "--top-p"},
    {"min_p", "--min-p"},
    {"order", "--order"},
    {"ties", "--ties"},
    {"weight", "--weights"},
    {"hidden", "--hidden"},
    {"bias", "--bias"},
    {"logits", "--logits"},
    {"scale", "--scale"},
    {"soft_cap", "--soft-cap"},
    {"vocab_size", "--vocab-size"},
    {"first_token", "--first-token"},
    {"screen", "--screen"},
    {"num_top", "--top-logprobs"},
    {"num_best", "--num-best"},
    {"kept_ids", "--kept-ids"},
    {"kept_capacity", "--kept-ids"},
    {"draft tokens", "--draft-tokens"},
    {"draft siblings", "--draft-siblings"},
    {"draft temperature", "--draft-temperature"},
    {"draft rule", "--draft-rule"},
    {"draft", "--draft"},
};

/* The command's option that sets field[0..size); NULL: none. */
static const char *find_option(const char *field, size_t size)
{
    for (size_t i = 0; i < sizeof options_of_fields / sizeof *options_of_fields; i++) {
        const char *path = options_of_fields[i].path;
        const size_t length = strlen(path);
        const bool whole = length == size || (length < size && field[size - length - 1] == '.');

        if (whole && memcmp(field + size - length, path, length) == 0 && command_has_option &&
            command_has_option(options_of_fields[i].option)) {
            return options_of_fields[i].option;
        }
    }
    return NULL;
}

void fail_field(const char *field, const char *message)
{
    const char *option = find_option(field, strlen(field));

    fail(option ? option : field, "%s", message);
}

void fail_message(const char *option, const char *message)
{
    const char *colon = strstr(message, ": ");
    const char *found = colon ? find_option(message, (size_t)(colon - message)) : NULL;

    fail(found ? found : option, "%s", found ? colon + 2 : message);
}

void fail_late(const char *field, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    end_program(EXIT_FAILED, field, format, arguments);
}
