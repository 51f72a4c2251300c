"""Run files with one value in them replaced: what a foreign writer, a fault of the disk or somebody hostile may leave."""

import json

VALUES = [None, True, -1, 10**15, 10**30, 1.5, 1e400, float("nan"), "x", "\ud800\0\x1b[31m</script><!--\u2028", [], {}, [[]], [0, 0]]
MOST_ELEMENTS = 2  # of a list, that are replaced


def _places(value, path=()):
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*path, key))
    elif isinstance(value, list):
        for i in range(min(MOST_ELEMENTS, len(value))):
            yield from _places(value[i], (*path, i))


def altered(data):
    """Each value of the file but its first line by each of VALUES: what was done, and the bytes."""
    lines = data.split(b"\n")
    for number in range(1, len(lines) - 1):
        for path in _places(json.loads(lines[number])):
            for value in VALUES:
                line = json.loads(lines[number])
                at = line
                for key in path[:-1]:
                    at = at[key]
                at[path[-1]] = value
                what = f"line {number + 1}: {'.'.join(map(str, path))} = {value!r}"
                yield what, b"\n".join([*lines[:number], json.dumps(line).encode(), *lines[number + 1 :]])
