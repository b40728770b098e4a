/* SPDX-License-Identifier: Apache-2.0
 *
 * Chains of llama.cpp's samplers.
 */
#ifndef TEST_CHAIN_H
#define TEST_CHAIN_H

#include <llama.h>

#include <stddef.h>

/* Makes a chain of one or two samplers, which it frees with itself; `second` may be NULL. */
static inline struct llama_sampler *make_chain(struct llama_sampler *first,
                                               struct llama_sampler *second)
{
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, first);
    if (second)
        llama_sampler_chain_add(chain, second);
    return chain;
}

#endif
