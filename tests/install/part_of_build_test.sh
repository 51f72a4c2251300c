#!/usr/bin/env bash
# Follows "As a part of your build" of docs/project.md: a project of Meson with the wrap that stands there and one of CMake with
# FetchContent, which each build this checkout's commit. By hand, or in a bare root, since each compiles the libraries:
#     tools/portability.sh bookworm 'tests/install/part_of_build_test.sh'
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
commit=$(git -C "$root" rev-parse HEAD)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CCACHE_NOHASHDIR=1
# Another version of rankloom may be installed.
export PKG_CONFIG_PATH= CMAKE_PREFIX_PATH=

fail() {
  echo "part_of_build_test: $*" >&2
  exit 1
}

# block LANGUAGE: the block of that language in the section, with this checkout in place of the URL.
block() {
  local text
  text=$(sed -n '/^## As a part of your build$/,/^## /p' "$root/docs/project.md" | sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/d;p}")
  [[ $text == *https://example.com/rankloom.git* && $text == *v0.1.0* ]] || fail "docs/project.md has no block of $1 with URL and revision"
  sed "s|https://example.com/rankloom.git|file://$root|; s|v0\.1\.0|$commit|" <<<"$text"
}

mkdir -p "$work/meson/subprojects" "$work/cmake"
cp "$here"/consumer*.cc "$work/meson"
cp "$here"/consumer*.cc "$work/cmake"

block ini >"$work/meson/subprojects/rankloom.wrap"
cat >"$work/meson/meson.build" <<'EOF'
project('consumer', 'cpp', default_options: ['cpp_std=c++20', 'buildtype=release'])
test('consumer', executable('consumer', 'consumer.cc', dependencies: dependency('rankloom')))
test('consumer_test',
  executable('consumer_test', 'consumer_test.cc', dependencies: [dependency('rankloom-testing'), dependency('gtest_main')]),
  protocol: 'gtest')
EOF
cd "$work/meson"
meson setup build >log 2>&1 || fail "$(tail -n 40 log)"
targets=$(ninja -C build -t targets all)
! grep -q 'rankloom_command_test\|_bench:' <<<"$targets" || fail "a subproject builds tests or benchmarks"
! grep -q 'rankloom-mpi\|rankloom-cuda' <<<"$targets" || fail "a subproject builds for MPI or CUDA"
meson test -C build --print-errorlogs >log 2>&1 || fail "$(tail -n 40 log)"
grep -q '^Ok: *2' log || fail "$(cat log)"
echo "part_of_build_test: Meson's wrap"

{
  sed '/^find_package(rankloom/,$d' "$here/CMakeLists.txt"
  block cmake
  sed '1,/^find_package(rankloom/d' "$here/CMakeLists.txt"
} >"$work/cmake/CMakeLists.txt"
cd "$work/cmake"
# Another rankloom, which that build folder found before it was to build one.
mkdir -p "$work/other"
echo 'message(FATAL_ERROR "another rankloom was found")' >"$work/other/rankloomConfig.cmake"
for kind in OFF ON; do
  cmake -B "build-$kind" -Drankloom_DIR="$work/other" -DBUILD_SHARED_LIBS=$kind -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)" \
    >log 2>&1 || fail "$(tail -n 40 log)"
  cmake --build "build-$kind" >log 2>&1 || fail "$(tail -n 40 log)"
  ctest --test-dir "build-$kind" >log 2>&1 || fail "$(cat log)"
  "build-$kind/consumer" || fail "consumer with BUILD_SHARED_LIBS=$kind"
  [[ $kind == OFF ]] || ldd "build-$kind/consumer" | grep -q 'librankloom\.so\.0\.1 => /' || fail "$(ldd "build-$kind/consumer")"
done
echo "part_of_build_test: FetchContent"
