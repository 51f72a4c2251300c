#!/usr/bin/env python3
"""Reads dumps of the flight recorder with stock Python, and checks what is in them.

    flight_dump_test.py FLIGHT_DUMP_CASES
"""

import json
import pickle
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

RANKS = range(4)
FIELDS = {
    "record_id", "pg_id", "process_group", "thread_name", "thread_id", "collective_seq_id", "p2p_seq_id", "op_id",
    "profiling_name", "time_created_ns", "input_sizes", "input_dtypes", "output_sizes", "output_dtypes", "state",
    "time_discovered_started_ns", "time_discovered_completed_ns", "retired", "timeout_ms", "is_p2p",
}  # fmt: skip


class FlightDumpTest(unittest.TestCase):
    cases: str
    folder: tempfile.TemporaryDirectory

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([cls.cases, cls.folder.name], check=True)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def pickled(self, case: str) -> list[dict]:
        return [pickle.loads((Path(self.folder.name) / case / f"fr_{rank}").read_bytes()) for rank in RANKS]

    def as_json(self, case: str) -> list[dict]:
        return [json.loads((Path(self.folder.name) / f"{case}_json" / f"fr_{rank}.json").read_text()) for rank in RANKS]

    def test_top_level(self) -> None:
        for rank, dump in enumerate(self.pickled("good")):
            self.assertEqual(list(dump), ["version", "comm_lib_version", "pg_config", "pg_status", "entries"])
            self.assertEqual(dump["version"], "2.10")
            self.assertRegex(dump["comm_lib_version"], r"^rankloom \d+\.\d+\.\d+$")
            self.assertEqual(dump["pg_config"]["0"], {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"})
            self.assertEqual("0.1" in dump["pg_config"], rank % 2 == 0)
            tp = f"0.2.tp[{rank // 2}]"
            first = rank // 2 * 2
            self.assertEqual(dump["pg_config"][tp], {"name": tp, "desc": "mesh_tp", "ranks": f"[{first}, {first + 1}]"})

    def test_status(self) -> None:
        self.assertEqual(
            self.pickled("missing")[0]["pg_status"],
            {0: {"last_enqueued_collective": 2, "last_started_collective": 1, "last_completed_collective": 1}},
        )
        self.assertEqual(
            self.as_json("mismatch")[1]["pg_status"],
            {"0": {"last_enqueued_collective": "2", "last_started_collective": "2", "last_completed_collective": "1"}},
        )

    def test_entries(self) -> None:
        for rank, dump in enumerate(self.pickled("good")):
            entries = dump["entries"]
            self.assertEqual([entry["record_id"] for entry in entries], list(range(len(entries))))
            for entry in entries:
                self.assertEqual(set(entry) - {"duration_ms"}, FIELDS | {"frames"})
                self.assertEqual((entry["state"], entry["retired"]), ("completed", True))
                self.assertLessEqual(entry["time_created_ns"], entry["time_discovered_started_ns"])
                self.assertLessEqual(entry["time_discovered_started_ns"], entry["time_discovered_completed_ns"])
                self.assertEqual(entry["timeout_ms"], 30 * 60 * 1000)
                self.assertEqual((entry["thread_name"], entry["thread_id"]), (f"rank {rank}", str(rank)))
            first = entries[0]
            self.assertEqual(first["profiling_name"], "gloo:all_reduce")
            self.assertEqual(first["process_group"], ("0", "default_pg"))
            self.assertEqual((first["input_sizes"], first["output_sizes"]), ([[2, 3]], [[2, 3]]))
            self.assertEqual((first["input_dtypes"], first["output_dtypes"]), (["Float"], ["Float"]))
            self.assertEqual((first["collective_seq_id"], first["op_id"], first["pg_id"]), (1, 1, 0))
            self.assertIsInstance(first["duration_ms"], float)
            (frame,) = first["frames"]
            self.assertEqual(frame["name"], "all_reduce")
            self.assertTrue(frame["filename"].endswith("flight_dump_cases.cc"))
            by_name = {entry["profiling_name"]: entry for entry in entries if entry["pg_id"] == 0}
            self.assertEqual(by_name["gloo:broadcast"]["input_sizes"], [[6]])
            self.assertEqual(by_name["gloo:reduce"]["input_dtypes"], ["Half"])
            self.assertEqual(by_name["gloo:all_gather"]["output_sizes"], [[4, 6]])
            self.assertEqual(by_name["gloo:reduce_scatter"]["input_sizes"], [[4, 6]])
            self.assertEqual(by_name["gloo:_all_gather_base"]["output_sizes"], [[24]])
            self.assertEqual(by_name["gloo:allreduce_coalesced"]["input_sizes"], [[6], [6]])

    def test_point_to_point(self) -> None:
        dumps = self.pickled("good")
        for rank, name in ((0, "gloo:send 0->1"), (2, "gloo:recv 1<-0")):
            (entry,) = [entry for entry in dumps[rank]["entries"] if entry["is_p2p"]]
            self.assertEqual(entry["profiling_name"], name)
            self.assertEqual(entry["process_group"], ("0.1", "even"))
            self.assertEqual((entry["collective_seq_id"], entry["p2p_seq_id"]), (1, 1_000_000_001))

    def test_coalesced_calls_share_a_number(self) -> None:
        for dump in self.pickled("coalesced"):
            names = [entry["profiling_name"] for entry in dump["entries"]]
            self.assertEqual(names, ["gloo:all_reduce", "gloo:broadcast", "gloo:coalesced"])
            self.assertEqual([entry["collective_seq_id"] for entry in dump["entries"]], [1, 1, 1])
            self.assertEqual([entry["op_id"] for entry in dump["entries"]], [1, 2, 3])

    def test_states_of_what_failed(self) -> None:
        last = [dump["entries"][-1] for dump in self.pickled("missing")]
        self.assertEqual([entry["state"] for entry in last], ["scheduled", "scheduled", "completed", "scheduled"])
        self.assertIsNone(last[0]["time_discovered_completed_ns"])
        self.assertIsNone(last[0]["time_discovered_started_ns"])
        self.assertNotIn("duration_ms", last[0])
        # All had come.
        self.assertEqual([d["entries"][-1]["state"] for d in self.pickled("mismatch")], ["started"] * 4)

    def test_names_of_any_bytes_come_back_each_its_own(self) -> None:
        for dump in self.pickled("hostile"):
            # A third group is called as the second one would be.
            self.assertEqual(list(dump["pg_config"]), ["0", "a", "a#2#2", "a#2", '"]}(\\xff\\n'])
            self.assertEqual({name: group["name"] for name, group in dump["pg_config"].items()}, {name: name for name in dump["pg_config"]})
            calls = [entry for entry in dump["entries"] if entry["pg_id"] != 0]
            self.assertEqual([entry["process_group"] for entry in calls], [(name, "x\\xff") for name in list(dump["pg_config"])[1:]])
            self.assertEqual({entry["profiling_name"] for entry in calls}, {"gl\\xffoo:all_reduce"})
            self.assertEqual({entry["frames"][0]["filename"] for entry in calls}, {"tr\\xffin.py"})

    def test_json_says_the_same(self) -> None:
        for case in ("good", "coalesced", "missing", "mismatch", "sizes", "hostile"):
            for pickled, other in zip(self.pickled(case), self.as_json(case), strict=True):
                self.assertEqual(other["version"], pickled["version"])
                self.assertEqual(other["pg_config"], pickled["pg_config"])
                self.assertEqual(len(other["entries"]), len(pickled["entries"]))
                for a, b in zip(pickled["entries"], other["entries"], strict=True):
                    del a["frames"]
                    a["process_group"] = list(a["process_group"])
                    for key, value in a.items():
                        if key == "duration_ms":
                            self.assertAlmostEqual(b[key], value, places=5)
                        else:
                            self.assertEqual(b[key], 0 if value is None else value, key)


if __name__ == "__main__":
    FlightDumpTest.cases = sys.argv.pop(1)
    unittest.main()
