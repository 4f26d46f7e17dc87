#!/usr/bin/env python3
"""An English Bible (public domain) from a Debian SWORD package, one verse to a line.

  python3 tools/corpora/bible.py --translation web --out data     modern English (default)
  python3 tools/corpora/bible.py --translation kjv --out data     King James
"""

import itertools

import common
import sword

TRANSLATIONS = {"web": ("sword-text-web", "World English Bible (the name is a trademark)"),
                "kjv": ("sword-text-kjv", "King James Version")}


def verses_text(entries):
    """Verses as lines, an empty line between books. Returns (text, verses, books)."""
    verses = [(entry.book, entry.text()) for entry in entries if not entry.is_heading()]
    books = [[text for _, text in group if text] for _, group in itertools.groupby(verses, key=lambda v: v[0])]
    books = [book for book in books if book]
    text = "\n".join("".join(verse + "\n" for verse in book) for book in books)
    return text, sum(map(len, books)), len(books)


def build(arguments, work):
    name, title = TRANSLATIONS[arguments.translation]
    package = common.fetch_package(name, work, arguments.debs)
    text, verses, books = verses_text(sword.read_module(sword.module_folder(package)))
    output = common.Output(arguments.out, arguments.translation, title, "public domain", [package])
    output.write(f"{arguments.translation}.txt", text, verses=verses, books=books)
    output.finish()


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--translation", choices=sorted(TRANSLATIONS), default="web")
    common.main(build, parser)


if __name__ == "__main__":
    main()
