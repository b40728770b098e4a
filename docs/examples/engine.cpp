/* SPDX-License-Identifier: Apache-2.0
 *
 * The decode loop of engine.c, with the same tokens, in C++17. The trunk of the model is missing:
 * the hidden state of the next step is the embedding of the token just drawn.
 */
#include <gumbel/gumbel.hpp>

#include <algorithm>
#include <cstdio>
#include <vector>

constexpr int B = 2, V = 1000, D = 64, STEPS = 16;

int main()
try {
    std::vector<float> weight(V * D), hidden(B * D); /* LM head [V, D], tied; hidden [B, D] */
    for (int i = 0; i < V * D; i++)                  /* any trained weights would do better */
        weight[i] = static_cast<float>((i * 2654435761u >> 8) % 2001) / 2000 - 0.5f;
    std::copy_n(weight.begin(), hidden.size(), hidden.begin()); /* prompts: tokens 0 and 1 */

    gumbel::device device = gumbel::device::open();
    gumbel::limits most;
    most.batch = B;
    most.hidden_size = D;
    gumbel::workspace space;
    if (!space.reserve(device.workspace_most(most)))
        return 1;

    std::vector<std::int32_t> tokens(B);
    gumbel::head head;
    head.hidden = gumbel::matrix(hidden, B, D);
    head.weight = gumbel::matrix(weight, V, D);
    gumbel::output out;
    out.tokens = tokens;
    gumbel::sampling how;
    how.temperature = 0.8f;
    how.seed = 42;
    for (int position = 0; position < STEPS; position++) {
        how.position = position;
        device.sample(head, how, out, space);
        for (int b = 0; b < B; b++) {
            std::printf("%4d%c", static_cast<int>(tokens[b]), b + 1 < B ? ' ' : '\n');
            std::copy_n(&weight[tokens[b] * D], D, &hidden[b * D]); /* the trunk goes here */
        }
    }
    return 0;
} catch (const gumbel::exception &error) {
    std::fprintf(stderr, "engine: %s\n", error.what());
    return 1;
}
