/* SPDX-License-Identifier: Apache-2.0
 *
 * The transforms of a generate() call, repeated for each row of a draw, and a history of each text
 * if there are penalties.
 */
#ifndef DECODER_GROUP_REQUEST_H
#define DECODER_GROUP_REQUEST_H

#include "decoder/generate.h"

/* Start from {0}; release it with group_request_free(), also after an error. */
typedef struct group_request {
    gumbel_transforms transforms; /* of GENERATE_GROUP rows, without history */
    gumbel_history history; /* a row for each unfinished text, in their order; counts NULL: none */
    int64_t words;          /* uint32_t in a row of history.prompt and of history.output */
    gumbel_device *device;  /* a CPU, which keeps the history */
} group_request;

/* group_request_new(): repeats the options' transforms, and starts a history with the prompt for
 * each sample.
 *  device   a CPU; the histories are in host memory
 *  returns  0; -1 with `error` filled. */
int group_request_new(group_request *request, gumbel_device *device,
                      const generate_options *options, int64_t vocab, int32_t samples,
                      decoder_error *error);
void group_request_free(group_request *request);

/* Returns the transforms of GENERATE_GROUP rows from text `first` on. They point to `history`,
 * which is set to the histories of these texts. */
gumbel_transforms group_request_get_transforms(const group_request *request, int32_t first,
                                               gumbel_history *history);

/* group_request_add_tokens(): adds tokens[i] to the history of text i.
 *  tokens   [count]
 *  returns  0; -1 with `error` filled. */
int group_request_add_tokens(const group_request *request, const int32_t *tokens, int32_t count,
                             decoder_error *error);

/* Copies the history of text `from` over that of text `to`. */
void group_request_copy_history(const group_request *request, int32_t to, int32_t from);

#endif /* DECODER_GROUP_REQUEST_H */
