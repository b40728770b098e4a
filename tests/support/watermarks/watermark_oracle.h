/* SPDX-License-Identifier: Apache-2.0
 *
 * Watermarks by plain loops over whole texts (docs/maths.md, section 17): SipHash over bytes,
 * contexts compared with all earlier ones. Shares only the public headers with the library.
 */
#ifndef TESTS_WATERMARK_ORACLE_H
#define TESTS_WATERMARK_ORACLE_H

#include <stddef.h>
#include <stdint.h>

/* SipHash-2-4 of `size` bytes. */
uint64_t oracle_siphash(const uint8_t key[16], const uint8_t *message, size_t size);

/* A watermarked draw. */
typedef struct oracle_draw {
    uint64_t seed, position;
    int32_t watermarked;
} oracle_draw;

/* The draw after text[0] .. text[count - 1], with the request's own seed and position. */
oracle_draw oracle_watermark(const uint64_t key[2], int32_t context, const int32_t *text,
                             int64_t count, uint64_t seed, uint64_t position);

/* The score of token text[i] of a text of `count` tokens; NaN if it is not scored. */
double oracle_watermark_score(const uint64_t key[2], int32_t context, uint32_t sample,
                              uint32_t domain, const int32_t *text, int64_t i);

#endif
