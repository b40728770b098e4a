/* SPDX-License-Identifier: Apache-2.0
 *
 * libgumbel: exact token sampling by the Gumbel-max trick, fused with the LM-head product.
 *
 * Most engines need the first half alone; behind "what few need" stand summaries, noise and more.
 *
 * Letters, used in every signature, table and test:
 *   B batch rows     V vocabulary rows of `weight` (of this shard)     D hidden size
 *   S samples a row  T temperature                                      g standard Gumbel noise
 *
 * What a call computes for row b and token i (docs/maths.md holds the numbered formulas):
 *   logit              l = dot(weight[i], hidden[b]) + bias[i], accumulated in float32        (1)
 *   transformed logit  z = soft_cap(scale * l) * (1 / T), soft_cap(x) = cap * tanh(x / cap)   (2)
 *   perturbed score    s = z + g(seed, position, sample, domain, i)                           (3)
 *   token              argmax_i s, the lowest id among equals                                 (4)
 * Greedy rows, T = 0: z is the y = soft_cap(scale * l) itself, and no noise is added. What is not
 * finite passes the soft-cap unchanged. 1 / T is rounded to float32 and not let grow above 2^100: a
 * T below 2^-100 (7.9e-31) draws as 2^-100 does, where only logits less than 4e-29 apart are nearer
 * to each other than two noises can be.
 *
 * Numeric domain.
 *   Uniforms are never 0 or 1, exponentials resolve to 2^-64; g is finite, -3.15 < g < 45.06.
 *   Every float32 operation between a logit and its score is fixed (docs/maths.md, section 4), and
 *   so is the order in which a dot product is summed. So on the CPU tokens, scores, log-normalisers
 *   and log-probabilities are bit-identical for every ISA, thread count, tile, batch size and
 *   batch place; with shards or chunks whose borders are multiples of 64 tokens likewise. Other
 *   borders leave tokens and scores as they are and may move the log-normaliser by some ulp of
 *   max(1, |lse|), 3 as measured. It is off by less than 2^-20 and half an ulp of its own.
 *   bfloat16 and float16 are widened exactly; the order of a dot product's sum depends on the dtype
 *   of `weight`, so equal values in another dtype may differ in the last bit. Calls expect the
 *   default floating-point environment: round to nearest, subnormals kept.
 *   The draw would be exact if scores were real numbers. They are float32, of spacing h at the
 *   largest |s|, and ties go to the lowest id: a token's rate is off by a factor between e^-h and
 *   e^h. h is 8e-6 where |z| is 100, 0.001 at 1e4, 0.06 at 1e6, 1 at 1e7, 8 at 1e8: of 64 equal
 *   logits the first is drawn 1, 1.0005, 1.03, 1.7, 21 times as often as it should be. An offset
 *   that all logits share gets there, or a T below 1e-4: subtract the one, be greedy for the other.
 *
 * Memory.   No call allocates but gumbel_open(). The caller owns every buffer; nothing is kept
 *           after a call returns. Inputs are only read. Outputs must not overlap inputs or the
 *           workspace. Data are aligned to their elements; what is not is refused.
 * Strides.  Elements from one row to the next. 0 is contiguous, everywhere. Row parameters and
 *           masks may also have GUMBEL_SAME: one value, or one mask, serves all rows.
 * CUDA.     On a device "cuda:N" every pointer to data, that is tensors, row parameters, outputs,
 *           summaries and the workspace, is to memory of that GPU; the structs themselves are in
 *           host memory. `stream`, the second argument of every call that computes, is the
 *           CUstream (cudaStream_t) to queue on, NULL the default one; on a CPU it must be NULL. A
 *           call queues its work and returns: it neither waits nor reads device memory, and it may
 *           be captured into a graph, whose replays read row parameters, slots and live_rows anew.
 *           Buffers belong to the call until the stream has passed it. A bad temperature is then
 *           no error but a GUMBEL_ROW_TEMPERATURE. On Hopper kernels may start while what is
 *           before them on the stream ends, and wait for it before they read or write
 *           (programmatic dependent launch, on both sides).
 * Threads.  Calls on one device may run at the same time if their outputs and workspaces differ.
 * Fork.     A CPU device serves a child of fork() too, even one made while calls were running: a
 *           call there runs on its caller's thread alone, with the same bits, or on an engine's
 *           parallel_for. A device that the child opens has threads of its own. CUDA does not
 *           survive fork(): a CUDA device's calls in the child return GUMBEL_ERROR_DEVICE.
 *           gumbel_close() in the child frees its copy and waits for nothing; the parent's stays.
 * Errors.   A call returns a gumbel_status; on an error no output has been touched, and `error`,
 *           where it is not NULL, names the field. What only the data can show (NaN, +inf, nothing
 *           left to draw) is a row's gumbel_row_status. The library never prints, exits or aborts.
 * Structs.  The first field of an options struct is `struct_size`, set to sizeof(the struct); zero
 *           in any other field is the default. Fields are only ever appended, so an older caller's
 *           shorter struct stays valid; a newer caller's longer one passes if what this version
 *           does not know is zero. Structs without it sit by value in others and have their full
 *           size from the start: what is `reserved` in them must be zero.
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

/* A call whose status is not to be ignored. */
#if defined(__GNUC__)
#define GUMBEL_CALL GUMBEL_API __attribute__((warn_unused_result)) gumbel_status
#else
#define GUMBEL_CALL GUMBEL_API gumbel_status
#endif

/* ---------------------------------------------------------------- version and status ---- */

#define GUMBEL_VERSION_MAJOR 0
#define GUMBEL_VERSION_MINOR 2
#define GUMBEL_VERSION_PATCH 0
#define GUMBEL_VERSION                                                                             \
    (GUMBEL_VERSION_MAJOR * 10000 + GUMBEL_VERSION_MINOR * 100 + GUMBEL_VERSION_PATCH)

/* Limits of calls. */
#define GUMBEL_WORKSPACE_ALIGNMENT 64    /* bytes that a workspace's address is a multiple of */
#define GUMBEL_SAMPLES_MOST        65536 /* samples a row */
#define GUMBEL_TOP_MOST            128   /* most likely tokens that a row lists */
#define GUMBEL_BEST_MOST           16    /* best scores that a draw lists */
#define GUMBEL_PARTS_MOST          65536 /* summaries a row that gumbel_finish() merges */
#define GUMBEL_COUNT_MOST          65535 /* a history's counts end here */

#define GUMBEL_SAME INT64_C(-1) /* as a stride: one value, or one row, serves all rows */
/* The GUMBEL_VERSION of the library that is linked. since 0.1 */
GUMBEL_API int gumbel_version(void);
/* The same as "MAJOR.MINOR.PATCH"; static storage. since 0.1 */
GUMBEL_API const char *gumbel_version_string(void);

/* What a call returns. Values are pinned and only ever appended. */
typedef enum gumbel_status {
    GUMBEL_OK = 0,
    GUMBEL_ERROR_ARGUMENT = 10,    /* a field is out of range, missing or contradicts another */
    GUMBEL_ERROR_WORKSPACE = 20,   /* workspace missing, too small or not aligned */
    GUMBEL_ERROR_UNSUPPORTED = 30, /* understood, and not to be had on this device or build */
    GUMBEL_ERROR_MEMORY = 40,      /* gumbel_open() could not allocate or start its threads */
    GUMBEL_ERROR_DEVICE = 50,      /* the device's driver refused; the message has its words */
    GUMBEL_ERROR_GROUP = 60,       /* ranks disagree, or one does not answer (dist.h) */
} gumbel_status;

/* What a row's data showed. A row that is not GUMBEL_ROW_OK has token -1, and NaN in its float
 * outputs. Of what data show the smallest value is reported, of what parameters show the largest,
 * and that before the others. */
typedef enum gumbel_row_status {
    GUMBEL_ROW_OK = 0,
    GUMBEL_ROW_NAN = 1,         /* a logit that counts was NaN (before or after the transforms) */
    GUMBEL_ROW_INFINITE = 2,    /* scale * a logit that counts was +inf, or became so afterwards */
    GUMBEL_ROW_EMPTY = 3,       /* every logit was -inf: no token can be drawn */
    GUMBEL_ROW_TEMPERATURE = 4, /* on a CUDA device: it is negative or not finite */
    GUMBEL_ROW_SLOT = 5,        /* on a CUDA device: the row's slot is none of those there are */
    GUMBEL_ROW_UNUSED = 6,      /* the row is none of live_rows: it was not drawn */
    GUMBEL_ROW_DRAFT = 7,       /* on a CUDA device: what was drafted cannot be (drafts.h) */
} gumbel_row_status;

/* One English phrase for a status; static storage; never NULL, for unknown values too. since 0.1 */
GUMBEL_API const char *gumbel_status_string(gumbel_status status);
GUMBEL_API const char *gumbel_row_status_string(gumbel_row_status status);

/* Filled by a call that fails; untouched by one that succeeds. Both strings end in NUL. */
typedef struct gumbel_error {
    char field[48];    /* the argument at fault, as in "sampling.temperature[3]" */
    char message[208]; /* one sentence without a newline, with the value found and the range */
} gumbel_error;

/* ------------------------------------------------------------------------------ devices ---- */

typedef struct gumbel_device gumbel_device;

/* Instruction sets of the CPU backend. All give the same bits; GUMBEL_ISA_REFERENCE is plain C. */
typedef enum gumbel_isa {
    GUMBEL_ISA_AUTO = 0,
    GUMBEL_ISA_REFERENCE = 1,
    GUMBEL_ISA_AVX2 = 2,   /* AVX2 + FMA + F16C */
    GUMBEL_ISA_AVX512 = 3, /* AVX-512 F, BW, DQ, VL */
    GUMBEL_ISA_NEON = 4,   /* AArch64 Advanced SIMD */
} gumbel_isa;

/* "auto", "reference", "avx2", "avx512", "neon"; "unknown" for other values. since 0.1 */
GUMBEL_API const char *gumbel_isa_name(gumbel_isa isa);
/* 1 where this build has `isa` and both CPU and operating system support it, else 0. since 0.1 */
GUMBEL_API int gumbel_isa_available(gumbel_isa isa);

/* An engine's own thread pool: call task(argument, i) once for each i in [0, count), on any threads
 * at any time, and return when all have returned. `context` is the pointer that the engine gave. */
typedef void (*gumbel_task)(void *argument, int32_t index);
typedef void (*gumbel_parallel_for)(void *context, int32_t count, gumbel_task task, void *argument);

typedef struct gumbel_device_options {
    size_t struct_size;
    const char *device; /* NULL or "cpu"; or "cuda:N", where all fields below but rungs are 0 */
    gumbel_isa isa;     /* AUTO: environment variable GUMBEL_ISA, else the best available */
    int32_t threads;    /* 1..1024 ways to split a call; 0: the CPUs this process may use */
    int32_t tile;       /* vocabulary rows a tile, multiple of 64 up to 4096; 0: chosen */
    gumbel_parallel_for parallel_for; /* NULL: the device starts threads - 1 threads of its own */
    void *parallel_context;           /* handed to parallel_for */
    const char *rungs; /* on CUDA, which ways to serve a call may be used: names as gumbel_explain()
                        * gives them, by commas; those with a minus are left out, the others come
                        * first wherever they serve. "-hopper,-bounded,-blocks,-team" makes a GPU
                        * serve as one of capability 8.0. Tokens then differ as products of two
                        * GPUs do. NULL: environment variable GUMBEL_RUNGS, else the best */
} gumbel_device_options;

/* gumbel_open(): make a device.
 *  options    NULL for defaults.
 *  device     receives the device, NULL on error. Release it with gumbel_close().
 *  threads    a device busy with one call runs a second one on its caller's thread: same results.
 *  CUDA       libcuda is loaded at run time, and the GPU's primary context is retained: that of the
 *             CUDA runtime API, whose streams and memory serve.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED (an ISA or device that is
 *             not to be had here), GUMBEL_ERROR_MEMORY, GUMBEL_ERROR_DEVICE.           since 0.1 */
GUMBEL_CALL gumbel_open(const gumbel_device_options *options, gumbel_device **device,
                        gumbel_error *error);

/* Stop the device's threads and free it. NULL is allowed. No call may be running. since 0.1 */
GUMBEL_API void gumbel_close(gumbel_device *device);

typedef struct gumbel_device_info {
    size_t struct_size;
    gumbel_isa isa;        /* the one in use, never AUTO; CUDA: AUTO */
    int32_t threads;       /* ways a call is split; CUDA: multiprocessors */
    int32_t tile;          /* vocabulary rows a tile */
    char name[64];         /* "cpu" or "cuda:N" */
    char description[128]; /* the processor's own name for itself, "" where unknown */
} gumbel_device_info;

/* Describe an open device. Writes at most info->struct_size bytes.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                        since 0.1 */
GUMBEL_CALL gumbel_describe(const gumbel_device *device, gumbel_device_info *info);

/* ------------------------------------------------------------------ what a call is given ---- */

typedef enum gumbel_dtype {
    GUMBEL_FLOAT32 = 1,
    GUMBEL_FLOAT16 = 2,
    GUMBEL_BFLOAT16 = 3,
} gumbel_dtype;

/* A row-major matrix: element (r, c) is data[r * stride + c]. Offsets are computed in 64 bits. */
typedef struct gumbel_tensor {
    const void *data; /* aligned to its element size; NULL only where rows or cols is 0 */
    gumbel_dtype dtype;
    int64_t rows;
    int64_t cols;
    int64_t stride; /* elements from one row to the next, >= cols; 0: cols */
    int64_t reserved[2];
} gumbel_tensor;

/* Hidden states and LM head: the fused way in. Dtypes of the tensors are independent. */
typedef struct gumbel_head {
    size_t struct_size;
    gumbel_tensor hidden; /* [B, D], B >= 0, D >= 1 */
    gumbel_tensor weight; /* [V, D], V >= 1; may be a shard: its row 0 is token `first_token` */
    gumbel_tensor bias;   /* [1, V] or absent (data NULL, rows 0) */
    float scale;          /* finite; 0: 1 */
    float soft_cap;       /* finite, >= 0; 0: off */
    int64_t first_token;  /* global id of weight row 0; first_token + V <= 2^31 */
    int64_t vocab_size;   /* tokens with global id >= vocab_size never count; 0: first_token + V */
    const void *screen;   /* of `weight` (screen.h), or NULL. It changes no bit of any output */
} gumbel_head;

/* Logits that are there already. */
typedef struct gumbel_logits {
    size_t struct_size;
    gumbel_tensor logits; /* [B, V], V >= 1; may be a shard: its column 0 is token `first_token` */
    float scale;          /* finite; 0: 1 */
    float soft_cap;       /* finite, >= 0; 0: off */
    int64_t first_token;  /* as in gumbel_head */
    int64_t vocab_size;   /* as in gumbel_head */
} gumbel_logits;

/* A row parameter: row b's is data[b * stride], or with slots data[slot * stride]; `stride` 0 is 1,
 * GUMBEL_SAME gives all rows data[0], and data NULL gives all rows the default. */
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

/* Where what belongs to a row lies, in an engine with continuous batching: row b finds its row
 * parameters, its mask and its history at index of_row[b], and is drawn as if it were row of_row[b]
 * of a batch without slots. Tensors, lists of tokens and outputs go by b. */
typedef struct gumbel_slots {
    const int32_t *of_row; /* [B], each in [0, count); NULL: row b's is b */
    int64_t count;         /* >= 1 with of_row: slots that there are */
} gumbel_slots;

/* Lists of tokens: row b's are ids[offsets[b]] .. ids[offsets[b + 1] - 1]. Ids are global; those of
 * other shards, and those that do not count, are passed over. */
typedef struct gumbel_token_lists {
    const int64_t *offsets; /* [B + 1], >= 0, never falling; NULL: no lists */
    const int32_t *ids;     /* in [0, 2^31) */
    const float *values;    /* one an id where the field says so; else NULL */
    int64_t reserved;
} gumbel_token_lists;

/* What the penalties of rows, or with slots of slots, count: the caller's memory, on CUDA of the
 * device, all zero for what has no history. The calls gumbel_history_*() fill it. */
typedef struct gumbel_history {
    size_t struct_size;
    int64_t vocab_size; /* tokens below are counted, 1..2^31; W = ceil(vocab_size / 32) */
    uint32_t *prompt; /* [B or slots, W]: bit t & 31 of word t >> 5 is set if t is in the prompt */
    uint32_t *output; /* the same of the output */
    void *counts;     /* [B or slots, vocab_size]: how often in the output, GUMBEL_COUNT_MOST for
                         * more: uint16_t, or int32_t >= 0 */
    int32_t count_bits; /* 16 or 32; 0: 16 */
    int32_t reserved;
} gumbel_history;

/* What is done to y = soft_cap(scale * l) before the temperature, in this order. What is not asked
 * for costs nothing. A token that is masked, banned or not allowed has y = -inf, whatever its
 * logit: there a NaN spoils no row.
 *  mask         bit t & 31 of word t >> 5 of the row's words allows token t.
 *  allowed      a list that is not empty allows its tokens alone.
 *  bias         y += value; an id that is listed twice gets both, in the list's order.
 *  repetition   r, of prompt and output: y > 0 ? y / r : y * r
 *  frequency    f, of the output: y -= f * count
 *  presence     p, of the output: y -= p where count > 0 */
typedef struct gumbel_transforms {
    size_t struct_size;
    gumbel_row_i32 mask;              /* [B, ceil((first_token + V) / 32)], stride in words */
    gumbel_token_lists allowed;       /* without values */
    gumbel_token_lists banned;        /* likewise */
    gumbel_token_lists bias;          /* with values: finite or -inf */
    gumbel_row_f32 repetition;        /* finite, > 0; default 1 */
    gumbel_row_f32 frequency;         /* finite; default 0 */
    gumbel_row_f32 presence;          /* finite; default 0 */
    const gumbel_history *history;    /* what the penalties count; or the same as lists, one of */
    gumbel_token_lists prompt_tokens; /* which may be absent; NULL offsets beside a history */
    gumbel_token_lists output_tokens;
} gumbel_transforms;

/* In which order the rules of truncation apply, each to what the one before it left, renormalised,
 * or jointly: each to the whole distribution, and what all keep stays. With the temperature last
 * they look at y instead of z. Of engines that have such an order see docs/maths.md, section 9. */
typedef enum gumbel_order {
    GUMBEL_ORDER_MIN_P_TOP_K_TOP_P = 0,             /* vLLM */
    GUMBEL_ORDER_JOINT = 1,                         /* SGLang */
    GUMBEL_ORDER_BEFORE_TEMPERATURE = 2,            /* min_p, top_k, top_p, temperature */
    GUMBEL_ORDER_TOP_K_TOP_P_MIN_P = 3,             /* transformers, Ollama */
    GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE = 4, /* llama.cpp */
    GUMBEL_ORDER_JOINT_TEMPERATURE = 5,             /* mlx */
} gumbel_order;

typedef enum gumbel_ties {
    GUMBEL_TIES_ALL = 0,   /* tokens of equal z at a cut stay together: the rules are by value */
    GUMBEL_TIES_EXACT = 1, /* lower ids first: exactly k tokens, the shortest nucleus */
} gumbel_ties;

/* Which tokens may be drawn. With m the largest z:
 *  min_p   keeps z >= m + ln(min_p)
 *  top_k   keeps z >= the k-th largest z; V or more keeps all
 *  top_p   keeps a token if the mass of strictly larger z is below top_p of the mass
 * Masses are sums of exp(z - m), by the fixed operations of docs/maths.md and added exactly. Greedy
 * rows are not truncated. On CUDA a row's values out of range, which no host sees, count as off. */
typedef struct gumbel_truncation {
    size_t struct_size;
    gumbel_row_f32 min_p; /* in [0, 1]; default 0: off */
    gumbel_row_i32 top_k; /* >= 0; default 0: off */
    gumbel_row_f32 top_p; /* in (0, 1]; default 1: off */
    gumbel_order order;
    gumbel_ties ties;
} gumbel_truncation;

/* Streams of randomness that never overlap (field `domain`; bit 31 is reserved). */
typedef enum gumbel_domain {
    GUMBEL_DOMAIN_TARGET = 0,
    GUMBEL_DOMAIN_DRAFT = 1,
    GUMBEL_DOMAIN_ACCEPT = 2,
    GUMBEL_DOMAIN_RESIDUAL = 3,
    GUMBEL_DOMAIN_GROUP = 4,
    GUMBEL_DOMAIN_STREAM = 5,
} gumbel_domain;

/* Whether the fixed operations of docs/maths.md bind the mass. FAST is a permission for what gains
 * by it: the log-normaliser of a draw from logits on CUDA, whose exponentials may come from the
 * hardware, for 1 to 15% of a call. That and log-probabilities are then within 1e-6 of
 * max(1, |lse|) of EXACT's, and their bits may differ between kernels and batches. Scores are
 * exact, so a FAST call draws the tokens that an EXACT one draws, with the same scores. */
typedef enum gumbel_math {
    GUMBEL_MATH_EXACT = 0,
    GUMBEL_MATH_FAST = 1,
} gumbel_math;

/* Parameters of the draw.
 *  seed       with GUMBEL_SAME row b uses gumbel_row_seed(seed[0], b), with slots its slot's.
 *  first_sample
 *             draw j of a row uses sample counter first_sample + j (mod 2^32). Rows of equal seed
 *             and position whose counters differ draw independently, as the samples of one row do.
 *  live_rows  a count that is read when the call runs, so that a graph of B rows, replayed with
 *             fewer, draws those alone: rows b >= live_rows[0] get token -1, NaN and
 *             GUMBEL_ROW_UNUSED, whatever their parameters are.
 *  given      tokens to score instead of drawing: outputs are those of a draw in which token
 *             given[b * stride + j] won draw j of row b, `stride` 0 being S. Its score is its z,
 *             -inf if it could not be drawn; so is then its log-probability, but of GUMBEL_RAW only
 *             if it does not count. Its rank, which truncation does not change, is -1 where z is
 *             -inf. An id below 0, for padding, has token -1, NaN, rank -1. Not of a shard. Rows
 *             are served 256 at a time, so that the workspace grows with B no further.
 *  noise      g of draw j of row b and token first_token + i at
 *             noise[(b * S + j) * noise_stride + i], finite, all of [B, S, V] readable. seed,
 *             position, first_sample and domain are then not used. With what
 *             gumbel_prepare_noise() made of the same parameters every output has the bits that
 *             it has without; but from a head on CUDA, where the product's logits are stored and
 *             then drawn from, log-normalisers may be off by 2^-19 of max(1, |lse|) from those.
 *             Greedy rows do not use it. */
typedef struct gumbel_sampling {
    size_t struct_size;
    gumbel_row_f32 temperature; /* finite, >= 0; 0 is greedy; default 1 */
    gumbel_row_u64 seed;        /* default: as GUMBEL_SAME with a seed of 0 */
    gumbel_row_u64 position;    /* the step in its sequence; default 0 */
    gumbel_row_u32 first_sample; /* sample counter of draw 0; default 0 */
    int32_t num_samples;        /* S independent draws of every row, 1..GUMBEL_SAMPLES_MOST; 0: 1 */
    int32_t reserved;           /* 0 */
    const gumbel_transforms *transforms; /* NULL: none */
    const gumbel_truncation *truncation; /* NULL: none */
    gumbel_slots slots;                  /* absent: row b is row b */
    const int32_t *live_rows;            /* [1], 0..B; NULL: B */
    gumbel_row_i32 given;                /* [B, S]; data NULL: tokens are drawn */
    const float *noise;   /* [B, S, V] made ahead of time; default NULL: made on the fly */
    int64_t noise_stride; /* elements from one draw's noise to the next, >= V; 0: V */
    uint32_t domain;      /* a gumbel_domain, < 2^31 */
    gumbel_math math;     /* what the call may do; default GUMBEL_MATH_EXACT */
} gumbel_sampling;

/* Which distribution log-probabilities are of. */
typedef enum gumbel_distribution {
    GUMBEL_PROCESSED = 0, /* that of the draw: of z, over what truncation kept */
    GUMBEL_RAW = 1,       /* softmax of the logits l as they are, of masked and banned tokens too;
                             a NaN or +inf among those makes these NaN, and no other output */
} gumbel_distribution;

/* Where results go. Every pointer but `tokens` may be NULL. What is not asked for costs nothing. */
typedef struct gumbel_output {
    size_t struct_size;
    int32_t *tokens; /* [B, S] global token ids, in [0, vocab_size) or -1 */
    float *logprobs; /* [B, S] log-probability of the token: z - lse, but never above 0 */
    float *scores;   /* [B, S] perturbed score s of the token */
    float *lse;      /* [B] log-normaliser: ln(sum_i exp(z_i)) of that distribution */
    int32_t *status; /* [B] a gumbel_row_status */
    int32_t *ranks;  /* [B, S] 1 + how many tokens have a larger z than the token; -1 without one */
    int32_t *kept;   /* [B] how many tokens with z > -inf truncation kept; 0 in a row without */
    int32_t *top_ids;    /* [B, num_top] the most likely tokens, larger z first, then lower id; -1
                            after the last token that has z > -inf */
    float *top_logprobs; /* [B, num_top] theirs; -inf after the last, and of GUMBEL_PROCESSED for
                            those that truncation removed */
    int32_t num_top;     /* 0..GUMBEL_TOP_MOST */
    gumbel_distribution logprobs_of; /* of logprobs, lse and top_logprobs */
    float *top_logits;  /* [B, num_top] logits l of top_ids, which must be there too, as they are
                          before any transform; -inf after the last */
    int32_t *best_ids;  /* [B, num_best] the best scores' tokens, the best first: as many draws
                          without replacement (arXiv 1903.06059); -1 after the last. Of S = 1 */
    float *best_scores; /* [B, num_best] theirs; -inf after the last */
    int32_t num_best;   /* 0..GUMBEL_BEST_MOST */
} gumbel_output;

/* ------------------------------------------------------------------------------- sampling ---- */

/* gumbel_workspace_size(): bytes of workspace that one call with these arguments takes.
 *  head, logits  the way in: one of the two, the other NULL; data pointers are not followed
 *  output        of gumbel_sample(); NULL for the most of every call that takes the other
 *                arguments: gumbel_sample(), gumbel_partial(), gumbel_process_logits(),
 *                gumbel_softmax(), and their like
 *  returns       GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED.           since 0.2 */
GUMBEL_CALL gumbel_workspace_size(const gumbel_device *device, const gumbel_head *head,
                                  const gumbel_logits *logits, const gumbel_sampling *sampling,
                                  const gumbel_output *output, size_t *bytes, gumbel_error *error);

/* What calls stay within, for one workspace that serves them all. */
typedef struct gumbel_limits {
    size_t struct_size;
    int64_t batch;       /* the most rows, >= 0 */
    int64_t vocab_size;  /* the most tokens V, 1..2^31, with `requests` or given noise; else any */
    int64_t hidden_size; /* the most columns D; 0: calls are from logits alone */
    int32_t num_samples; /* S, 1..GUMBEL_SAMPLES_MOST; 0: 1 */
    int32_t requests;    /* 1: calls make rows, or are not plain (gumbel_sample()) */
    int32_t screens;     /* 1: heads have a screen */
    int32_t reserved;    /* 0 */
} gumbel_limits;

/* gumbel_workspace_most(): bytes that every call within these limits has enough with.
 *  bytes      on the CPU about 48 * (threads + 1) * B * S + 17 KiB * threads, and with D also
 *             4 * B * D + 832 * threads * B, if options.tile is 0; on CUDA about 80 * B * S and up
 *             to some MiB. With `requests` some 4.2 * B * V more, and on the CPU 3 * B * V for
 *             lists of tokens, few of them touched; with `screens` 10 * B * D, and 3 KiB a draw and
 *             thread, and with `requests` beside them 8.4 * B * V. It grows with each limit.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                        since 0.2 */
GUMBEL_CALL gumbel_workspace_most(const gumbel_device *device, const gumbel_limits *limits,
                                  size_t *bytes, gumbel_error *error);

/* gumbel_sample(): draw tokens from hidden states, the product fused with the draw.   [eq. 1 to 4;
 *                  FlashSampling, arXiv 2603.15854, Algorithm 2]
 *  head       shapes above. No [B, V] array is formed by a plain call: one without transforms,
 *             truncation, ranks, kept, num_top, num_best, raw log-probabilities, given noise.
 *  sampling   NULL for defaults.
 *  output     written in full on success, untouched on error.
 *  workspace  gumbel_workspace_size() bytes, of these arguments, or more, at a multiple of
 *             GUMBEL_WORKSPACE_ALIGNMENT; undefined before and after.
 *  trivial    B = 0 succeeds and writes nothing.
 *  threads    re-entrant.
 *  repeats    same data, seed, position, sample, domain: same bits, as said at the top.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_WORKSPACE, and on CUDA
 *             GUMBEL_ERROR_DEVICE, or GUMBEL_ERROR_UNSUPPORTED where B * S >= 2^31.    since 0.1 */
GUMBEL_CALL gumbel_sample(gumbel_device *device, void *stream, const gumbel_head *head,
                          const gumbel_sampling *sampling, const gumbel_output *output,
                          void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_sample_logits(): the same from logits, by which equal ones draw equal tokens. since 0.1 */
GUMBEL_CALL gumbel_sample_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                 const gumbel_sampling *sampling, const gumbel_output *output,
                                 void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_process_logits(): what the draw sees: z, with -inf for what does not count, is masked or
 *  banned, or was removed by truncation. Noise, samples and given tokens play no part.
 *  processed  [B, V] float32 rows at `stride` elements (0: V); may be the logits themselves if they
 *             are float32 at the same stride, which makes penalties, masks and temperature of one
 *             call the in-place kernels of others
 *  workspace  gumbel_workspace_size() with `output` NULL
 *  rows       a row with a NaN or +inf is NaN throughout.
 *  else as gumbel_sample_logits().                                                     since 0.1 */
GUMBEL_CALL gumbel_process_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                  const gumbel_sampling *sampling, float *processed, int64_t stride,
                                  void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_softmax(): the probabilities that the draw draws with: exp(z - lse), and 0 for what does
 *                   not count, is masked or banned, or was removed by truncation.       [eq. 13]
 *  So it is a softmax with a temperature, and with truncation the renormalised probabilities.
 *  Greedy rows give those of T = 1. What is less than e^-87 of the row's largest probability is 0;
 *  each is off by 2^-24 (5 + |z - max z|) of itself at most, while |max z| < 2^31.
 *  probabilities  [B, V] float32 rows at `stride`, as `processed` of gumbel_process_logits()
 *  rows           a row with a NaN or +inf, or without a token, is NaN throughout.
 *  repeats        on a CPU the same bits for every ISA, thread count, batch and batch place; on a
 *                 GPU for every batch and batch place.
 *  else as gumbel_process_logits().                                                    since 0.1 */
GUMBEL_CALL gumbel_softmax(gumbel_device *device, void *stream, const gumbel_logits *logits,
                           const gumbel_sampling *sampling, float *probabilities, int64_t stride,
                           void *workspace, size_t workspace_bytes, gumbel_error *error);

/* --------------------------------------------------------------------------- decode steps ---- */

/* The end of a decode step: tokens go to a ring, positions move on. All is the device's memory. */
typedef struct gumbel_step {
    size_t struct_size;
    int64_t batch;            /* B >= 0 */
    int32_t num_samples;      /* S, 1..GUMBEL_SAMPLES_MOST; 0: 1 */
    int32_t reserved;         /* 0 */
    const int32_t *tokens;    /* [B, S] just drawn; not read without a ring */
    uint64_t *position;       /* [B or slots], read and written */
    int64_t position_stride;  /* elements between rows; 0: 1; GUMBEL_SAME: one serves all rows */
    int32_t *ring;            /* [ring_length, B, S], or NULL: only positions move on; with slots
                               * [ring_length, slots, S] */
    int64_t ring_length;      /* places, >= 1; 0 without a ring */
    gumbel_slots slots;       /* as in gumbel_sampling; a slot is that of one row at most */
    const int32_t *live_rows; /* as in gumbel_sampling: others keep their positions */
} gumbel_step;

/* gumbel_advance(): store the tokens of row b, drawn at p = position[b * position_stride], in place
 *                   p % ring_length of the ring, and make the position p + 1 (mod 2^64).
 *  With it a decode step needs no CPU: trunk, gumbel_sample() and gumbel_advance(), with the same
 *  `position`, captured into one CUDA graph are a loop's body. After n replays the ring holds the
 *  last min(n, ring_length) tokens of every row, found by that row's own positions, so that rows
 *  may stand at different ones; with ring_length a sequence's greatest length, and positions that
 *  start at its prompt's, ring[p][b] is token p of row b. A row without a token stores its -1.
 *  step       `tokens` and `ring` must not overlap.
 *  stream     queued; it neither waits nor allocates. On the CPU done on return.
 *  threads    re-entrant where positions and rings differ.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, and on CUDA GUMBEL_ERROR_DEVICE, or
 *             GUMBEL_ERROR_UNSUPPORTED where B * S >= 2^31.                            since 0.1 */
GUMBEL_CALL gumbel_advance(gumbel_device *device, void *stream, const gumbel_step *step,
                           gumbel_error *error);

/* gumbel_history_start(): forget everything of `batch` rows and count prompts and outputs.
 *  slots             which rows of the history these are; NULL: rows 0 to batch - 1. On CUDA what
 *                    is none of them is passed over.
 *  prompts, outputs  lists without values, one a row; NULL: none
 *  returns           GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, on CUDA GUMBEL_ERROR_DEVICE.  since 0.1 */
GUMBEL_CALL gumbel_history_start(gumbel_device *device, void *stream, const gumbel_history *history,
                                 int64_t batch, const gumbel_slots *slots,
                                 const gumbel_token_lists *prompts,
                                 const gumbel_token_lists *outputs, gumbel_error *error);

/* gumbel_history_update(): count more tokens of output.
 *  slots    as in gumbel_history_start(); each is that of one row at most
 *  tokens   [B] rows at `token_stride` elements (0: 1); ids out of [0, vocab_size) count nowhere
 *  counts   [B] how many tokens of each row, from its first on: 0..token_stride; NULL: 1 each
 *  else     as gumbel_history_start(); may be captured: replays read all anew.         since 0.1 */
GUMBEL_CALL gumbel_history_update(gumbel_device *device, void *stream,
                                  const gumbel_history *history, int64_t batch,
                                  const gumbel_slots *slots, const int32_t *tokens,
                                  int64_t token_stride, const int32_t *counts, gumbel_error *error);

/* ======================================================================= what few need ==== */

/* ------------------------------------------------------ summaries: shards, ranks, streams ---- */

/* What a tile, thread, device, shard or rank hands upwards for one row and sample. Plain data: it
 * may be copied, sent and stored. `mass` is sum exp(z) in fixed point, the value
 *   (mass[0] * 2^64 + mass[1] * 2^32 + mass[2]) * 2^(32 * mass_exponent),
 * so that adding is exact and the order of merging can never show. */
typedef struct gumbel_summary {
    float best_score; /* z + g of the best token; -inf when empty */
    float best_z;     /* its transformed logit */
    int32_t best_id;  /* its global id; -1 when empty */
    float max_z;      /* the largest z; -inf when empty */
    uint64_t mass[3];
    int32_t mass_exponent; /* INT32_MIN when empty */
    uint32_t flags; /* bit 0: a NaN was seen, bit 1: a +inf, bit 2: an unusable temperature, bit 3:
                       a slot that is none, bit 4: an unused row */
} gumbel_summary;

/* gumbel_partial(): the summaries of one shard or chunk of the vocabulary.
 *  summaries  [B, S], written in full on success, untouched on error; mass included.
 *  workspace  gumbel_workspace_size() with `output` NULL
 *  else as gumbel_sample(). Streaming weights larger than memory: call it chunk after chunk, each
 *  with its own first_token and the same vocab_size, and merge.                        since 0.1 */
GUMBEL_CALL gumbel_partial(gumbel_device *device, void *stream, const gumbel_head *head,
                           const gumbel_sampling *sampling, gumbel_summary *summaries,
                           void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_partial_logits(): the same from logits. since 0.1 */
GUMBEL_CALL gumbel_partial_logits(gumbel_device *device, void *stream, const gumbel_logits *logits,
                                  const gumbel_sampling *sampling, gumbel_summary *summaries,
                                  void *workspace, size_t workspace_bytes, gumbel_error *error);

/* gumbel_summary_clear(): make `count` summaries in host memory empty, for merging. since 0.1 */
GUMBEL_API void gumbel_summary_clear(gumbel_summary *summaries, int64_t count);

/* gumbel_merge(): into[i] = merge(into[i], from[i]) for i < count. Associative and commutative bit
 *  for bit; ties of score go to the lower id. Disjoint shards merged in any order and any tree give
 *  what one pass over all of them gives; shards from CPUs and GPUs mix.   [Lemma 4.9]
 *  Any bytes may be merged and finished, and no order shows: a best token with an id below 0, or
 *  with a score of NaN or -inf, is none.
 *  device      whose memory the summaries are in; NULL: host memory, whatever device made them
 *  into, from  [count], aligned to 16 bytes on CUDA, else to 8
 *  returns     GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, on CUDA GUMBEL_ERROR_DEVICE.          since 0.1 */
GUMBEL_CALL gumbel_merge(gumbel_device *device, void *stream, gumbel_summary *into,
                         const gumbel_summary *from, int64_t count, gumbel_error *error);

/* gumbel_finish(): turn the summaries of all parts of a vocabulary into outputs.
 *  device     as in gumbel_merge(), of the outputs too
 *  summaries  [parts, B, S], as ranks gather them: they are merged first, and are only read
 *  parts      1..GUMBEL_PARTS_MOST; 1: merged already
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, on CUDA GUMBEL_ERROR_DEVICE, or
 *             GUMBEL_ERROR_UNSUPPORTED where B * S >= 2^31.                            since 0.1 */
GUMBEL_CALL gumbel_finish(gumbel_device *device, void *stream, const gumbel_summary *summaries,
                          int32_t parts, int64_t batch, int32_t num_samples,
                          const gumbel_output *output, gumbel_error *error);

/* ---------------------------------------------------------------------------------- noise ---- */

/* gumbel_philox4x32(): one block of Philox4x32 (Salmon et al., SC 2011); rounds 0..16, 10 is ours.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT (rounds, NULL).                         since 0.1 */
GUMBEL_CALL gumbel_philox4x32(const uint32_t counter[4], const uint32_t key[2], int rounds,
                              uint32_t out[4]);

/* gumbel_noise(): the noise g of `count` tokens from `first_token` on, as every draw uses it, into
 *  host memory: by two words of the block of 64 tokens, aligned by id, that holds a token, and by
 *  one of its own (docs/maths.md, sections 2 and 3). A position of 2^32 or more counts by its low
 *  half, and its high half h moves the seed: gumbel_row_seed(seed, 2^64 - 1 - h).
 *  out        [count] float32
 *  ranges     first_token >= 0, first_token + count <= 2^31, domain < 2^31.
 *  returns    GUMBEL_OK, GUMBEL_ERROR_ARGUMENT.                                        since 0.1 */
GUMBEL_CALL gumbel_noise(uint64_t seed, uint64_t position, uint32_t sample, uint32_t domain,
                         int64_t first_token, int64_t count, float *out, gumbel_error *error);

/* gumbel_prepare_noise(): the noise of a coming step, off the critical path, for gumbel_sampling's
 *                         `noise` to take.                           [docs/maths.md, section 3]
 *  sampling     the coming step's. Its seed, position, slots, num_samples, first_sample and domain
 *               count; temperature does not, and `noise` must be NULL. NULL for defaults.
 *  batch, count B >= 0, and V >= 0 of the shard
 *  first_token  as in gumbel_head; first_token >= 0, first_token + count <= 2^31
 *  noise        [B, S, count] float32: token first_token + i of draw j of row b goes to
 *               noise[(b * S + j) * noise_stride + i]; written in full, nothing between. What is
 *               there does not depend on B, count or first_token. 4 B S V bytes.
 *  noise_stride elements from one draw to the next, >= count; 0: count
 *  CUDA         queued on `stream`, which may be another one than the draw's: an event recorded
 *               behind it, for which the draw's stream waits, puts them in order.
 *  threads      re-entrant, no workspace; on a CPU split over the device's threads.
 *  returns      GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, and on CUDA GUMBEL_ERROR_DEVICE, or
 *               GUMBEL_ERROR_UNSUPPORTED where B * S >= 2^31.                          since 0.1 */
GUMBEL_CALL gumbel_prepare_noise(gumbel_device *device, void *stream,
                                 const gumbel_sampling *sampling, int64_t batch,
                                 int64_t first_token, int64_t count, float *noise,
                                 int64_t noise_stride, gumbel_error *error);

/* gumbel_row_seed(): the seed of row b where one seed serves the batch: seed XOR mix(b), where mix
 *  is the SplitMix64 finaliser of b * 0x9E3779B97F4A7C15. mix(0) = 0, so a batch of one row uses
 *  the seed as it is.                                                                  since 0.1 */
GUMBEL_API uint64_t gumbel_row_seed(uint64_t seed, uint64_t row);

/* --------------------------------------------------------------------------- explanations ---- */

/* gumbel_explain(): which kernels would serve a call with these arguments, and why those that come
 *                   before them would not: lines of text for people, bug reports and tests.
 *  head, logits, sampling, output  as in gumbel_workspace_size()
 *  text     [size] receives the text, terminated, and cut where that ends; 2 KiB hold any
 *  threads  re-entrant; nothing is queued.
 *  returns  GUMBEL_OK, GUMBEL_ERROR_ARGUMENT, GUMBEL_ERROR_UNSUPPORTED where nothing that may be
 *           used serves the call.                                                      since 0.2 */
GUMBEL_CALL gumbel_explain(const gumbel_device *device, const gumbel_head *head,
                           const gumbel_logits *logits, const gumbel_sampling *sampling,
                           const gumbel_output *output, char *text, size_t size,
                           gumbel_error *error);

#ifdef GUMBEL_EXPERIMENTAL
/* gumbel_multiply(): the product of gumbel_sample() with the draw switched off: every tile of
 *  logits is computed on chip and thrown away. For measuring what the draw costs; not for engines.
 *  workspace  gumbel_workspace_most() of its batch and hidden size                     since 0.1 */
GUMBEL_CALL gumbel_multiply(gumbel_device *device, void *stream, const gumbel_head *head,
                            void *workspace, size_t workspace_bytes, gumbel_error *error);
#endif

#ifdef __cplusplus
}
#endif
#endif /* GUMBEL_GUMBEL_H */
