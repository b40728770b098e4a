/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU backend.
 */
#ifndef GUMBEL_CPU_BACKEND_H
#define GUMBEL_CPU_BACKEND_H

#include "core/backend.h"

/* Opens a CPU device; returns an error if an option is not available. */
gumbel_status cpu_open(const gumbel_device_options *options, gumbel_device **device,
                       gumbel_error *error);

#endif
