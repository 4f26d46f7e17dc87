#!/usr/bin/env python3
"""Verses of two English translations (public domain): King James TAB World English Bible, for embedders.

  python3 tools/corpora/bible_versions.py --out data     writes data/kjv-web.{ot,nt}.tsv

The two modules count verses differently, so verses are matched by book, chapter and verse. Of equal lines the first
is kept; a line of the New Testament that the Old has on either side is left out.
"""

import common
import sword


def numbered(entries):
    """{(book, chapter, verse): (testament, text)}."""
    verses, book, chapter, verse = {}, None, 0, 0
    for entry in entries:
        if entry.book != book:
            book, chapter = entry.book, 0
        if entry.is_heading():
            chapter, verse = chapter + 1, 0
            continue
        verse += 1
        verses[book, chapter, verse] = entry.testament, entry.text()
    return verses


def pairs(kjv, web):
    """{"ot": [(kjv, web)], "nt": [...]}."""
    other, sets = numbered(web), {"ot": [], "nt": []}
    for place, (testament, text) in numbered(kjv).items():
        if place in other:
            sets[testament].append((text, other[place][1]))
    sets = {name: common.unique_pairs(all_pairs) for name, all_pairs in sets.items()}
    seen = {text for pair in sets["ot"] for text in pair}
    sets["nt"] = [pair for pair in sets["nt"] if not seen.intersection(pair)]
    return sets


def build(arguments, work):
    packages = [common.fetch_package(name, work, arguments.debs) for name in ("sword-text-kjv", "sword-text-web")]
    sets = pairs(*(sword.read_module(sword.module_folder(package)) for package in packages))
    output = common.Output(arguments.out, "kjv-web", "King James Version and World English Bible, verse by verse",
                           "public domain (World English Bible is a trademark)", packages)
    for name, lines in sets.items():
        output.write(f"kjv-web.{name}.tsv", "".join(f"{a}\t{b}\n" for a, b in lines), pairs=len(lines))
    output.finish()


if __name__ == "__main__":
    common.main(build, common.parser(__doc__))
