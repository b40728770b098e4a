/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of a request: transforms, truncation, and the outputs beyond plain sampling.
 */
#ifndef GUMBEL_VALIDATE_FEATURES_H
#define GUMBEL_VALIDATE_FEATURES_H

#include "validate/validate_fields.h"

/* Reads transforms and truncation from the problem's sampling into the problem, and sets their
 * request bits. */
gumbel_status gumbel_read_features(gumbel_problem *problem, gumbel_error *error);

/* Checks the row parameters and lists of the request, in host memory. */
gumbel_status gumbel_check_host_features(const gumbel_problem *problem, gumbel_error *error);

/* The request bits of an output that holds all fields. */
uint32_t gumbel_output_features(const gumbel_output *output);

/* The field of a request bit, such as "sampling.transforms.mask". */
const char *gumbel_feature_field(gumbel_feature bit);

#endif
