"""Reads the lazy-load database of an R package (Rdata.rdb with its index Rdata.rdx).

Layout: the index is a gzip- or zlib-compressed R object: list(variables = list(name = c(offset, length)), …). A
record of the database is a big-endian u32, the raw length, then a zlib stream of one serialised R object.
Serialised objects are R's XDR format, versions 2 and 3 (R Internals, "Serialization Formats").
"""

import gzip
import struct
import zlib

from common import CorpusError

SYMBOL, PAIRLIST, CHARSXP, LOGICAL, INTEGER, REAL, STRINGS, LIST = 1, 2, 9, 10, 13, 14, 16, 19
REFERENCE, NIL = 0xFF, 0xFE
HAS_ATTRIBUTES, HAS_TAG = 0x200, 0x400
LATIN1 = 1 << 2


class Unserializer:
    """One pass over the bytes; vectors become Python lists, named lists dicts."""

    def __init__(self, data):
        self.data, self.at, self.symbols = data, 0, []
        if self.take(2) != b"X\n":
            raise CorpusError("R object: not in XDR format")
        version, _, _ = self.integer(), self.integer(), self.integer()
        if version not in (2, 3):
            raise CorpusError(f"R object: serialisation version {version} is not known")
        if version == 3:
            self.take(self.integer())  # the native encoding

    def take(self, count):
        if count < 0 or self.at + count > len(self.data):
            raise CorpusError(f"R object: cut short at byte {self.at}")
        self.at += count
        return self.data[self.at - count:self.at]

    def integer(self):
        return struct.unpack(">i", self.take(4))[0]

    def item(self):
        flags = self.integer()
        kind = flags & 0xFF
        if kind == NIL:
            return None
        if kind == REFERENCE:
            return self.symbols[(flags >> 8 or self.integer()) - 1]
        if kind == SYMBOL:
            self.symbols.append(self.item())
            return self.symbols[-1]
        if kind == PAIRLIST:
            return self.pairlist(flags)
        if kind == CHARSXP:
            length = self.integer()
            encoding = "latin-1" if flags >> 12 & LATIN1 else "utf-8"
            return None if length == -1 else self.take(length).decode(encoding)
        value = self.vector(kind)
        attributes = dict(self.item() or []) if flags & HAS_ATTRIBUTES else {}
        names = attributes.get("names")
        return dict(zip(names, value)) if names else value

    def pairlist(self, flags):
        pairs = []
        while flags & 0xFF == PAIRLIST:
            if flags & HAS_ATTRIBUTES:
                self.item()
            tag = self.item() if flags & HAS_TAG else None
            pairs.append((tag, self.item()))
            flags = self.integer()
        return pairs

    def vector(self, kind):
        count = self.integer()
        if kind in (STRINGS, LIST):
            return [self.item() for _ in range(count)]
        if kind in (LOGICAL, INTEGER):
            return list(struct.unpack(f">{count}i", self.take(4 * count)))
        if kind == REAL:
            return list(struct.unpack(f">{count}d", self.take(8 * count)))
        raise CorpusError(f"R object: type {kind} at byte {self.at} is not known")


def unserialize(data):
    return Unserializer(data).item()


def read_database(rdx, rdb):
    """All variables of a lazy-load database, {name: value}."""
    index = unserialize(gzip.decompress(rdx) if rdx[:2] == b"\x1f\x8b" else zlib.decompress(rdx))
    variables = {}
    for name, (offset, length) in index["variables"].items():
        raw = struct.unpack_from(">I", rdb, offset)[0]
        data = zlib.decompress(rdb[offset + 4:offset + length])
        if len(data) != raw:
            raise CorpusError(f"R database: {name} has {len(data)} bytes, its header says {raw}")
        variables[name] = unserialize(data)
    return variables
