#!/usr/bin/env python3
"""Sentence pairs from the catalogues of Debian's programs: English and another language, each under its program's licence.

  python3 tools/corpora/gettext_catalogues.py --language de --out data     writes data/gettext-en-de.{train,valid,test}.tsv

The languages are those of the catalogues in the packages (/usr/share/locale). Every source string is on one side of the split only.
"""

import pathlib
import struct

import common

PACKAGES = ["aptitude-common", "darktable", "evolution-common", "evolution-data-server-common", "geany-common", "gimp-data", "git",
            "gnucash-common", "gnumeric-common", "gramps", "libgtk-3-common", "vlc-l10n"]  # fmt: skip


def catalogue(data):
    """The singular strings of a .mo file with their translations, [(source, target)]."""
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, sources, targets = struct.unpack_from(f"{order}3I", data, 8)

    def string(table, i):
        length, start = struct.unpack_from(f"{order}2I", data, table + 8 * i)
        return data[start : start + length].partition(b"\0")[0].decode()

    pairs = [(string(sources, i), string(targets, i)) for i in range(count)]
    return [(source.rpartition("\x04")[2], target) for source, target in pairs if source]


def cleaned(text):
    """One line without the mark of an access key; strings with several underscores are names of things."""
    return common.clean_line(text.replace("_", "") if text.count("_") == 1 else text)


def build(arguments, work):
    packages = [common.fetch_package(name, work, arguments.debs) for name in PACKAGES]
    groups = {}
    for package in packages:
        for path in sorted(pathlib.Path(package.root).glob(f"usr/share/locale/{arguments.language}/LC_MESSAGES/*.mo")):
            for pair in catalogue(path.read_bytes()):
                source, target = map(cleaned, pair)
                if source and target and source != target and len(source) <= 200:
                    groups.setdefault(source, [(source, target)])
    if not groups:
        raise common.CorpusError(f"no package has a catalogue in /usr/share/locale/{arguments.language}")
    prefix = f"gettext-en-{arguments.language}"
    output = common.Output(arguments.out, prefix, f"Catalogues of Debian's programs, English and {arguments.language}",
                           "each program's own", packages)  # fmt: skip
    common.write_parallel(output, prefix, groups, arguments.seed)
    output.finish(unique_sources=len(groups), seed=arguments.seed)


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--language", required=True, metavar="CODE", help="as in /usr/share/locale: de, fr, pt_BR …")
    parser.add_argument("--seed", type=int, default=1, help="which strings are held out (default 1)")
    common.main(build, parser)


if __name__ == "__main__":
    main()
