/* SPDX-License-Identifier: Apache-2.0
 *
 * The weights of a model folder: model.safetensors, or the shards that
 * model.safetensors.index.json lists.
 */
#ifndef DECODER_CHECKPOINT_H
#define DECODER_CHECKPOINT_H

#include "decoder/error.h"
#include "decoder/files/tensor.h"

typedef struct checkpoint checkpoint;

/* checkpoint_open(): opens every weight file of a folder. A shard's name must be a plain file name
 * that ends in .safetensors; the shard must hold every tensor that the index places there.
 *  weights  receives the checkpoint, NULL on error. Release it with checkpoint_close().
 *  returns  0; -1 with `error` filled. */
int checkpoint_open(const char *folder, checkpoint **weights, decoder_error *error);

/* Closes all files and invalidates every view. NULL is allowed. */
void checkpoint_close(checkpoint *weights);

/* checkpoint_find(): the tensor called `name`, valid until the checkpoint is closed.
 *  path     receives the path of its file, or of the file that should list it, for messages; NULL
 *           is allowed.
 *  returns  NULL if there is none. */
const tensor_view *checkpoint_find(const checkpoint *weights, const char *name, const char **path);

#endif /* DECODER_CHECKPOINT_H */
