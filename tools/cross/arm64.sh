#!/usr/bin/env bash
# Builds tests for aarch64 in build-arm64, and runs them under qemu-user. On Debian, best in a bare root, which then has packages of two
# architectures:
#     tools/portability.sh --cache ~/.cache/ccache-arm64 bookworm 'tools/cross/arm64.sh sim fake_store world collectives'
#     tools/cross/arm64.sh sync_test rank_mutex_test
# Arguments are suites, or names of tests. Tests that start programs, as death tests do, need binfmt_misc of the kernel: qemu is registered
# there while this runs, unless it is already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
jobs=${JOBS:-$(nproc)}

root=(env DEBIAN_FRONTEND=noninteractive)
((EUID == 0)) || root=(sudo "${root[@]}")
# pkgconf:arm64 has aarch64-linux-gnu-pkg-config.
packages=(g++-aarch64-linux-gnu qemu-user-static meson ninja-build pkg-config ccache python3 git pkgconf:arm64 libabsl-dev:arm64
  libboost-fiber-dev:arm64 libboost-context-dev:arm64 libtbb-dev:arm64 libhwy-dev:arm64 libgtest-dev:arm64 libgmock-dev:arm64)
# A package that is known and not installed is listed, too.
if (($(dpkg-query -W -f '${db:Status-Status}\n' "${packages[@]}" 2>/dev/null | grep -cx installed) < ${#packages[@]})); then
  "${root[@]}" dpkg --add-architecture arm64
  "${root[@]}" apt-get -q update
  "${root[@]}" apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends "${packages[@]}"
fi

formats=/proc/sys/fs/binfmt_misc
[[ -e $formats/register ]] || "${root[@]}" mount -t binfmt_misc none "$formats" || true
if [[ ! -e $formats/qemu-aarch64 ]]; then
  if "${root[@]}" tee "$formats/register" </usr/lib/binfmt.d/qemu-aarch64.conf >/dev/null; then
    trap 'echo -1 | "${root[@]}" tee "$formats/qemu-aarch64" >/dev/null' EXIT
  else
    echo "arm64: this kernel takes no foreign programs: tests that start programs will fail" >&2
  fi
fi

[[ -f build-arm64/build.ninja ]] || meson setup build-arm64 --cross-file tools/cross/aarch64.ini -Dcuda=disabled -Dchakra=disabled \
  -Dbench=false -Dexamples=false -Dcpp_args=-g1
wanted=()
for name in "$@"; do
  if [[ -d tests/$name ]]; then wanted+=(--suite "$name"); else wanted+=("$name"); fi
done
# Cases that want what the emulator does not give: names in a stack (Abseil reads the maps of a task, which are the emulator's own), a
# last line (the emulator adds one to a program that a signal ends), and the address of a jump below all memory.
left='*CrashDeathTest.NamesTheRankItsLastPointItsStackAndTheRun/*:*CrashDeathTest.AProgramWithoutAFrameOfItsOwnIsNoEmptyStack/*'
left+=':*CrashDeathTest.OtherSignalsAreToldAlike/*:*CrashDeathTest.WhatRankloomItselfEndsIsToldOnce/*'
left+=':*CrashDeathTest.OfACallOfNothingNamesTheCaller/*:*CrashDeathTest.AnOverflowOfTheStackHasItsStack/*'
left+=':OverflowDeathTest.BelowAllMemoryNamesTheRankOnFibers'
export GTEST_FILTER="-$left"
export CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
# Builds what the tests need. An emulated processor takes some twenty times as long.
meson test -C build-arm64 --num-processes "$jobs" --timeout-multiplier 20 --print-errorlogs "${wanted[@]}"
