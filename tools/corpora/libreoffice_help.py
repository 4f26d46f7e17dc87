#!/usr/bin/env python3
"""Sentence pairs from the LibreOffice help (MPL-2.0), English and another language.

  python3 tools/corpora/libreoffice_help.py --language fr --out data     writes data/lohelp-en-fr.*.tsv

Paragraphs and headings carry the same id in every language, so the pairs are exact. Whole files are held out, and
no sentence of a later set occurs in an earlier one. `apt-cache search libreoffice-help` lists the languages.
"""

from html.parser import HTMLParser

import common

BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}


class Segments(HTMLParser):
    """The text of every <p> and <h1>…<h6> whose id looks like par_id123 or hd_id123, {id: text}."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.segments, self.open_id, self.parts = {}, None, []

    def handle_starttag(self, tag, attributes):
        if tag in BLOCKS:
            self.close_segment()
            name = dict(attributes).get("id") or ""
            self.open_id = name if "_id" in name else None
        elif tag == "br":
            self.parts.append(" ")

    def handle_endtag(self, tag):
        if tag in BLOCKS:
            self.close_segment()

    def handle_data(self, data):
        if self.open_id:
            self.parts.append(data)

    def close_segment(self):
        text = common.clean_line("".join(self.parts))
        if self.open_id and text:
            self.segments.setdefault(self.open_id, text)
        self.open_id, self.parts = None, []


def segments_of(markup):
    reader = Segments()
    reader.feed(markup)
    reader.close()
    reader.close_segment()
    return reader.segments


def read_help(folder):
    """{file: {id: text}} of all help pages below a language's folder."""
    return {str(path.relative_to(folder)): segments_of(path.read_text(encoding="utf-8", errors="strict"))
            for path in sorted((folder / "text").rglob("*.html"))}


def aligned(english, other):
    """Pairs by file; pairs that are equal were never translated and are dropped."""
    groups = {}
    for file, segments in english.items():
        translated = other.get(file, {})
        pairs = [(text, translated[key]) for key, text in segments.items()
                 if key in translated and text != translated[key]]
        if pairs:
            groups[file] = pairs
    return groups


def build(arguments, work):
    language = arguments.language
    packages = [common.fetch_package(f"libreoffice-help-{name}", work, arguments.debs)
                for name in ("en-us", language)]
    folders = [next(p for p in package.find("usr/share/libreoffice/help").iterdir() if (p / "text").is_dir())
               for package in packages]
    groups = aligned(*map(read_help, folders))
    prefix = f"lohelp-en-{language}"
    output = common.Output(arguments.out, prefix, f"LibreOffice help, English and {language}", "MPL-2.0", packages)
    held_out = common.write_parallel(output, prefix, groups, arguments.seed)
    everything = [pair for pairs in groups.values() for pair in pairs]
    output.finish(aligned_pairs=len(everything), unique_pairs=len(common.unique_pairs(everything)),
                  seed=arguments.seed, held_out=held_out)


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--language", required=True, metavar="CODE", help="as in the package's name: fr, de, pt-br …")
    parser.add_argument("--seed", type=int, default=1, help="which files are held out (default 1)")
    common.main(build, parser)


if __name__ == "__main__":
    main()
