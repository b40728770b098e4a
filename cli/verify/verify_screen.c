/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "gumbel/screen.h"
#include "head_screen.h"
#include "report.h"
#include "verify.h"

enum { POSITIONS = 64, SAMPLES = 4 };

/* One call's tokens and scores. */
struct drawn {
    int32_t *tokens;
    float *scores;
};

static void draw_at(const struct verify_input *input, const struct source *source,
                    uint64_t position, const struct drawn *into)
{
    const gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                      .temperature = {&input->temperature, GUMBEL_SAME},
                                      .seed = {&input->seed, GUMBEL_SAME},
                                      .position = {&position, GUMBEL_SAME},
                                      .num_samples = SAMPLES};
    const gumbel_output output = {
        .struct_size = sizeof output, .tokens = into->tokens, .scores = into->scores};

    source_sample(source, input->device, &sampling, &output);
}

/* Number of different draws of all rows at POSITIONS positions. */
static int64_t count_different(const struct verify_input *input, const struct source *screened)
{
    const size_t draws = (size_t)source_batch(screened) * SAMPLES;
    struct drawn ways[2];
    int64_t different = 0;

    for (int way = 0; way < 2; way++) {
        ways[way].tokens = require_memory("tokens", (int64_t)draws, sizeof(int32_t));
        ways[way].scores = require_memory("scores", (int64_t)draws, sizeof(float));
    }
    for (uint64_t position = 0; position < POSITIONS; position++) {
        draw_at(input, &input->source, position, &ways[0]);
        draw_at(input, screened, position, &ways[1]);
        for (size_t i = 0; i < draws; i++) {
            different += ways[0].tokens[i] != ways[1].tokens[i] ||
                         memcmp(&ways[0].scores[i], &ways[1].scores[i], sizeof(float)) != 0;
        }
    }
    for (int way = 0; way < 2; way++) {
        free(ways[way].tokens);
        free(ways[way].scores);
    }
    return different;
}

void verify_screen(const struct verify_input *input, struct verdicts *verdicts)
{
    static const char *const names[] = {"screen's certificate", "draws with a screen"};
    struct source screened = input->source;
    gumbel_error error = {"", ""};

    if (screened.from_logits) {
        record_verdict(verdicts, SKIPPED, names[0], NULL, "there is no head");
        record_verdict(verdicts, SKIPPED, names[1], NULL, "there is no head");
        return;
    }
    struct head_screen screen =
        head_screen_new(input->device, &screened.head.weight, GUMBEL_SCREEN_BYTES);
    gumbel_status status =
        gumbel_screen_verify(input->device, NULL, &screened.head.weight, &screen.copy, &error);

    record_verdict(verdicts, status == GUMBEL_OK ? PASSED : FAILED, names[0], NULL, "%s",
                   status == GUMBEL_OK
                       ? "the error bounds of all rows hold, computed again in float64"
                       : error.message);
    screened.head.screen = screen.copy;
    const int64_t different = count_different(input, &screened);

    record_verdict(verdicts, different ? FAILED : PASSED, names[1], NULL,
                   "%lld of %lld tokens and scores differ from draws without a screen",
                   (long long)different,
                   (long long)(source_batch(&screened) * SAMPLES * POSITIONS));
    head_screen_free(&screen);
}
