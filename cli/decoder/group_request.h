/* SPDX-License-Identifier: Apache-2.0
 *
 * What every text of a generate() asks of its draws, for calls on groups of rows: one row's
 * transforms repeated, and a history of each text where penalties count one.
 */
#ifndef DECODER_GROUP_REQUEST_H
#define DECODER_GROUP_REQUEST_H

#include "decoder/generate.h"

/* Start from {0}; group_request_free() releases what is in it, after a failure too. */
typedef struct group_request {
    gumbel_transforms transforms; /* of GENERATE_GROUP rows, without history */
    gumbel_history history;       /* rows in the order of the unfinished texts; counts NULL: none */
    int64_t words;                /* of a row of its bits */
    gumbel_device *device;        /* that keeps it */
} group_request;

/* group_request_new(): repeat the options' transforms, and count the prompt for every sample.
 *  device   of host memory; keeps the histories
 *  returns  0; -1 with `error` filled. */
int group_request_new(group_request *request, gumbel_device *device,
                      const generate_options *options, int64_t vocab, int32_t samples,
                      decoder_error *error);
void group_request_free(group_request *request);

/* The transforms of GENERATE_GROUP rows from text `first` on; `history` is where theirs is told. */
gumbel_transforms group_request_rows(const group_request *request, int32_t first,
                                     gumbel_history *history);

/* group_request_count(): count a token of each of the first `count` texts.
 *  returns  0; -1 with `error` filled. */
int group_request_count(const group_request *request, const int32_t *tokens, int32_t count,
                        decoder_error *error);

/* Text `from` is text `to` from now on. */
void group_request_move(const group_request *request, int32_t to, int32_t from);

#endif /* DECODER_GROUP_REQUEST_H */
