/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of the bundled model, read from safetensors files without checks.
 */
#ifndef TESTS_MODEL_ROWS_H
#define TESTS_MODEL_ROWS_H

#include <gumbel/gumbel.h>

/* The tensor `name` of a file below models/, on the heap: free(tensor.data). Ends the program if it
 * does not exist. */
gumbel_tensor model_tensor(const char *file, const char *name);

#endif
