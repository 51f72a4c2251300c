#!/usr/bin/env bash
# Builds what ThreadSanitizer must see into and Debian's packages hide from it: Abseil's mutex, oneTBB's joins and
# GoogleTest. Without it two threads that push to one vector under absl::Mutex are reported as a race.
#
# The sources are Debian's own (apt-get source, and /usr/src/googletest), so headers and options are those of the normal
# build. Built once, then cached outside the checkout. The last line printed is the prefix; its pkgconfig folder goes to
# the front of PKG_CONFIG_PATH.
set -euo pipefail

cxx=${1:-g++}
jobs=${JOBS:-$(nproc)}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rankloom

say() { printf '== tsan dependencies: %s\n' "$*" >&2; }
source_version() { dpkg-query -W -f '${source:Version}' "$1"; }

key=$("$cxx" -dumpfullversion -dumpversion)-$(source_version libabsl-dev)-$(source_version libtbb-dev)-$(source_version googletest)
prefix=$cache/tsan-$(basename "$cxx")-${key//[^A-Za-z0-9.+-]/_}
if [[ -f $prefix/complete ]]; then
  echo "$prefix"
  exit 0
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/tsan-build.XXXXXX")
trap 'rm -rf "$work"' EXIT

# This machine's own package sources, turned from binary to source, in a list of our own.
private_apt() {
  apt-get -q -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=root "$@"
}
mkdir -p "$work"/{sources,lists/partial,cache/archives/partial}
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [[ -f $list ]] && sed -n 's/^deb\(-src\)\? /deb-src /p' "$list" >"$work/sources/$(basename "${list%.list}").list"
done
for list in /etc/apt/sources.list.d/*.sources; do
  [[ -f $list ]] && sed 's/^Types:.*/Types: deb-src/' "$list" >"$work/sources/$(basename "$list")"
done

# get_source PACKAGE BINARY_PACKAGE: unpacks it, patched, in the version of the installed binary if that is still served.
get_source() {
  local package=$1 version
  version=$(source_version "$2")
  say "fetching the source of $package $version"
  (cd "$work" && { private_apt source "$package=$version" || private_apt source "$package"; }) >"$work/$package.log" 2>&1 ||
    { tail -n 20 "$work/$package.log" >&2; return 1; }
}

# build NAME SOURCE [CMAKE OPTION]...
build() {
  local name=$1 source=$2
  shift 2
  say "building $name"
  cmake -S "$source" -B "$work/$name" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_CXX_STANDARD=17 -DCMAKE_CXX_FLAGS="-fsanitize=thread -g1" -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_INSTALL_PREFIX="$work/prefix" -DCMAKE_INSTALL_LIBDIR=lib "$@" >"$work/$name.log" 2>&1 &&
    cmake --build "$work/$name" -j "$jobs" >>"$work/$name.log" 2>&1 &&
    cmake --install "$work/$name" >>"$work/$name.log" 2>&1 || { tail -n 30 "$work/$name.log" >&2; return 1; }
}

private_apt update >"$work/update.log" 2>&1 || say "some package sources have no source index; going on"
get_source abseil libabsl-dev
get_source onetbb libtbb-dev
build googletest /usr/src/googletest
build abseil "$(echo "$work"/abseil-*/)" -DBUILD_SHARED_LIBS=OFF -DABSL_ENABLE_INSTALL=ON -DBUILD_TESTING=OFF
build onetbb "$(echo "$work"/onetbb-*/)" -DTBB_TEST=OFF -DTBB_STRICT=OFF

# pkg-config files name the place where they were installed.
rm -rf "$prefix"
sed -i "s#$work/prefix#$prefix#g" "$work"/prefix/lib/pkgconfig/*.pc
touch "$work/prefix/complete"
mv "$work/prefix" "$prefix"
say "done, kept in $prefix"
echo "$prefix"
