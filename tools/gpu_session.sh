#!/usr/bin/env bash
# Runs on a machine with a GPU all that the project has for one, and brings back logs.
#
#   gpu_session.sh [--dry-run] [--minutes N] [--bridge FOLDER] PROGRAMS OUT
#
# PROGRAMS: the folder that `./dev gpu-build` made (gpu-test, gpu-bench and the libraries that they carry); nothing is built
# here. OUT is made: NAME.log of each step, gpu-bench.json, beside it torch-sum.json with PyTorch's own sums on the same GPU,
# and summary.txt with a line a step: `ok`, `FAILED (exit 1)`, `FAILED (no end in 180 s)` or `skipped: why`.
# FOLDER: the bridge, with what it needs to run test files; PROGRAMS/bridge, if there is one (`./dev gpu-build --bridge`). Calls
# of CUDA tensors are tested with it, and the tests of PyTorch's own that block a stream, if a *test_c10d_pypg.py lies there.
# All steps together end within N minutes (20): each has a limit of its own, of which the sum is 20 minutes, and one that would
# begin later is skipped.
# --dry-run says what each step would run and whether it can run here; nothing of it runs.
# Exits with 0 if at least gpu-test ran and no step failed, 77 if there is no GPU, 2 for wrong arguments, else 1.
set -uo pipefail

usage() {
  sed -n '4,4s/^# *//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

dry=0 minutes=20 bridge=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --dry-run) dry=1 ;;
    --minutes) minutes=${2:-} && shift ;;
    --bridge) bridge=${2:-} && shift ;;
    *) usage ;;
  esac
  shift || usage
done
[[ $# == 2 && $minutes =~ ^[0-9]+$ && $minutes -gt 0 ]] || usage
programs=$1 out=$2
for program in gpu-test gpu-bench; do
  [[ -x $programs/$program ]] || { echo "gpu_session: $programs has no program $program: ./dev gpu-build makes both" >&2; exit 2; }
done
programs=$(cd "$programs" && pwd) || exit 2
[[ -n $bridge || ! -d $programs/bridge ]] || bridge=$programs/bridge
if [[ -n $bridge ]]; then
  bridge=$(cd "$bridge" && pwd) || exit 2
fi
((dry)) || mkdir -p "$out" || exit 2
((dry)) || out=$(cd "$out" && pwd)

PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin  # compute-sanitizer, where nobody put it there

end=$((SECONDS + 60 * minutes))
failed=0 tested=0 all=0

# told NAME RESULT: a line of the summary.
told() {
  printf '%-14s %s\n' "$1" "$2" | { ((dry)) && cat || tee -a "$out/summary.txt"; }
}

# needs PROGRAM: empty, or why a step cannot run here.
needs() {
  command -v "$1" > /dev/null || echo "no $1 here"
}

# step NAME LIMIT WHY COMMAND...: runs the command for at most LIMIT seconds, unless WHY says why it cannot run.
step() {
  local name=$1 limit=$2 why=$3 code left=$((end - SECONDS - 10))  # what the last one gets to end after its limit
  shift 3
  if ((dry)); then
    all=$((all + limit))
    told "$name" "${why:+would be skipped: $why: }$* (at most $limit s)"
    return 0
  fi
  ((left > 10)) || why=${why:-"$minutes minutes are over"}
  if [[ -n $why ]]; then
    told "$name" "skipped: $why"
    return 0
  fi
  ((limit < left)) || limit=$left
  (cd "$programs" && timeout -k 10 "$limit" "$@") > "$out/$name.log" 2>&1
  code=$?
  case $code in
    0) told "$name" ok ;;
    77) told "$name" "skipped: $(tail -n 1 "$out/$name.log")"; return 0 ;;
    124 | 137) told "$name" "FAILED (no end in $limit s)"; failed=1 ;;
    *) told "$name" "FAILED (exit $code)"; failed=1 ;;
  esac
  [[ $name != gpu-test ]] || tested=1
}

# python_needs FILE: empty, or why a step of Python's that runs this file cannot run.
python_needs() {
  if [[ -z $bridge ]]; then
    echo "no --bridge"
  elif [[ ! -f $1 ]]; then
    echo "$bridge has no ${1##*/}"
  elif [[ -n $(needs python3) ]]; then
    needs python3
  elif ! timeout 60 python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' > /dev/null 2>&1; then
    echo "python3 has no torch that sees a GPU"  # tests would be skipped one by one, and the step pass
  fi
}

((dry)) || : > "$out/summary.txt"
step device 30 "$(needs nvidia-smi)" nvidia-smi
step gpu-test 240 "" ./gpu-test
step gpu-bench 180 "" ./gpu-bench --json "$out/gpu-bench.json"
step torch-sum 60 "$(needs python3)" python3 ./gpu_torch_sum.py --json "$out/torch-sum.json"
step device-tensors 120 "$(python_needs "$bridge/device_tensors.py")" \
  env "PYTHONPATH=$bridge" python3 "$bridge/device_tensors.py" cuda
tests=$bridge/test_c10d_pypg.py
[[ -z $bridge ]] || tests=$(compgen -G "$bridge/*test_c10d_pypg.py" | head -n 1)
step torch-streams 90 "$(python_needs "${tests:=$bridge/test_c10d_pypg.py}")" \
  env "PYTHONPATH=$bridge" python3 -m pytest -q -rs --rankloom -k block_current_stream "$tests"
# A sanitizer exits with its own code when it finds something, and else with the program's.
for check in "memcheck 180" "racecheck 180" "synccheck 120"; do
  read -r tool limit <<< "$check"
  step "$tool" "$limit" "$(needs compute-sanitizer)" compute-sanitizer --tool "$tool" --error-exitcode 9 ./gpu-test
done
((!dry)) || told together "at most $((all < 60 * minutes ? all : 60 * minutes)) s, by limits of $all s"

((failed == 0)) || exit 1
((dry || tested)) || exit 77
