#!/usr/bin/env python3
"""Puts tagged pieces of the examples into the tutorials, so that what is printed is what is tested.

    scripts/snippets.py [--check] [FILE.md ...]        default: docs/tutorials/*.md

A line <!-- FILE [tag] --> is followed by a code block that holds what stands in FILE between the comments
"// [tag]" and "// [tag end]". --check changes nothing and fails if a block is out of date.
"""
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"<!-- (\S+) \[(\w+)\] -->\n(?:```cpp\n.*?```\n)?", re.S)


def snippet(match):
    file, tag = match.groups()
    found = re.search(rf"^ *// \[{tag}\]\n(.*?)^ *// \[{tag} end\]$", (ROOT / file).read_text(), re.S | re.M)
    if not found:
        sys.exit(f"{file}: no snippet [{tag}]")
    return f"<!-- {file} [{tag}] -->\n```cpp\n{textwrap.dedent(found[1]).rstrip()}\n```\n"


def main(arguments):
    check = "--check" in arguments
    files = [pathlib.Path(a) for a in arguments if a != "--check"] or sorted((ROOT / "docs/tutorials").glob("*.md"))
    stale = []
    for file in files:
        old = file.read_text()
        new = BLOCK.sub(snippet, old)
        if new != old:
            stale.append(str(file))
            if not check:
                file.write_text(new)
    if check and stale:
        sys.exit("out of date, run scripts/snippets.py: " + ", ".join(stale))


if __name__ == "__main__":
    main(sys.argv[1:])
