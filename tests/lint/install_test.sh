#!/usr/bin/env bash
# install_test.sh CMAKE BUILD_FOLDER: what `cmake --install` installs runs from where it lies.
set -euo pipefail

prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT

"$1" --install "$2" --prefix "$prefix" >/dev/null
for program in oscarkv-server oscarkv; do
  "$prefix/bin/$program" --help >/dev/null || {
    echo "$program --help failed after installing"
    exit 1
  }
done
echo "installed and runs:" "$prefix"/bin/*
