#!/usr/bin/env bash
# Runs on a machine with a GPU all that the project has for one, and brings back logs.
#
#   gpu_session.sh [--dry-run] [--minutes N] [--bridge FOLDER] PROGRAMS OUT
#
# PROGRAMS: the folder that `./dev gpu-build` made (gpu-test, gpu-bench and the libraries that they carry); nothing is built
# here. OUT is made: NAME.log of each step, gpu-bench.json, and summary.txt with a line a step: `ok`, `FAILED (exit 1)`,
# `FAILED (no end in 240 s)` or `skipped: why`. FOLDER: a bridge built for this machine's torch, and test files of PyTorch's
# own beside it (*test_c10d_pypg.py), whose stream tests run then.
# All steps together end within N minutes (20): each has a limit of its own, and one that would begin later is skipped.
# --dry-run says what each step would run and whether it can run here; nothing runs.
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
if [[ -n $bridge ]]; then
  bridge=$(cd "$bridge" && pwd) || exit 2
fi
((dry)) || mkdir -p "$out" || exit 2
((dry)) || out=$(cd "$out" && pwd)

end=$((SECONDS + 60 * minutes))
failed=0 tested=0

# told NAME RESULT: a line of the summary.
told() {
  printf '%-12s %s\n' "$1" "$2" | { ((dry)) && cat || tee -a "$out/summary.txt"; }
}

# needs PROGRAM: empty, or why a step cannot run here.
needs() {
  command -v "$1" > /dev/null || echo "no $1 here"
}

# step NAME LIMIT WHY COMMAND...: runs the command for at most LIMIT seconds, unless WHY says why it cannot run.
step() {
  local name=$1 limit=$2 why=$3 code left=$((end - SECONDS))
  shift 3
  if ((dry)); then
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

((dry)) || : > "$out/summary.txt"
step device 30 "$(needs nvidia-smi)" nvidia-smi
step gpu-test 300 "" ./gpu-test
step gpu-bench 300 "" ./gpu-bench --json "$out/gpu-bench.json"
for check in memcheck racecheck synccheck; do
  # A sanitizer exits with its own code when it finds something, and else with the program's.
  step "$check" 240 "$(needs compute-sanitizer)" compute-sanitizer --tool "$check" --error-exitcode 9 ./gpu-test
done
why=
if [[ -z $bridge ]]; then
  why="no --bridge"
else
  tests=$(compgen -G "$bridge/*test_c10d_pypg.py" | head -n 1)
  [[ -n $tests ]] || why="$bridge has no *test_c10d_pypg.py"
  why=${why:-$(needs python3)}
fi
step torch-streams 180 "$why" env "PYTHONPATH=$bridge" python3 -m pytest -q -k "cuda or stream or block" "${tests:-}"

((failed == 0)) || exit 1
((dry || tested)) || exit 77
