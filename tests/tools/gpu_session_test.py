"""Runs tools/gpu_session.sh with programs that are played by scripts: what it runs, says and brings back."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "gpu_session.sh"
PASSES = "echo all passed"
NO_GPU = "echo 'no GPU, nothing was tested: no driver' >&2; exit 77"


class GpuSessionTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.out = self.root / "out"
        # The machine's own nvidia-smi, compute-sanitizer and python3 are hidden: only what `play` puts there is found.
        self.path = self.root / "bin"
        for name in ("bash", "env", "timeout", "tee", "cat", "tail", "head", "mkdir", "sed"):
            self.path.mkdir(exist_ok=True)
            (self.path / name).symlink_to(subprocess.check_output(["which", name], text=True).strip())

    def environment(self):
        return {**os.environ, "PATH": str(self.path), "CUDA_HOME": str(self.root)}

    def play(self, path, text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def session(self, *options, test=PASSES, bench='echo "{}" > "$2"'):
        self.play(self.root / "programs" / "gpu-test", test)
        self.play(self.root / "programs" / "gpu-bench", bench)
        run = subprocess.run([SCRIPT, *options, self.root / "programs", self.out], capture_output=True, text=True, timeout=60,
                             env=self.environment())
        lines = [line.split(None, 1) for line in run.stdout.splitlines()]
        return run.returncode, {name: text for name, text in lines}

    def test_runs_each_step_and_brings_back_its_log(self):
        self.play(self.path / "nvidia-smi", "echo a device")
        self.play(self.path / "compute-sanitizer", 'echo "$2 of ${@: -1}"')
        code, told = self.session()
        self.assertEqual(code, 0)
        self.assertEqual(told, {"device": "ok", "gpu-test": "ok", "gpu-bench": "ok", "memcheck": "ok", "racecheck": "ok",
                                "synccheck": "ok", "torch-sum": "skipped: no python3 here", "device-tensors": "skipped: no --bridge",
                                "torch-streams": "skipped: no --bridge"})
        self.assertEqual((self.out / "device.log").read_text(), "a device\n")
        self.assertEqual((self.out / "racecheck.log").read_text(), "racecheck of ./gpu-test\n")
        self.assertEqual((self.out / "gpu-bench.json").read_text(), "{}\n")
        self.assertIn("gpu-test       ok\n", (self.out / "summary.txt").read_text())

    def test_goes_on_after_a_failure_and_ends_with_one(self):
        code, told = self.session(test="echo 'expected 3, got 4'; exit 1", bench="exit 0")
        self.assertEqual(code, 1)
        self.assertEqual(told["gpu-test"], "FAILED (exit 1)")
        self.assertEqual(told["gpu-bench"], "ok")
        self.assertEqual((self.out / "gpu-test.log").read_text(), "expected 3, got 4\n")

    def test_says_what_is_missing(self):
        code, told = self.session(test=NO_GPU, bench=NO_GPU)
        self.assertEqual(code, 77)
        self.assertEqual(told["device"], "skipped: no nvidia-smi here")
        self.assertEqual(told["gpu-test"], "skipped: no GPU, nothing was tested: no driver")
        self.assertEqual(told["memcheck"], "skipped: no compute-sanitizer here")

    def test_a_step_that_finds_no_time_is_skipped_and_one_that_hangs_is_ended(self):
        # 22 s for all, of which the last 10 are the time to end what hangs.
        script = SCRIPT.read_text().replace("step gpu-test 240", "step gpu-test 1").replace("end=$((SECONDS + 60", "end=$((SECONDS + 22")
        self.play(self.root / "quick.sh", script)
        self.play(self.root / "programs" / "gpu-test", "exec tail -f /dev/null")
        self.play(self.root / "programs" / "gpu-bench", "exec tail -f /dev/null")
        run = subprocess.run([self.root / "quick.sh", "--minutes", "1", self.root / "programs", self.out], capture_output=True,
                             text=True, timeout=60, env=self.environment())
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("gpu-test       FAILED (no end in 1 s)\n", run.stdout)
        self.assertRegex(run.stdout, r"gpu-bench      (FAILED \(no end in 1[01] s\)|skipped: 1 minutes are over)\n")
        self.assertIn("memcheck       skipped: no compute-sanitizer here\n", run.stdout)

    def test_a_dry_run_runs_nothing(self):
        code, told = self.session("--dry-run", test="touch ran; exit 1", bench="touch ran; exit 1")
        self.assertEqual(code, 0)
        self.assertEqual(told["gpu-test"], "./gpu-test (at most 240 s)")
        self.assertEqual(told["memcheck"], "would be skipped: no compute-sanitizer here: "
                         "compute-sanitizer --tool memcheck --error-exitcode 9 ./gpu-test (at most 180 s)")
        self.assertEqual(told["together"], "at most 1200 s, by limits of 1200 s")
        self.assertEqual(self.session("--dry-run", "--minutes", "5")[1]["together"], "at most 300 s, by limits of 1200 s")
        self.assertFalse((self.root / "programs" / "ran").exists())
        self.assertFalse(self.out.exists())

    def test_the_bridge_beside_the_programs_is_taken(self):
        self.play(self.path / "python3", 'echo "$PYTHONPATH: $*"')
        bridge = self.root / "programs" / "bridge"
        bridge.mkdir(parents=True)
        for name in ("device_tensors.py", "000_test_c10d_pypg.py"):
            (bridge / name).touch()
        code, told = self.session()
        self.assertEqual((code, told["device-tensors"], told["torch-streams"], told["torch-sum"]), (0, "ok", "ok", "ok"))
        self.assertEqual((self.out / "device-tensors.log").read_text(), f"{bridge}: {bridge}/device_tensors.py cuda\n")
        self.assertEqual((self.out / "torch-streams.log").read_text(),
                         f"{bridge}: -m pytest -q -rs --rankloom -k block_current_stream {bridge}/000_test_c10d_pypg.py\n")
        self.assertIn(f"./gpu_torch_sum.py --json {self.out}/torch-sum.json\n", (self.out / "torch-sum.log").read_text())
        self.play(self.path / "python3", "exit 1")
        self.assertEqual(self.session("--dry-run")[1]["device-tensors"], "would be skipped: python3 has no torch that sees a GPU: "
                         f"env PYTHONPATH={bridge} python3 {bridge}/device_tensors.py cuda (at most 120 s)")
        (bridge / "000_test_c10d_pypg.py").unlink()
        self.assertEqual(self.session()[1]["torch-streams"], f"skipped: {bridge} has no test_c10d_pypg.py")

    def test_refuses_wrong_arguments(self):
        for arguments in ([], ["--minutes", "x", "a", "b"], ["--unknown", "a", "b"]):
            run = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(run.returncode, 2)
            self.assertEqual(run.stderr, "gpu_session.sh [--dry-run] [--minutes N] [--bridge FOLDER] PROGRAMS OUT\n")
        run = subprocess.run([SCRIPT, self.root, self.out], capture_output=True, text=True, timeout=60)
        self.assertEqual((run.returncode, run.stderr),
                         (2, f"gpu_session: {self.root} has no program gpu-test: ./dev gpu-build makes both\n"))


if __name__ == "__main__":
    unittest.main()
