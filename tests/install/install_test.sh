#!/usr/bin/env bash
# Installs a build folder, of archives or of shared libraries, into a temporary place and builds two small users against it, by pkg-config
# and by CMake.
#     install_test.sh BUILD_FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/installed_tree.sh" "$1"
if [[ -n $(find "$prefix" -name librankloom.so) ]]; then
  export LD_LIBRARY_PATH=${pc%/pkgconfig/rankloom.pc}
  python3 "$here/shared_symbols_test.py" "$LD_LIBRARY_PATH"/librankloom*.so
fi

# pkg-config, from outside the checkout.
cd "$work"
[[ "$(pkg-config --cflags --libs rankloom)" != *gtest* ]] || fail "rankloom asks for GoogleTest"
$CXX -std=c++20 "$here/consumer.cc" -o by_pkg_config $(pkg-config --cflags --libs rankloom)
$CXX -std=c++20 "$here/consumer_test.cc" -o test_by_pkg_config $(pkg-config --cflags --libs rankloom-testing gtest_main)
./by_pkg_config
./test_by_pkg_config >log || fail "$(cat log)"

# An older standard is refused by name, first of all.
$CXX -std=c++17 -fsyntax-only $(pkg-config --cflags rankloom) -include rankloom/rankloom.h -x c++ /dev/null 2>log && fail "C++17 will do"
grep -m 1 'error:' log | grep -q -F 'rankloom is written in C++20: want -std=c++20 or later' || fail "$(head -n 5 log)"

# <cuda.h> or <testing.h> of another package is not ours: no folder of the include path has them at its root.
for folder in $(pkg-config --cflags-only-I rankloom-testing | tr ' ' '\n' | sed -n 's/^-I//p'); do
  [[ ! -e $folder/testing.h || ! -e $folder/rankloom.h ]] || fail "$folder, of the include path, has testing.h at its root"
done

# CMake.
cmake -S "$here" -B by_cmake -G Ninja -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_PREFIX_PATH="$prefix" >log 2>&1 || fail "$(cat log)"
cmake --build by_cmake >log 2>&1 || fail "$(cat log)"
by_cmake/consumer
by_cmake/consumer_test >log || fail "$(cat log)"

# Meson by CMake's package, as where pkg-config is told of no folder: the version is rankloom's, of no package that it needs.
mkdir by_meson
cat >by_meson/meson.build <<'END'
project('consumer', 'cpp', default_options: ['cpp_std=c++20'])
message('by CMake: ' + dependency('rankloom', method: 'cmake', version: '>=0.1').version() + '.')
END
meson setup by_meson/build by_meson --cmake-prefix-path "$prefix" >log 2>&1 || fail "$(cat log)"
grep -q -F "by CMake: $(pkg-config --modversion rankloom)." log || fail "$(cat log)"

# CTest's names, as docs/testing.md has them found: no values of parameters.
ctest --test-dir by_cmake -N >log || fail "$(cat log)"
names=$(sed -n 's/^ *Test *#[0-9]*: //p' log | sort)
want=$(printf '%s\n' ConsumerTest.Links Engines/ConsumerRanks.Run/fibers Engines/ConsumerRanks.Run/threads)
[[ $names == "$want" ]] || fail "CTest has the tests $names, want $want"
ctest --test-dir by_cmake >log || fail "$(cat log)"

# rankloom::cuda, where it was built: links and runs on a machine without a GPU, too.
if [[ -n $(find "$prefix" -name librankloom-cuda.a) ]]; then
  mkdir by_cuda
  cat >by_cuda/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.20)
project(consumer CXX)
find_package(rankloom 0.1 REQUIRED COMPONENTS cuda)
add_executable(consumer consumer.cc)
target_link_libraries(consumer PRIVATE rankloom::cuda)
END
  cat >by_cuda/consumer.cc <<'END'
#include <cstdio>
#include "rankloom/cuda.h"
int main() { return std::puts(rankloom::cuda_missing().c_str()) < 0; }
END
  cmake -S by_cuda -B by_cuda/build -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_PREFIX_PATH="$prefix" >log 2>&1 || fail "$(cat log)"
  cmake --build by_cuda/build >log 2>&1 || fail "$(cat log)"
  by_cuda/build/consumer
fi

# Where packages divide what is installed, the component whose package is missing is named.
mv "$prefix"/*/librankloom-testing.a "$prefix"/*/*/librankloom-testing.a . 2>/dev/null || true
cmake -S "$here" -B without_testing -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_PREFIX_PATH="$prefix" >log 2>&1 && fail "found without its archive"
tr -s '\n ' ' ' <log | grep -q -F 'component testing: there is no librankloom-testing in ' || fail "$(cat log)"
