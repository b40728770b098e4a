/* SPDX-License-Identifier: Apache-2.0 */
#include "request_options.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "tensor_file.h"
#include "token_rows.h"

static void read_order(const char *field, const char *text, void *into)
{
    static const struct {
        const char *name;
        gumbel_order order;
    } names[] = {
        {"min_p,top_k,top_p", GUMBEL_ORDER_MIN_P_TOP_K_TOP_P},
        {"joint", GUMBEL_ORDER_JOINT},
        {"before_temperature", GUMBEL_ORDER_BEFORE_TEMPERATURE},
        {"top_k,top_p,min_p", GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
        {"top_k,top_p,min_p,temperature", GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE},
        {"joint,temperature", GUMBEL_ORDER_JOINT_TEMPERATURE},
        {"vllm", GUMBEL_ORDER_MIN_P_TOP_K_TOP_P},
        {"hf", GUMBEL_ORDER_TOP_K_TOP_P_MIN_P},
        {"llama.cpp", GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE},
        {"sglang", GUMBEL_ORDER_JOINT},
        {"mlx", GUMBEL_ORDER_JOINT_TEMPERATURE},
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i].name) == 0) {
            *(gumbel_order *)into = names[i].order;
            return;
        }
    }
    fail(field, "'%s' is none of vllm, hf, llama.cpp, sglang, mlx, or an order that --help lists",
         text);
}

static void read_ties(const char *field, const char *text, void *into)
{
    if (strcmp(text, "all") != 0 && strcmp(text, "exact") != 0) {
        fail(field, "'%s' is not all or exact", text);
    }
    *(gumbel_ties *)into = strcmp(text, "all") == 0 ? GUMBEL_TIES_ALL : GUMBEL_TIES_EXACT;
}

#define AT(member) .offset = offsetof(struct request_options, member)
const struct argument request_arguments[] = {
    {.help =
         "Tokens that may be drawn. X is a number, or a .npy file with one value for each row:"},
    {"top-k", 0, "X", "Keep the X likeliest tokens; 0 is off (default 0)", ARGUMENT_TEXT,
     AT(top_k)},
    {"top-p", 0, "X",
     "Keep the likeliest tokens up to this sum of probabilities, in (0, 1] (default 1)",
     ARGUMENT_TEXT, AT(top_p)},
    {"min-p", 0, "X",
     "Keep tokens of at least X times the largest probability; 0 is off (default 0)", ARGUMENT_TEXT,
     AT(min_p)},
    {"order", 0, "NAME",
     "Order of these rules, as in vllm (the default), hf, llama.cpp, sglang or mlx; or "
     "min_p,top_k,top_p, before_temperature, top_k,top_p,min_p, top_k,top_p,min_p,temperature, "
     "joint or joint,temperature",
     ARGUMENT_OTHER, AT(order), .read = read_order, .choices = "vllm hf llama.cpp sglang mlx"},
    {"ties", 0, "NAME",
     "At the limit keep all tokens of equal probability, or exact: lower ids first", ARGUMENT_OTHER,
     AT(ties), .read = read_ties, .choices = "all exact"},
    {"mask", 0, "FILE.npy",
     "int32 words, one row or a row each: bit t & 31 of word t >> 5 allows token t", ARGUMENT_TEXT,
     AT(mask)},
    {"allow", 0, "ID,..",
     "The only tokens that may be drawn, if any are listed; or a .npy file as for --ban",
     ARGUMENT_TEXT, AT(allowed)},
    {"ban", 0, "ID,..", "Tokens never drawn; or a .npy file, int32 [B, N], rows ended by -1",
     ARGUMENT_TEXT, AT(banned)},
    {.help = "Changes of logits. X as above:"},
    {"logit-bias", 0, "ID=X,..", "Added to the logits of tokens; -inf bans", ARGUMENT_TEXT,
     AT(logit_bias)},
    {"repetition-penalty", 0, "X",
     "For tokens of prompt and output: divides positive logits, multiplies others (default 1)",
     ARGUMENT_TEXT, AT(repetition)},
    {"frequency-penalty", 0, "X", "Subtracted for each occurrence in the output (default 0)",
     ARGUMENT_TEXT, AT(frequency)},
    {"presence-penalty", 0, "X", "Subtracted once for tokens in the output (default 0)",
     ARGUMENT_TEXT, AT(presence)},
    {.help = "More results:"},
    {"top-logprobs", 0, "N", "Number of likeliest tokens to report, 0 to 128 (default 0)",
     ARGUMENT_INT32, AT(num_top), 0, 128},
    {"raw-logprobs", 0, NULL, "Log-probabilities of the unmodified logits, not of the draw",
     ARGUMENT_FLAG, AT(raw)},
    {"ranks", 0, NULL, "Rank of the drawn token: 1 + the number of likelier tokens", ARGUMENT_FLAG,
     AT(ranks)},
    {"kept", 0, NULL, "Number of tokens that truncation keeps", ARGUMENT_FLAG, AT(kept)},
    {0},
};

/* ---------------------------------------------------------------------------- reading ---- */

static void read_truncation(struct request *request, const struct request_options *options,
                            int64_t rows)
{
    gumbel_truncation *into = &request->truncation;

    into->struct_size = sizeof *into;
    into->top_k = read_row_int32s("--top-k", options->top_k, rows);
    into->min_p = read_row_floats("--min-p", options->min_p, 0, 1, rows);
    into->top_p = read_row_floats("--top-p", options->top_p, FLT_TRUE_MIN, 1, rows);
    into->order = options->order;
    into->ties = options->ties;
    request->truncated = into->min_p.data || into->top_k.data || into->top_p.data;
}

static void read_mask(struct request *request, const char *path, int64_t rows, int64_t width)
{
    const int64_t words = (width + 31) / 32;
    npy *array = NULL;
    const tensor_view *view = NULL;

    if (!path) {
        return;
    }
    array = open_int32_rows("--mask", path, rows, words);
    view = npy_tensor(array);
    request->mask = require_memory("--mask", 1, view->bytes);
    memcpy(request->mask, view->data, view->bytes);
    request->transforms.mask =
        (gumbel_row_i32){request->mask, view->rank == 2 ? words : GUMBEL_SAME};
    npy_close(array);
}

static void read_transforms(struct request *request, const struct request_options *options,
                            int64_t rows, int64_t width, int64_t vocab)
{
    gumbel_transforms *into = &request->transforms;

    into->struct_size = sizeof *into;
    read_mask(request, options->mask, rows, width);
    into->allowed = read_token_rows("--allow", options->allowed, rows, vocab);
    into->banned = read_token_rows("--ban", options->banned, rows, vocab);
    into->bias = read_value_rows("--logit-bias", options->logit_bias, rows, vocab);
    into->prompt_tokens = read_token_rows("--prompt-tokens", options->prompt_tokens, rows, vocab);
    into->output_tokens = read_token_rows("--output-tokens", options->output_tokens, rows, vocab);
    into->repetition =
        read_row_floats("--repetition-penalty", options->repetition, FLT_TRUE_MIN, FLT_MAX, rows);
    into->frequency =
        read_row_floats("--frequency-penalty", options->frequency, -FLT_MAX, FLT_MAX, rows);
    into->presence =
        read_row_floats("--presence-penalty", options->presence, -FLT_MAX, FLT_MAX, rows);
    request->transformed = into->mask.data || into->allowed.offsets || into->banned.offsets ||
                           into->bias.offsets || into->prompt_tokens.offsets ||
                           into->output_tokens.offsets || into->repetition.data ||
                           into->frequency.data || into->presence.data;
}

struct request request_read(const struct request_options *options, int64_t rows, int64_t width,
                            int64_t vocab)
{
    struct request request = {.mask = NULL};

    read_truncation(&request, options, rows);
    read_transforms(&request, options, rows, width, vocab);
    return request;
}

void request_free(struct request *request)
{
    gumbel_transforms *transforms = &request->transforms;
    gumbel_truncation *truncation = &request->truncation;

    free(request->mask);
    token_rows_free(&transforms->allowed);
    token_rows_free(&transforms->banned);
    token_rows_free(&transforms->bias);
    token_rows_free(&transforms->prompt_tokens);
    token_rows_free(&transforms->output_tokens);
    free((void *)transforms->repetition.data);
    free((void *)transforms->frequency.data);
    free((void *)transforms->presence.data);
    free((void *)truncation->min_p.data);
    free((void *)truncation->top_k.data);
    free((void *)truncation->top_p.data);
}

void request_attach(const struct request *request, gumbel_sampling *sampling)
{
    sampling->transforms = request->transformed ? &request->transforms : NULL;
    sampling->truncation = request->truncated ? &request->truncation : NULL;
}
