/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads tensors of the bundled models from safetensors files, without validation.
 */
#ifndef TESTS_MODEL_ROWS_H
#define TESTS_MODEL_ROWS_H

#include <gumbel/gumbel.h>

/* Reads the tensor `name` of a file in tests/models/; free tensor.data. Ends the program if it does
 * not exist. */
gumbel_tensor model_tensor(const char *file, const char *name);

#endif
