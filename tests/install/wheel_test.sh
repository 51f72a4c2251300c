#!/usr/bin/env bash
# Installs the wheel that ./dev wheel made into a new virtual environment, and runs jobs of four ranks with it, some under pytest. To be
# run in a bare root, which has no compiler and none of the libraries that rankloom is made with:
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
  [[ -z $(find /lib /usr/lib /usr/local/lib -name "lib$library.so*") ]] || fail "lib$library is installed"
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
EOF
venv/bin/rankloom --help >/dev/null
venv/bin/python job.py

# The plugin for pytest comes with the wheel, pytest does not.
venv/bin/pip install -q pytest
cat >test_job.py <<'EOF'
import pytest
import torch
import torch.distributed as dist


@pytest.mark.ranks(4, seeds=5)
def test_sum(rank, world_size):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    assert (x.item(), world_size) == (6.0, 4)


@pytest.mark.ranks(4)
def test_fails(rank):
    assert rank != 2, f"of rank {rank}"
EOF
venv/bin/python -m pytest -q test_job.py >log 2>&1 && fail "a test that fails passed: $(cat log)"
grep -q '^1 failed, 1 passed' log && grep -q 'of rank 2' log || fail "$(cat log)"

# Another torch than the one that the extension was built for: what to do about it.
venv/bin/python -c "import torch; torch.__version__ = '2.99.0'; import rankloom.torch" 2>log && fail "torch 2.99.0 was not refused"
grep -q 'rankloom was built for torch .* the torch here is 2.99.0. Either: pip install "torch==' log || fail "$(cat log)"
echo "wheel_test: passed"
