/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference of the trunk, as plain loops in double. The reference shares no code with the
 * decoder.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model_folder.h"

enum {
    MAX_TOKENS = 100,
    Q_SIZE = FOLDER_HEADS * FOLDER_HEAD_DIM,
    KV_SIZE = FOLDER_KV_HEADS * FOLDER_HEAD_DIM
};

/* out[r] = sum_c weight[r, c] x[c] */
static void multiply_weight(int layer, const char *part, int rows, int cols, const double *x,
                            double *out)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, part);
    for (int r = 0; r < rows; r++) {
        out[r] = 0;
        for (int c = 0; c < cols; c++) {
            out[r] += folder_weight(name, (int64_t)r * cols + c) * x[c];
        }
    }
}

static void normalise_by(const char *name, int size, const double *x, double *out)
{
    double sum = 0;
    for (int i = 0; i < size; i++) {
        sum += x[i] * x[i];
    }
    for (int i = 0; i < size; i++) {
        out[i] = x[i] / sqrt(sum / size + 1e-6) * folder_weight(name, i);
    }
}

static void layer_norm(int layer, const char *part, int size, const double *x, double *out)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, part);
    normalise_by(name, size, x, out);
}

static void rotate_head(double *head, const float *frequencies, int position)
{
    int half = FOLDER_HEAD_DIM / 2;
    for (int i = 0; i < half; i++) {
        double c = cos(position * (double)frequencies[i]),
               s = sin(position * (double)frequencies[i]);
        double first = head[i], second = head[i + half];
        head[i] = first * c - second * s;
        head[i + half] = second * c + first * s;
    }
}

/* Attention of the token at `position`; its key and value are the last of the arrays. */
static void attend_position(const double *query, double keys[][KV_SIZE], double values[][KV_SIZE],
                            int position, double *out)
{
    for (int h = 0; h < FOLDER_HEADS; h++) {
        int shared = h / (FOLDER_HEADS / FOLDER_KV_HEADS) * FOLDER_HEAD_DIM;
        double mass = 0, *to = out + h * FOLDER_HEAD_DIM;
        memset(to, 0, FOLDER_HEAD_DIM * sizeof *to);
        for (int j = 0; j <= position; j++) {
            double score = 0;
            for (int i = 0; i < FOLDER_HEAD_DIM; i++) {
                score += query[h * FOLDER_HEAD_DIM + i] * keys[j][shared + i];
            }
            double weight = exp(score / sqrt(FOLDER_HEAD_DIM));
            mass += weight;
            for (int i = 0; i < FOLDER_HEAD_DIM; i++) {
                to[i] += weight * values[j][shared + i];
            }
        }
        for (int i = 0; i < FOLDER_HEAD_DIM; i++) {
            to[i] /= mass;
        }
    }
}

static double keys[FOLDER_LAYERS][MAX_TOKENS][KV_SIZE];
static double values[FOLDER_LAYERS][MAX_TOKENS][KV_SIZE];

static void attention_block(bool head_norm, const float *frequencies, int layer, int position,
                            double *x)
{
    double normed[FOLDER_HIDDEN], query[Q_SIZE], mixed[Q_SIZE], out[FOLDER_HIDDEN];
    double *key = keys[layer][position];
    layer_norm(layer, "input_layernorm", FOLDER_HIDDEN, x, normed);
    multiply_weight(layer, "self_attn.q_proj", Q_SIZE, FOLDER_HIDDEN, normed, query);
    multiply_weight(layer, "self_attn.k_proj", KV_SIZE, FOLDER_HIDDEN, normed, key);
    multiply_weight(layer, "self_attn.v_proj", KV_SIZE, FOLDER_HIDDEN, normed,
                    values[layer][position]);
    for (int h = 0; h < FOLDER_HEADS + FOLDER_KV_HEADS; h++) {
        bool is_query = h < FOLDER_HEADS;
        double *head =
            is_query ? query + h * FOLDER_HEAD_DIM : key + (h - FOLDER_HEADS) * FOLDER_HEAD_DIM;
        if (head_norm) {
            layer_norm(layer, is_query ? "self_attn.q_norm" : "self_attn.k_norm", FOLDER_HEAD_DIM,
                       head, head);
        }
        rotate_head(head, frequencies, position);
    }
    attend_position(query, keys[layer], values[layer], position, mixed);
    multiply_weight(layer, "self_attn.o_proj", FOLDER_HIDDEN, Q_SIZE, mixed, out);
    for (int i = 0; i < FOLDER_HIDDEN; i++) {
        x[i] += out[i];
    }
}

static void mlp_block(int layer, double *x)
{
    double normed[FOLDER_HIDDEN], gate[FOLDER_INNER], up[FOLDER_INNER], out[FOLDER_HIDDEN];
    layer_norm(layer, "post_attention_layernorm", FOLDER_HIDDEN, x, normed);
    multiply_weight(layer, "mlp.gate_proj", FOLDER_INNER, FOLDER_HIDDEN, normed, gate);
    multiply_weight(layer, "mlp.up_proj", FOLDER_INNER, FOLDER_HIDDEN, normed, up);
    for (int i = 0; i < FOLDER_INNER; i++) {
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    }
    multiply_weight(layer, "mlp.down_proj", FOLDER_HIDDEN, FOLDER_INNER, gate, out);
    for (int i = 0; i < FOLDER_HIDDEN; i++) {
        x[i] += out[i];
    }
}

void folder_reference(bool head_norm, const float *frequencies, const int32_t *tokens, int count,
                      double *hidden)
{
    for (int position = 0; position < count; position++) {
        double x[FOLDER_HIDDEN];
        for (int i = 0; i < FOLDER_HIDDEN; i++) {
            x[i] = folder_weight("model.embed_tokens.weight",
                                 (int64_t)tokens[position] * FOLDER_HIDDEN + i);
        }
        for (int layer = 0; layer < FOLDER_LAYERS; layer++) {
            attention_block(head_norm, frequencies, layer, position, x);
            mlp_block(layer, x);
        }
        normalise_by("model.norm.weight", FOLDER_HIDDEN, x, hidden + position * FOLDER_HIDDEN);
    }
}
