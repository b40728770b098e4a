/* SPDX-License-Identifier: Apache-2.0
 *
 * The "model" object of a tokenizer.json: vocabulary and merges.
 */
#ifndef DECODER_TOKENIZER_LOAD_H
#define DECODER_TOKENIZER_LOAD_H

#include "decoder/files/json_file.h"
#include "decoder/tokenizer/tokenizer.h"

/* tokenizer_reject_variants(): accepts byte-level BPE only: no other kind of model, no byte
 * fallback, dropout, prefix or suffix.
 *  returns  0; -1 with the place's error filled. */
int tokenizer_reject_variants(const json_place *model);

/* tokenizer_load_model(): fills t->bpe and t->ignore_merges, and raises t->size if needed.
 *  model    the object
 *  returns  0; -1 with the place's error filled. */
int tokenizer_load_model(tokenizer *t, const json_place *model);

#endif /* DECODER_TOKENIZER_LOAD_H */
