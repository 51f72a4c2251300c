"""The man page, made from what --help says."""

from __future__ import annotations

import argparse
import re


def _roff(text: str) -> str:
    """As text of a man page: no line of it is a request, no character an escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    lines = []
    for action in parser._actions:
        if not action.help or isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        value = (action.metavar or action.dest.upper()) if action.nargs != 0 else ""
        name = ", ".join(action.option_strings) or str(action.dest)
        lines += [".TP", f"\\fB{_roff(name)}\\fR {_roff(str(value)) if action.option_strings else ''}".rstrip(), _roff(action.help)]
    return lines


def man_page(parser: argparse.ArgumentParser, version: str) -> str:
    """Of a parser with commands: section 1, in the macros of man(7)."""
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    lines = [
        f'.TH {parser.prog.upper()} 1 "" "rankloom {_roff(version)}"',
        ".SH NAME",
        f"{parser.prog} \\- shows runs and traces of distributed jobs in one process",
        ".SH SYNOPSIS",
        f".B {parser.prog}",
        "COMMAND [OPTION]... FILE...",
        ".SH DESCRIPTION",
        _roff(parser.description or ""),
        ".SH COMMANDS",
    ]
    for name, command in commands.choices.items():
        usage = " ".join(command.format_usage().removeprefix("usage: ").split())
        lines += [".SS " + _roff(name), _roff(f"{helps[name][:1].upper()}{helps[name][1:]}."), ".PP", _roff(usage), *_options(command)]
    examples = (parser.epilog or "").removeprefix("examples:\n").rstrip("\n")
    lines += [".SH EXIT STATUS", "0; 1 of a diff that found a difference; 2 with a line on stderr for what cannot be read or written."]
    lines += [".SH EXAMPLES", ".nf", _roff(examples), ".fi"]
    lines += [".SH ENVIRONMENT", ".TP", "\\fBNO_COLOR\\fR", "Not empty: no colours; there are none but on a terminal."]
    return "\n".join(lines) + "\n"
