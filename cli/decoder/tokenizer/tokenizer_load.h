/* SPDX-License-Identifier: Apache-2.0
 *
 * The "model" object of a tokenizer.json: vocabulary and merges.
 */
#ifndef DECODER_TOKENIZER_LOAD_H
#define DECODER_TOKENIZER_LOAD_H

#include "decoder/files/json_file.h"
#include "decoder/tokenizer/tokenizer.h"

/* tokenizer_refuse_variants(): whether the object is of a byte-level BPE: such tokenizers use no
 * other kind of model, no byte fallback, dropout, prefix and suffix.
 *  returns  0; -1 with the place's error filled. */
int tokenizer_refuse_variants(const json_place *model);

/* tokenizer_load_model(): fill t->bpe and t->ignore_merges, and raise t->size where needed.
 *  model    the object
 *  returns  0; -1 with the place's error filled. */
int tokenizer_load_model(tokenizer *t, const json_place *model);

#endif /* DECODER_TOKENIZER_LOAD_H */
