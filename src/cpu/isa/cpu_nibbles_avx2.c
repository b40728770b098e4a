/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Sums of a screen of nibbles by vpmaddubsw (AVX2), with the planes of 7 bits of
 *        cpu_screen_avx2.c. Half a line of high nibbles holds 32 columns of two tokens; 16 bytes
 *        of a plane are broadcast to both halves of a vector.
 * COST   Three instructions for each half line, half of the columns and plane.
 */
#include "cpu/lanes/nibble_sums.h"

#include <immintrin.h>

/* Prefetch distance of a stream, in bytes. */
#define AHEAD 1024

INLINED __m256i load_plane(const int8_t *plane)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)plane));
}

INLINED __m256i multiply_bytes(__m256i bytes, __m256i plane)
{
    return _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, plane), _mm256_set1_epi16(1));
}

INLINED __m256i load_bytes(const uint8_t *at) { return _mm256_loadu_si256((const void *)at); }

/* Bytes of columns 0..15 and 16..31 of two rows, or their high nibbles; `both` is a constant. */
INLINED void unpack_half_line(__m256i high, __m256i low, int both, __m256i x[2])
{
    const __m256i mask = _mm256_set1_epi32(0x0f0f0f0f);
    if (both) {
        x[0] = _mm256_or_si256(_mm256_andnot_si256(mask, _mm256_slli_epi32(high, 4)),
                               _mm256_and_si256(low, mask));
        x[1] = _mm256_or_si256(_mm256_andnot_si256(mask, high),
                               _mm256_and_si256(_mm256_srli_epi32(low, 4), mask));
    } else {
        x[0] = _mm256_and_si256(high, mask);
        x[1] = _mm256_and_si256(_mm256_srli_epi32(high, 4), mask);
    }
}

/* Two rows of a group, 4 tokens apart, of each of `streams` streams from token `row` on: the sums
 * of each line in lanes of four. `lines`, at most 8, `streams` and `both` are constants of each
 * instance. */
INLINED void sum_two_rows(const cpu_screen_product *p, int row, int lines, int streams, int both,
                          __m256i sum[4][8])
{
    const int64_t stream_bytes = 8 * p->columns, row_bytes = p->columns / 2;
    const uint8_t *high = p->copy + cpu_find_high_nibbles(row, stream_bytes);
    const uint8_t *low = both ? p->low + cpu_find_low_nibbles(row, stream_bytes) : NULL;
    const int8_t *plane = p->planes;
    UNROLLED
    for (int g = 0; g < streams; g++) {
        UNROLLED
        for (int b = 0; b < lines; b++)
            sum[g][b] = _mm256_setzero_si256();
    }
    for (int64_t k = 0; k < p->columns; k += 64, plane += 64 * lines) {
        __m256i rest[4][2];
        UNROLLED
        for (int g = 0; g < streams && both; g++) {
            const uint8_t *at = low + g * stream_bytes + k / 2;
            __m256i first = load_bytes(at), second = load_bytes(at + row_bytes);
            rest[g][0] = _mm256_permute2x128_si256(first, second, 0x20);
            rest[g][1] = _mm256_permute2x128_si256(first, second, 0x31);
            _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
        }
        UNROLLED
        for (int line = 0; line < 2; line++, high += CPU_NIBBLE_LINE) {
            __m256i x[4][2];
            UNROLLED
            for (int g = 0; g < streams; g++) {
                const uint8_t *at = high + g * stream_bytes;
                unpack_half_line(load_bytes(at), rest[g][line], both, x[g]);
                _mm_prefetch((const char *)at + AHEAD, _MM_HINT_T0);
            }
            UNROLLED
            for (int b = 0; b < lines; b++) {
                UNROLLED
                for (int half = 0; half < 2; half++) {
                    __m256i h = load_plane(plane + 64 * b + 32 * line + 16 * half);
                    UNROLLED
                    for (int g = 0; g < streams; g++)
                        sum[g][b] = _mm256_add_epi32(sum[g][b], multiply_bytes(x[g][half], h));
                }
            }
        }
    }
}

INLINED void sum_panel(const cpu_screen_product *p, int lines, int both)
{
    /* The sums of these streams fit the registers. */
    const int streams = lines == 1 ? 4 : lines <= 4 ? 2 : 1;
    for (int row = 0; row < GUMBEL_BLOCK; row += streams) {
        __m256i sum[4][8];
        if (row % 8 >= 4)
            continue; /* summed with the tokens 4 before */
        sum_two_rows(p, row, lines, streams, both, sum);
        for (int g = 0; g < streams; g++)
            for (int b = 0; b < lines; b++) {
                int32_t lanes[8], *out = p->sums + (row / 16 * lines + b) * 16 + row % 16 + g;
                _mm256_storeu_si256((void *)lanes, sum[g][b]);
                out[0] = p->start[b] + lanes[0] + lanes[1] + lanes[2] + lanes[3];
                out[4] = p->start[b] + lanes[4] + lanes[5] + lanes[6] + lanes[7];
            }
    }
}

DEFINE_NIBBLE_SUMS_OF_FOUR

const cpu_screen_kernel cpu_nibbles_avx2 = {.name = "avx2, nibbles",
                                            .plane = 128,
                                            .panel = 4,
                                            .batch_max = 8,
                                            .sum_products = sum_products,
                                            .sum_token = cpu_sum_token_plain};
