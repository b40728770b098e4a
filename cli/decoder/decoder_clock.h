/* SPDX-License-Identifier: Apache-2.0
 *
 * The clock that times decoding and benchmarks.
 */
#ifndef DECODER_DECODER_CLOCK_H
#define DECODER_DECODER_CLOCK_H

/* Seconds of a monotonic clock. */
double seconds_now(void);

#endif /* DECODER_DECODER_CLOCK_H */
