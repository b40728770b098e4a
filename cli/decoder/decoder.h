/* SPDX-License-Identifier: Apache-2.0
 *
 * A small host engine: loads a Hugging Face model folder (Qwen3, Llama), runs the trunk, which is
 * all layers but the LM head, on the CPU with a KV cache, and returns final hidden states and the
 * head for gumbel_sample().
 *
 * Letters: V vocabulary rows of the head, D hidden size.
 * Numbers: weights stay in the file's dtype, memory-mapped; activations and sums are float32. The
 *          bits of a hidden state depend on its tokens only, not on the thread count or on whether
 *          tokens are fed one by one, all at once, or beside other sequences.
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

/* A sequence: its KV cache and its number of tokens. */
typedef struct decoder_sequence decoder_sequence;

typedef struct decoder_info {
    const char *model_type; /* "qwen3" or "llama" */
    int32_t hidden_size;    /* D */
    int32_t vocab_size;     /* V, rows of the head; the tokenizer may have fewer tokens */
    int32_t layers;
    int32_t max_positions; /* of a sequence */
    int32_t bos_id;        /* -1: none */
    int32_t eos_count;
    int32_t eos_ids[DECODER_MAX_EOS]; /* [eos_count] tokens that end a text */
    int64_t parameters;               /* elements of all weights; a tied head counts once */
    int32_t threads;
} decoder_info;

/* decoder_open(): loads a model folder: config.json, generation_config.json if present, weights,
 * tokenizer.json. Weights are memory-mapped, so the first pass reads them from the disk.
 *  threads  1..256; 0: as many as the process may use CPUs.
 *  result   receives the decoder, NULL on error. Release it with decoder_close() after its
 *           sequences.
 *  returns  0; -1 with `error` filled. */
int decoder_open(const char *folder, int32_t threads, decoder **result, decoder_error *error);

/* Stops the threads, unmaps the weights and frees memory. NULL is allowed. */
void decoder_close(decoder *d);

/* The results of these three functions are valid until the decoder is closed. */
const decoder_info *decoder_describe(const decoder *d);
const tokenizer *decoder_tokenizer(const decoder *d);
/* The LM head [V, D], in the file's dtype: `lm_head.weight`, or the embedding if tied. */
gumbel_tensor decoder_head(const decoder *d);

/* decoder_parallel_for(): runs tasks on the decoder's threads. With parallel_for set to it, and
 * parallel_context to the decoder, in gumbel_device_options, trunk and head share one pool. Only
 * one call may run at a time. */
void decoder_parallel_for(void *context, int32_t count, gumbel_task task, void *argument);

/* decoder_sequence_new(): makes an empty sequence.
 *  capacity  in tokens, 1..max_positions. The float32 KV cache takes 8 * layers * kv_heads *
 *            head_dim bytes a token; the system provides the memory as tokens are fed.
 *  returns   0; -1 with `error` filled. */
int decoder_sequence_new(const decoder *d, int32_t capacity, decoder_sequence **result,
                         decoder_error *error);

/* Frees a sequence. NULL is allowed. */
void decoder_sequence_free(decoder_sequence *sequence);

/* Returns the number of tokens, which is the position of the next token. */
int32_t decoder_sequence_length(const decoder_sequence *sequence);

/* Replaces the tokens of `to` by those of `from`, a sequence of the same decoder. Returns 0; -1
 * with `error` filled if the capacity of `to` is too small. */
int decoder_sequence_copy(decoder_sequence *to, const decoder_sequence *from, decoder_error *error);

/* Removes all tokens from position `length` on, if any. */
void decoder_sequence_truncate(decoder_sequence *sequence, int32_t length);

/* decoder_feed(): appends `count` tokens to one sequence (prefill). Only one decoder_feed(),
 * decoder_feed_tree(), decoder_step() or decoder_compute_logits() may run on a decoder at a time.
 *  tokens   [count] ids in [0, V)
 *  skip     number of first tokens whose hidden states are not returned: 0 returns all states,
 *           count - 1 the last
 *  hidden   [count - skip, D] float32, after the final norm; NULL if skip == count
 *  returns  0; -1 with `error` filled and the sequence unchanged: an id out of range, a full
 *           sequence, out of memory. */
int decoder_feed(decoder *d, decoder_sequence *sequence, const int32_t *tokens, int32_t count,
                 int32_t skip, float *hidden, decoder_error *error);

/* decoder_feed_tree(): appends the nodes of a tree of tokens. A node attends to the sequence, its
 * ancestors and itself; its position is the sequence's length plus its depth.
 * decoder_sequence_keep() must follow, to keep one path.
 *  tokens   [count], count >= 1; the root first
 *  parents  [count] node i > 0 has a parent in 0..i - 1; the root's entry is not read
 *  hidden   [count, D] float32, the bits that feeding each path alone gives
 *  returns  as decoder_feed(). */
int decoder_feed_tree(decoder *d, decoder_sequence *sequence, const int32_t *tokens,
                      const int32_t *parents, int32_t count, float *hidden, decoder_error *error);

/* Keeps `count` nodes of a tree that was fed when the length was `first`, and removes all others,
 * as if the kept nodes had been fed alone. nodes[i] >= i, ascending, gets position first + i. */
void decoder_sequence_keep(decoder_sequence *sequence, int32_t first, const int32_t *nodes,
                           int32_t count);

/* decoder_step(): appends one token to each of `count` different sequences (decode). Up to 64
 * sequences share one read of the weights.
 *  sequences  [count]
 *  tokens     [count] tokens[i] for sequences[i]
 *  hidden     [count, D] float32
 *  returns    as decoder_feed(). */
int decoder_step(decoder *d, decoder_sequence *const *sequences, const int32_t *tokens,
                 int32_t count, float *hidden, decoder_error *error);

/* decoder_compute_logits(): multiplies hidden states by the head, for rules that compare the logits
 * of two models.
 *  hidden   [count, D] float32
 *  logits   [count, V] float32
 *  returns  0; -1 with `error` filled (out of memory). */
int decoder_compute_logits(decoder *d, const float *hidden, int32_t count, float *logits,
                           decoder_error *error);

#endif /* DECODER_DECODER_H */
