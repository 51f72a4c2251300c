"""The lines that reports name: the user's own, once."""

import inspect
import re

import rankloom.torch
import torch
import torch.distributed as dist


def _line(of: object, text: str) -> int:
    lines, first = inspect.getsourcelines(of)  # type: ignore[arg-type]
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_decorated_function_of_torch_is_called_where_the_user_calls_it() -> None:
    def body() -> None:
        dist.all_gather_into_tensor(torch.empty(5), torch.ones(3))

    report = rankloom.torch.run(body, 2, seed=1)
    line = _line(body, "all_gather_into_tensor")
    assert re.search(rf"want size \* input = 2 \* 3 = 6 \[(?:\S*/)?test_call_sites\.py:{line}\]\n", report.text), report.text
    assert "typing_extensions.py:" not in report.text.split("Traceback")[0]


def test_lines_of_code_that_comes_and_goes() -> None:
    """A code object may lie where another one lay, whose lines are known."""
    want = []
    with rankloom.torch.fake_world(world_size=2) as world:
        for before, between in ((0, 0), (3, 0), (0, 2), (0, 1), (0, 2), (7, 1), (7, 2), (7, 1)):
            source = [*[""] * before, "def f():", "    dist.barrier()", *["    0"] * between, "    for i in range(2):"]
            source.append("        dist.barrier(), dist.barrier()")
            names = {"dist": dist}
            exec(compile("\n".join(source), "made.py", "exec"), names)
            names["f"]()  # type: ignore[operator]
            want += [before + 2, *[before + between + 4] * 4]
            del names
    assert [call.line for call in world.calls] == want
    assert {call.file for call in world.calls} == {"made.py"}


def test_names_of_code_that_comes_and_goes() -> None:
    """A name may lie where another one of that length lay."""
    with rankloom.torch.fake_world(world_size=2) as world:
        for number in range(20):
            exec(compile("dist.barrier()", f"made{number:02}.py", "exec"), {"dist": dist})
    assert [call.file for call in world.calls] == [f"made{number:02}.py" for number in range(20)]


def test_a_name_that_is_not_ascii() -> None:
    names = ["/home/j\u00fcrgen/\u0442\u0435\u0441\u0442.py", "/\u30c6\u30b9\u30c8/\U0001f600.py"]
    with rankloom.torch.fake_world(world_size=2) as world:
        for name in [*names, "/odd\udcff.py"]:  # a byte that is no UTF-8
            exec(compile("dist.barrier()", name, "exec"), {"dist": dist})
    assert [call.file for call in world.calls] == [*names, "/odd?.py"]


def test_a_mismatch_is_told_once_and_every_rank_folds() -> None:
    def body(rank: int) -> None:
        x = torch.ones(3)
        if rank == 1:
            work = dist.broadcast(x, 0, async_op=True)
            work.wait()
        else:
            dist.all_reduce(x)

    report = rankloom.torch.run(body, 3, seed=1)
    head = report.text.split("Traceback")[0]
    assert head.startswith("ranks 0-2 failed: Mismatch: "), report.text
    assert report.text.count("members issued different calls") == 2  # the headline, and the first line of what was raised
    assert report.text.count("field | value") == 1
    assert not re.search(r"\] \[", report.text)


def test_a_line_that_the_text_names_is_not_named_again() -> None:
    def body(rank: int) -> None:
        if rank == 0:
            dist.barrier()

    report = rankloom.torch.run(body, 2, seed=1)
    line = _line(body, "dist.barrier()")
    text = str(report.exceptions[0])
    assert text.splitlines()[0] == "Deadlock: no rank can move"
    assert f"[group 0, test_call_sites.py:{line}]" in text and not re.search(r"\] \[", text)
