"""Tests of the corpus decoders on small generated inputs; no network.

  python3 tools/corpora/corpora_test.py
"""

import gzip
import hashlib
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import austen
import bible
import bible_parallel
import common
import gettext_catalogues
import libreoffice_help
import rdata
import sword


def i32(*values):
    return struct.pack(f">{len(values)}i", *values)


def charsxp(text):
    data = text.encode()
    return i32(0x40009, len(data)) + data


def strings(values, flags=16):
    return i32(flags, len(values)) + b"".join(map(charsxp, values))


def names(values):
    """The attribute list that names the items of a vector."""
    return i32(0x402, 1) + charsxp("names") + strings(values) + i32(0xFE)


def named_list(items):
    return i32(0x213, len(items)) + b"".join(items.values()) + names(list(items))


def serialised(item):
    return b"X\n" + i32(3, 0x40201, 0x30500, 5) + b"UTF-8" + item


def record(item):
    raw = serialised(item)
    return struct.pack(">I", len(raw)) + zlib.compress(raw)


def database(variables):
    rdb, places = b"", {}
    for name, item in variables.items():
        data = record(item)
        places[name] = i32(13, 2, len(rdb), len(data))
        rdb += data
    index = named_list({"variables": named_list(places), "references": i32(0x13, 0), "compressed": i32(10, 1, 1)})
    return gzip.compress(serialised(index)), rdb


class RDataTest(unittest.TestCase):
    def test_reads_every_variable(self):
        rdx, rdb = database({"emma": strings(["EMMA", "", "ünï"]), "abbey": strings(["N"])})
        self.assertEqual(rdata.read_database(rdx, rdb), {"emma": ["EMMA", "", "ünï"], "abbey": ["N"]})
        self.assertEqual(rdata.read_database(zlib.compress(gzip.decompress(rdx)), rdb)["abbey"], ["N"])

    def test_novels_in_order_of_title(self):
        self.assertEqual(austen.novels_text({"b": ["B", "2"], "a": ["A"]}), "A\n\nB\n2\n")

    def test_missing_strings_latin1_and_references(self):
        item = i32(16, 2, 0x9, -1) + i32(0x4009, 1) + b"\xe9"
        self.assertEqual(rdata.unserialize(serialised(item)), [None, "é"])
        twice = i32(0x402, 1) + charsxp("k") + i32(13, 1, 7) + i32(0x402, 0x1FF) + i32(13, 1, 8) + i32(0xFE)
        self.assertEqual(rdata.unserialize(serialised(twice)), [("k", [7]), ("k", [8])])

    def test_damage_is_reported(self):
        whole = serialised(strings(["abc"]))
        for size in range(len(whole)):
            with self.assertRaises((common.CorpusError, struct.error)):
                rdata.unserialize(whole[:size])
        with self.assertRaisesRegex(common.CorpusError, "type 99"):
            rdata.unserialize(serialised(i32(99, 1)))
        rdx, rdb = database({"x": strings(["abc"])})
        with self.assertRaisesRegex(common.CorpusError, "header says"):
            rdata.read_database(rdx, struct.pack(">I", 3) + rdb[4:])


def write_module(folder, testament, blocks):
    """blocks: one list of entries per book, the first one the testament's heading."""
    sizes, places, streams = b"", b"\0" * 10, b""
    for number, entries in enumerate(blocks):
        text = b""
        for entry in entries:
            data = entry.encode()
            places += struct.pack("<IIH", number, len(text), len(data))
            text += data
        stream = zlib.compress(text)
        sizes += struct.pack("<III", len(streams), len(stream), len(text))
        streams += stream
    for suffix, data in (("bzs", sizes), ("bzv", places), ("bzz", streams)):
        (folder / f"{testament}.{suffix}").write_bytes(data)


def book(name, verses):
    return [f'<div canonical="true" osisID="{name}" sID="g1" type="book"/> <title>The Book</title>',
            f'<chapter n="1" osisID="{name}.1" sID="{name}.1"/> ',
            *verses[:-1], verses[-1] + f'<chapter eID="{name}.1" osisID="{name}.1"/>']


class SwordTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def module(self, name, blocks):
        folder = self.folder / name
        folder.mkdir()
        write_module(folder, "ot", [["<milestone/>"], *blocks])
        return folder

    def test_plain_text(self):
        source = ('<w lemma="x">In</w> the<note n="1">a <note>b</note> c</note> beginning &amp; <title>T</title>'
                  '<transChange type="added">was</transChange>\u00b6  it<br/>.\n')
        self.assertEqual(sword.plain_text(source), "In the beginning & was it.")

    def test_verses_of_all_books(self):
        folder = self.module("m", [book("Gen", ["One.", "", "Two."]), book("Exod", ["Three é."])])
        text, verses, books = bible.verses_text(sword.read_module(folder))
        self.assertEqual(text, "One.\nTwo.\n\nThree é.\n")
        self.assertEqual((verses, books), (3, 2))

    def test_pairs_by_place(self):
        english = self.module("en", [book("Gen", ["One.", "Two.", "Three."]), book("Exod", ["Four."])])
        spanish = self.module("es", [book("Gen", ["Uno.", "", "Tres."]), book("Exod", ["Cuatro."])])
        groups = bible_parallel.aligned(sword.read_module(english), sword.read_module(spanish))
        self.assertEqual(groups, {"Gen": [("One.", "Uno."), ("Three.", "Tres.")], "Exod": [("Four.", "Cuatro.")]})

    def test_other_versification_is_refused(self):
        english = self.module("en", [book("Gen", ["One.", "Two."])])
        other = self.module("xx", [book("Tob", ["Uno.", "Dos."])])
        with self.assertRaisesRegex(common.CorpusError, "not aligned"):
            bible_parallel.aligned(sword.read_module(english), sword.read_module(other))

    def test_damage_is_reported(self):
        folder = self.module("m", [book("Gen", ["One."])])
        places = (folder / "ot.bzv").read_bytes()
        (folder / "ot.bzv").write_bytes(places + struct.pack("<IIH", 1, 10 ** 6, 5))
        with self.assertRaisesRegex(common.CorpusError, "outside its block"):
            list(sword.read_module(folder))
        (folder / "ot.bzv").write_bytes(places[:-1])
        with self.assertRaisesRegex(common.CorpusError, "broken entry"):
            list(sword.read_module(folder))


class HelpTest(unittest.TestCase):
    PAGE = ('<body><h1 id="hd_id1">Title</h1><p id="par_id2" class="x">One &lt;b&gt; <span>two</span><br>three</p>'
            '<p>no id</p><p id="other">no</p><p id="par_id3"> <img src="x"></p><p id="par_id4">same</p>'
            '<p id="par_id5">open<p id="par_id6">closed by the next</p><p id="par_id2">again</p></body>')

    def test_segments(self):
        self.assertEqual(libreoffice_help.segments_of(self.PAGE), {
            "hd_id1": "Title", "par_id2": "One <b> two three", "par_id4": "same", "par_id5": "open",
            "par_id6": "closed by the next"})

    def test_pairs_by_file_and_id(self):
        english = {"a.html": {"1": "Title", "2": "same", "3": "only here"}, "b.html": {"1": "x"}}
        french = {"a.html": {"2": "same", "1": "Titre"}, "c.html": {"1": "y"}}
        self.assertEqual(libreoffice_help.aligned(english, french), {"a.html": [("Title", "Titre")]})

    def test_files_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "text" / "deep" / "p.html"
            page.parent.mkdir(parents=True)
            page.write_text('<p id="par_id1">é</p>', encoding="utf-8")
            self.assertEqual(libreoffice_help.read_help(Path(folder)), {"text/deep/p.html": {"par_id1": "é"}})


class CatalogueTest(unittest.TestCase):
    def test_singular_strings_without_contexts(self):
        texts = [(b"", b"Language: de"), (b"menu\x04_Open", "Ö_ffnen".encode()), (b"%d file\0%d files", b"%d Datei\0%d Dateien")]
        for order in "<>":
            tables, strings = [], b""
            for side in zip(*texts):
                for text in side:
                    tables.append((len(text), 28 + 16 * len(texts) + len(strings)))
                    strings += text + b"\0"
            head = struct.pack(f"{order}7I", 0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, 0)
            data = head + b"".join(struct.pack(f"{order}2I", *place) for place in tables) + strings
            pairs = gettext_catalogues.catalogue(data)
            self.assertEqual(pairs, [("_Open", "Ö_ffnen"), ("%d file", "%d Datei")])

    def test_marks_of_access_keys_go(self):
        self.assertEqual(list(map(gettext_catalogues.cleaned, ["E_xit", "a\n b", "MERGE_HEAD_X"])), ["Exit", "a b", "MERGE_HEAD_X"])


class SplitTest(unittest.TestCase):
    def groups(self, count=40, size=25):
        return {f"book{g}": [(f"s{g}.{i}", f"t{g}.{i}") for i in range(size)] for g in range(count)}

    def test_groups_stay_whole_and_everything_is_used_once(self):
        groups = self.groups()
        parts = common.split_groups(groups, seed=1)
        self.assertEqual(sorted(sum((names for names, _ in parts.values()), [])), sorted(groups))
        for name, (books, pairs) in parts.items():
            self.assertEqual(sorted(pairs), sorted(sum((groups[b] for b in books), [])), name)
        for name in ("valid", "test"):
            self.assertTrue(0.03 <= len(parts[name][1]) / 1000 <= 0.08, name)
        self.assertEqual(parts, common.split_groups(groups, seed=1))
        self.assertNotEqual(parts, common.split_groups(groups, seed=2))

    def test_nothing_held_out_is_trained_on(self):
        groups = self.groups()
        for g, pairs in enumerate(groups.values()):
            pairs.append(("Chapter one", f"said {g} ways"))
            pairs.append((f"title {g}", "Capítulo"))
            pairs.append(pairs[0])
        parts = common.split_groups(groups, seed=3)
        for side in (0, 1):
            held = {pair[side] for name in ("valid", "test") for pair in parts[name][1]}
            self.assertFalse(held & {pair[side] for pair in parts["train"][1]})
            self.assertFalse({p[side] for p in parts["valid"][1]} & {p[side] for p in parts["test"][1]})
        pairs = parts["train"][1]
        self.assertEqual(len(pairs), len(set(pairs)))

    def test_too_few_groups(self):
        with self.assertRaisesRegex(common.CorpusError, "cannot split 1 groups"):
            common.split_groups({"a": [("x", "y")]}, seed=1)

    def test_cells_hold_no_separators(self):
        self.assertEqual(common.clean_line("  a\tb\n\n c\u2028d\x00e\u00a0f "), "a b c d e f")
        self.assertEqual(common.unique_pairs([("a", "b"), ("", "b"), ("a", "b"), ("a", "")]), [("a", "b")])


class OutputTest(unittest.TestCase):
    def test_manifest_describes_what_was_written(self):
        with tempfile.TemporaryDirectory() as folder:
            package = common.Package("p", "1.0-1", folder, "ab")
            output = common.Output(Path(folder) / "new", "c", "Title", "public domain", [package])
            output.write("c.txt", "é\nb\n", verses=2)
            output.finish(seed=1)
            data = (Path(folder) / "new" / "c.txt").read_bytes()
            manifest = json.loads((Path(folder) / "new" / "c.manifest.json").read_text())
            self.assertEqual(manifest["packages"], [{"package": "p", "version": "1.0-1", "deb_sha256": "ab"}])
            self.assertEqual(manifest["files"], [{"file": "c.txt", "bytes": 5, "characters": 4, "lines": 2, "verses": 2,
                                                  "sha256": hashlib.sha256(data).hexdigest()}])
            self.assertEqual(manifest["licence"], "public domain")
            self.assertEqual(manifest["seed"], 1)
            self.assertEqual(sorted(p.name for p in (Path(folder) / "new").iterdir()), ["c.manifest.json", "c.txt"])

    @unittest.skipUnless(shutil.which("dpkg-deb"), "needs dpkg-deb")
    def test_the_whole_way_from_a_package(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            data = folder / "pkg/usr/lib/R/site-library/janeaustenr/data"
            data.mkdir(parents=True)
            rdx, rdb = database({"emma": strings(["EMMA", "text"])})
            (data / "Rdata.rdx").write_bytes(rdx)
            (data / "Rdata.rdb").write_bytes(rdb)
            (folder / "pkg/DEBIAN").mkdir()
            (folder / "pkg/DEBIAN/control").write_text(
                "Package: r-cran-janeaustenr\nVersion: 9.9-1\nArchitecture: all\nMaintainer: x <x@x>\n"
                "Description: test\n")
            subprocess.run(["dpkg-deb", "--build", "--root-owner-group", str(folder / "pkg"),
                            str(folder / "r-cran-janeaustenr_9.9-1_all.deb")], check=True, capture_output=True)
            command = [sys.executable, str(Path(__file__).parent / "austen.py"), "--out", str(folder / "out")]
            subprocess.run([*command, "--debs", str(folder)], check=True, capture_output=True)
            self.assertEqual((folder / "out/austen.txt").read_text(), "EMMA\ntext\n")
            manifest = json.loads((folder / "out/austen.manifest.json").read_text())
            self.assertEqual(manifest["packages"][0]["version"], "9.9-1")
            failed = subprocess.run([*command, "--debs", str(folder / "out")], capture_output=True, text=True)
            self.assertEqual(failed.returncode, 1)
            self.assertRegex(failed.stderr, r"^austen.py: no r-cran-janeaustenr_\*\.deb in .*\n$")


if __name__ == "__main__":
    unittest.main()
