/* SPDX-License-Identifier: Apache-2.0 */
#include "gumbel/gumbel.h"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

int gumbel_version(void) { return GUMBEL_VERSION; }

const char *gumbel_version_string(void)
{
    return TEXT(GUMBEL_VERSION_MAJOR) "." TEXT(GUMBEL_VERSION_MINOR) "." TEXT(GUMBEL_VERSION_PATCH);
}

const char *gumbel_status_string(gumbel_status status)
{
    switch (status) {
    case GUMBEL_OK:
        return "success";
    case GUMBEL_ERROR_ARGUMENT:
        return "bad argument";
    case GUMBEL_ERROR_WORKSPACE:
        return "workspace missing, too small or misaligned";
    case GUMBEL_ERROR_UNSUPPORTED:
        return "not supported by this device or build";
    case GUMBEL_ERROR_MEMORY:
        return "out of memory or threads";
    case GUMBEL_ERROR_DEVICE:
        return "the device's driver refused";
    case GUMBEL_ERROR_GROUP:
        return "ranks of a group disagree, or one does not answer";
    }
    return "unknown status";
}

const char *gumbel_row_status_string(gumbel_row_status status)
{
    switch (status) {
    case GUMBEL_ROW_OK:
        return "success";
    case GUMBEL_ROW_NAN:
        return "a logit is NaN";
    case GUMBEL_ROW_INFINITE:
        return "a logit is +inf";
    case GUMBEL_ROW_EMPTY:
        return "no token has a finite logit";
    case GUMBEL_ROW_TEMPERATURE:
        return "the row's temperature is negative or not finite";
    case GUMBEL_ROW_SLOT:
        return "the row's slot is out of range";
    case GUMBEL_ROW_UNUSED:
        return "the row is not one of the live rows";
    case GUMBEL_ROW_DRAFT:
        return "the draft is not valid";
    case GUMBEL_ROW_LISTS:
        return "a list of the row has no room for its ids";
    }
    return "unknown row status";
}

const char *gumbel_isa_name(gumbel_isa isa)
{
    switch (isa) {
    case GUMBEL_ISA_AUTO:
        return "auto";
    case GUMBEL_ISA_REFERENCE:
        return "reference";
    case GUMBEL_ISA_AVX2:
        return "avx2";
    case GUMBEL_ISA_AVX512:
        return "avx512";
    case GUMBEL_ISA_NEON:
        return "neon";
    }
    return "unknown";
}
