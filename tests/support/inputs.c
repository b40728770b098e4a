/* SPDX-License-Identifier: Apache-2.0 */
#include "inputs.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

void *make_zeroed(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        die("no memory for %zu x %zu bytes", count, size);
    return memory;
}

uint64_t random_bits(uint64_t *state)
{
    uint64_t mixed = *state += 0x9E3779B97F4A7C15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    return mixed ^ (mixed >> 31);
}

uint32_t random_below(uint64_t *state, uint32_t below)
{
    return (uint32_t)((random_bits(state) >> 32) * below >> 32);
}

float random_normal(uint64_t *state)
{
    uint64_t bits = random_bits(state);
    int32_t sum = -2 * 65535;
    for (int i = 0; i < 4; i++)
        sum += (int32_t)(bits >> (16 * i) & 0xffff);
    return (float)sum * (1.7320508f / 65536); /* four uniforms have variance 4 / 12 */
}

size_t dtype_size(gumbel_dtype dtype) { return dtype == GUMBEL_FLOAT32 ? 4 : 2; }

const char *dtype_name(gumbel_dtype dtype)
{
    switch (dtype) {
    case GUMBEL_FLOAT32:
        return "f32";
    case GUMBEL_FLOAT16:
        return "f16";
    case GUMBEL_BFLOAT16:
        return "bf16";
    }
    return "none";
}

static uint16_t round_to_float16(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float magnitude = fabsf(value);
    if (!(magnitude < 65520.0f))
        return (uint16_t)(sign | (isnan(value) ? 0x7e00 : 0x7c00));
    if (magnitude < 0x1p-14f)
        return (uint16_t)(sign | (uint16_t)lrintf(magnitude * 0x1p24f));
    uint32_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    bits -= 112u << 23; /* the difference of the exponent biases */
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | bits >> 13);
}

void dtype_store(void *data, gumbel_dtype dtype, int64_t index, float value)
{
    if (dtype == GUMBEL_FLOAT32) {
        ((float *)data)[index] = value;
        return;
    }
    uint16_t narrow;
    if (dtype == GUMBEL_FLOAT16) {
        narrow = round_to_float16(value);
    } else {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        narrow = isnan(value) ? (uint16_t)(0x7fc0 | (bits >> 16 & 0x8000))
                              : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    ((uint16_t *)data)[index] = narrow;
}

float dtype_load(const void *data, gumbel_dtype dtype, int64_t index)
{
    if (dtype == GUMBEL_FLOAT32)
        return ((const float *)data)[index];
    uint16_t narrow = ((const uint16_t *)data)[index];
    uint32_t bits = (uint32_t)narrow << 16;
    float value;
    if (dtype == GUMBEL_FLOAT16) {
        /* A shifted float16, even a subnormal one, has an exponent that is 112 too low. */
        bits = (uint32_t)(narrow & 0x8000) << 16 | (uint32_t)(narrow & 0x7fff) << 13;
        if ((narrow & 0x7c00) == 0x7c00)
            bits |= 0x7f800000; /* the product below leaves infinity and NaN as they are */
        memcpy(&value, &bits, sizeof value);
        return value * 0x1p112f;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

void dtype_store_nan(void *data, gumbel_dtype dtype, int64_t index)
{
    if (dtype == GUMBEL_FLOAT32)
        ((float *)data)[index] = NAN;
    else
        ((uint16_t *)data)[index] = 0x7fc1; /* a NaN in either 16-bit format */
}

void dtype_store_infinite(void *data, gumbel_dtype dtype, int64_t index, int sign)
{
    uint16_t bits = dtype == GUMBEL_FLOAT16 ? 0x7c00 : 0x7f80;
    if (dtype == GUMBEL_FLOAT32)
        ((float *)data)[index] = sign < 0 ? -INFINITY : INFINITY;
    else
        ((uint16_t *)data)[index] = (uint16_t)(bits | (sign < 0 ? 0x8000 : 0));
}

gumbel_tensor tensor_of(const void *data, gumbel_dtype dtype, int64_t rows, int64_t cols,
                        int64_t stride)
{
    return (gumbel_tensor){
        .data = data, .dtype = dtype, .rows = rows, .cols = cols, .stride = stride};
}

static gumbel_tensor make_tensor(gumbel_dtype dtype, int64_t rows, int64_t cols, int64_t gap,
                                 float spread, uint64_t seed, void **owner)
{
    int64_t stride = cols + gap;
    *owner = make_zeroed((size_t)(rows * stride), dtype_size(dtype));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++)
            dtype_store(*owner, dtype, r * stride + c, spread * random_normal(&seed));
        for (int64_t c = cols; c < stride; c++)
            dtype_store_nan(*owner, dtype, r * stride + c);
    }
    return tensor_of(*owner, dtype, rows, cols, gap ? stride : 0);
}

static void make_row_parameters(problem *generated)
{
    const problem_plan *plan = &generated->plan;
    size_t batch = (size_t)plan->batch;
    generated->temperature = make_zeroed(batch, sizeof *generated->temperature);
    generated->seed = make_zeroed(batch, sizeof *generated->seed);
    generated->position = make_zeroed(batch, sizeof *generated->position);
    generated->first_sample = make_zeroed(batch, sizeof *generated->first_sample);
    uint64_t state = plan->seed ^ 0x5eedull;
    float base = plan->temperature == 0 ? 1 : fabsf(plan->temperature);
    for (size_t b = 0; b < batch; b++) {
        int greedy = plan->temperature < 0 && b % 3 == 2;
        generated->temperature[b] = greedy ? 0 : base * (1 + (float)b / 8);
        generated->seed[b] = random_bits(&state);
        generated->position[b] = (uint32_t)random_bits(&state);
        if (plan->first_sample)
            generated->first_sample[b] = plan->first_sample + 1000003 * (uint32_t)b;
    }
    generated->sampling = (gumbel_sampling){
        .struct_size = sizeof generated->sampling,
        .temperature = {generated->temperature, 0},
        .seed = {generated->seed, 0},
        .position = {generated->position, 0},
        .first_sample = {generated->first_sample, 0},
        .num_samples = plan->samples,
        .domain = plan->domain,
    };
}

problem *problem_make(const problem_plan *plan)
{
    problem *generated = make_zeroed(1, sizeof *generated);
    generated->plan = *plan;
    problem_plan *p = &generated->plan;
    p->samples = p->samples ? p->samples : 1;
    p->weight_dtype = p->weight_dtype ? p->weight_dtype : GUMBEL_BFLOAT16;
    p->hidden_dtype = p->hidden_dtype ? p->hidden_dtype : GUMBEL_FLOAT32;
    float spread = (p->spread > 0 ? p->spread : 3) / sqrtf((float)p->hidden_size);
    generated->head = (gumbel_head){
        .struct_size = sizeof generated->head,
        .hidden = make_tensor(p->hidden_dtype, p->batch, p->hidden_size, p->hidden_gap, 1,
                              p->seed * 3 + 1, &generated->hidden),
        .weight = make_tensor(p->weight_dtype, p->vocab, p->hidden_size, p->weight_gap, spread,
                              p->seed * 3 + 2, &generated->weight),
        .scale = p->scale,
        .soft_cap = p->soft_cap,
        .first_token = p->first_token,
        .vocab_size = p->vocab_size,
    };
    if (p->bias_dtype)
        generated->head.bias =
            make_tensor(p->bias_dtype, 1, p->vocab, 0, 1, p->seed * 3 + 3, &generated->bias);
    make_row_parameters(generated);
    return generated;
}

void problem_free(problem *generated)
{
    free(generated->weight);
    free(generated->hidden);
    free(generated->bias);
    free(generated->temperature);
    free(generated->seed);
    free(generated->position);
    free(generated->first_sample);
    free(generated);
}

static const void *advance_elements(const gumbel_tensor *tensor, int64_t elements)
{
    return (const char *)tensor->data + (size_t)elements * dtype_size(tensor->dtype);
}

void problem_rows(const problem *whole, int64_t first, int64_t count, gumbel_head *head,
                  gumbel_sampling *sampling)
{
    *head = whole->head;
    gumbel_tensor *hidden = &head->hidden;
    hidden->data =
        advance_elements(hidden, first * (hidden->stride ? hidden->stride : hidden->cols));
    hidden->rows = count;
    *sampling = whole->sampling;
    sampling->temperature.data += first;
    sampling->seed.data += first;
    sampling->position.data += first;
    sampling->first_sample.data += first;
}

gumbel_head problem_shard(const gumbel_head *head, int64_t first, int64_t count)
{
    gumbel_head shard = *head;
    gumbel_tensor *weight = &shard.weight;
    weight->data =
        advance_elements(weight, first * (weight->stride ? weight->stride : weight->cols));
    weight->rows = count;
    if (shard.bias.rows) {
        shard.bias.data = advance_elements(&shard.bias, first);
        shard.bias.cols = count;
        shard.bias.stride = 0;
    }
    shard.first_token = head->first_token + first;
    if (shard.vocab_size == 0)
        shard.vocab_size = head->first_token + head->weight.rows;
    return shard;
}

const char *problem_describe(const problem_plan *plan)
{
    static char text[320];
    snprintf(text, sizeof text,
             "B %" PRId64 " V %" PRId64 " D %" PRId64 " S %d W %s+%" PRId64 " h %s+%" PRId64
             " bias %s first %" PRId64 " vocab %" PRId64 " scale %g cap %g T %g seed %" PRIu64,
             plan->batch, plan->vocab, plan->hidden_size, (int)plan->samples,
             dtype_name(plan->weight_dtype), plan->weight_gap, dtype_name(plan->hidden_dtype),
             plan->hidden_gap, dtype_name(plan->bias_dtype), plan->first_token, plan->vocab_size,
             (double)plan->scale, (double)plan->soft_cap, (double)plan->temperature, plan->seed);
    return text;
}
