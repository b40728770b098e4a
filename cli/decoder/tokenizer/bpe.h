/* SPDX-License-Identifier: Apache-2.0
 *
 * Byte-pair encoding: a vocabulary of byte strings, ranked merges, and greedy merging of a word.
 */
#ifndef DECODER_BPE_H
#define DECODER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder/tokenizer/token_list.h"

/* Above any vocabulary in use (2^18 is the largest known) and small enough for dense tables. */
#define BPE_MAX_TOKENS (1 << 20)

typedef struct bpe bpe;

/* bpe_new(): allocates ids [0, size), `bytes` bytes of all tokens together and `merges` merges,
 * which the caller must not exceed. Release it with bpe_free().
 *  returns  NULL when memory runs out. */
bpe *bpe_new(int32_t size, size_t bytes, size_t merges);

/* Frees it. NULL is allowed. */
void bpe_free(bpe *b);

/* bpe_add_token(): sets the bytes of an id in [0, size), once for each id.
 *  indexed  words can become this token; false for tokens that are only matched by name. */
void bpe_add_token(bpe *b, int32_t id, const unsigned char *bytes, size_t size, bool indexed);

/* bpe_add_merge(): indexed tokens `first` and `second`, adjacent, become one; merges added earlier
 * go first. A pair that is added again gets the later rank.
 *  returns  0; -1 if their joined bytes are no indexed token. */
int bpe_add_merge(bpe *b, int32_t first, int32_t second);

/* The bytes of an id, not NUL-terminated; NULL and *size = 0 if the id has none. */
const unsigned char *bpe_token(const bpe *b, int32_t id, size_t *size);

/* The indexed token of these bytes; -1: none. */
int32_t bpe_find(const bpe *b, const unsigned char *bytes, size_t size);

/* The working memory of one encoder, which grows to its longest word. Start from {0}. */
typedef struct bpe_scratch {
    void *memory;
    size_t bytes;
} bpe_scratch;

/* bpe_encode(): appends the tokens of one word. Time is O(n log n) in its length.
 *  word           [size], size < 2^31; each of the 256 bytes must be an indexed token
 *  ignore_merges  a word that is itself a token becomes that token, without merges
 *  returns        0; -1 when memory runs out. */
int bpe_encode(const bpe *b, const unsigned char *word, size_t size, bool ignore_merges,
               bpe_scratch *scratch, token_list *list);

#endif /* DECODER_BPE_H */
