/* SPDX-License-Identifier: Apache-2.0
 *
 * Hold back the signals that ask a process to end, while it has something to tidy up first.
 */
#ifndef DECODER_OUTPUT_SIGNALS_H
#define DECODER_OUTPUT_SIGNALS_H

#include <stdbool.h>

/* From here on SIGINT, SIGTERM and SIGHUP wait, whichever thread they come to; those that the
 * process ignores stay ignored. SIGXFSZ does not come at all: the write says EFBIG. */
void output_signals_hold(void);

/* Whether one waits. */
bool output_signals_waiting(void);

/* As before; the one that waits comes now. */
void output_signals_release(void);

#endif /* DECODER_OUTPUT_SIGNALS_H */
