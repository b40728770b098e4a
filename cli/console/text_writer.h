/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns the tokens of a generate() call into texts: prints them as they come, and keeps them for
 * JSON and for statistics.
 */
#ifndef GUMBEL_CLI_TEXT_WRITER_H
#define GUMBEL_CLI_TEXT_WRITER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arguments.h"
#include "decoder/generate.h"

/* One text in the making. */
struct writing {
    token_stream stream;
    token_list ids;
    float *logprobs; /* [ids.capacity] */
    json_t *ranks;   /* of every token, as the two below; NULL: not wanted */
    json_t *kept;
    json_t *top; /* {"ids", "logprobs"} */
    char *text;  /* [size], and a NUL */
    size_t size;
    size_t printed; /* bytes of it */
    bool ended;
    const char *ended_by; /* "eos", "max-tokens" or "stop" */
    const char *stop;     /* the stop string that ended it, or NULL */
};

/* How to print. */
struct writer_style {
    bool quiet;                    /* keep only */
    bool echo;                     /* the prompt before each text */
    bool ignore_eos;               /* an end token does not end a text */
    uint32_t first_sample;         /* the number of the first text */
    int32_t max_tokens;            /* of each text, for the progress */
    const struct text_list *stops; /* a text ends before the first of these */
    bool ranks;                    /* keep what the options of generate() ask for */
    bool kept;
    int32_t num_top;
};

struct writer {
    struct writer_style style;
    const decoder *model;
    const char *prompt; /* [prompt_size] */
    size_t prompt_size;
    int32_t samples;
    int32_t shown;            /* texts printed in full */
    int64_t drawn;            /* tokens of all texts; those that an ended one lacks included */
    struct writing *writings; /* [samples] */
};

/* A writer of `samples` texts; prints the prompt if the style echoes it. All pointers must outlive
 * it. Release it with writer_free(). */
struct writer writer_new(const decoder *model, const char *prompt, size_t prompt_size,
                         int32_t samples, struct writer_style style);
void writer_free(struct writer *writer);

/* A generate_callback with a struct writer as its context. A single text is printed as it comes,
 * but for bytes that may begin a stop string. Several texts are printed in order, each under a line
 * with its number and once it is complete; until then there is progress on stderr. Stops the call
 * once stdout cannot be written. */
generate_next writer_take(void *context, const generate_token *token);

/* {"prompt", "prompt_ids", "samples": [{"ids", "logprobs", "text", "ended_by"}]}, and of a sample
 * "stop", "ranks", "kept" and "top" where it has them. Ids include those of the stop string, which
 * the text does not. */
json_t *writer_to_json(const struct writer *writer, const token_list *prompt);

#endif
