/* SPDX-License-Identifier: Apache-2.0
 *
 * A small host engine: loads a Hugging Face folder (Qwen3, Llama), runs the trunk on the CPU with a
 * KV cache, and returns final hidden states and the LM head for gumbel_sample().
 *
 * Letters: V vocabulary rows of the head, D hidden size.
 * Numbers: weights stay in the file's dtype, memory-mapped; activations and sums are float32. A
 *          row's hidden state is the same, bit for bit, for every thread count and however its
 *          tokens were fed: one by one, all at once, or beside other sequences.
 * Errors:  calls return 0, or -1 with a decoder_error filled. Nothing is printed.
 */
#ifndef DECODER_DECODER_H
#define DECODER_DECODER_H

#include <stddef.h>
#include <stdint.h>

#include "decoder/error.h"
#include "decoder/tokenizer/tokenizer.h"
#include "gumbel/gumbel.h"

#define DECODER_MAX_EOS 16

typedef struct decoder decoder;

/* A sequence: its KV cache and the number of tokens it holds. */
typedef struct decoder_sequence decoder_sequence;

/* Properties of a model. */
typedef struct decoder_info {
    const char *model_type; /* "qwen3" or "llama" */
    int32_t hidden_size;    /* D */
    int32_t vocab_size;     /* V: the head's rows; the tokenizer may have fewer tokens */
    int32_t layers;
    int32_t max_positions; /* the longest sequence that the model supports */
    int32_t bos_id;        /* -1: none */
    int32_t eos_count;
    int32_t eos_ids[DECODER_MAX_EOS]; /* [eos_count] tokens that end a text */
    int64_t parameters;               /* elements of all weights, a tied head counted once */
    int32_t threads;
} decoder_info;

/* decoder_open(): loads a folder: config.json, generation_config.json if present, weights,
 * tokenizer.json. Weights are mapped: the first pass reads them from the disk.
 *  threads  1..256; 0: the CPUs available to the process.
 *  result   receives the decoder, NULL on error. Release it with decoder_close() after its
 *           sequences.
 *  returns  0; -1 with `error` filled. */
int decoder_open(const char *folder, int32_t threads, decoder **result, decoder_error *error);

/* Stops the threads, unmaps and frees. NULL is allowed. */
void decoder_close(decoder *d);

/* Valid until the decoder is closed, as are the next two. */
const decoder_info *decoder_describe(const decoder *d);

const tokenizer *decoder_tokenizer(const decoder *d);

/* The LM head [V, D], in the file's dtype: `lm_head.weight`, or the embedding if tied. */
gumbel_tensor decoder_head(const decoder *d);

/* decoder_parallel_for(): the decoder's threads for gumbel_device_options: parallel_for =
 * decoder_parallel_for, parallel_context = the decoder. Trunk and head then use one pool. Calls
 * from one thread at a time. */
void decoder_parallel_for(void *context, int32_t count, gumbel_task task, void *argument);

/* decoder_sequence_new(): an empty sequence.
 *  capacity  number of tokens, 1..max_positions. The KV cache is float32: 8 * layers * kv_heads *
 *            head_dim bytes a token, allocated by the system as tokens are fed.
 *  returns   0; -1 with `error` filled. */
int decoder_sequence_new(const decoder *d, int32_t capacity, decoder_sequence **result,
                         decoder_error *error);

/* Frees a sequence. NULL is allowed. */
void decoder_sequence_free(decoder_sequence *sequence);

/* Number of tokens, which is the position of the next token. */
int32_t decoder_sequence_length(const decoder_sequence *sequence);

/* Copies the tokens of `from`, of the same decoder; the capacity of `to` must suffice. */
int decoder_sequence_copy(decoder_sequence *to, const decoder_sequence *from, decoder_error *error);

/* Removes all tokens from position `length` on, if any. */
void decoder_sequence_truncate(decoder_sequence *sequence, int32_t length);

/* decoder_feed(): appends `count` tokens to one sequence (prefill).
 *  tokens   [count] ids in [0, V)
 *  skip     hidden states of the first `skip` tokens are not returned: 0 for all states, count - 1
 *           for the last
 *  hidden   [count - skip, D] float32, final norm applied; NULL if skip == count
 *  returns  0; -1 with `error` filled (an id out of range, a full sequence, memory) and the
 *           sequence unchanged. One call at a time on a decoder. */
int decoder_feed(decoder *d, decoder_sequence *sequence, const int32_t *tokens, int32_t count,
                 int32_t skip, float *hidden, decoder_error *error);

/* decoder_feed_tree(): appends the nodes of a tree. A node attends to the sequence, its ancestors
 * and itself; its depth gives its position. decoder_sequence_keep() then keeps one path.
 *  tokens   [count], count >= 1; the root first
 *  parents  [count] the parent of node i > 0 is a node before it; the root's entry is not read
 *  hidden   [count, D] float32, with the bits of feeding each path alone
 *  returns  as decoder_feed(). */
int decoder_feed_tree(decoder *d, decoder_sequence *sequence, const int32_t *tokens,
                      const int32_t *parents, int32_t count, float *hidden, decoder_error *error);

/* Keeps `count` nodes of a tree that was fed at position `first`, as if they had been fed alone:
 * nodes[i], ascending and at least i, becomes position first + i. Removes all other nodes. */
void decoder_sequence_keep(decoder_sequence *sequence, int32_t first, const int32_t *nodes,
                           int32_t count);

/* decoder_step(): appends one token to each of `count` different sequences (decode), reading the
 * weights once.
 *  sequences  [count]
 *  tokens     [count], tokens[i] goes to sequences[i]
 *  hidden     [count, D] float32
 *  returns    as decoder_feed(). */
int decoder_step(decoder *d, decoder_sequence *const *sequences, const int32_t *tokens,
                 int32_t count, float *hidden, decoder_error *error);

/* decoder_logits(): the head's logits of hidden states, for rules that read the logits of two
 * models.
 *  hidden   [count, D] float32
 *  logits   [count, V]
 *  returns  0; -1 with `error` filled (memory). One call at a time on a decoder. */
int decoder_logits(decoder *d, const float *hidden, int32_t count, float *logits,
                   decoder_error *error);

#endif /* DECODER_DECODER_H */
