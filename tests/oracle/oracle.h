/* SPDX-License-Identifier: Apache-2.0
 *
 * The oracle: an independent implementation of the draw as plain loops in double, written only from
 * the formulas of gumbel.h and the noise contract of docs/maths.md. The oracle shares only the
 * public header with the library.
 *
 * Letters as in gumbel.h: B rows, V tokens, D hidden size, z transformed logit, g noise, s score.
 *
 * Error model. Each value of the oracle has an error bound: the largest allowed distance of the
 * library's float32 value from it. With u = 2^-24 the bounds are:
 *
 * - dot product: (D + 1) u sum |w_k h_k| in any order of summation (Higham, Accuracy and
 *   Stability of Numerical Algorithms, 3.5); each of bias, scale, 1/T another u of the value
 * - tanh: 8 u of the value
 * - noise: 5 u max(1, |g|)
 * - score: u |s|
 *
 * A drawn token may differ from the oracle's only in a near tie: the two scores differ by less than
 * the sum of their bounds.
 */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include <gumbel/gumbel.h>

/* One block of Philox4x32, from the definition in Salmon et al., SC 2011, section 3.3. */
void oracle_philox(const uint32_t counter[4], const uint32_t key[2], int rounds, uint32_t out[4]);

/* Identifies the noise of a draw. */
typedef struct oracle_stream {
    uint64_t seed, position;
    uint32_t sample, domain;
    int greedy; /* no noise */
} oracle_stream;

/* The random words of a token's noise: two of its block and its own. */
typedef struct oracle_words {
    uint32_t r, r2, own;
} oracle_words;

oracle_words oracle_words_of(oracle_stream stream, int64_t token);

/* E of a word (eq. 5 of docs/maths.md), computed from the nearer end of (0, 1) for accuracy. */
double oracle_exponential(uint32_t r);

/* The least E of a block of words r and r2, eq. 6; its place is r2 % 64. */
double oracle_least(uint32_t r, uint32_t r2);

/* g of a token, eq. 7. */
double oracle_noise(oracle_stream stream, int64_t token);

/* The float32 versions of docs/maths.md, section 4, which every backend equals bit for bit. x of
 * the logarithm is positive and normal. */
float oracle_exact_log(float x);
float oracle_exact_exponential(uint32_t r);
float oracle_exact_least(uint32_t r, uint32_t r2);
float oracle_exact_noise(oracle_stream stream, int64_t token);

/* The seed of row b if the batch has one seed. */
uint64_t oracle_row_seed(uint64_t seed, uint64_t row);

/* Element `index` of a tensor's data, as a double. */
double oracle_element(const gumbel_tensor *tensor, int64_t index);

/* A row's transformed logits. z and bound are [V], owned by the caller. Tokens of padding rows have
 * z = -inf. */
typedef struct oracle_logits {
    int64_t first_token;
    int64_t count; /* V */
    double *z;
    double *bound;
    int32_t status; /* a gumbel_row_status */
} oracle_logits;

/* Compute logits->z, bound and status of row b by eq. 1 and 2, or by eq. 2 alone. */
void oracle_fused_row(const gumbel_head *head, int64_t row, float temperature,
                      oracle_logits *logits);
void oracle_logits_row(const gumbel_logits *input, int64_t row, float temperature,
                       oracle_logits *logits);

/* ln(sum exp(z)). */
double oracle_lse(const oracle_logits *logits);

typedef struct oracle_draw {
    int32_t token;      /* global id; -1 if the row is not OK */
    double score;       /* s of the token */
    double score_bound; /* error bound of a float32 score */
    double z;
} oracle_draw;

/* Draws a token: eq. 3 and 4. */
oracle_draw oracle_pick(const oracle_logits *logits, oracle_stream stream);

/* The score s of a token and its error bound. */
double oracle_score(const oracle_logits *logits, oracle_stream stream, int64_t token,
                    double *bound);

#endif
