"""rankloom behind torch.distributed: ranks are threads of this process, and collectives are real.

    import rankloom.torch
    rankloom.torch.install()    # behind the names "threaded" and "fake" of PyTorch's own test helpers

or, without any test class:

    report = rankloom.torch.run(program, ranks=4, seed=7)

The backends are also registered as "rankloom" and "rankloom_fake" by the import itself.
"""

from rankloom.torch import _ext
from rankloom.torch._install import FakeStore, HashStore, install, installed, uninstall
from rankloom.torch._run import RankFailedError, Report, last_report, run

__all__ = [
    "FakeStore",
    "HashStore",
    "RankFailedError",
    "Report",
    "install",
    "installed",
    "last_report",
    "run",
    "uninstall",
    "yield_now",
]

yield_now = _ext.yield_now
