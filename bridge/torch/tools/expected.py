"""Tests of other people that do not pass on rankloom, each with its reason. The runners print it."""

# run_seeds.py: "Class.test" -> reason
SEEDS: dict[str, str] = {
    "TestFakePG.test_alltoall_base": "the splits [1, 1] do not add up to 3 rows; PyTorch's fake group refuses it, too",
}

_AT_ONCE = "waits out the group's timeout for ranks that have ended; here that is a deadlock, which is reported at once"
_GPU = "asks for a GPU without saying so: an index into an empty list of them"

# run_torch_suite.py: test -> reason. Where ranks share the process's random state (RANKLOOM_SCHEDULE=free), tests that expect
# equal random numbers on all ranks fail, too.
TORCH_SUITE: dict[str, str] = {
    "test_SyncBatchNorm_process_group": "needs torchvision, and does not skip without it",
    "test_all_to_all_cuda": _GPU,
    "test_all_to_all_cuda_complex": _GPU,
    "test_all_to_all_full_group_cuda": _GPU,
    "test_all_to_all_group_cuda": _GPU,
    "test_barrier_timeout_full_group": _AT_ONCE,
    "test_barrier_timeout_global": _AT_ONCE,
    "test_barrier_timeout_group": _AT_ONCE,
    "test_batch_isend_irecv_op_err": _GPU,
    "test_ddp_logging_data_cpu": "wants the number of gloo's threads in the log of a group called gloo",
    "test_get_rank": "needs separate processes: ranks write files that are named after their process",
    "test_new_subgroups_with_group_param": "is written for 4 ranks, where it passes",
}
