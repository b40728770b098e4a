/* SPDX-License-Identifier: Apache-2.0
 *
 * A prompt: its text, from the command line or stdin, and its tokens. An invalid prompt ends the
 * program (options.h).
 */
#ifndef GUMBEL_CLI_PROMPT_TEXT_H
#define GUMBEL_CLI_PROMPT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "decoder/decoder.h"

struct prompt_text {
    const char *bytes; /* [size] */
    size_t size;
    char *from_stdin; /* owner of `bytes`, or NULL */
};

/* The prompt `given`; if NULL, all of stdin without one final newline. Release it with
 * prompt_free(). */
struct prompt_text prompt_read(const char *given);
void prompt_free(struct prompt_text *prompt);

/* The special tokens at the start of a prompt. */
enum prompt_start {
    PROMPT_AS_TOKENIZER, /* those of the tokenizer */
    PROMPT_BOS,          /* those of the tokenizer, and the model's bos token */
    PROMPT_BARE,         /* none at the start and at the end */
};

/* Encodes a prompt as at least one token; release the tokens with token_list_free(). */
token_list prompt_encode(const struct prompt_text *prompt, const decoder *model,
                         enum prompt_start start);

#endif
