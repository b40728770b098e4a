/* SPDX-License-Identifier: Apache-2.0 */
#include "rung_names.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "report.h"

/* Sizes of a bfloat16 head with aligned rows. */
enum { VOCAB = 151936, HIDDEN = 4096 };

/* Common calls: a name, and the parameters that are set. */
static const struct usual {
    const char *name;
    bool top_k, top_p, min_p, penalties, logprobs, ranks;
} usual[] = {
    {.name = "plain draw"},
    {.name = "log-probabilities", .logprobs = true},
    {.name = "top_k", .top_k = true},
    {.name = "top_k, top_p", .top_k = true, .top_p = true},
    {.name = "top_p", .top_p = true},
    {.name = "min_p", .min_p = true},
    {.name = "penalties", .penalties = true},
    {.name = "top_k, top_p, penalties", .top_k = true, .top_p = true, .penalties = true},
    {.name = "ranks", .ranks = true},
};
enum { USUAL = sizeof usual / sizeof usual[0] };

/* The columns of the table: input and batch size. */
static const struct column {
    bool head;
    int64_t batch;
    const char *title;
} columns[] = {
    {true, 1, "head, B = 1"},    {true, 32, "head, B = 32"},    {true, 256, "head, B = 256"},
    {false, 1, "logits, B = 1"}, {false, 32, "logits, B = 32"},
};
enum { COLUMNS = sizeof columns / sizeof columns[0] };

void find_rungs(const gumbel_device *device, const gumbel_head *head, const gumbel_logits *logits,
                const gumbel_sampling *sampling, const gumbel_output *output,
                char names[RUNG_NAMES_BYTES])
{
    char text[4096] = "";
    gumbel_error error = {"", ""};

    names[0] = '\0';
    if (gumbel_explain(device, head, logits, sampling, output, text, sizeof text, &error) !=
        GUMBEL_OK) {
        snprintf(names, RUNG_NAMES_BYTES, "error: %.40s", error.field);
        return;
    }
    /* Lines "draw: NAME: ...", "logits: NAME: ..." and "rows: NAME: ..." name the rungs. */
    for (const char *line = text; line; line = strchr(line, '\n')) {
        char role[16], name[32];
        size_t used = strlen(names);

        line += line[0] == '\n';
        if (sscanf(line, "%15[a-z]: %31[a-z-]:", role, name) == 2 && strcmp(role, "kernels") != 0) {
            snprintf(names + used, RUNG_NAMES_BYTES - used, "%s%s", used > 0 ? ", " : "", name);
        }
    }
}

/* Names the rungs of a usual call. gumbel_explain() reads row parameters but not tensors, counts or
 * outputs, whose pointers all are `anything`. */
static void find_usual_rungs(const gumbel_device *device, const struct usual *call,
                             const struct column *column, char names[RUNG_NAMES_BYTES])
{
    static _Alignas(64) char anything[64];
    static const int32_t top_k = 50;
    static const float top_p = 0.9f, min_p = 0.05f, repetition = 1.1f;
    const gumbel_history history = {.struct_size = sizeof history,
                                    .vocab_size = VOCAB,
                                    .prompt = (uint32_t *)(void *)anything,
                                    .output = (uint32_t *)(void *)anything,
                                    .counts = (uint16_t *)(void *)anything};
    const gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                          .repetition = {&repetition, GUMBEL_SAME},
                                          .history = &history};
    const gumbel_truncation truncation = {
        .struct_size = sizeof truncation,
        .top_k = {call->top_k ? &top_k : NULL, GUMBEL_SAME},
        .top_p = {call->top_p ? &top_p : NULL, GUMBEL_SAME},
        .min_p = {call->min_p ? &min_p : NULL, GUMBEL_SAME},
    };
    const gumbel_sampling sampling = {
        .struct_size = sizeof sampling,
        .transforms = call->penalties ? &transforms : NULL,
        .truncation = call->top_k || call->top_p || call->min_p ? &truncation : NULL,
    };
    const gumbel_head head = {
        .struct_size = sizeof head,
        .hidden = {.data = anything,
                   .dtype = GUMBEL_BFLOAT16,
                   .rows = column->batch,
                   .cols = HIDDEN},
        .weight = {.data = anything, .dtype = GUMBEL_BFLOAT16, .rows = VOCAB, .cols = HIDDEN},
    };
    const gumbel_logits logits = {
        .struct_size = sizeof logits,
        .logits = {.data = anything, .dtype = GUMBEL_FLOAT32, .rows = column->batch, .cols = VOCAB},
    };
    const gumbel_output output = {
        .struct_size = sizeof output,
        .tokens = (int32_t *)(void *)anything,
        .logprobs = call->logprobs ? (float *)(void *)anything : NULL,
        .ranks = call->ranks ? (int32_t *)(void *)anything : NULL,
    };
    find_rungs(device, column->head ? &head : NULL, column->head ? NULL : &logits, &sampling,
               &output, names);
}

void print_rungs(const gumbel_device *device)
{
    char names[RUNG_NAMES_BYTES];

    printf("\nrungs of calls of V = %d, D = %d, bfloat16\n%-25s", VOCAB, HIDDEN, "");
    for (int i = 0; i < COLUMNS; i++) {
        printf(" %-18s", columns[i].title);
    }
    printf("\n");
    for (int i = 0; i < USUAL; i++) {
        printf("%-25s", usual[i].name);
        for (int j = 0; j < COLUMNS; j++) {
            find_usual_rungs(device, &usual[i], &columns[j], names);
            printf(" %-18s", names);
        }
        printf("\n");
    }
}

json_t *rungs_to_json(const gumbel_device *device)
{
    json_t *calls = json_object();
    char names[RUNG_NAMES_BYTES];

    for (int i = 0; i < USUAL; i++) {
        json_t *ways = json_object();

        for (int j = 0; j < COLUMNS; j++) {
            find_usual_rungs(device, &usual[i], &columns[j], names);
            json_put(ways, columns[j].title, json_string(names));
        }
        json_put(calls, usual[i].name, ways);
    }
    return calls;
}
