/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses any bytes as tokenizer.json: the result is an error, or a tokenizer that encodes and
 * decodes. The bytes after the last closing brace are the text. A small input cannot list the 256
 * byte tokens that a tokenizer requires; the mark 'vocab' (in single quotes) is replaced by a
 * vocabulary that begins with them.
 */
#include <string.h>

#include "decoder/tokenizer/tokenizer.h"
#include "fuzz_target.h"

static const char mark[] = "'vocab':";

/* Writes the 256 byte tokens as members of a JSON object, with the ids 0 to 255. */
static size_t write_alphabet(char *out)
{
    size_t used = (size_t)sprintf(out, "\"vocab\":{");
    int other = 0;
    for (int byte = 0; byte < 256; byte++) {
        int plain = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        used +=
            (size_t)sprintf(out + used, "\"\\u%04x\":%d,", plain ? byte : 0x100 + other++, byte);
    }
    return used;
}

/* Returns the document with the mark replaced; the text after the mark follows the last byte
 * token. */
static char *expand_mark(const uint8_t *data, size_t size, size_t *expanded)
{
    char *out = malloc(size + 8192);
    size_t used = 0;
    PROMISE(out);
    for (size_t i = 0; i < size; i++) {
        if (used == i && size - i >= sizeof mark - 1 &&
            memcmp(data + i, mark, sizeof mark - 1) == 0) {
            used += write_alphabet(out + used);
            i += sizeof mark - 2;
        } else {
            out[used++] = (char)data[i];
        }
    }
    *expanded = used;
    return out;
}

static void encode_and_decode(const tokenizer *t, const char *text, size_t size)
{
    token_list ids = {0};
    decoder_error error = {""};
    if (tokenizer_encode(t, text, size, true, &ids, &error) == 0) {
        token_text whole;
        for (size_t i = 0; i < ids.count; i++) {
            PROMISE(ids.ids[i] >= 0);
        }
        PROMISE(tokenizer_decode(t, ids.ids, ids.count, false, &whole) == 0);
        PROMISE(strlen(whole.bytes) <= whole.size);
        free(whole.bytes);
    } else {
        PROMISE(ids.count == 0 && error.message[0] != '\0');
    }
    token_list_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t end = size;
    while (end > 0 && data[end - 1] != '}') {
        end--;
    }
    const char *text = (const char *)data + end;
    size_t length;
    char *document = expand_mark(data, end, &length);
    tokenizer *t;
    decoder_error error = {""};
    if (tokenizer_parse(document, length, "F", &t, &error) == 0) {
        encode_and_decode(t, text, size - end);
        encode_and_decode(t, "Grüße\n\n  from 1611, don't 世界", 35);
        tokenizer_close(t);
    } else {
        PROMISE(!t);
        PROMISE_MESSAGE(error);
    }
    free(document);
    return 0;
}
