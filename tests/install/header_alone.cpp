/* SPDX-License-Identifier: Apache-2.0 */
#include "header_alone.c"
