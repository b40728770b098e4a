/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of features: transforms, truncation, and outputs beyond plain sampling.
 */
#ifndef GUMBEL_VALIDATE_FEATURES_H
#define GUMBEL_VALIDATE_FEATURES_H

#include "validate/validate_fields.h"

/* Reads transforms and truncation from the problem's sampling into the problem, and sets their
 * feature bits. */
gumbel_status gumbel_read_features(gumbel_problem *problem, gumbel_error *error);

/* Checks the row parameters and lists of these features, in host memory. */
gumbel_status gumbel_check_host_features(const gumbel_problem *problem, gumbel_error *error);

/* The features of an output that holds all fields. */
uint32_t gumbel_output_features(const gumbel_output *output);

/* Adds to a problem what an output that holds all fields requests. */
void gumbel_problem_request(gumbel_problem *problem, const gumbel_output *output);

/* The public field of a feature, such as "sampling.transforms.mask". */
const char *gumbel_feature_field(gumbel_feature bit);

#endif
