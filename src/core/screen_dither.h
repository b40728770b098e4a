/* SPDX-License-Identifier: Apache-2.0
 *
 * The dither of a screen (docs/maths.md, section 14).
 */
#ifndef GUMBEL_CORE_SCREEN_DITHER_H
#define GUMBEL_CORE_SCREEN_DITHER_H

#include "gumbel/gumbel.h"
#include "maths/screen_bound.h"

/* Makes the dither, in layout NIBBLES the gumbel_screen_column words, of columns first .. first +
 * count - 1, from a seed, or from the operating system's entropy if `seed` is NULL; `first` is a
 * multiple of 4. Fails if there is no entropy. Re-entrant. */
gumbel_status gumbel_make_dither(gumbel_screen_layout layout, const uint64_t *seed, int64_t first,
                                 int64_t count, int32_t *dither, gumbel_error *error);

#endif
