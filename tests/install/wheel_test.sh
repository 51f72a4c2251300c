#!/usr/bin/env bash
# Installs the wheel that ./dev wheel made into a new virtual environment, and runs a job of four ranks with it. To be run in a bare
# root, which has no compiler and none of the libraries that rankloom is made with:
#     tools/portability.sh --wheels FOLDER --carry dist bookworm 'tests/install/wheel_test.sh dist'
set -euo pipefail
wheel=$(realpath "$1"/rankloom-*.whl)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "wheel_test: $*" >&2
  exit 1
}

sudo apt-get -q update >/dev/null
sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends python3-venv >log 2>&1 ||
  fail "$(cat log)"
[[ -z $(command -v g++ c++ clang++ || true) ]] || fail "there is a compiler"
for library in boost_fiber absl_base tbb hwy; do
  [[ -z $(ldconfig -p | grep -F "lib$library.so" || true) ]] || fail "lib$library is installed"
done

python3 -m venv venv
# The version of torch that the wheel is for, without CUDA where pip is shown one.
venv/bin/pip install -q torch==2.13.0+cpu || venv/bin/pip install -q torch==2.13.0
venv/bin/pip install -q "$wheel"
venv/bin/pip check

cat >job.py <<'EOF'
import rankloom.torch
import torch
import torch.distributed as dist


def program(rank):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    return x.item()


report = rankloom.torch.run(program, ranks=4, seed=7)
assert report.results == [6.0] * 4, report.results
print("wheel_test: passed")
EOF
venv/bin/rankloom --help >/dev/null
venv/bin/python job.py
