#!/usr/bin/env python3
"""English-Spanish verse pairs (public domain): King James Version and Reina-Valera 1909.

  python3 tools/corpora/bible_parallel.py --out data     writes data/bible-en-es.{train,valid,test}.tsv

Both SWORD modules share one versification, so the same place in both is the same verse. Whole books are held out,
and no sentence of a later set occurs in an earlier one.
"""

import common
import sword


def aligned(source, target):
    """Pairs by book, {book: [(source, target)]}, from the entries of two modules with one versification."""
    translations = {(e.testament, e.index): e for e in target if not e.is_heading()}
    groups = {}
    for entry in source:
        other = translations.get((entry.testament, entry.index))
        if entry.is_heading() or other is None:
            continue
        if other.book != entry.book:
            raise common.CorpusError(f"the modules are not aligned: {entry.testament} entry {entry.index} is in "
                                     f"{entry.book} and in {other.book}")
        pair = (entry.text(), other.text())
        if all(pair):
            groups.setdefault(entry.book, []).append(pair)
    return groups


def build(arguments, work):
    packages = [common.fetch_package(name, work, arguments.debs)
                for name in ("sword-text-kjv", "sword-text-sparv")]
    english, spanish = (sword.read_module(sword.module_folder(package)) for package in packages)
    groups = aligned(english, spanish)
    output = common.Output(arguments.out, "bible-en-es", "King James Version and Reina-Valera 1909, verse by verse",
                           "public domain", packages)
    held_out = common.write_parallel(output, "bible-en-es", groups, arguments.seed)
    output.finish(aligned_pairs=sum(map(len, groups.values())), seed=arguments.seed, held_out=held_out)


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which books are held out (default 1)")
    common.main(build, parser)


if __name__ == "__main__":
    main()
