/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: exact token sampling by the Gumbel-max trick, fused with the LM-head product.
 *
 * Example: draw one token a row from float32 logits [B, V] in host memory, on the CPU. check() is
 * the program's own: it ends the program if a call does not return GUMBEL_OK.
 *
 *     size_t bytes;
 *     gumbel_error error;
 *     gumbel_device *device;
 *     gumbel_logits in = {.struct_size = sizeof in};
 *     in.logits = (gumbel_tensor){.data = logits, .dtype = GUMBEL_FLOAT32, .rows = B, .cols = V};
 *     gumbel_sampling how = {.struct_size = sizeof how, .seed = {&seed, GUMBEL_SAME}};
 *     how.position = (gumbel_row_u64){&position, GUMBEL_SAME}; // the position of all rows
 *     gumbel_output out = {.struct_size = sizeof out, .tokens = tokens};
 *     check(gumbel_open(NULL, &device, &error));
 *     check(gumbel_workspace_size(device, NULL, &in, &how, &out, &bytes, &error));
 *     void *workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
 *     check(gumbel_sample_logits(device, NULL, &in, &how, &out, workspace, bytes, &error));
 *     position++; // advance `position` by one at every step: an equal position repeats its noise
 *
 * Most engines need only the sections before "advanced calls". Drafts are in drafts.h, screens in
 * screen.h, ranks in dist.h.
 *
 * Stable and unstable
 *   From 1.0 on, later versions of a major number only add to stable declarations. A minor version
 *   may change or remove unstable ones, with a line in the changelog: screens (screen.h), ranks
 *   (dist.h), recent.h, watermark.h, the rejection and block rules of drafts, gumbel_multiply(),
 *   and all that is marked "unstable until 1.0". The four headers and the two rules require that a
 *   program defines GUMBEL_UNSTABLE before it includes a header.
 *   Unstable calls are exact, as all calls are; only their declarations may change.
 *
 * Letters, used in every signature, table and test:
 *   B batch rows     V vocabulary rows of `weight` (of this shard)     D hidden size
 *   S samples a row  T temperature                                      g standard Gumbel noise
 *
 * Formulas, for row b and token i (docs/maths.md has all of them, numbered):
 *   logit              l = dot(weight[i], hidden[b]) + bias[i], accumulated in float32        (1)
 *   transformed logit  z = soft_cap(scale * l) * (1 / T), soft_cap(x) = cap * tanh(x / cap)   (2)
 *   perturbed score    s = z + g(seed, position, sample, domain, i)                           (3)
 *   token              argmax_i s, the lowest id among equal scores                           (4)
 * A row with T = 0 is greedy: z = soft_cap(scale * l), and no noise is added. The soft-cap passes
 * infinities and NaN unchanged. 1 / T is rounded to float32 and limited to 2^100, so a T below
 * 2^-100 (7.9e-31) draws as 2^-100 does. At 2^-100, noise can reorder only logits that are less
 * than 4e-29 apart.
 *
 * Memory and strides
 *   gumbel_open() allocates; no other call does. The caller owns every buffer, and the library
 *   keeps no pointer after a call returns. Inputs are only read. Outputs must not overlap inputs or
 *   the workspace. A call returns an error if data are not aligned to their element size.
 *   A stride is the number of elements from one row to the next; 0 means contiguous rows. For row
 *   parameters and masks, GUMBEL_SAME means that one value, or one mask, serves all rows.
 *
 * Streams and CUDA
 *   `stream` is the second argument of every call that computes. On a device "cuda:N" the stream is
 *   the CUstream (cudaStream_t) to queue on; NULL is the default stream. On a CPU the stream must
 *   be NULL.
 *   Pointers to data (tensors, row parameters, outputs, summaries, the workspace) are device
 *   pointers to memory of that GPU. The structs themselves are in host memory.
 *   A call queues its work and returns; the call neither waits nor reads device memory. Buffers
 *   must stay valid until the stream has passed the call.
 *   A call may be captured into a CUDA graph. Replays read row parameters, slots and live_rows
 *   anew. A bad temperature does not fail the call: its row has GUMBEL_ROW_TEMPERATURE.
 *   On Hopper, calls use programmatic dependent launch on both sides: a kernel may start before the
 *   work ahead of it on the stream has ended, and waits for that work before it reads or writes.
 *
 * Threads and fork
 *   Calls on one device may run at the same time if their outputs and workspaces differ.
 *   A child of fork() may use its copy of a CPU device, even if calls were running at the fork.
 *   Calls in the child run on the calling thread alone, or on an engine's parallel_for, and give
 *   the same bits. A device that the child opens has its own threads. CUDA does not survive fork():
 *   calls of a CUDA device in the child return GUMBEL_ERROR_DEVICE. gumbel_close() in the child
 *   frees the child's copy, waits for nothing, and leaves the parent's device unchanged.
 *
 * Errors
 *   A call returns a gumbel_status. On an error no output has been written, and `error`, if not
 *   NULL, names the field. A fault that only the data can show (NaN, +inf, no token to draw) is
 *   reported as the row's gumbel_row_status. The library never prints, exits or aborts.
 *
 * Structs
 *   The first field of an options struct is `struct_size`; set it to sizeof(the struct). Zero in
 *   any other field means the default. New versions only append fields, so the shorter struct of an
 *   older caller stays valid. The longer struct of a newer caller is accepted if the fields that
 *   this version does not know are zero. Structs without `struct_size` are embedded by value and
 *   have their final size; their `reserved` fields must be zero.
 *
 * Numeric contract
 *   Noise: uniforms are never 0 or 1, and exponentials have a resolution of 2^-64. g is finite,
 *   with -3.15 < g < 45.06.
 *   Reproducibility: every float32 operation between a logit and its score is fixed (docs/maths.md,
 *   section 4), and so is the summation order of a dot product. On the CPU, tokens, scores,
 *   log-normalisers and log-probabilities are therefore bit-identical for every ISA, thread count,
 *   tile, batch size and place in the batch.
 *   Shards and chunks give the same bits, too, if their borders are multiples of 64 tokens. With
 *   other borders tokens and scores stay the same, and the log-normaliser may move by some ulp of
 *   max(1, |lse|); the most measured is 3.
 *   Accuracy: the error of the log-normaliser is less than 2^-20 plus half an ulp of its value.
 *   Dtypes: bfloat16 and float16 are widened exactly. The summation order of a dot product depends
 *   on the dtype of `weight`, so equal values in another dtype may differ in the last bit.
 *   Environment: calls require the default floating-point modes: round to nearest, subnormals not
 *   flushed to zero.
 *   Large logits: the draw would be exact if scores were real numbers. Scores are float32, with
 *   spacing h at the largest |s|, and ties go to the lowest id. The rate of a token is therefore
 *   wrong by a factor between e^-h and e^h:
 *
 *     |z|   spacing h   draws of the first of 64 equal logits, 1 = correct
 *     100   8e-6        1
 *     1e4   0.001       1.0005
 *     1e6   0.06        1.03
 *     1e7   1           1.7
 *     1e8   8           21
 *
 *   Large |z| has two causes. If all logits share an offset, subtract it. If T is below 1e-4, draw
 *   greedily instead.
 */
#ifndef GUMBEL_GUMBEL_H
#define GUMBEL_GUMBEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(GUMBEL_SHARED) && defined(__GNUC__)
#define GUMBEL_API __attribute__((visibility("default")))
#else
#define GUMBEL_API
#endif

/* Declares a call; the compiler warns if its status is ignored. */
#if defined(__GNUC__)
#define GUMBEL_CALL GUMBEL_API __attribute__((warn_unused_result)) gumbel_status
#else
#define GUMBEL_CALL GUMBEL_API gumbel_status
#endif

/* ---------------------------------------------------------------- version and status ---- */

#define GUMBEL_VERSION_MAJOR 0
#define GUMBEL_VERSION_MINOR 3
#define GUMBEL_VERSION_PATCH 0
#define GUMBEL_VERSION                                                                             \
    (GUMBEL_VERSION_MAJOR * 10000 + GUMBEL_VERSION_MINOR * 100 + GUMBEL_VERSION_PATCH)

/* Limits of calls. */
#define GUMBEL_WORKSPACE_ALIGNMENT 64    /* bytes */
#define GUMBEL_SAMPLES_MAX         65536 /* largest S */
#define GUMBEL_TOP_MAX             128   /* largest num_top */
#define GUMBEL_BEST_MAX            16    /* largest num_best */
#define GUMBEL_PARTS_MAX           65536 /* largest `parts` of gumbel_finish() */
#define GUMBEL_COUNT_MAX           65535 /* largest count that a history keeps */

#define GUMBEL_SAME INT64_C(-1) /* a stride: one value, or one mask, serves all rows */
/* Returns the GUMBEL_VERSION of the linked library. since 0.1 */
GUMBEL_API int gumbel_version(void);
/* Returns the linked library's version as "MAJOR.MINOR.PATCH"; static storage. since 0.1 */
GUMBEL_API const char *gumbel_version_string(void);

/* The status of a call. Values never change; new ones are only appended. */
typedef enum gumbel_status {
    GUMBEL_OK = 0,
    GUMBEL_ERROR_ARGUMENT = 10,    /* a field is out of range, missing or contradicts another */
    GUMBEL_ERROR_WORKSPACE = 20,   /* workspace missing, too small or not aligned */
    GUMBEL_ERROR_UNSUPPORTED = 30, /* valid, but not supported on this device or build */
    GUMBEL_ERROR_MEMORY = 40,      /* gumbel_open() could not allocate or start its threads */
    GUMBEL_ERROR_DEVICE = 50,      /* the driver reported an error; the message quotes it */
    GUMBEL_ERROR_GROUP = 60,       /* ranks disagree, or one does not respond (dist.h) */
} gumbel_status;

/* The status of a row. A row whose status is not GUMBEL_ROW_OK has token -1, and NaN in its float
 * outputs. If several data statuses (1 to 3) apply, the smallest value is reported. If several
 * parameter statuses (4 to 8) apply, the largest value is reported. Parameter statuses take
 * precedence over data statuses. A logit is usable if the id of its token is below vocab_size, and
 * no mask or list of the transforms excludes the token. */
typedef enum gumbel_row_status {
    GUMBEL_ROW_OK = 0,
    GUMBEL_ROW_NAN = 1,         /* a usable logit is NaN (before or after the transforms) */
    GUMBEL_ROW_INFINITE = 2,    /* a usable logit is +inf after the scale, or later */
    GUMBEL_ROW_EMPTY = 3,       /* all usable logits are -inf: no token can be drawn */
    GUMBEL_ROW_TEMPERATURE = 4, /* CUDA only: the temperature is negative or not finite */
    GUMBEL_ROW_SLOT = 5,        /* CUDA only: the row's slot is not in [0, slots.count) */
    GUMBEL_ROW_UNUSED = 6,      /* row >= live_rows[0]: not drawn */
    GUMBEL_ROW_DRAFT = 7,       /* CUDA only: the draft is not valid (drafts.h) */
    GUMBEL_ROW_LISTS = 8,       /* a list of gumbel_make_lists() has no room (recent.h) */
} gumbel_row_status;

/* Return one English phrase for a status; static storage; never NULL, even for unknown values.
 * since 0.1 */
GUMBEL_API const char *gumbel_status_string(gumbel_status status);
GUMBEL_API const char *gumbel_row_status_string(gumbel_row_status status);

/* Why a call failed. Only a call that fails writes it. Both strings end in NUL. */
typedef struct gumbel_error {
    char field[48];    /* the argument at fault, for example "sampling.temperature[3]" */
    char message[208]; /* the value found and the valid range, to print after the field and a colon:
                        * "is 5; it must be in 0..4"; without a newline */
} gumbel_error;

/* ------------------------------------------------------------------------------ devices ---- */

typedef struct gumbel_device gumbel_device;

/* Instruction sets of the CPU backend. All give the same bits. GUMBEL_ISA_REFERENCE is plain C. */
typedef enum gumbel_isa {
    GUMBEL_ISA_AUTO = 0,
    GUMBEL_ISA_REFERENCE = 1,
    GUMBEL_ISA_AVX2 = 2,   /* AVX2 + FMA + F16C */
    GUMBEL_ISA_AVX512 = 3, /* AVX-512 F, BW, DQ, VL */
    GUMBEL_ISA_NEON = 4,   /* AArch64 Advanced SIMD */
} gumbel_isa;

/* Returns "auto", "reference", "avx2", "avx512" or "neon"; "unknown" for other values. since 0.1 */
GUMBEL_API const char *gumbel_isa_name(gumbel_isa isa);
/* Returns 1 if this build, the CPU and the operating system support `isa`, else 0. since 0.1 */
GUMBEL_API int gumbel_isa_available(gumbel_isa isa);

/* An engine's thread pool. The function calls task(argument, i) once for each i in [0, count), on
 * any threads, in any order or at the same time, and returns when all of them have returned.
 * `context` is the engine's `parallel_context`. */
typedef void (*gumbel_task)(void *argument, int32_t index);
typedef void (*gumbel_parallel_for)(void *context, int32_t count, gumbel_task task, void *argument);

typedef struct gumbel_device_options {
    size_t struct_size;
    const char *device; /* NULL or "cpu"; or "cuda:N", for which only `rungs` below may be set */
    gumbel_isa isa;     /* AUTO: the environment variable GUMBEL_ISA, else the best supported */
    int32_t threads;    /* 1..1024 threads a call; 0 means one for each CPU this process may use */
    int32_t tile;       /* vocabulary rows a tile, a multiple of 64, at most 4096; 0: automatic */
    gumbel_parallel_for parallel_for; /* NULL: the device starts threads - 1 threads */
    void *parallel_context;           /* passed to parallel_for */
    /* CUDA only: kernel variants to allow, as a comma-separated list of names that gumbel_explain()
     * prints. A name with a minus is excluded; the other names are tried first for every call that
     * they support. "-hopper,-bounded,-blocks,-cluster" makes a GPU work as one of capability 8.0;
     * tokens then differ as those of two GPU models do, whose products round differently. NULL: the
     * environment variable GUMBEL_RUNGS, else the best variants. */
    const char *rungs;
} gumbel_device_options;

/* gumbel_open(): open a device.
 *  options    NULL means the defaults
 *  device     receives the device, or NULL on error. Release it with gumbel_close().
 *  threads    If a device is busy with one call, a second call runs on the calling thread, with the
 *             same results.
 *  CUDA       libcuda is loaded at run time. The device retains the GPU's primary context, which
 *             the CUDA runtime API uses, too: streams and memory of the runtime API are valid.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED (the ISA or the device is
 *             not available), GUMBEL_ERROR_MEMORY, GUMBEL_ERROR_DEVICE.                since 0.1 */
GUMBEL_CALL gumbel_open(const gumbel_device_options *options, gumbel_device **device,
                        gumbel_error *error);

/* Stops the device's threads and frees the device. NULL is allowed. No call may be running.
 * since 0.1 */
GUMBEL_API void gumbel_close(gumbel_device *device);

typedef struct gumbel_device_info {
    size_t struct_size;
    gumbel_isa isa;        /* the ISA in use, never AUTO; CUDA: AUTO */
    int32_t threads;       /* threads a call; CUDA: multiprocessors */
    int32_t tile;          /* vocabulary rows a tile */
    char name[64];         /* "cpu" or "cuda:N" */
    char description[128]; /* the processor's name; "" if unknown */
} gumbel_device_info;

/* Returns the GPU architectures of this build's kernels, in nvcc's names, separated by spaces:
 * "sm_80 sm_90 sm_90a compute_90". sm_NN is machine code. compute_NN is PTX, which the driver
 * compiles for later GPUs when a device is opened. A build without kernels returns "", and its
 * gumbel_open() does not support "cuda:N". Static storage; never NULL; requires no driver and no
 * GPU.                                                                                 since 0.3 */
GUMBEL_API const char *gumbel_cuda_architectures(void);

#ifdef GUMBEL_UNSTABLE
/* gumbel_cuda_architecture(): the architecture of this build that serves a GPU.
 *  kernels     "portable" (capability 7.5 and later; for every call except programs), "tensor"
 *              (8.0 and later: products by mma.sync), "clusters" (9.0 and later: thread-block
 *              clusters) or "hopper" (9.0 alone: wgmma and TMA)
 *  capability  compute capability, 10 * major + minor: 89 is 8.9
 *  returns     one of gumbel_cuda_architectures(), as the driver chooses: machine code of the same
 *              major version, else PTX. "" if a GPU of this capability cannot run these kernels,
 *              the build lacks them, or `kernels` is NULL or another name. gumbel_open() supports a
 *              GPU if portable kernels serve it. Static storage; never NULL; requires no driver
 *              and no GPU; any thread.                     since 0.3; unstable until 1.0 */
GUMBEL_API const char *gumbel_cuda_architecture(const char *kernels, int32_t capability);

/* Returns the compute capability of an open GPU, 10 * major + minor: 89 is 8.9. 0 for a CPU, and
 * for NULL. Any thread.                                   since 0.3; unstable until 1.0 */
GUMBEL_API int32_t gumbel_device_capability(const gumbel_device *device);
#endif

/* gumbel_describe(): describe an open device; writes at most info->struct_size bytes.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                        since 0.1 */
GUMBEL_CALL gumbel_describe(const gumbel_device *device, gumbel_device_info *info);

/* --------------------------------------------------------------------------- call inputs ---- */

typedef enum gumbel_dtype {
    GUMBEL_FLOAT32 = 1,
    GUMBEL_FLOAT16 = 2,
    GUMBEL_BFLOAT16 = 3,
} gumbel_dtype;

/* A row-major matrix: element (r, c) is data[r * stride + c]. Offsets are computed in 64 bits. */
typedef struct gumbel_tensor {
    const void *data; /* aligned to its element size; NULL only if rows or cols is 0 */
    gumbel_dtype dtype;
    int64_t rows;
    int64_t cols;
    int64_t stride; /* elements from one row to the next, >= cols; 0 means cols */
    int64_t reserved[2];
} gumbel_tensor;

/* A screen: a quantized copy of an LM head (screen.h), in memory of the caller. */
typedef struct gumbel_screen {
    void *data;   /* [bytes], aligned to GUMBEL_WORKSPACE_ALIGNMENT; NULL means no screen */
    size_t bytes; /* at least gumbel_screen_size() */
    /* A gumbel_screen_format: that of the options with which the screen is made. CUDA reads it, as
     * the host cannot read the screen itself; on CPUs the screen's own header decides. */
    int32_t format;
} gumbel_screen;

/* Input of a fused call: hidden states and the LM head. Their dtypes are independent. */
typedef struct gumbel_head {
    size_t struct_size;
    gumbel_tensor hidden; /* [B, D], B >= 0, D >= 1 */
    gumbel_tensor weight; /* [V, D], V >= 1; may be a shard: row 0 is token `first_token` */
    gumbel_tensor bias;   /* [1, V] or absent (data NULL, rows 0) */
    float scale;          /* finite; 0 means 1 */
    float soft_cap;       /* finite, >= 0; 0 means off */
    int64_t first_token;  /* global id of weight row 0; first_token + V <= 2^31 */
    int64_t vocab_size;   /* ids >= vocab_size are padding, not tokens; 0 means first_token + V */
    gumbel_screen screen; /* screen of `weight`, or {NULL}; changes no bit of any output */
} gumbel_head;

/* Input of a call from logits that the engine has computed. */
typedef struct gumbel_logits {
    size_t struct_size;
    gumbel_tensor logits; /* [B, V], V >= 1; may be a shard: column 0 is token `first_token` */
    float scale;          /* finite; 0 means 1 */
    float soft_cap;       /* finite, >= 0; 0 means off */
    int64_t first_token;  /* as in gumbel_head */
    int64_t vocab_size;   /* as in gumbel_head */
} gumbel_logits;

/* A row parameter. The value of row b is data[b * stride], or with slots data[slot * stride].
 * `stride` 0 means 1. GUMBEL_SAME gives all rows data[0]. If data is NULL, all rows have the
 * default. */
typedef struct gumbel_row_f32 {
    const float *data;
    int64_t stride;
} gumbel_row_f32;
typedef struct gumbel_row_i32 {
    const int32_t *data;
    int64_t stride;
} gumbel_row_i32;
typedef struct gumbel_row_u32 {
    const uint32_t *data;
    int64_t stride;
} gumbel_row_u32;
typedef struct gumbel_row_u64 {
    const uint64_t *data;
    int64_t stride;
} gumbel_row_u64;

/* Slots, for engines with continuous batching. Row b uses the row parameters, the mask and the
 * history at index of_row[b], and is drawn as row of_row[b] of a batch without slots would be.
 * Tensors, token lists and outputs are indexed by b. */
typedef struct gumbel_slots {
    const int32_t *of_row; /* [B], each in [0, count); NULL: no slots, row b uses index b */
    int64_t count;         /* number of slots; >= 1 with of_row */
} gumbel_slots;

/* Token lists. The list of row b is ids[offsets[b]] .. ids[offsets[b + 1] - 1]. Ids are global. Ids
 * of other shards, and ids >= vocab_size, are ignored. */
typedef struct gumbel_token_lists {
    const int64_t *offsets; /* [B + 1], >= 0, non-decreasing; NULL: no lists */
    const int32_t *ids;     /* in [0, 2^31) */
    const float *values;    /* one for each id if the field has values; else NULL */
    int64_t reserved;
} gumbel_token_lists;

/* Token counts for the penalties of rows, or of slots if the call has slots. The memory is the
 * caller's; on CUDA it is device memory. All zero means an empty history. The calls
 * gumbel_history_*() fill it. */
typedef struct gumbel_history {
    size_t struct_size;
    int64_t vocab_size; /* 1..2^31; ids below it are counted. W = ceil(vocab_size / 32) */
    uint32_t *prompt;   /* [B or slots, W]; bit t & 31 of word t >> 5 is set if the prompt has t */
    uint32_t *output;   /* [B or slots, W]; the same for the output */
    void *counts;       /* [B or slots, vocab_size]; how often the output has each token, at most
                         * GUMBEL_COUNT_MAX; uint16_t, or int32_t >= 0 */
    int32_t count_bits; /* 16 or 32; 0 means 16 */
    int32_t reserved;
} gumbel_history;

/* Changes to y = soft_cap(scale * l) before the temperature, in the order listed. Fields that are
 * not set cost nothing. A token that is masked, banned or not allowed has y = -inf, whatever its
 * logit; a NaN logit of such a token does not affect the row.
 *  mask         bit t & 31 of word t >> 5 of the row's words allows token t
 *  allowed      a list that is not empty allows only its tokens
 *  banned       the tokens of the list are removed
 *  bias         y += value; if an id is listed twice, both values are added, in list order
 *  repetition   r, for tokens of the prompt or the output: y > 0 ? y / r : y * r
 *  frequency    f, for tokens of the output: y -= f * count
 *  presence     p, for tokens of the output: y -= p if count > 0
 *  late_bias    as bias, but after the penalties
 *  list_status  rows b with the value GUMBEL_ROW_LISTS are not drawn and have that status
 *  max_allowed  The largest number of tokens that mask and `allowed` allow to a row of this call.
 *               From a head, a call whose rows allow few tokens multiplies only the weights of
 *               those tokens. On CUDA the host cannot read masks and lists, so it does this only if
 *               B * max_allowed is at most V / 4. The value changes the time of a call and no
 *               output: a row that allows more tokens, or has an empty list, is drawn from all of
 *               its tokens, but slower than without max_allowed. CPUs count the tokens themselves
 *               and do not read the value. */
typedef struct gumbel_transforms {
    size_t struct_size;
    gumbel_row_i32 mask;        /* [B, ceil((first_token + V) / 32)]; stride in words */
    gumbel_token_lists allowed; /* without values */
    gumbel_token_lists banned;  /* without values */
    gumbel_token_lists bias;    /* with values: finite or -inf */
    gumbel_row_f32 repetition;  /* finite, > 0; the default is 1 */
    gumbel_row_f32 frequency;   /* finite; the default is 0 */
    gumbel_row_f32 presence;    /* finite; the default is 0 */
    /* Tokens that the penalties count: a history, or one or both of the lists, without values. The
     * offsets of both lists must be NULL if `history` is set. */
    const gumbel_history *history;
    gumbel_token_lists prompt_tokens;
    gumbel_token_lists output_tokens;
    gumbel_token_lists late_bias; /* with values: finite or -inf. since 0.3 */
    const int32_t *list_status;   /* [B] of gumbel_make_lists() (recent.h), beside its lists in
                                   * `banned` or `late_bias`; NULL: none. since 0.3 */
    int64_t max_allowed;          /* >= 0; requires `mask` or `allowed`; 0: unknown. since 0.3;
                                   * unstable until 1.0 */
} gumbel_transforms;

/* The order of the truncation rules. In sequence, each rule applies to the renormalised survivors
 * of the rule before it. In the JOINT orders, each rule applies to the whole distribution, and a
 * token survives if every rule keeps it. In the orders that put the temperature last, the rules use
 * y instead of z. docs/maths.md, section 9, lists the engines with each order. */
typedef enum gumbel_order {
    GUMBEL_ORDER_MIN_P_TOP_K_TOP_P = 0,             /* vLLM */
    GUMBEL_ORDER_JOINT = 1,                         /* SGLang */
    GUMBEL_ORDER_BEFORE_TEMPERATURE = 2,            /* min_p, top_k, top_p, temperature */
    GUMBEL_ORDER_TOP_K_TOP_P_MIN_P = 3,             /* transformers, Ollama */
    GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE = 4, /* llama.cpp */
    GUMBEL_ORDER_JOINT_TEMPERATURE = 5,             /* mlx */
} gumbel_order;

typedef enum gumbel_ties {
    GUMBEL_TIES_ALL = 0,   /* tokens of equal z at a threshold are all kept */
    GUMBEL_TIES_EXACT = 1, /* lower ids first: exactly k tokens, the smallest nucleus */
} gumbel_ties;

/* Truncation: which tokens may be drawn. m is the largest z of the row.
 *  min_p   keeps tokens with z >= m + ln(min_p)
 *  top_k   keeps tokens with z >= the k-th largest z; k >= V keeps all
 *  top_p   keeps a token if tokens of strictly larger z have less than top_p of the mass
 * The mass of tokens is their sum of exp(z - m), computed by the fixed operations of docs/maths.md
 * and added exactly. Greedy rows are not truncated. On CUDA the host does not read these values; a
 * value out of range turns its rule off for that row. */
typedef struct gumbel_truncation {
    size_t struct_size;
    gumbel_row_f32 min_p; /* in [0, 1]; the default is 0, off */
    gumbel_row_i32 top_k; /* >= 0; the default is 0, off */
    gumbel_row_f32 top_p; /* in (0, 1]; the default is 1, off */
    gumbel_order order;
    gumbel_ties ties;
    const struct gumbel_programs *programs; /* ordered lists of more rules (programs.h), with which
                                             * `order` is not read; NULL: none. since 0.3 */
} gumbel_truncation;

/* Domains: independent random streams for one seed and position. Values of gumbel_sampling's field
 * `domain`; bit 31 is reserved. */
typedef enum gumbel_domain {
    GUMBEL_DOMAIN_TARGET = 0,
    GUMBEL_DOMAIN_DRAFT = 1,
    GUMBEL_DOMAIN_ACCEPT = 2,
    GUMBEL_DOMAIN_RESIDUAL = 3,
    GUMBEL_DOMAIN_GROUP = 4,
    GUMBEL_DOMAIN_STREAM = 5,
} gumbel_domain;

/* Parameters of the draw.
 *  seed       With GUMBEL_SAME, row b uses gumbel_row_seed(seed[0], b). With slots, the row's slot
 *             replaces b.
 *  position   The step in the row's sequence. Advance it by one at every step: an equal seed and
 *             position repeat the noise.
 *  first_sample
 *             Draw j of a row uses sample counter first_sample + j (mod 2^32). Rows of equal seed
 *             and position with different counters draw independently, as the samples of one row
 *             do.
 *  live_rows  A row count that is read when the call runs, so that a graph captured with B rows can
 *             be replayed with fewer. Rows b >= live_rows[0] get token -1, NaN and
 *             GUMBEL_ROW_UNUSED, whatever their parameters are.
 *  given      Tokens to score; nothing is drawn. The outputs are those of a draw in which token
 *             given[b * stride + j] won draw j of row b; `stride` 0 means S. The score of the token
 *             is its z, or -inf if it could not be drawn. Its log-probability is -inf, too, if it
 *             could not be drawn; for GUMBEL_RAW only if the id is >= vocab_size. Its rank ignores
 *             truncation, and is -1 if z is -inf. An id below 0 is padding, with token -1, NaN and
 *             rank -1. Shards are not supported. Rows are processed 256 at a time, so the workspace
 *             stops growing with B at 256.
 *  noise      Noise computed ahead. g of draw j of row b and token first_token + i is at
 *             noise[(b * S + j) * noise_stride + i], finite; all of [B, S, V] must be readable.
 *             seed, position, first_sample and domain are then not used, and greedy rows ignore the
 *             noise. With gumbel_prepare_noise() of the same parameters, every output has the bits
 *             of a call without `noise`. One exception: on CUDA a call from a head may store the
 *             product's logits and draw from these; log-normalisers may then be off by 2^-19 of
 *             max(1, |lse|).
 *  token_ids  Table for a draft model's head over a subset of the vocabulary: row i of the weights,
 *             or column i of the logits, is token token_ids[i], and is drawn with the noise of this
 *             token. Draws are therefore coupled to those of a target over the whole vocabulary
 *             (drafts.h). tokens, top_ids, best_ids and kept_ids hold ids from the table; kept_ids
 *             are in the order of the rows. If scores are equal, the lowest row wins; in an
 *             ascending table this row has the lowest id. An id may be in several rows. A head's
 *             bias and the noise of gumbel_prepare_noise() are indexed by row; vocab_size is the
 *             number of rows without padding. first_token must be 0.
 *             Parameters that name tokens are not supported with a table: `transforms`, `given`,
 *             and the field xtc_keep of programs. Also not supported are `noise`, screens, shards,
 *             summaries, gumbel_process_logits(), gumbel_softmax(), verification and ranks.
 *             On a CPU an id below 0, or above 2^31 - 2, is an error. On CUDA the host does not
 *             read the table: a row with such an id is never drawn, as if a mask excluded it.
 *             The call stores the noise in 4 B S V bytes of workspace. On CUDA the call draws from
 *             stored logits, as with `noise`. */
typedef struct gumbel_sampling {
    size_t struct_size;
    gumbel_row_f32 temperature;  /* finite, >= 0; 0 is greedy; the default is 1 */
    gumbel_row_u64 seed;         /* the default is a seed of 0 with GUMBEL_SAME */
    gumbel_row_u64 position;     /* the default is 0 */
    gumbel_row_u32 first_sample; /* sample counter of draw 0; the default is 0 */
    int32_t num_samples;         /* S, independent draws a row, 1..GUMBEL_SAMPLES_MAX; 0 means 1 */
    int32_t reserved;            /* 0 */
    const gumbel_transforms *transforms; /* NULL: none */
    const gumbel_truncation *truncation; /* NULL: none */
    gumbel_slots slots;                  /* of_row NULL: no slots */
    const int32_t *live_rows;            /* [1], 0..B; NULL means B */
    gumbel_row_i32 given;                /* [B, S] tokens to score; data NULL: tokens are drawn */
    const float *noise;       /* [B, S, V] noise computed ahead; NULL: computed by the call */
    int64_t noise_stride;     /* elements from one draw's noise to the next, >= V; 0 means V */
    uint32_t domain;          /* a gumbel_domain, < 2^31 */
    int32_t reserved2;        /* 0 */
    const int32_t *token_ids; /* [V] id of the token of each row of `weight`, or of each column of
                               * the logits, in 0..2^31 - 2; NULL: row i is token first_token + i.
                               * since 0.3; unstable until 1.0 */
} gumbel_sampling;

/* The distribution of the log-probabilities. */
typedef enum gumbel_distribution {
    GUMBEL_PROCESSED = 0, /* of the draw: softmax of z over the tokens that truncation keeps */
    GUMBEL_RAW = 1,       /* softmax of the unmodified logits l, masked and banned tokens included;
                           * a NaN or +inf among masked or banned tokens makes the
                           * log-probabilities NaN, and no other output */
} gumbel_distribution;

/* Outputs of a call. Every pointer but `tokens` may be NULL; `top_logits` requires `top_ids`.
 * Outputs that are NULL are not computed. */
typedef struct gumbel_output {
    size_t struct_size;
    int32_t *tokens;     /* [B, S] global token ids, in [0, vocab_size) or -1 */
    float *logprobs;     /* [B, S] log-probability of the token: min(z - lse, 0) */
    float *scores;       /* [B, S] perturbed score s of the token */
    float *lse;          /* [B] log-normaliser ln(sum_i exp(z_i)) of the distribution logprobs_of */
    int32_t *status;     /* [B] a gumbel_row_status */
    int32_t *ranks;      /* [B, S] 1 + the number of tokens with a larger z; -1 without a token */
    int32_t *kept;       /* [B] tokens with z > -inf that truncation keeps; 0 without a token */
    int32_t *top_ids;    /* [B, num_top] the most likely tokens, by larger z, then lower id; -1
                          * after the last token with z > -inf */
    float *top_logprobs; /* [B, num_top] log-probabilities of top_ids; -inf after the last token,
                          * and with GUMBEL_PROCESSED for tokens that truncation removes */
    int32_t num_top;     /* 0..GUMBEL_TOP_MAX */
    gumbel_distribution logprobs_of; /* of logprobs, lse, top_logprobs, kept_logprobs, entropy */
    float *top_logits;  /* [B, num_top] logits l of top_ids, before any transform; -inf after the
                         * last token */
    int32_t *best_ids;  /* [B, num_best] tokens of the best scores, the best first: num_best draws
                         * without replacement (arXiv 1903.06059); -1 after the last; S = 1 only */
    float *best_scores; /* [B, num_best] scores of best_ids; -inf after the last */
    int32_t num_best;   /* 0..GUMBEL_BEST_MAX */
    int32_t kept_capacity; /* places of a row in kept_ids; at least 1 with kept_ids */
    int32_t *kept_ids;     /* [B, kept_capacity] the tokens that `kept` counts, by ascending id. The
                            * first kept[b] places of row b are written; none if kept[b] is larger
                            * than kept_capacity. Requires `kept`.
                            *                            since 0.3; unstable until 1.0 */
    float *kept_logprobs;  /* [B, kept_capacity] log-probabilities of kept_ids; requires kept_ids */
    float *entropy; /* [B] -sum_i p_i ln(p_i), in nats, of the distribution logprobs_of; of greedy
                     * rows at T = 1, as lse. 0 for a single token, NaN without a token and where
                     * raw logits have a NaN or +inf. Equal logits give equal bits on every device,
                     * ISA, thread count and batch [docs/maths.md, 18]. The absolute error is at
                     * most 2^-16 + 2^-21 times the entropy. Exception: on Hopper, a draw from a
                     * head without truncation may sum in float32. Its bits do not depend on the
                     * batch, but differ from those of other calls and devices; the error is at most
                     * 2^-15 + 2^-19 (entropy + |lse|). since 0.3; unstable until 1.0 */
} gumbel_output;

/* ------------------------------------------------------------------------------- sampling ---- */

/* gumbel_workspace_size(): the workspace, in bytes, of one call with these arguments.
 *  head, logits  one of the two is the input, the other is NULL; data pointers are not read
 *  output        the output of gumbel_sample() or gumbel_sample_logits(). NULL gives the maximum
 *                for all calls with the other arguments: gumbel_sample(), gumbel_partial(),
 *                gumbel_process_logits(), gumbel_softmax() and their variants, except calls with
 *                ranks, kept, num_top, num_best, entropy or raw log-probabilities: pass their
 *                output.
 *  returns       GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.           since 0.2 */
GUMBEL_CALL gumbel_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                  const gumbel_logits *logits, const gumbel_sampling *sampling,
                                  const gumbel_output *output, size_t *bytes, gumbel_error *error);

/* Limits of the calls that share one workspace. */
typedef struct gumbel_limits {
    size_t struct_size;
    int64_t batch;       /* largest B, >= 0 */
    int64_t vocab_size;  /* largest V, 1..2^31; read only with `requests` or given noise */
    int64_t hidden_size; /* largest D; 0: calls are from logits only */
    int32_t num_samples; /* largest S, 1..GUMBEL_SAMPLES_MAX; 0 means 1 */
    int32_t requests;    /* 1: some calls have transforms, truncation, ranks, kept, num_top,
                          * num_best, entropy, raw log-probabilities or given noise, or are
                          * gumbel_process_logits() or gumbel_softmax() */
    int32_t screens;     /* 1: heads have a screen */
    int32_t max_nodes;   /* largest number of nodes of a request whose drafts are verified with
                          * GUMBEL_RULE_COUPLED, 0..GUMBEL_NODES_MAX (drafts.h); B counts nodes.
                          * 0: no verifications */
    int32_t token_ids;   /* 1: some calls have token_ids; requires `requests`. since 0.3; unstable
                          * until 1.0 */
    int32_t reserved;    /* 0 */
} gumbel_limits;

/* gumbel_workspace_most(): a workspace size, in bytes, sufficient for every call within the limits,
 *                          except verifications with rules other than GUMBEL_RULE_COUPLED.
 *  bytes      grows with each limit. Approximate sizes follow, for options.tile = 0.
 *  CPU        48 * (threads + 1) * B * S + 17 KiB * threads; from hidden states
 *             4 * B * D + 832 * threads * B more.
 *  CUDA       80 * B * S, and up to some MiB more.
 *  requests   4.2 * B * V more; on the CPU also 3 * B * V for token lists, and with hidden states
 *             4 * B * V for entropies of raw logits, mostly untouched pages.
 *  screens    10 * B * D more, and 3 KiB a draw and thread; with `requests` also 8.4 * B * V.
 *  max_nodes  4 * B * (10 + max_nodes) more.
 *  token_ids  4 * B * S * V more.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                        since 0.2 */
GUMBEL_CALL gumbel_workspace_most(const gumbel_device *device, const gumbel_limits *limits,
                                  size_t *bytes, gumbel_error *error);

/* gumbel_sample(): draw tokens from hidden states; the draw is fused with the product.
 *                  [eq. 1 to 4; FlashSampling, arXiv 2603.15854, Algorithm 2]
 *  head       A plain draw never stores a [B, V] array. A draw is plain if it has no transforms,
 *             truncation, ranks, kept, num_top, num_best, entropy, raw log-probabilities or given
 *             noise. On Hopper, banned tokens, num_top <= 2 and the entropy of the processed
 *             distribution are allowed as well, in calls with one sample a row, a positive scale,
 *             no soft-cap and no bias; docs/kernels.md has all conditions (hopper-statistics).
 *  sampling   NULL means the defaults
 *  output     written in full on success, unchanged on error
 *  workspace  gumbel_workspace_size() bytes for these arguments, or more, aligned to
 *             GUMBEL_WORKSPACE_ALIGNMENT; the contents are undefined before and after the call
 *  empty      B = 0 succeeds and writes nothing.
 *  threads    re-entrant
 *  repeats    Equal data, seed, position, sample and domain give equal bits, within the numeric
 *             contract at the top of this header.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_WORKSPACE; on CUDA also
 *             GUMBEL_ERROR_DEVICE, and GUMBEL_ERROR_UNSUPPORTED if B * S >= 2^31.      since 0.1 */
GUMBEL_CALL gumbel_sample(gumbel_device *device, void *stream, const gumbel_head *head,
                          const gumbel_sampling *sampling, const gumbel_output *output,
                          void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_sample_logits(): as gumbel_sample(), from logits.
 *  repeats    Equal logits and parameters give equal tokens.                           since 0.1 */
GUMBEL_CALL gumbel_sample_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                 const gumbel_sampling *sampling, const gumbel_output *output,
                                 void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_process_logits(): write the transformed logits z that the draw uses. z is -inf for ids >=
 *  vocab_size, for tokens that are masked, banned or not allowed, and for tokens that truncation
 *  removes. Noise, samples and given tokens have no effect.
 *  processed  [B, V] float32 rows at `stride` elements; 0 means V. `processed` may be the logits
 *             themselves if these are float32 with the same stride; the call then works in place.
 *             Otherwise rows and logits must not overlap.
 *  workspace  gumbel_workspace_size() bytes with `output` NULL
 *  rows       A row with a NaN or +inf is NaN in all elements.
 *  else       as gumbel_sample_logits().                                               since 0.1 */
GUMBEL_CALL gumbel_process_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                  const gumbel_sampling *sampling, float *processed, int64_t stride,
                                  void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_process_logits_into(): as gumbel_process_logits(), to rows of the dtype of the logits, so
 *  that float16 and bfloat16 logits can be processed in place.
 *  processed  [B, V] rows of `dtype` at `stride` elements; 0 means V. They may be the logits
 *             themselves if dtype and stride are equal, and must not overlap them otherwise.
 *  dtype      GUMBEL_FLOAT32, or the dtype of the logits
 *  rounding   z is computed in float32 and rounded once, to nearest, ties to even. A finite z that
 *             rounds beyond the largest finite value becomes infinite, as in IEEE 754: in float16
 *             +inf from 65520 on, -inf from -65520 on. Subnormal values are kept.
 *  else       as gumbel_process_logits().                                              since 0.3 */
GUMBEL_CALL gumbel_process_logits_into(gumbel_device *device, void *stream,
                                       const gumbel_logits *logits, const gumbel_sampling *sampling,
                                       void *processed, gumbel_dtype dtype, int64_t stride,
                                       void *workspace, size_t workspace_bytes,
                                       gumbel_error *error);

/* gumbel_softmax(): write the probabilities of the draw: exp(z - lse), or 0 if z is -inf as in
 *  gumbel_process_logits(). With truncation the probabilities are renormalised. Greedy rows give
 *  the probabilities of T = 1.                                                        [eq. 13]
 *  probabilities  [B, V] float32 rows at `stride`, as `processed` of gumbel_process_logits()
 *  accuracy       The relative error is at most 2^-24 (5 + |z - max z|), if |max z| < 2^31. A
 *                 probability below e^-87 of the row's largest is 0.
 *  rows           A row with a NaN or +inf, or without a token, is NaN in all elements.
 *  repeats        On a CPU the bits are the same for every ISA, thread count, batch and place in
 *                 the batch; on a GPU for every batch and place in the batch.
 *  else           as gumbel_process_logits().                                          since 0.1 */
GUMBEL_CALL gumbel_softmax(gumbel_device *device, void *stream, const gumbel_logits *logits,
                           const gumbel_sampling *sampling, float *probabilities, int64_t stride,
                           void *workspace, size_t workspace_bytes, gumbel_error *error);

/* --------------------------------------------------------------------------- decode steps ---- */

/* Arguments of gumbel_advance(). On CUDA all pointers are device pointers. */
typedef struct gumbel_step {
    size_t struct_size;
    int64_t batch;            /* B >= 0 */
    int32_t num_samples;      /* S, 1..GUMBEL_SAMPLES_MAX; 0 means 1 */
    int32_t reserved;         /* 0 */
    const int32_t *tokens;    /* [B, S] the tokens just drawn; not read without a ring */
    uint64_t *position;       /* [B or slots], read and written */
    int64_t position_stride;  /* elements between rows; 0 means 1; GUMBEL_SAME: one for all rows */
    int32_t *ring;            /* [ring_length, B, S], with slots [ring_length, slots, S]; NULL: the
                               * call only advances positions */
    int64_t ring_length;      /* entries of the ring, >= 1; 0 without a ring */
    gumbel_slots slots;       /* as in gumbel_sampling; no two rows may have the same slot */
    const int32_t *live_rows; /* as in gumbel_sampling; other rows keep their positions */
} gumbel_step;

/* gumbel_advance(): end a decode step: store tokens in a ring and advance positions. The tokens of
 *  row b, drawn at p = position[b * position_stride], go to ring entry p % ring_length; the
 *  position becomes p + 1 (mod 2^64). A row without a token stores its -1.
 *  graphs     A decode step requires no CPU work: the model, gumbel_sample() and gumbel_advance(),
 *             with the same `position`, can be captured into one CUDA graph and replayed. After n
 *             replays the ring holds the last min(n, ring_length) tokens of every row, at entries
 *             given by the row's own positions; rows may have different positions. If ring_length
 *             is the largest length of a sequence, and positions start at the length of the
 *             prompt, ring[p][b] is token p of row b.
 *  step       `tokens` and `ring` must not overlap
 *  stream     CUDA: the work is queued; the call neither waits nor allocates. CPU: the work is done
 *             on return.
 *  threads    re-entrant if positions and rings differ
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE, and
 *             GUMBEL_ERROR_UNSUPPORTED if B * S >= 2^31.                               since 0.1 */
GUMBEL_CALL gumbel_advance(gumbel_device *device, void *stream, const gumbel_step *step,
                           gumbel_error *error);

/* gumbel_history_start(): reset `batch` rows of a history, then count their prompts and outputs.
 *  slots             rows of the history to reset; NULL means rows 0 to batch - 1. On CUDA slots
 *                    out of range are ignored.
 *  prompts, outputs  token lists without values, one a row; NULL: none
 *  returns           GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE.
 *                                                                                      since 0.1 */
GUMBEL_CALL gumbel_history_start(gumbel_device *device, void *stream, const gumbel_history *history,
                                 int64_t batch, const gumbel_slots *slots,
                                 const gumbel_token_lists *prompts,
                                 const gumbel_token_lists *outputs, gumbel_error *error);

/* gumbel_history_update(): count more output tokens.
 *  slots    as in gumbel_history_start(); no two rows may have the same slot
 *  tokens   [B] rows at `token_stride` elements, 0 means 1; ids not in [0, vocab_size) are ignored
 *  counts   [B] tokens to count of each row, from its first on: 0..token_stride; NULL: 1 a row
 *  graphs   The call may be captured; replays read all arguments in device memory anew.
 *  else     as gumbel_history_start().                                                 since 0.1 */
GUMBEL_CALL gumbel_history_update(gumbel_device *device, void *stream,
                                  const gumbel_history *history, int64_t batch,
                                  const gumbel_slots *slots, const int32_t *tokens,
                                  int64_t token_stride, const int32_t *counts, gumbel_error *error);

/* ====================================================================== advanced calls ==== */

/* ------------------------------------------------------ summaries: shards, ranks, streams ---- */

/* A summary: the partial result of a tile, thread, device, shard or rank for one row and sample.
 * Plain data, which may be copied, sent and stored. `mass` is sum exp(z) in fixed point:
 *   (mass[0] * 2^64 + mass[1] * 2^32 + mass[2]) * 2^(32 * mass_exponent)
 * Addition is therefore exact, and the order of merging has no effect. */
typedef struct gumbel_summary {
    float best_score; /* s = z + g of the best token; -inf if empty */
    float best_z;     /* z of the best token */
    int32_t best_id;  /* global id of the best token; -1 if empty */
    float max_z;      /* the largest z; -inf if empty */
    uint64_t mass[3];
    int32_t mass_exponent; /* INT32_MIN if empty */
    uint32_t flags; /* bit 0: a NaN logit, bit 1: a +inf logit, bit 2: a bad temperature, bit 3: a
                     * slot out of range, bit 4: an unused row, bit 5: a row whose lists have no
                     * room */
} gumbel_summary;

/* gumbel_partial(): write the summaries of one shard or chunk of the vocabulary. To stream weights
 *  larger than memory, call it for each chunk, with the chunk's first_token and the same
 *  vocab_size, and merge the summaries.
 *  summaries  [B, S], written in full on success, mass included; unchanged on error
 *  workspace  gumbel_workspace_size() bytes with `output` NULL
 *  else       as gumbel_sample().                                                      since 0.1 */
GUMBEL_CALL gumbel_partial(gumbel_device *device, void *stream, const gumbel_head *head,
                           const gumbel_sampling *sampling, gumbel_summary *summaries,
                           void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_partial_logits(): as gumbel_partial(), from logits. since 0.1 */
GUMBEL_CALL gumbel_partial_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                  const gumbel_sampling *sampling, gumbel_summary *summaries,
                                  void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_summary_clear(): initialise `count` summaries in host memory as empty. since 0.1 */
GUMBEL_API void gumbel_summary_clear(gumbel_summary *summaries, int64_t count);

/* gumbel_merge(): merge from[i] into into[i], for i < count. Merging is associative and
 *  commutative, bit for bit; equal scores go to the lower id. Disjoint shards merged in any order
 *  and any tree give the result of one pass over all of them. Shards from CPUs and GPUs may be
 *  mixed.                                                                             [Lemma 4.9]
 *  device      the device whose memory holds the summaries; NULL means host memory, whatever device
 *              made them
 *  into, from  [count], aligned to 16 bytes on CUDA, else to 8
 *  any bytes   Summaries may hold arbitrary bytes; merging stays independent of the order. A best
 *              token with an id below 0, or with a score of NaN or -inf, counts as no token. If two
 *              summaries have the same token and score, the larger bit pattern of best_z wins, then
 *              the larger bit pattern of best_score.
 *  returns     GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE.     since 0.1 */
GUMBEL_CALL gumbel_merge(gumbel_device *device, void *stream, gumbel_summary *into,
                         const gumbel_summary *from, int64_t count, gumbel_error *error);

/* gumbel_finish(): compute outputs from the summaries of all parts of a vocabulary.
 *  device     as in gumbel_merge(); also holds the outputs
 *  summaries  [parts, B, S], for example as ranks gather them. The call merges them without
 *             changing them.
 *  parts      1..GUMBEL_PARTS_MAX; 1 if the summaries are already merged
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE, and
 *             GUMBEL_ERROR_UNSUPPORTED if B * S >= 2^31.                               since 0.1 */
GUMBEL_CALL gumbel_finish(gumbel_device *device, void *stream, const gumbel_summary *summaries,
                          int32_t parts, int64_t batch, int32_t num_samples,
                          const gumbel_output *output, gumbel_error *error);

/* ---------------------------------------------------------------------------------- noise ---- */

/* gumbel_philox4x32(): compute one block of Philox4x32 (Salmon et al., SC 2011).
 *  rounds     0..16; libgumbel draws with 10
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT (rounds, NULL pointers).              since 0.1 */
GUMBEL_CALL gumbel_philox4x32(const uint32_t counter[4], const uint32_t key[2], int rounds,
                              uint32_t out[4]);

/* gumbel_noise(): write the noise g of `count` tokens from `first_token` on, as every draw uses it.
 *  out        [count] float32 in host memory
 *  ranges     first_token >= 0, first_token + count <= 2^31, domain < 2^31
 *  generator  The noise of a token is computed from three random words: two words of its aligned
 *             block of 64 ids, and one word of its own (docs/maths.md, sections 2 and 3). For a
 *             position of 2^32 or more, the generator uses the low half as the position, and
 *             gumbel_row_seed(seed, 2^64 - 1 - h) as the seed, where h is the high half.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                        since 0.1 */
GUMBEL_CALL gumbel_noise(uint64_t seed, uint64_t position, uint32_t sample, uint32_t domain,
                         int64_t first_token, int64_t count, float *out, gumbel_error *error);

/* gumbel_prepare_noise(): compute the noise of a later step, off the critical path, for
 *                         gumbel_sampling's field `noise`.           [docs/maths.md, section 3]
 *  sampling     the sampling of the later step. The call uses seed, position, slots, num_samples,
 *               first_sample, domain and token_ids; it ignores temperature, and `noise` must be
 *               NULL. NULL means the defaults. With token_ids, a table of `count` ids, element i of
 *               each draw is the noise of token token_ids[i]; first_token must be 0. On CUDA the
 *               element of an id out of range is -FLT_MAX.
 *  batch, count B >= 0, and V >= 0 of the shard
 *  first_token  as in gumbel_head; first_token >= 0, first_token + count <= 2^31
 *  noise        [B, S, count] float32, 4 B S V bytes. Token first_token + i of draw j of row b goes
 *               to noise[(b * S + j) * noise_stride + i]. All of [B, S, count] is written; gaps
 *               between draws are not. The values do not depend on B, count or first_token.
 *  noise_stride elements from one draw to the next, >= count; 0 means count
 *  stream       CUDA: the work is queued on `stream`, which may differ from the stream of the draw.
 *               The draw's stream must then wait for an event recorded after this call.
 *  threads      re-entrant; requires no workspace; on a CPU the device's threads share the work
 *  returns      GUMBEL_OK, GUMBEL_ERROR_ARGUMENT; on CUDA also GUMBEL_ERROR_DEVICE, and
 *               GUMBEL_ERROR_UNSUPPORTED if B * S >= 2^31.                             since 0.1 */
GUMBEL_CALL gumbel_prepare_noise(gumbel_device *device, void *stream,
                                 const gumbel_sampling *sampling, int64_t batch,
                                 int64_t first_token, int64_t count, float *noise,
                                 int64_t noise_stride, gumbel_error *error);

/* gumbel_row_seed(): return the seed of row b if one seed serves the batch: seed XOR mix(b), where
 *  mix is the SplitMix64 finaliser of b * 0x9E3779B97F4A7C15. mix(0) = 0, so row 0 has the seed
 *  itself.                                                                             since 0.1 */
GUMBEL_API uint64_t gumbel_row_seed(uint64_t seed, uint64_t row);

/* ---------------------------------------------------------------------------- diagnostics ---- */

/* gumbel_explain(): describe which kernels would serve a call with these arguments, and why the
 *                   variants tried before them would not. The lines of text are for people, bug
 *                   reports and tests.
 *  head, logits, sampling, output  as in gumbel_workspace_size(). On a CPU the function reads the
 *           memory behind `sampling` (row parameters, token lists, slots, live_rows) and checks the
 *           values, so these pointers must be valid. Tensors, histories and outputs are not read
 *  text     [size] receives the text, NUL-terminated, truncated if `size` is too small; 2 KiB is
 *           always enough
 *  threads  re-entrant; nothing is queued
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED if no allowed kernel variant
 *           supports the call.                                                         since 0.2 */
GUMBEL_CALL gumbel_explain(const gumbel_device *device, const gumbel_head *head,
                           const gumbel_logits *logits, const gumbel_sampling *sampling,
                           const gumbel_output *output, char *text, size_t size,
                           gumbel_error *error);

#ifdef GUMBEL_UNSTABLE
/* gumbel_multiply(): compute the product of gumbel_sample() without the draw. Every tile of logits
 *  is computed on chip and discarded. For measuring the cost of the draw; not for engines.
 *  workspace  gumbel_workspace_most() bytes for its batch and hidden size              since 0.1 */
GUMBEL_CALL gumbel_multiply(gumbel_device *device, void *stream, const gumbel_head *head,
                            void *workspace, size_t workspace_bytes, gumbel_error *error);
#endif

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_GUMBEL_H */
