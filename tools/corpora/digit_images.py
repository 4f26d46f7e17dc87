#!/usr/bin/env python3
"""Writes scikit-learn's 1,797 handwritten digits as PNG files: OUT/train, OUT/valid and OUT/test with a folder for each digit.

  tools/corpora/digit_images.py digits
"""

import pathlib
import struct
import sys
import zlib


def png(rows):
    """The file of a grey image."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def main(out):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(range(len(labels)), test_size=300, random_state=0, stratify=labels)
    train, valid = train_test_split(train, test_size=297, random_state=0, stratify=labels[train])
    for part, members in ("train", train), ("valid", valid), ("test", test):
        for number in members:
            folder = out / part / str(labels[number])
            folder.mkdir(parents=True, exist_ok=True)
            rows = [[round(value * 255 / 16) for value in row] for row in images[number].reshape(8, 8)]
            (folder / f"{number:04}.png").write_bytes(png(rows))
        print(f"{out / part}: {len(members)} images")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
