#!/usr/bin/env bash
# Makes the Conan package of packaging/conan, which asks no registry of Conan's, and builds and runs what requires it, static and
# shared. By hand, or in a bare root, since each of the two compiles the libraries; Conan itself comes by pip:
#     tools/portability.sh bookworm 'tests/install/conan_test.sh'
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Conan's settings and packages are this test's own.
export CONAN_HOME=$work/home CCACHE_NOHASHDIR=1

fail() {
  echo "conan_test: $*" >&2
  exit 1
}

if ! python3 -c 'import ensurepip' 2>/dev/null || [[ -z $(command -v g++ || true) || -z $(command -v cmake || true) ]]; then
  sudo apt-get -q update >/dev/null
  sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends python3-venv g++ cmake make \
    >log 2>&1 || fail "$(cat log)"
fi
python3 -m venv venv
venv/bin/pip install -q 'conan>=2,<3'
PATH=$work/venv/bin:/usr/lib/ccache:$PATH  # without ccache the last is no folder
conan profile detect >log 2>&1 || fail "$(cat log)"
conan remote disable '*' >log 2>&1 || fail "$(cat log)"
# As docs/project.md has it.
read -r -a settings < <(sed -n 's|^    conan create packaging/conan \(-.*\)$|\1|p' "$root/docs/project.md")
((${#settings[@]} == 4)) || fail "docs/project.md: want the line of conan create with 4 words behind it, have ${settings[*]}"
settings+=(-s build_type=Release)
((EUID == 0)) || settings+=(-c tools.system.package_manager:sudo=True)

mkdir consumer
cp "$here"/consumer*.cc "$here/CMakeLists.txt" consumer
version=$(sed -n "s/.*version: '\([^']*\)'.*/\1/p" "$root/meson.build" | head -n 1)
cat >consumer/conanfile.txt <<END
[requires]
rankloom/$version
[generators]
CMakeToolchain
CMakeDeps
END

for shared in False True; do
  options=("${settings[@]}" -o "rankloom/*:shared=$shared")
  conan create "$root/packaging/conan" "${options[@]}" >log 2>&1 || fail "$(tail -n 40 log)"
  (
    cd consumer
    conan install . "${options[@]}" --output-folder "../$shared" >../log 2>&1 || fail "$(tail -n 40 ../log)"
    cmake -B "../$shared/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$work/$shared/conan_toolchain.cmake" >../log 2>&1 ||
      fail "$(tail -n 40 ../log)"
    cmake --build "../$shared/build" >../log 2>&1 || fail "$(tail -n 40 ../log)"
  )
  kept=$(sed -n 's/^rankloom_DIR:PATH=//p' "$shared/build/CMakeCache.txt")
  [[ $kept == "$CONAN_HOME"/* ]] || fail "CMake took rankloom of '$kept'"
  (
    # What the package says of a program's environment: the folder of the shared library.
    [[ $shared == False ]] || { cd consumer && conan install . "${options[@]}" -g VirtualRunEnv --output-folder "../$shared" >../log 2>&1; }
    [[ ! -f $work/$shared/conanrun.sh ]] || { set +u; . "$work/$shared/conanrun.sh"; set -u; }
    "$work/$shared/build/consumer" && "$work/$shared/build/consumer_test"
  ) >log 2>&1 || fail "$(cat log)"
  linked=$(readelf -d "$shared/build/consumer" | grep -c 'NEEDED.*librankloom' || true)
  [[ $shared == False && $linked == 0 || $shared == True && $linked != 0 ]] || fail "shared=$shared: $linked libraries of rankloom are linked"
  echo "conan_test: shared=$shared"
done
echo "conan_test: passed"
