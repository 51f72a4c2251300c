# Sourced by the tests of an installed tree: their common head.
#     . installed_tree.sh BUILD_FOLDER [ARGUMENT OF MESON INSTALL]...
# Installs the build folder into $work/root, a temporary place that goes with the test, and sets work, CXX, pc (rankloom.pc), prefix
# and PKG_CONFIG_PATH.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CXX=${CXX:-g++}

fail() {
  echo "$(basename "$0" .sh): $*" >&2
  exit 1
}

meson install -C "$1" --no-rebuild --quiet --destdir "$work/root" "${@:2}"
pc=$(find "$work/root" -name rankloom.pc)
export PKG_CONFIG_PATH=${pc%/rankloom.pc}
prefix=$(realpath "$(pkg-config --variable=prefix rankloom)")
