/* SPDX-License-Identifier: Apache-2.0
 *
 * Holds the signals that end a process while a temporary file exists.
 */
#ifndef DECODER_OUTPUT_SIGNALS_H
#define DECODER_OUTPUT_SIGNALS_H

#include <stdbool.h>

/* Holds SIGINT, SIGTERM and SIGHUP in all threads; signals that the process ignores stay ignored.
 * Ignores SIGXFSZ: the write returns EFBIG. */
void output_signals_hold(void);

/* True if a signal is held. */
bool output_signals_waiting(void);

/* Restores the handlers and raises a held signal. */
void output_signals_release(void);

#endif /* DECODER_OUTPUT_SIGNALS_H */
