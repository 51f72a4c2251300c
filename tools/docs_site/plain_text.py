"""Comments of headers and docstrings, which are plain text, as reStructuredText for the site."""

import re

# The labels that begin a paragraph whose further lines are indented by two columns, as comments here have it; other indented lines are code.
LABEL = re.compile(
    r"(?:Errors|Order|Blocking|Buffers|Thread-safety|Shapes?|Determinism|In place|Lifetime|Failure|Scheduling points|Virtual time|Ranks|"
    r"Names|Atomicity|Not checked)\b[^.:]*:(?= |$)|\[\d+\] "
)
# Names among the words, which are to be links or at least code.
NAME = re.compile(
    r"(?<![\w`/.:\"'])(?!std::)((?:[A-Za-z]\w*::)+~?\w+(?:\(\))?|[a-z]\w*(?:\.\w+)*\(\)|"
    r"(?!PyTorch|GoogleTest|InfiniBand)[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+|k[A-Z]\w+)(?![\w`])"
)


def escaped(text):
    return re.sub(r"([\\*|_`])", r"\\\1", text)


def inline(text):
    """A paragraph: spans in backticks and names as code, all else as it stands."""
    parts = re.split(r"(``[^`]+``|`[^`]+`)", text)
    done = []
    for i, part in enumerate(parts):
        if i % 2:
            done.append(code_span(part.strip("`")))
        else:
            pieces = NAME.split(part)
            done += [code_span(piece) if j % 2 else escaped(piece) for j, piece in enumerate(pieces)]
    return "".join(done)


def code_span(text):
    return f"\\ ``{text.strip()}``\\ " if text.strip() else ""


def with_pages(text):
    """Pages that a text names, as links to them."""
    return re.sub(r"docs/([\w/-]+)\.md", r":doc:`/docs/\1`", text)


def code_block(lines, language):
    text = "\n".join(lines)
    is_code = language == "python" or re.search(r"[;{]\s*($|//)", text, re.MULTILINE)
    return [f".. code-block:: {language if is_code else 'text'}", "", *(f"   {line}".rstrip() for line in lines), ""]


def paragraph(lines):
    text = " ".join(line.strip() for line in lines)
    label = LABEL.match(text)
    if label and not text.startswith("["):
        return [with_pages(f"**{escaped(label.group(0)[:-1])}:** {inline(text[label.end():].strip())}".rstrip()), ""]
    return [with_pages(inline(text)), ""]


def to_rst(lines, language):
    """`lines` of text, without what makes them a comment. Lines that are indented by two or more columns are a block of code, unless
    the paragraph before them has begun with a label."""
    lines = [line.rstrip() for line in lines]
    done, words, code = [], [], []

    def flush():
        nonlocal words, code
        if words:
            done.extend(paragraph(words))
        if code:
            indent = min(len(line) - len(line.lstrip()) for line in code if line)
            done.extend(code_block([line[indent:] for line in code], language))
        words, code = [], []

    for i, line in enumerate(lines):
        if not line:
            following = next((later for later in lines[i + 1 :] if later), "")
            if code and following.startswith("  "):
                code.append("")
            else:
                flush()
        elif line.startswith("  "):
            if words and LABEL.match(words[0].strip()):
                words.append(line)
                continue
            if words:
                flush()
            code.append(line)
        else:
            if code or LABEL.match(line):
                flush()
            words.append(line)
    flush()
    while done and not done[-1]:
        done.pop()
    return done
