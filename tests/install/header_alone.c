/* SPDX-License-Identifier: Apache-2.0 */
#define GUMBEL_UNSTABLE
#include <gumbel/drafts.h>

int main(void) { return gumbel_version() != GUMBEL_VERSION; }
