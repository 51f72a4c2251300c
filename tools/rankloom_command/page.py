"""The page: one HTML file with the runs, the style and the script in it."""

from __future__ import annotations

import base64
import gzip
import html
import json
import pathlib
import pkgutil
from collections.abc import Sequence
from typing import Any

from rankloom_command import source
from rankloom_command.run_file import DTYPES, Run
from rankloom_command.text import first_difference, first_store_difference, last_text, operation_text, plain, show, store_leads

ZIPPED_FROM = 200_000  # characters
TEXT_FALLBACK = 100_000  # characters of the text for readers without a script


def _asset(name: str) -> str:
    data = pkgutil.get_data("rankloom_command", name)
    if data is None:
        raise FileNotFoundError(name)
    return data.decode("utf-8")


def _as_data(run: Run) -> dict[str, Any]:
    calls = [run.calls[rank] for rank in sorted(run.calls)]
    return {
        "path": plain(run.path.rsplit("/", 1)[-1]),
        "writer": run.writer,
        "run": run.run,
        "headline": run.headline(),
        "states": run.states,
        "asserted": sorted(run.asserted().items()),
        "texts": run.outcome_texts,
        "notes": run.notes,
        "faults": run.faults,
        "waits": run.waits,
        "cycle": run.cycle,
        "strategy": run.strategy,
        "story": run.story,
        "explored": run.explored,
        "groups": run.groups,
        "kinds": run.kinds,
        "calls": calls,
        "store": [run.store[rank] for rank in sorted(run.store)],
        "last": last_text(run),
        "gaps": run.gaps,
        "fake": run.fake,
        "named": [{"file": file, "line": line} for file, line in source.named(run)],
    }


def page_data(runs: list[Run], folders: Sequence[pathlib.Path] = ()) -> str:
    """The data of the runs for the page's script, as JSON in ASCII. Lines of the program: from below the folders."""
    data: dict[str, Any] = {"dtypes": DTYPES, "runs": [_as_data(run) for run in runs], "difference": None}
    data["sources"] = source.around(source.places(runs), folders)
    if len(runs) == 2:
        difference = first_difference(*runs)
        data["difference"] = {"rank": difference[0], "index": difference[1]} if difference else {"rank": -1, "index": -1}
        stored = first_store_difference(*runs)
        if stored is not None:
            rank, index, *both = stored
            texts = [operation_text(op, False) if op else "no such operation" for op in both]
            places = [{"file": op.file, "line": op.line} if op else None for op in both]
            data["difference"]["store"] = {"rank": rank, "index": index, "texts": texts, "places": places, "leads": store_leads(difference, stored)}
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True)


def page(runs: list[Run], folders: Sequence[pathlib.Path] = ()) -> str:
    """HTML of one run, or of two beside each other. Texts of a run are data there, never markup."""
    text = page_data(runs, folders)
    kind = "application/json"
    if len(text) > ZIPPED_FROM:
        kind = "application/x-gzip-base64"
        text = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
    else:
        # Within a script element, only what begins an end tag or a comment is markup.
        text = text.replace("<", "\\u003c")
    title = html.escape(plain(runs[0].headline())[:200])
    shown = "\n\n".join(show(run)[:TEXT_FALLBACK] for run in runs)
    parts = {
        "TITLE": title,
        "STYLE": _asset("page.css"),
        "TEXT": html.escape(shown),
        "KIND": kind,
        "DATA": text,
        "SCRIPT": _asset("page.js"),
    }
    # Split first: what stands in a part is no place for another.
    pieces = _asset("page.html").split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))
