"""Tests of other people that do not pass on rankloom, each with its reason. The runners print it."""

# run_seeds.py: "Class.test" -> reason
SEEDS: dict[str, str] = {
    "TestFakePG.test_alltoall_base": "the splits [1, 1] do not add up to 3 rows; PyTorch's fake group refuses it, too",
}

# run_torch_suite.py: test -> reason
TORCH_SUITE: dict[str, str] = {}
