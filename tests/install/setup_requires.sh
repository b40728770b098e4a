#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# usage: setup_requires.sh SOURCES
#
# `script/setup --ask` and script/demo install no package without a yes: stand-ins for the programs
# of Debian say that all packages are missing, and note what would be installed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
for name in dpkg-query apt-cache apt-get sudo; do
    printf '#!/bin/sh\n' >"$folder/bin/$name"
done
echo 'exit 1' >>"$folder/bin/dpkg-query"
echo "echo \"\$@\" >>$folder/installed" >>"$folder/bin/apt-get"
echo 'exec "$@"' >>"$folder/bin/sudo"
chmod +x "$folder"/bin/*

run() {
    env -u CI PATH="$folder/bin:$PATH" "$@" </dev/null >"$folder/log" 2>&1
}

for program in "$1/script/setup --ask" "$1/script/demo"; do
    if run $program; then
        echo "$program ended well without a yes"
        exit 1
    fi
    grep -q "missing packages: cmake" "$folder/log"
    grep -q "script/demo --yes" "$folder/log"
    [ ! -e "$folder/installed" ] || { cat "$folder/installed"; exit 1; }
done
run "$1/script/setup"
grep -q "install.* cmake" "$folder/installed"
