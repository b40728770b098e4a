/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes the tokens of a generate() call: prints texts as tokens arrive, and stores them for JSON
 * and statistics.
 */
#ifndef GUMBEL_CLI_TEXT_WRITER_H
#define GUMBEL_CLI_TEXT_WRITER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arguments.h"
#include "decoder/generate.h"

/* One text being written. */
struct writing {
    token_stream stream;
    token_list ids;
    float *logprobs; /* [ids.capacity] */
    json_t *ranks;   /* of every token, as the next three; NULL: not stored */
    json_t *kept;
    json_t *kept_sets; /* {"ids", "logprobs"}, or null for a set that is not listed */
    json_t *top;       /* {"ids", "logprobs"} */
    char *text;        /* [size], and a NUL */
    size_t size;
    size_t printed; /* bytes printed */
    bool ended;
    const char *ended_by; /* "eos", "max-tokens" or "stop" */
    const char *stop;     /* the stop string that ended it, or NULL */
};

/* Options of a writer. */
struct writer_style {
    bool quiet;                    /* print nothing */
    bool echo;                     /* the prompt before each text */
    bool ignore_eos;               /* an end token does not end a text */
    uint32_t first_sample;         /* the number of the first text */
    int32_t max_tokens;            /* of each text, for the progress */
    const struct text_list *stops; /* a text ends before the first that occurs */
    bool ranks;                    /* store ranks, as the options of generate() */
    bool kept;
    bool kept_sets;
    int32_t num_top;
};

struct writer {
    struct writer_style style;
    const decoder *model;
    const char *prompt; /* [prompt_size] */
    size_t prompt_size;
    int32_t samples;
    int32_t shown;            /* texts printed in full */
    int64_t drawn;            /* tokens of all texts; an ended text counts max_tokens */
    struct writing *writings; /* [samples] */
};

/* A writer of `samples` texts; prints the prompt if the style echoes it. The pointers must outlive
 * the writer. Release it with writer_free(). */
struct writer writer_new(const decoder *model, const char *prompt, size_t prompt_size,
                         int32_t samples, struct writer_style style);
void writer_free(struct writer *writer);

/* A generate_callback; `context` is a struct writer. Prints a single text at once, except bytes
 * that may begin a stop string. Prints several texts in order, each when it is complete, under a
 * line with its number; until then there is progress on stderr. Stops the call if stdout cannot be
 * written. */
generate_next writer_add_token(void *context, const generate_token *token);

/* {"prompt", "prompt_ids", "samples": [{"ids", "logprobs", "text", "ended_by"}]}, and of a sample
 * "stop", "ranks", "kept", "kept_sets" and "top" where it has them. Ids include those of the stop
 * string, the text does not. */
json_t *writer_to_json(const struct writer *writer, const token_list *prompt);

#endif
