#!/usr/bin/env bash
# Installs the packages that ./dev deb made, with apt, and builds and runs what uses them. To be run in a bare root:
#     tools/portability.sh --carry dist bookworm 'tests/install/packages_test.sh dist'
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
packages=$(realpath "$1")
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "packages_test: $*" >&2
  exit 1
}

apt_install() { sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends "$@" >log 2>&1 || fail "$(cat log)"; }

sudo apt-get -q update >/dev/null
cp "$packages"/*.deb . # where apt's own user may read them
apt_install g++ pkg-config cmake make meson ./librankloom-dev_*.deb

# A release build, stripped.
archive=$(dpkg -L librankloom-dev | grep '/librankloom\.a$')
(($(stat -c %s "$archive") < 10000000)) || fail "$(ls -l "$archive"): want less than 10 MB"

# The core without the others: its headers find each other, and CMake names the component whose package is missing.
[[ "$(pkg-config --cflags --libs rankloom)" != *gtest* ]] || fail "rankloom asks for GoogleTest"
g++ -std=c++20 "$here/consumer.cc" -o by_pkg_config $(pkg-config --cflags --libs rankloom)
./by_pkg_config
cmake -S "$here" -B without_testing >log 2>&1 && fail "CMake found the component testing before its package was installed"
tr -s '\n ' ' ' <log | grep -q -F 'component testing: there is no librankloom-testing in ' || fail "$(cat log)"

apt_install ./librankloom-testing-dev_*.deb ./librankloom-chakra-dev_*.deb ./rankloom-tools_*.deb
g++ -std=c++20 "$here/consumer_test.cc" -o test_by_pkg_config $(pkg-config --cflags --libs rankloom-testing gtest_main)
./test_by_pkg_config
cmake -S "$here" -B by_cmake >log 2>&1 || fail "$(cat log)"
cmake --build by_cmake >log 2>&1 || fail "$(cat log)"
by_cmake/consumer
by_cmake/consumer_test
mkdir meson
cp "$here"/consumer*.cc meson
cat >meson/meson.build <<'EOF'
project('consumer', 'cpp', default_options: ['cpp_std=c++20'])
test('consumer', executable('consumer', 'consumer.cc', dependencies: dependency('rankloom')))
test('consumer_test',
  executable('consumer_test', 'consumer_test.cc', dependencies: [dependency('rankloom-testing'), dependency('gtest_main')]),
  protocol: 'gtest')
EOF
meson setup by_meson meson >log 2>&1 || fail "$(cat log)"
meson test -C by_meson --print-errorlogs >log 2>&1 || fail "$(cat log)"

# An example of the checkout, whose run the command shows. The bug is found on purpose.
g++ -std=c++20 "$root/examples/find_the_bug.cc" -o find_the_bug $(pkg-config --cflags --libs rankloom)
RANKLOOM_REPORT=runs ./find_the_bug >log 2>&1 || true
grep -q 'rank 1 failed: counted 1 ranks' log || fail "$(cat log)"
rankloom show "$(find runs -name '*.rlrun' | head -n 1)" | grep -q 'counted 1 ranks' || fail "rankloom show does not say what failed"
[[ -s /usr/share/man/man1/rankloom.1.gz && -s /usr/share/rankloom/gdb.py ]] || fail "no manual page, or no commands for GDB"

sudo apt-get -q -y purge rankloom-tools 'librankloom*' >log 2>&1 || fail "$(cat log)"
[[ ! -e /usr/include/rankloom && ! -e /usr/share/rankloom ]] || fail "files are left after the packages were removed"
echo "packages_test: passed"
