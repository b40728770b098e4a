/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_uploads.h"

#include <string.h>

#include "device_memory.h"

/* ------------------------------------------------------------------------- inputs ---- */

const void *cuda_uploads_rows(const void *data, int64_t stride, int64_t width, int64_t batch,
                              size_t size)
{
    const int64_t step = stride == GUMBEL_SAME ? 0 : stride ? stride : width;

    return device_memory_copy(data, (size_t)(batch ? (batch - 1) * step + width : 0) * size);
}

/* Copies a row parameter of one value a row. */
#define COPY_ROWS(rows) cuda_uploads_rows((rows).data, (rows).stride, 1, batch, sizeof *(rows).data)

gumbel_token_lists cuda_uploads_lists(const gumbel_token_lists *lists, int64_t batch)
{
    const size_t count = lists->offsets ? (size_t)lists->offsets[batch] : 0;

    return (gumbel_token_lists){
        .offsets = device_memory_copy(lists->offsets, (size_t)(batch + 1) * sizeof *lists->offsets),
        .ids = device_memory_copy(lists->ids, count * sizeof *lists->ids),
        .values = device_memory_copy(lists->values, count * sizeof *lists->values),
    };
}

static gumbel_history copy_history(const gumbel_history *from, int64_t batch)
{
    const size_t rows = (size_t)batch;
    const size_t words = (size_t)(from->vocab_size + 31) / 32;
    gumbel_history copies = *from;

    copies.prompt = device_memory_copy(from->prompt, rows * words * sizeof *from->prompt);
    copies.output = device_memory_copy(from->output, rows * words * sizeof *from->output);
    copies.counts =
        device_memory_copy(from->counts, rows * (size_t)from->vocab_size * sizeof(uint16_t));
    return copies;
}

static void copy_transforms(struct cuda_uploads *copies, const gumbel_transforms *from,
                            int64_t batch, int64_t tokens)
{
    const int64_t words = (tokens + 31) / 32;
    gumbel_transforms *into = &copies->transforms;

    *into = *from;
    into->mask.data = cuda_uploads_rows(from->mask.data, from->mask.stride, words, batch,
                                        sizeof *from->mask.data);
    into->allowed = cuda_uploads_lists(&from->allowed, batch);
    into->banned = cuda_uploads_lists(&from->banned, batch);
    into->bias = cuda_uploads_lists(&from->bias, batch);
    into->prompt_tokens = cuda_uploads_lists(&from->prompt_tokens, batch);
    into->output_tokens = cuda_uploads_lists(&from->output_tokens, batch);
    into->repetition.data = COPY_ROWS(from->repetition);
    into->frequency.data = COPY_ROWS(from->frequency);
    into->presence.data = COPY_ROWS(from->presence);
    if (from->history) {
        copies->history = copy_history(from->history, batch);
        into->history = &copies->history;
    }
}

static void copy_programs(struct cuda_uploads *copies, const gumbel_programs *from, int64_t batch)
{
    gumbel_programs *into = &copies->programs;

    *into = *from;
    into->program.data = COPY_ROWS(from->program);
    into->min_keep.data = COPY_ROWS(from->min_keep);
    into->temperature_range.data = COPY_ROWS(from->temperature_range);
    into->temperature_exponent.data = COPY_ROWS(from->temperature_exponent);
    into->typical_p.data = COPY_ROWS(from->typical_p);
    into->top_n_sigma.data = COPY_ROWS(from->top_n_sigma);
    into->epsilon.data = COPY_ROWS(from->epsilon);
    into->eta.data = COPY_ROWS(from->eta);
    into->top_a.data = COPY_ROWS(from->top_a);
    into->surprise.data = COPY_ROWS(from->surprise);
    into->xtc_probability.data = COPY_ROWS(from->xtc_probability);
    into->xtc_threshold.data = COPY_ROWS(from->xtc_threshold);
    into->xtc_keep = cuda_uploads_lists(&from->xtc_keep, batch);
    into->smoothing_factor.data = COPY_ROWS(from->smoothing_factor);
    into->smoothing_curve.data = COPY_ROWS(from->smoothing_curve);
    into->adaptive_target.data = COPY_ROWS(from->adaptive_target);
}

static void free_programs(const gumbel_programs *programs)
{
    const void *const rows[] = {
        programs->program.data,
        programs->min_keep.data,
        programs->temperature_range.data,
        programs->temperature_exponent.data,
        programs->typical_p.data,
        programs->top_n_sigma.data,
        programs->epsilon.data,
        programs->eta.data,
        programs->top_a.data,
        programs->surprise.data,
        programs->xtc_probability.data,
        programs->xtc_threshold.data,
        programs->smoothing_factor.data,
        programs->smoothing_curve.data,
        programs->adaptive_target.data,
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        device_memory_free(rows[i]);
    }
    cuda_uploads_free_lists(&programs->xtc_keep);
}

void cuda_uploads_copy(struct cuda_uploads *copies, gumbel_sampling *sampling, int64_t batch,
                       int64_t tokens)
{
    const gumbel_truncation *truncation = sampling->truncation;

    *copies = (struct cuda_uploads){.transforms = {0}};
    if (sampling->transforms) {
        copy_transforms(copies, sampling->transforms, batch, tokens);
        sampling->transforms = &copies->transforms;
    }
    if (truncation) {
        copies->truncation = *truncation;
        copies->truncation.min_p.data = COPY_ROWS(truncation->min_p);
        copies->truncation.top_k.data = COPY_ROWS(truncation->top_k);
        copies->truncation.top_p.data = COPY_ROWS(truncation->top_p);
        if (truncation->programs) {
            copy_programs(copies, truncation->programs, batch);
            copies->truncation.programs = &copies->programs;
        }
        sampling->truncation = &copies->truncation;
    }
}

void cuda_uploads_free_lists(const gumbel_token_lists *lists)
{
    device_memory_free(lists->offsets);
    device_memory_free(lists->ids);
    device_memory_free(lists->values);
}

void cuda_uploads_free(const struct cuda_uploads *copies)
{
    const gumbel_transforms *transforms = &copies->transforms;

    device_memory_free(transforms->mask.data);
    cuda_uploads_free_lists(&transforms->allowed);
    cuda_uploads_free_lists(&transforms->banned);
    cuda_uploads_free_lists(&transforms->bias);
    cuda_uploads_free_lists(&transforms->prompt_tokens);
    cuda_uploads_free_lists(&transforms->output_tokens);
    device_memory_free(transforms->repetition.data);
    device_memory_free(transforms->frequency.data);
    device_memory_free(transforms->presence.data);
    device_memory_free(copies->history.prompt);
    device_memory_free(copies->history.output);
    device_memory_free(copies->history.counts);
    device_memory_free(copies->truncation.min_p.data);
    device_memory_free(copies->truncation.top_k.data);
    device_memory_free(copies->truncation.top_p.data);
    free_programs(&copies->programs);
}

/* ------------------------------------------------------------------------ outputs ---- */

/* The arrays of an output: elements have 4 bytes, and `per` gives their number. */
enum { ELEMENT_BYTES = 4 };
static const struct output_array {
    size_t at; /* offset of its pointer in a gumbel_output */
    enum { PER_ROW, PER_DRAW, PER_TOP, PER_BEST, PER_KEPT } per;
} output_arrays[] = {
    {offsetof(gumbel_output, tokens), PER_DRAW},
    {offsetof(gumbel_output, logprobs), PER_DRAW},
    {offsetof(gumbel_output, scores), PER_DRAW},
    {offsetof(gumbel_output, lse), PER_ROW},
    {offsetof(gumbel_output, status), PER_ROW},
    {offsetof(gumbel_output, ranks), PER_DRAW},
    {offsetof(gumbel_output, kept), PER_ROW},
    {offsetof(gumbel_output, top_ids), PER_TOP},
    {offsetof(gumbel_output, top_logprobs), PER_TOP},
    {offsetof(gumbel_output, best_ids), PER_BEST},
    {offsetof(gumbel_output, best_scores), PER_BEST},
    {offsetof(gumbel_output, kept_ids), PER_KEPT},
    {offsetof(gumbel_output, kept_logprobs), PER_KEPT},
};
enum { OUTPUT_ARRAYS = sizeof output_arrays / sizeof *output_arrays };

static void *read_pointer(const gumbel_output *output, int i)
{
    void *pointer = NULL;

    memcpy(&pointer, (const char *)output + output_arrays[i].at, sizeof pointer);
    return pointer;
}

static size_t count_bytes(const gumbel_output *output, int i, int64_t batch, int64_t samples)
{
    const int64_t columns[] = {[PER_ROW] = 1,
                               [PER_DRAW] = samples,
                               [PER_TOP] = output->num_top,
                               [PER_BEST] = output->num_best,
                               [PER_KEPT] = output->kept_capacity};

    return (size_t)(batch * columns[output_arrays[i].per]) * ELEMENT_BYTES;
}

gumbel_output cuda_output_new(const gumbel_output *host, int64_t batch, int64_t samples)
{
    gumbel_output copies = *host;

    for (int i = 0; i < OUTPUT_ARRAYS; i++) {
        void *memory = NULL;

        if (read_pointer(host, i)) {
            memory = device_memory_new(count_bytes(host, i, batch, samples));
            memcpy((char *)&copies + output_arrays[i].at, &memory, sizeof memory);
        }
    }
    return copies;
}

void cuda_output_download(const gumbel_output *host, const gumbel_output *on_gpu, int64_t batch,
                          int64_t samples)
{
    for (int i = 0; i < OUTPUT_ARRAYS; i++) {
        if (read_pointer(host, i)) {
            device_memory_download(read_pointer(host, i), read_pointer(on_gpu, i),
                                   count_bytes(host, i, batch, samples));
            device_memory_free(read_pointer(on_gpu, i));
        }
    }
}
