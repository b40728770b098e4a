/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses any bytes as config.json: the result is an error, or sizes within the limits that the
 * decoder assumes.
 */
#include <math.h>
#include <string.h>

#include "decoder/files/config.h"
#include "fuzz_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    model_config c;
    decoder_error error = {""};
    if (config_parse(data, size, "F", &c, &error) != 0) {
        PROMISE_MESSAGE(error);
        c = (model_config){.vocab_size = 100};
        (void)config_parse_generation(data, size, "F", &c, NULL);
        return 0;
    }
    PROMISE(c.hidden_size > 0 && c.intermediate_size > 0 && c.layers > 0 && c.vocab_size > 0);
    PROMISE(c.kv_heads > 0 && c.heads % c.kv_heads == 0 && c.max_positions > 0);
    PROMISE(c.head_dim > 0 && c.head_dim % 2 == 0 && c.head_dim <= 1024);
    PROMISE(c.bos_id >= -1 && c.bos_id < c.vocab_size);
    PROMISE(c.eos_count >= 0 && c.eos_count <= DECODER_MAX_EOS);
    float frequencies[512];
    rope_frequencies(&c.rope, c.head_dim, frequencies);
    for (int32_t i = 0; i < c.head_dim / 2; i++) {
        PROMISE(isfinite(frequencies[i]) && frequencies[i] >= 0 && frequencies[i] <= 1);
    }
    return 0;
}
