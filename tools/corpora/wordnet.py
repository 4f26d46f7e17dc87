#!/usr/bin/env python3
"""Definitions of WordNet with their lexicographer class (45 labels such as noun.animal), for classifiers.

  python3 tools/corpora/wordnet.py --out data     writes data/wordnet.{train,valid,test}.tsv: gloss TAB class

Examples in quotation marks are cut off. Of equal glosses the first is kept; the sets are drawn at random.
"""

import random

import common

CLASSES = ("adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body "
           "noun.cognition noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive "
           "noun.object noun.person noun.phenomenon noun.plant noun.possession noun.process noun.quantity "
           "noun.relation noun.shape noun.state noun.substance noun.time verb.body verb.change verb.cognition "
           "verb.communication verb.competition verb.consumption verb.contact verb.creation verb.emotion verb.motion "
           "verb.perception verb.possession verb.social verb.stative verb.weather adj.ppl").split()


def glosses(lines):
    """(gloss, class) of the lines of a data.* file."""
    for line in lines:
        head, bar, gloss = line.partition(" | ")
        if line.startswith("  ") or not bar:  # the licence
            continue
        fields = head.split(" ", 2)
        yield common.clean_line(gloss.partition('; "')[0]), CLASSES[int(fields[1])]


def build(arguments, work):
    package = common.fetch_package("wordnet-base", work, arguments.debs)
    found = {}
    for part in ("noun", "verb", "adj", "adv"):
        with open(package.find(f"usr/share/wordnet/data.{part}"), encoding="utf-8") as lines:
            for gloss, label in glosses(lines):
                if gloss:
                    found.setdefault(gloss, label)
    pairs = sorted(found.items())
    random.Random(arguments.seed).shuffle(pairs)
    output = common.Output(arguments.out, "wordnet", "WordNet 3.0: glosses and lexicographer classes",
                           "WordNet (permissive)", [package])
    held = len(pairs) // 20
    for name, part in (("test", pairs[:held]), ("valid", pairs[held:2 * held]), ("train", pairs[2 * held:])):
        output.write(f"wordnet.{name}.tsv", "".join(f"{gloss}\t{label}\n" for gloss, label in part), pairs=len(part))
    output.finish(seed=arguments.seed, classes=len(set(found.values())))


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which glosses are held out (default 1)")
    common.main(build, parser)


if __name__ == "__main__":
    main()
