#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: test_compile_kernel.sh COMPILE_KERNEL
#
# Which changes recompile a kernel's image, and which do not. The C compiler preprocesses instead of
# nvcc, and a count stands for an image.
set -euo pipefail
compile=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/sources" "$work/elsewhere"
cd "$work"

cat >nvcc <<'END'
#!/bin/sh
case " $* " in
*" --version "*) echo "${VERSION-1}" ;;
*" -E "*)
    for source; do :; done
    root=$(dirname "$source")
    exec cc -E -x c -DGUMBEL_SHARED -I "$root/include" -I elsewhere "$source"
    ;;
*)
    echo compiled >>compiled
    while [ "$1" != -o ]; do shift; done
    wc -l <compiled >"$2"
    exit "${CODE-0}"
    ;;
esac
END
chmod +x nvcc
cd sources
mkdir include
cat >include/lib.h <<'END'
#ifdef GUMBEL_SHARED
#define API __attribute__((visibility("default")))
#else
#define API
#endif
/* A comment. */
API int declared(int a, /* of two lines */
                 int b);
#define USED 1
#define UNUSED 1
END
printf '#include "lib.h"\n#include "system.h"\nint kernel(void) { return USED; }\n' >some.cu
cd ..
echo 'typedef int of_the_system;' >elsewhere/system.h
root=$work/sources

# expect COUNT WHY: how often kernels have been compiled after one more build.
expect() {
    "$compile" store out/some.fatbin "$root/some.cu" "$root" "sm_80 sm_90 compute_90" ./nvcc \
        -I "$root/include" ${FLAG-} ||
        failed=1
    if [ "$(wc -l <compiled)" != "$1" ]; then
        echo "$2: compiled $(wc -l <compiled) times, not $1" >&2
        exit 1
    fi
}
mkdir out
failed=0
expect 1 "a first build"
expect 1 "nothing changed"
cp -p out/some.fatbin first
sed -i 's/A comment/Another,\n * longer comment/; s/UNUSED 1/UNUSED 2/; s/int b/int c/' \
    sources/include/lib.h
echo 'API int more(void);' >>sources/include/lib.h
expect 1 "comments, unused macros and prototypes changed"
echo 'typedef long of_the_system;' >elsewhere/system.h
mv sources moved
root=$work/moved
expect 1 "other headers of the system, and another place"
mv moved sources
root=$work/sources
if [ out/some.fatbin -nt first ]; then
    echo "an image that was right was written anew" >&2
    exit 1
fi
sed -i 's/ USED 1/ USED 2/' sources/include/lib.h
expect 2 "a macro that the kernel reads changed"
sed -i 's/ USED 2/ USED 1/' sources/include/lib.h
expect 2 "the macro is as before"
cmp out/some.fatbin first
FLAG=-O1 expect 3 "a flag changed"
VERSION=2 expect 4 "the compiler changed"
rm -r out store
mkdir out
CODE=1 expect 5 "the compiler failed"
if [ $failed = 0 ] || [ -e out/some.fatbin ]; then
    echo "a failure left an image" >&2
    exit 1
fi
failed=0
expect 6 "after a failure"
grep -q include/lib.h out/some.fatbin.d
[ $failed = 0 ]
