#!/usr/bin/env bash
# The headers that a build folder installs are the public ones, and each finds what it includes without the others.
#     installed_headers_test.sh BUILD_FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/installed_tree.sh" "$1" --tags devel

installed=$(cd "$prefix/include" && find . -name '*.h' | sort)
public=$(cd "$here/../../include" && find . -name '*.h' | sort)
[[ -n $installed ]] || fail "no header is installed"
[[ -z $(comm -23 <(echo "$installed") <(echo "$public")) ]] || fail "installed, and not public: $installed"
mkdir "$work/one_header"
for header in $installed; do
  echo "#include <${header#./}>" >"$work/one_header/$(tr / _ <<<"${header#./}").cc"
done
find "$work/one_header" -name '*.cc' -print0 |
  xargs -0 -P 2 -n 1 $CXX -std=c++20 -fsyntax-only $(pkg-config --cflags rankloom-testing)
