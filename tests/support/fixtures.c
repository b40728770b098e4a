/* SPDX-License-Identifier: Apache-2.0 */
#include "fixtures.h"

#include "outcome.h"

int open_reference(void **state)
{
    *state = open_device(GUMBEL_ISA_REFERENCE, 1, 0);
    return 0;
}

int open_two_threads(void **state)
{
    *state = open_device(GUMBEL_ISA_AUTO, 2, 0);
    return 0;
}

int open_one_thread(void **state)
{
    *state = open_device(GUMBEL_ISA_AUTO, 1, 0);
    return 0;
}

int close_device(void **state)
{
    gumbel_close(*state);
    return 0;
}
