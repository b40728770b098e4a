/* SPDX-License-Identifier: Apache-2.0
 *
 * A prompt: its text, from the command line or stdin, and its tokens. Wrong ones end the program
 * (options.h).
 */
#ifndef GUMBEL_CLI_PROMPT_TEXT_H
#define GUMBEL_CLI_PROMPT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "decoder/decoder.h"

struct prompt_text {
    const char *bytes; /* [size] */
    size_t size;
    char *from_stdin; /* what `bytes` points to, or NULL */
};

/* The prompt `given`, or with NULL all of stdin less one newline at its end. Release it with
 * prompt_free(). */
struct prompt_text prompt_read(const char *given);
void prompt_free(struct prompt_text *prompt);

/* The special tokens at the start of a prompt. */
enum prompt_start {
    PROMPT_AS_TOKENIZER, /* what the tokenizer puts there */
    PROMPT_BOS,          /* these, and the model's bos token if it is not among them */
    PROMPT_BARE,         /* none, and none at the end */
};

/* The tokens, at least one; release them with token_list_free(). */
token_list prompt_encode(const struct prompt_text *prompt, const decoder *model,
                         enum prompt_start start);

#endif
