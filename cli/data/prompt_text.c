/* SPDX-License-Identifier: Apache-2.0 */
#include "prompt_text.h"

#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "standard_input.h"

struct prompt_text prompt_read(const char *given)
{
    enum { BYTES_MAX = 1 << 25 };
    struct prompt_text prompt = {given, 0, NULL};

    if (given) {
        prompt.size = strlen(given);
        return prompt;
    }
    prompt.from_stdin = read_standard_input("--prompt", "the prompt", BYTES_MAX, &prompt.size);
    prompt.bytes = prompt.from_stdin;
    if (prompt.size > 0 && prompt.bytes[prompt.size - 1] == '\n') {
        prompt.size--;
    }
    return prompt;
}

void prompt_free(struct prompt_text *prompt)
{
    free(prompt->from_stdin);
    *prompt = (struct prompt_text){0};
}

token_list prompt_encode(const struct prompt_text *prompt, const decoder *model,
                         enum prompt_start start)
{
    const int32_t bos = decoder_describe(model)->bos_id;
    token_list list = {0};
    token_list plain = {0};
    decoder_error error = {""};

    if (start == PROMPT_BOS && bos < 0) {
        fail("--bos", "the model has no bos token");
    }
    if (tokenizer_encode(decoder_tokenizer(model), prompt->bytes, prompt->size,
                         start != PROMPT_BARE, &plain, &error) != 0) {
        fail_message("--prompt", error.message);
    }
    if ((start == PROMPT_BOS && (plain.count == 0 || plain.ids[0] != bos) &&
         token_list_append(&list, &bos, 1) != 0) ||
        token_list_append(&list, plain.ids, plain.count) != 0) {
        fail("--prompt", "not enough memory");
    }
    token_list_free(&plain);
    if (list.count == 0) {
        fail("--prompt", "no tokens; give some text or --bos");
    }
    return list;
}
