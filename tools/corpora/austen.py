#!/usr/bin/env python3
"""The six novels of Jane Austen (public domain), from the Debian package r-cran-janeaustenr.

  python3 tools/corpora/austen.py --out data      writes data/austen.txt and data/austen.manifest.json
"""

import common
import rdata

PACKAGE = "r-cran-janeaustenr"


def novels_text(novels):
    """Lines joined, an empty line between novels, in the order of the package (by title)."""
    return "\n".join("".join(line + "\n" for line in novels[name]) for name in sorted(novels))


def build(arguments, work):
    package = common.fetch_package(PACKAGE, work, arguments.debs)
    folder = package.find("usr/lib/R/site-library/janeaustenr/data")
    novels = rdata.read_database((folder / "Rdata.rdx").read_bytes(), (folder / "Rdata.rdb").read_bytes())
    output = common.Output(arguments.out, "austen", "The six novels of Jane Austen", "public domain", [package])
    output.write("austen.txt", novels_text(novels), novels=sorted(novels))
    output.finish()


if __name__ == "__main__":
    common.main(build, common.parser(__doc__))
