/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a tokenizer, for the sources that load, encode and decode.
 */
#ifndef DECODER_TOKENIZER_PARTS_H
#define DECODER_TOKENIZER_PARTS_H

#include "decoder/tokenizer/added_tokens.h"
#include "decoder/tokenizer/bpe.h"
#include "decoder/tokenizer/pretokenizer.h"
#include "decoder/tokenizer/tokenizer.h"

struct tokenizer {
    char *path; /* of tokenizer.json, for messages */
    int32_t size;
    added_tokens added;
    bool nfc; /* texts are converted to Unicode normalisation form C */
    pretokenizer *pretokenizer;
    bpe *bpe;
    bool ignore_merges;
    token_list before; /* special tokens around a prompt */
    token_list after;
};

#endif /* DECODER_TOKENIZER_PARTS_H */
