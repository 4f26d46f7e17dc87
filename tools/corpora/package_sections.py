#!/usr/bin/env python3
"""Writes Debian's package descriptions with their sections, a set to train a classifier on and one to test it.

    apt-get update -o Acquire::Languages=en
    tools/corpora/package_sections.py train.tsv test.tsv

One package of every source, so that no description has a near copy on the other side; the 20 largest sections that are subjects,
not programming languages or kinds of packages; 5,000 and 1,000 texts, the same for the same package lists.
"""

import argparse
import collections
import pathlib
import random
import subprocess

KINDS = set("perl python libdevel golang javascript rust ruby java gnu-r haskell lisp php ocaml libs fonts doc debug oldlibs "
            "localization introspection".split())


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--lists", default="/var/lib/apt/lists", help="folder of apt's package lists")
    options = parser.parse_args()
    texts = {}
    for path in sorted(pathlib.Path(options.lists).glob("*Translation-en*")):
        for fields in paragraphs(output_of("/usr/lib/apt/apt-helper", "cat-file", str(path))):
            if "Description-md5" in fields:
                texts[fields["Description-md5"]] = " ".join(fields.get("Description-en", "").split())
    sections = {}
    for fields in paragraphs(output_of("apt-cache", "-o", f"Dir::State::lists={options.lists}", "-o", "pkgCacheFile=", "dumpavail")):
        text = texts.get(fields.get("Description-md5"))
        if text and "Section" in fields:
            source = fields.get("Source", fields["Package"]).split()[0]
            sections.setdefault(source, (text, fields["Section"].rpartition("/")[2]))
    counts = collections.Counter(section for _, section in sections.values() if section not in KINDS)
    kept = {section for section, _ in counts.most_common(20)}
    rows = sorted(row for row in sections.values() if row[1] in kept)
    random.Random(7).shuffle(rows)
    for path, part in (options.train, rows[:5000]), (options.test, rows[5000:6000]):
        pathlib.Path(path).write_text("".join(f"{text}\t{section}\n" for text, section in part), encoding="utf-8")
    print(f"{len(sections)} descriptions, {len(rows)} of {', '.join(sorted(kept))}")


if __name__ == "__main__":
    main()
