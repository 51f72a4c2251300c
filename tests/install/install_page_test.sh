#!/usr/bin/env bash
# Runs the commands by which docs/first-hour.md installs the library, as they stand there, in a copy of the checkout: the one for a
# folder of the reader's own with another home, the one for /usr/local below a folder that DESTDIR names. The objects of BUILD_FOLDER
# are in ccache, as a rule.
#     install_page_test.sh BUILD_FOLDER COMPILER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# As BUILD_FOLDER was made, so that its objects will do.
CXXFLAGS=$(meson introspect "$1" --buildoptions |
  python3 -c 'import json, sys; print(*next(one["value"] for one in json.load(sys.stdin) if one["name"] == "cpp_args"))')
CXX=${*: -1}
CCACHE_DIR=$(ccache -k cache_dir 2>/dev/null) || unset CCACHE_DIR
# Without CUDA, whose compiler ccache does not serve.
export CUDA_HOME=/nonexistent
PATH=$(tr : '\n' <<<"$PATH" | grep -v '/cuda[^/]*/bin$' | paste -sd :)
# Where there is no locale, Python, which runs tests, has set one: ccache would take all for other compilations.
[[ -n ${LANG:-}${LC_ALL:-} ]] || unset LC_CTYPE
unset DESTDIR PKG_CONFIG_PATH CMAKE_PREFIX_PATH "${!RANKLOOM_@}"
export CXX CXXFLAGS ${CCACHE_DIR+CCACHE_DIR}

fail() {
  echo "install_page_test: $*" >&2
  exit 1
}

mkdir "$work/checkout" "$work/home"
tar -C "$root" --exclude='./build*' --exclude='./.venv*' --exclude=./.git --exclude=./dist -cf - . | tar -C "$work/checkout" -xf -
cd "$work/checkout"
page=$(sed -n '/^## In C++$/,/^### A test that passes$/p' docs/first-hour.md)
own=$(grep -o '`\./dev install [^`]*`' <<<"$page" | tr -d '`')
plain=$(sed -n '/^```sh$/,/^```$/{/^```/d;p}' <<<"$page")
[[ $own == "./dev install "* && $own != *$'\n'* ]] || fail "docs/first-hour.md has no one command for another folder: $own"
[[ -n $plain ]] || fail "docs/first-hour.md has no command"

# In a folder of the reader's own: the three lines that it prints are all that a shell, pkg-config and a program need.
HOME=$work/home bash -c "$own" >"$work/log" 2>&1 || fail "$own: $(tail -n 40 "$work/log")"
[[ $(grep -c '^export ' "$work/log") == 3 ]] || fail "$own printed no three lines to export: $(tail -n 5 "$work/log")"
(
  eval "$(grep '^export ' "$work/log")"
  [[ $PKG_CONFIG_PATH == "$work/home/"* && $CMAKE_PREFIX_PATH == "$work/home/"* ]] || fail "$own installed elsewhere: $PKG_CONFIG_PATH"
  [[ $(command -v rankloom) == "$work/home/"*/bin/rankloom ]] || fail "$own: no command rankloom but $(command -v rankloom)"
  cd "$work"
  $CXX -std=c++20 "$here/consumer_test.cc" -o consumer_test $(pkg-config --cflags --libs rankloom-testing gtest_main)
  ./consumer_test >log || fail "$(cat log)"
)

# In /usr/local, as the page says first.
DESTDIR=$work/machine bash -c "$plain" >"$work/log" 2>&1 || fail "$plain: $(tail -n 40 "$work/log")"
[[ -n $(find "$work/machine/usr/local" -name rankloom.pc) ]] || fail "$plain installed no rankloom.pc into /usr/local"
[[ -f $work/machine/usr/local/include/rankloom/testing.h || -n $(find "$work/machine/usr/local" -name testing.h) ]] ||
  fail "$plain installed no header"
! grep -q '^export PKG' "$work/log" || [[ $(grep -c '^export PKG_CONFIG_PATH=/usr/local/' "$work/log") == 1 ]] || fail "$(tail -n 5 "$work/log")"
