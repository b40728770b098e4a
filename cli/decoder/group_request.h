/* SPDX-License-Identifier: Apache-2.0
 *
 * The transforms of a generate() call for groups of rows: one row's transforms repeated, and a
 * history of each text if there are penalties.
 */
#ifndef DECODER_GROUP_REQUEST_H
#define DECODER_GROUP_REQUEST_H

#include "decoder/generate.h"

/* Start from {0}; release it with group_request_free(), also after an error. */
typedef struct group_request {
    gumbel_transforms transforms; /* of GENERATE_GROUP rows, without history */
    gumbel_history history;       /* rows in the order of the unfinished texts; counts NULL: none */
    int64_t words;                /* of a row of the history's bits */
    gumbel_device *device;        /* of the history */
} group_request;

/* group_request_new(): repeats the options' transforms, and counts the prompt for every sample.
 *  device   of host memory; stores the histories
 *  returns  0; -1 with `error` filled. */
int group_request_new(group_request *request, gumbel_device *device,
                      const generate_options *options, int64_t vocab, int32_t samples,
                      decoder_error *error);
void group_request_free(group_request *request);

/* The transforms of GENERATE_GROUP rows from text `first` on; fills `history` for them. */
gumbel_transforms group_request_rows(const group_request *request, int32_t first,
                                     gumbel_history *history);

/* group_request_count(): counts a token of each of the first `count` texts.
 *  returns  0; -1 with `error` filled. */
int group_request_count(const group_request *request, const int32_t *tokens, int32_t count,
                        decoder_error *error);

/* Moves the history of text `from` to text `to`. */
void group_request_move(const group_request *request, int32_t to, int32_t from);

#endif /* DECODER_GROUP_REQUEST_H */
