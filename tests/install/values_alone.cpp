/* SPDX-License-Identifier: Apache-2.0 */
#include <gumbel/gumbel.hpp>

int main()
{
    auto device = gumbel::values::device::open();
    return !device || !device->describe() || gumbel::version() != GUMBEL_VERSION;
}
