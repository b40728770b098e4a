/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel::device throws the errors that gumbel::values::device returns, and draws the same tokens.
 */
#include "check.hpp"

int main()
{
    const problem of;
    gumbel::device device = gumbel::device::open();
    gumbel::values::device other = open_device();
    gumbel::sampling how;
    how.seed = 9;
    std::vector<std::int32_t> tokens(B);
    gumbel::output out;
    out.tokens = tokens;
    gumbel::workspace space = space_of(device.workspace_size(of.head(), how, &out));
    device.sample(of.head(), how, out, space);
    CHECK(tokens == draw(other, of.head(), how).tokens);

    bool caught = false;
    how.temperature = -1;
    try {
        device.sample(of.head(), how, out, space);
    } catch (const std::runtime_error &error) {
        caught = true;
        const auto &ours = dynamic_cast<const gumbel::exception &>(error);
        CHECK(ours.code() == gumbel::status::argument);
        CHECK(std::strcmp(ours.error().field(), "sampling.temperature[0]") == 0);
        CHECK(std::strstr(ours.what(), "sampling.temperature[0]: ") == ours.what());
    }
    CHECK(caught);

    caught = false;
    gumbel::device_options options;
    options.device = "abacus";
    try {
        gumbel::device::open(options);
    } catch (const gumbel::exception &error) {
        caught = error.code() == gumbel::status::unsupported;
    }
    CHECK(caught);
    return report("test_cpp_exceptions");
}
