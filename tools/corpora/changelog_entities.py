#!/usr/bin/env python3
"""Writes lines of Debian changelogs with the versions, paths and bug numbers in them, a set to train a tagger on and one to test it.

    tools/corpora/changelog_entities.py train.jsonl test.jsonl

The lines are those of the packages that are installed (/usr/share/doc/*/changelog.Debian.gz); packages are on one side each.
1,200 and 300 texts, the same for the same packages. What is an entity is told by patterns, so that nobody had to mark them:
the figures say how well a model learns patterns, not how hard the texts are.
"""

import argparse
import gzip
import json
import pathlib
import random
import re

PATTERNS = {"BUG": r"#\d{5,7}", "PATH": r"(?<![\w/.])(?:debian|/?usr|/?etc|/?var|lib|src)/[\w./+-]*[\w]", "VERSION": r"(?<![\w.-])\d+\.\d+(?:\.\d+)*(?:[-+~][\w.+~]*\w)?"}  # fmt: skip


def entities(text):
    found = []
    for label, pattern in PATTERNS.items():
        for match in re.finditer(pattern, text):
            if all(match.end() <= one["start"] or match.start() >= one["end"] for one in found):
                found.append({"start": match.start(), "end": match.end(), "label": label})
    return sorted(found, key=lambda one: one["start"])


def items(path):
    """The items of a changelog, each in one line."""
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    for item in re.findall(r"^  (?:  )?[*+-] (.*(?:\n    +(?![*+-] ).*)*)", text, re.M):
        yield " ".join(item.split())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    options = parser.parse_args()
    paths = sorted(pathlib.Path("/usr/share/doc").glob("*/changelog.Debian.gz"))
    random.Random(7).shuffle(paths)
    rows, seen = [], set()
    for path in paths:
        kept = []
        for text in items(path):
            if 20 < len(text) < 200 and text not in seen and (entities(text) or len(seen) % 4 == 0):
                kept.append({"text": text, "entities": entities(text)})
            seen.add(text)
        rows.append(kept[:12])  # of a package, so that long histories do not fill the set
    flat = [row for kept in rows for row in kept]
    for path, part in (options.train, flat[:1200]), (options.test, flat[-300:]):
        pathlib.Path(path).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part), encoding="utf-8")
    print(f"{len(paths)} changelogs, {len(flat)} items")


if __name__ == "__main__":
    main()
