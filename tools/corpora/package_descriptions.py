#!/usr/bin/env python3
"""Writes training, validation and test sets from Debian's package descriptions to a folder.

    apt-get update -o Acquire::Languages=en
    tools/corpora/package_descriptions.py sections OUT     descriptions with the section: 5,000, 500, 1,000
    tools/corpora/package_descriptions.py pairs OUT        the first line of a description, the others: 3,200, 200, 1,000
    tools/corpora/package_descriptions.py ranking OUT      the same pairs with a score of 1, for rerankers
    tools/corpora/package_descriptions.py chats OUT        questions that are answered in one format: 400, 40, 40

One package of every source, so that no description has a near copy in another set; the same sets for the same package lists.
Sections are the 20 largest that are subjects, not programming languages or kinds of packages.
"""

import argparse
import collections
import json
import pathlib
import random
import subprocess
from typing import NamedTuple

KINDS = set("perl python libdevel golang javascript rust ruby java gnu-r haskell lisp php ocaml libs fonts doc debug oldlibs "
            "localization introspection".split())


class Package(NamedTuple):
    name: str
    summary: str
    description: str  # begins with the summary
    section: str


def paragraphs(text):
    for paragraph in text.split("\n\n"):
        fields, name = {}, None
        for line in paragraph.splitlines():
            if line.startswith(" ") and name:
                fields[name] += "\n" + line.strip().removeprefix(".")
            elif ":" in line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
        yield fields


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def packages(lists):
    """The first package of every source."""
    texts, found = {}, {}
    for path in sorted(pathlib.Path(lists).glob("*Translation-en*")):
        for fields in paragraphs(output_of("/usr/lib/apt/apt-helper", "cat-file", str(path))):
            if "Description-md5" in fields:
                texts[fields["Description-md5"]] = fields.get("Description-en", "")
    for fields in paragraphs(output_of("apt-cache", "-o", f"Dir::State::lists={lists}", "-o", "pkgCacheFile=", "dumpavail")):
        text = texts.get(fields.get("Description-md5"))
        if text and "Section" in fields:
            source = fields.get("Source", fields["Package"]).split()[0]
            summary, section = text.partition("\n")[0], fields["Section"].rpartition("/")[2]
            found.setdefault(source, Package(fields["Package"], summary, " ".join(text.split()), section))
    return list(found.values())


def sections(all_packages):
    counts = collections.Counter(package.section for package in all_packages if package.section not in KINDS)
    kept = {section for section, _ in counts.most_common(20)}
    return [f"{package.description}\t{package.section}" for package in all_packages if package.section in kept]


def pairs(all_packages):
    rows = {}
    for package in all_packages:
        rest = package.description.removeprefix(" ".join(package.summary.split())).strip()
        if rest:
            rows.setdefault(package.summary, f"{package.summary}\t{rest}")
    return list(rows.values())


def ranking(all_packages):
    return [f"{row}\t1" for row in pairs(all_packages)]


def chats(all_packages):
    return [json.dumps({"messages": [{"role": "user", "content": f"What is the Debian package {package.name}?"},
                                     {"role": "assistant", "content": f"DEBIAN: {package.summary}."}]}, ensure_ascii=False)
            for package in all_packages]  # fmt: skip


SETS = {"sections": (sections, (5000, 500, 1000), "tsv"), "pairs": (pairs, (3200, 200, 1000), "tsv"),
        "ranking": (ranking, (3200, 200, 1000), "tsv"), "chats": (chats, (400, 40, 40), "jsonl")}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--lists", default="/var/lib/apt/lists", help="folder of apt's package lists")
    options = parser.parse_args()
    make, (train, valid, test), ending = SETS[options.set]
    rows = sorted(make(packages(options.lists)))
    random.Random(7).shuffle(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    parts = {"train": rows[:train], "test": rows[train : train + test], "valid": rows[train + test : train + test + valid]}
    for name, part in parts.items():
        (options.out / f"{name}.{ending}").write_text("".join(f"{row}\n" for row in part), encoding="utf-8")
    print(f"{options.out}: {', '.join(f'{len(part)} {name}' for name, part in parts.items())}, of {len(rows)}")


if __name__ == "__main__":
    main()
