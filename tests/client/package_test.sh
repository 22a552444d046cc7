#!/usr/bin/env bash
# package_test.sh CMAKE BUILD_FOLDER: a project of its own finds the installed client library by
# find_package and builds the example with it.
set -euo pipefail

cmake=$1
build=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$cmake" --install "$build" --prefix "$folder/prefix" >/dev/null
mkdir "$folder/project"
cp "$root/client/examples/quickstart.cc" "$folder/project"
cat >"$folder/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(oscarkv 0.1 REQUIRED)
add_executable(quickstart quickstart.cc)
target_link_libraries(quickstart PRIVATE oscarkv::client)
END
"$cmake" -S "$folder/project" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/prefix"
"$cmake" --build "$folder/build"

# Without a server it must say so, and not crash in loading.
if output=$("$folder/build/quickstart" unix:/nonexistent/socket 2>&1); then exit 1; fi
[[ $output == *UNAVAILABLE* ]]
