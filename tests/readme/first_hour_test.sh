#!/usr/bin/env bash
# Installs a build folder into a temporary place and follows a section of a page there: by default the C++ part of docs/first-hour.md.
#     first_hour_test.sh BUILD_FOLDER [PAGE HEADING]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

meson install -C "$build" --no-rebuild --quiet --destdir "$work/root"
pc=$(find "$work/root" -name rankloom.pc)
PKG_CONFIG_PATH=${pc%/rankloom.pc}
CMAKE_PREFIX_PATH=$(realpath "$(PKG_CONFIG_PATH=$PKG_CONFIG_PATH pkg-config --variable=prefix rankloom)")
PATH=$CMAKE_PREFIX_PATH/bin:$PATH
export PATH PKG_CONFIG_PATH CMAKE_PREFIX_PATH
unset CXX CXXFLAGS "${!RANKLOOM_@}"  # what a reader has not
cd "$work"
"$root/tools/try_page.py" "$root/docs/${2:-first-hour}.md" "${3:-In C++}"
