/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles the same program as C++. */
#include "header_alone.c"
