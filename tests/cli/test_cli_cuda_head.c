/* SPDX-License-Identifier: Apache-2.0
 *
 * The head on a GPU, with host memory in place of a driver's and the CPU in place of the GPU.
 * Drafted texts equal those of the CPU bit for bit if all inputs of a call are copied, and its
 * outputs copied back. The test checks the arguments of each call, as a pointer to memory that was
 * not copied works on a CPU and not on a GPU.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Before cmocka, whose fail() is a macro. */
#include "cuda_head_verify.h"
#include "decoder/drafts/generate_drafted.h"
#include "device_driver.h"
#include "options.h"
#include "source.h"
#include "two_models.h"

#include <cmocka.h>

#define TOKENS  (TEST_SANITIZED ? 8 : 40)
#define SAMPLES 2

/* ------------------------------------------------------------------------ the stand-ins ---- */

enum { PIECES_MAX = 256 };
static struct {
    char *start;
    size_t bytes;
} pieces[PIECES_MAX];

struct device_driver device_driver;

static int allocate(device_address *address, size_t bytes)
{
    for (int i = 0; i < PIECES_MAX; i++) {
        if (!pieces[i].start) {
            pieces[i].bytes = bytes;
            pieces[i].start = aligned_alloc(64, (bytes + 63) / 64 * 64);
            assert_non_null(pieces[i].start);
            memset(pieces[i].start, 0xca, bytes);
            *address = (uintptr_t)pieces[i].start;
            return 0;
        }
    }
    fail_msg("more than %d pieces of memory", PIECES_MAX);
    return 1;
}

/* The piece that an address is in; -1: none. */
static int piece_of(const void *address)
{
    const char *at = address;
    for (int i = 0; i < PIECES_MAX; i++) {
        if (pieces[i].start && at >= pieces[i].start && at < pieces[i].start + pieces[i].bytes) {
            return i;
        }
    }
    return -1;
}

static int release(device_address address)
{
    int i = piece_of((const void *)(uintptr_t)address);
    assert_true(i >= 0 && (uintptr_t)pieces[i].start == address);
    free(pieces[i].start);
    pieces[i].start = NULL;
    return 0;
}

/* Whether `bytes` bytes are in one allocation. */
static void assert_there(const void *address, size_t bytes)
{
    int i = piece_of(address);
    assert_true(i >= 0);
    assert_true((const char *)address + bytes <= pieces[i].start + pieces[i].bytes);
}

static int upload(device_address to, const void *from, size_t bytes)
{
    assert_there((const void *)(uintptr_t)to, bytes);
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

static int download(void *to, device_address from, size_t bytes)
{
    assert_there((const void *)(uintptr_t)from, bytes);
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

int device_driver_use(const char *name)
{
    (void)name;
    device_driver = (struct device_driver){
        .allocate = allocate, .release = release, .upload = upload, .download = download};
    return 0;
}

void require_driver(int result, const char *what)
{
    (void)what;
    assert_int_equal(result, 0);
}

void *require_memory(const char *what, int64_t count, size_t size)
{
    (void)what;
    void *generated = calloc((size_t)count, size);
    assert_non_null(generated);
    return generated;
}

size_t dtype_size(gumbel_dtype dtype) { return dtype == GUMBEL_FLOAT32 ? 4 : 2; }

gumbel_device_info describe_device(const gumbel_device *of)
{
    gumbel_device_info info = {.struct_size = sizeof info};
    assert_int_equal(gumbel_describe(of, &info), GUMBEL_OK);
    return info;
}

/* -------------------------------------------------------------- what calls are handed ---- */

static int64_t with_proposal; /* calls with the drafts' distribution */

static void assert_copied(const void *pointer) { assert_true(!pointer || piece_of(pointer) >= 0); }

static void assert_lists_copied(const gumbel_token_lists *lists)
{
    assert_copied(lists->offsets);
    assert_copied(lists->ids);
    assert_copied(lists->values);
}

static void assert_sampling_copied(const gumbel_sampling *sampling)
{
    const gumbel_transforms *edits = sampling->transforms;
    assert_copied(sampling->temperature.data);
    assert_copied(sampling->seed.data);
    assert_copied(sampling->position.data);
    if (edits) {
        assert_lists_copied(&edits->banned);
        assert_copied(edits->repetition.data);
        assert_copied(edits->frequency.data);
        assert_copied(edits->presence.data);
        assert_non_null(edits->history);
        assert_copied(edits->history->prompt);
        assert_copied(edits->history->output);
        assert_copied(edits->history->counts);
    }
    if (sampling->truncation) {
        assert_copied(sampling->truncation->top_p.data);
    }
}

static void assert_head_copied(const gumbel_head *head, int64_t rows)
{
    assert_there(head->weight.data,
                 (size_t)(head->weight.rows * head->weight.cols) * dtype_size(head->weight.dtype));
    assert_there(head->hidden.data, (size_t)(rows * head->hidden.cols) * sizeof(float));
}

static void assert_draft_copied(const gumbel_draft *draft)
{
    const size_t nodes = (size_t)draft->max_nodes;
    assert_there(draft->tokens, nodes * sizeof *draft->tokens);
    assert_copied(draft->parents);
    assert_there(draft->limit, sizeof *draft->limit);
    assert_lists_copied(&draft->stop);
    if (!draft->sampling) {
        return;
    }
    with_proposal++;
    assert_sampling_copied(draft->sampling);
    assert_there(draft->lse, nodes * sizeof *draft->lse);
    assert_there(draft->logprobs, nodes * sizeof *draft->logprobs);
    if (draft->head) {
        assert_head_copied(draft->head, draft->max_nodes);
    } else {
        const gumbel_tensor *rows = &draft->logits->logits;
        assert_there(rows->data, (size_t)((rows->rows - 1) * rows->stride + rows->cols) * 4);
    }
}

static void assert_verified_copied(const gumbel_verified *verified)
{
    assert_copied(verified->tokens);
    assert_copied(verified->emitted);
    assert_copied(verified->path);
    assert_copied(verified->finished);
    assert_copied(verified->status);
    assert_copied(verified->logprobs);
    assert_copied(verified->rows->tokens);
    assert_copied(verified->rows->kept);
    assert_copied(verified->rows->top_ids);
}

/* The linker has calls of the library come here (--wrap). */
gumbel_status __real_gumbel_verify(gumbel_device *, void *, const gumbel_head *,
                                   const gumbel_sampling *, const gumbel_draft *,
                                   const gumbel_verified *, void *, size_t, gumbel_error *);
gumbel_status __real_gumbel_verify_logits(gumbel_device *, void *, const gumbel_logits *,
                                          const gumbel_sampling *, const gumbel_draft *,
                                          const gumbel_verified *, void *, size_t, gumbel_error *);
gumbel_status __wrap_gumbel_verify(gumbel_device *on, void *stream, const gumbel_head *head,
                                   const gumbel_sampling *sampling, const gumbel_draft *draft,
                                   const gumbel_verified *verified, void *workspace, size_t bytes,
                                   gumbel_error *error);
gumbel_status __wrap_gumbel_verify_logits(gumbel_device *on, void *stream,
                                          const gumbel_logits *logits,
                                          const gumbel_sampling *sampling,
                                          const gumbel_draft *draft,
                                          const gumbel_verified *verified, void *workspace,
                                          size_t bytes, gumbel_error *error);

static bool copied; /* calls are those of the head on a GPU */

gumbel_status __wrap_gumbel_verify(gumbel_device *on, void *stream, const gumbel_head *head,
                                   const gumbel_sampling *sampling, const gumbel_draft *draft,
                                   const gumbel_verified *verified, void *workspace, size_t bytes,
                                   gumbel_error *error)
{
    if (copied) {
        assert_head_copied(head, draft->max_nodes);
        assert_sampling_copied(sampling);
        assert_draft_copied(draft);
        assert_verified_copied(verified);
        assert_there(workspace, bytes);
    }
    return __real_gumbel_verify(on, stream, head, sampling, draft, verified, workspace, bytes,
                                error);
}

gumbel_status __wrap_gumbel_verify_logits(gumbel_device *on, void *stream,
                                          const gumbel_logits *logits,
                                          const gumbel_sampling *sampling,
                                          const gumbel_draft *draft,
                                          const gumbel_verified *verified, void *workspace,
                                          size_t bytes, gumbel_error *error)
{
    if (copied) {
        assert_copied(logits->logits.data);
        assert_sampling_copied(sampling);
        assert_draft_copied(draft);
        assert_verified_copied(verified);
        assert_there(workspace, bytes);
    }
    return __real_gumbel_verify_logits(on, stream, logits, sampling, draft, verified, workspace,
                                       bytes, error);
}

/* ---------------------------------------------------------------------------- the texts ---- */

struct texts {
    int32_t ids[SAMPLES][TOKENS], kept[SAMPLES][TOKENS], tops[SAMPLES][TOKENS][2];
    float logprobs[SAMPLES][TOKENS];
    int32_t counts[SAMPLES];
};

static generate_next keep(void *context, const generate_token *token)
{
    struct texts *texts = context;
    int32_t s = token->sample, at = texts->counts[s]++;
    texts->ids[s][at] = token->id;
    texts->kept[s][at] = token->kept;
    texts->logprobs[s][at] = token->logprob;
    memcpy(texts->tops[s][at], token->top_ids, sizeof texts->tops[s][at]);
    return GENERATE_CONTINUE;
}

static void write_texts(struct texts *texts, generate_options options, draft_options draft,
                        struct cuda_head *head)
{
    decoder_error error = {""};
    draft_stats stats;
    memset(texts, 0, sizeof *texts);
    options.context = texts;
    copied = head != NULL;
    if (head) {
        options.draw = cuda_head_draw;
        options.draw_context = head;
        draft.verify = cuda_head_verify;
    }
    if (generate_drafted(target, device, &options, &draft, &stats, NULL, &error) != 0) {
        fail_msg("%s", error.message);
    }
    copied = false;
    assert_true(draft.rule == GUMBEL_RULE_COUPLED || !draft.model || stats.accepted[0] > 0);
}

/* Drafted texts by all rules and drafters, with `options`. */
static void assert_same(const generate_options *options)
{
    static struct texts expected, found;
    const draft_options drafts[] = {
        {.model = small, .tokens = 3, .siblings = 2},
        {.model = small, .tokens = 4, .rule = GUMBEL_RULE_REJECTION},
        {.model = small, .tokens = 4, .rule = GUMBEL_RULE_BLOCK, .temperature = 0.8f},
        {.tokens = 4, .rule = GUMBEL_RULE_REJECTION},
        {.tokens = 4, .rule = GUMBEL_RULE_BLOCK},
    };
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        struct cuda_head *head = cuda_head_new(device, decoder_head(target));
        const int64_t before = with_proposal;
        write_texts(&expected, *options, drafts[i], NULL);
        write_texts(&found, *options, drafts[i], head);
        assert_memory_equal(&found, &expected, sizeof found);
        assert_int_equal(with_proposal > before,
                         drafts[i].rule != GUMBEL_RULE_COUPLED && drafts[i].model);
        cuda_head_free(head);
        for (int p = 0; p < PIECES_MAX; p++) {
            assert_null(pieces[p].start);
        }
    }
}

static const int32_t prompt[] = {0, 3438, 259, 2076, 3438, 259};

static generate_options plain_options(void)
{
    return (generate_options){.prompt = prompt,
                              .prompt_count = sizeof prompt / sizeof *prompt,
                              .max_tokens = TOKENS,
                              .num_samples = SAMPLES,
                              .temperature = 0.8f,
                              .seed = 41,
                              .on_token = keep,
                              .kept = true,
                              .num_top = 2};
}

static void plain_texts_are_those_of_the_cpu(void **state)
{
    (void)state;
    const generate_options options = plain_options();
    assert_same(&options);
}

static void requests_are_those_of_the_cpu(void **state)
{
    (void)state;
    static const float repetition = 1.2f, frequency = 0.3f, presence = 0.1f, top_p = 0.9f;
    static const int64_t offsets[] = {0, 2};
    static const int32_t banned[] = {5, 6};
    const gumbel_transforms transforms = {.struct_size = sizeof transforms,
                                          .banned = {.offsets = offsets, .ids = banned},
                                          .repetition = {&repetition, 0},
                                          .frequency = {&frequency, 0},
                                          .presence = {&presence, 0}};
    const gumbel_truncation truncation = {.struct_size = sizeof truncation, .top_p = {&top_p, 0}};
    generate_options options = plain_options();
    options.transforms = &transforms;
    options.truncation = &truncation;
    assert_same(&options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_texts_are_those_of_the_cpu),
        cmocka_unit_test(requests_are_those_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
