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

# <cuda.h> or <testing.h> of another package is not ours: no folder of the include path has them at its root.
for folder in $(pkg-config --cflags-only-I rankloom-testing | tr ' ' '\n' | sed -n 's/^-I//p'); do
  [[ ! -e $folder/testing.h || ! -e $folder/rankloom.h ]] || fail "$folder, of the include path, has testing.h at its root"
done

# CMake.
cmake -S "$here" -B by_cmake -G Ninja -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_PREFIX_PATH="$prefix" >log 2>&1 || fail "$(cat log)"
cmake --build by_cmake >log 2>&1 || fail "$(cat log)"
by_cmake/consumer
by_cmake/consumer_test >log || fail "$(cat log)"

# CTest's names, as docs/testing.md has them found: no values of parameters.
ctest --test-dir by_cmake -N >log || fail "$(cat log)"
names=$(sed -n 's/^ *Test *#[0-9]*: //p' log | sort)
want=$(printf '%s\n' ConsumerTest.Links Engines/ConsumerRanks.Run/fibers Engines/ConsumerRanks.Run/threads)
[[ $names == "$want" ]] || fail "CTest has the tests $names, want $want"
ctest --test-dir by_cmake >log || fail "$(cat log)"
# Where packages divide what is installed, the component whose package is missing is named.
mv "$prefix"/*/librankloom-testing.a "$prefix"/*/*/librankloom-testing.a . 2>/dev/null || true
cmake -S "$here" -B without_testing -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_PREFIX_PATH="$prefix" >log 2>&1 && fail "found without its archive"
tr -s '\n ' ' ' <log | grep -q -F 'component testing: there is no librankloom-testing in ' || fail "$(cat log)"
