"""Reads the text of a SWORD module with the zText driver (compressed by book, OSIS markup).

A module is a folder with, for each testament (ot, nt): `.bzs`, 12-byte entries (u32 offset, compressed size, raw
size) of the blocks; `.bzv`, 10-byte entries (u32 block, u32 offset, u16 length), one per verse and heading; `.bzz`,
the zlib streams. All little-endian. Entries come in the order of the versification: an empty one, the testament's
heading, then per book its heading and per chapter its heading and verses.
"""

import html
import re
import struct
import zlib

from common import CorpusError, clean_line

# Whole elements whose content is not the verse: notes and headings. They may nest.
DROPPED = ("note", "title")
# A tag that opens (sID) a book or chapter; the last verse holds the tags that close (eID) them.
DIVISION = re.compile(r'<(?:div|chapter)\b(?=[^>]*\bsID=)[^>]*\bosisID="([^".]+)')


class Entry:
    """One entry of a module: the book it belongs to, its place in the module and its OSIS source."""

    def __init__(self, testament, index, book, source):
        self.testament, self.index, self.book, self.source = testament, index, book, source

    def text(self):
        return plain_text(self.source)

    def is_heading(self):
        """Headings open a book or chapter; they hold no verse."""
        return DIVISION.search(self.source) is not None


def plain_text(source):
    """The verse: notes and titles dropped, tags removed, entities resolved, white space joined."""
    for name in DROPPED:
        inner = re.compile(rf"<{name}\b[^>]*(?<!/)>(?:(?!<{name}\b).)*?</{name}>", re.S)
        while inner.search(source):
            source = inner.sub(" ", source)
    source = re.sub(r"<[^>]*>", "", source)
    return clean_line(html.unescape(source).replace("\u00b6", " "))


def read_testament(folder, testament):
    """The entries of one testament as (block, source)."""
    blocks = []
    compressed = (folder / f"{testament}.bzz").read_bytes()
    sizes = (folder / f"{testament}.bzs").read_bytes()
    places = (folder / f"{testament}.bzv").read_bytes()
    if len(sizes) % 12 or len(places) % 10:
        raise CorpusError(f"{folder}: {testament} index has a broken entry")
    for offset, size, raw in struct.iter_unpack("<III", sizes):
        block = zlib.decompress(compressed[offset:offset + size])
        if len(block) != raw:
            raise CorpusError(f"{folder}: block {len(blocks)} of {testament} has {len(block)} bytes, not {raw}")
        blocks.append(block)
    for block, offset, size in struct.iter_unpack("<IIH", places):
        if size and (block >= len(blocks) or offset + size > len(blocks[block])):
            raise CorpusError(f"{folder}: an entry of {testament} lies outside its block")
        yield block, blocks[block][offset:offset + size].decode("utf-8") if size else ""


def read_module(folder):
    """All entries with a place in a book, in order. `book` is the OSIS name, such as Gen."""
    for testament in ("ot", "nt"):
        if not (folder / f"{testament}.bzv").exists():
            continue
        book = None
        for index, (_, source) in enumerate(read_testament(folder, testament)):
            division = DIVISION.search(source)
            if division:
                book = division.group(1)
            if book is not None:
                yield Entry(testament, index, book, source)


def module_folder(package):
    return package.find("usr/share/sword/modules/texts/ztext/*")
