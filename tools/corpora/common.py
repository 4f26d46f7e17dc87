"""Helpers of the corpus tools: fetching a Debian package without root, writing files and the manifest.

Standard library only, Python 3.11. Each tool writes its text and a manifest.json that says which package and
version the text came from, under which licence, with counts and checksums.
"""

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path


class CorpusError(Exception):
    """Something the user can act on; printed as one line."""


class Package:
    """A Debian package unpacked into a folder."""

    def __init__(self, name, version, root, sha256):
        self.name, self.version, self.root, self.sha256 = name, version, Path(root), sha256

    def find(self, pattern):
        """The one file that matches a glob under the package's root."""
        found = sorted(self.root.glob(pattern))
        if len(found) != 1:
            raise CorpusError(f"{self.name} {self.version}: expected one file {pattern}, found {len(found)}")
        return found[0]

    def describe(self):
        return {"package": self.name, "version": self.version, "deb_sha256": self.sha256}


def run(command, cwd=None):
    try:
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise CorpusError(f"{command[0]} is not installed: this tool reads Debian packages") from None
    except subprocess.CalledProcessError as error:
        raise CorpusError(f"{' '.join(map(str, command))}: {error.stderr.strip() or error.returncode}") from None


def fetch_package(name, work, debs=None):
    """Downloads (or takes from the folder `debs`) and unpacks a package below `work`; needs no root."""
    work = Path(work)
    if debs:
        found = sorted(Path(debs).glob(f"{name}_*.deb"))
        if not found:
            raise CorpusError(f"no {name}_*.deb in {debs}")
        deb = found[-1]
    else:
        # apt drops to its own user when it can; a temporary folder is closed to that user.
        options = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
        try:
            run(["apt-get", "download", *options, name], cwd=work)
        except CorpusError as error:
            raise CorpusError(
                f"cannot fetch the Debian package {name}: run 'apt-get update' once as root and try again; "
                f"or download it elsewhere and pass --debs FOLDER\n  ({error})") from None
        deb = next(work.glob(f"{name}_*.deb"))
    root = work / name
    run(["dpkg-deb", "-x", str(deb), str(root)])
    version = run(["dpkg-deb", "-f", str(deb), "Version"]).strip()
    return Package(name, version, root, sha256(deb.read_bytes()))


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def write_atomic(path, data):
    """Writes bytes under a temporary name beside `path` and renames: no half-written corpus."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)


class Output:
    """A corpus in the making: texts, then the manifest last."""

    def __init__(self, folder, name, title, licence, packages):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.manifest = {"corpus": name, "title": title, "licence": licence,
                         "packages": [p.describe() for p in packages], "files": []}

    def write(self, file, text, **counts):
        data = text.encode("utf-8")
        write_atomic(self.folder / file, data)
        entry = {"file": file, "bytes": len(data), "characters": len(text), "lines": text.count("\n"),
                 **counts, "sha256": sha256(data)}
        self.manifest["files"].append(entry)
        print(f"{self.folder / file}: {len(data):,} bytes, {entry['lines']:,} lines")

    def finish(self, **facts):
        self.manifest.update(facts)
        path = self.folder / f"{self.name}.manifest.json"
        write_atomic(path, (json.dumps(self.manifest, indent=2, ensure_ascii=False) + "\n").encode())
        print(path)


def clean_line(text):
    """One line without tabs, runs of white space or control characters: a cell of a two-column file."""
    return re.sub(r"[\s\x00-\x1f\x7f\u2028\u2029]+", " ", text).strip()


def unique_pairs(pairs):
    """Drops empty pairs and every repetition of a pair, keeping the first."""
    seen, kept = set(), []
    for pair in pairs:
        if pair[0] and pair[1] and pair not in seen:
            seen.add(pair)
            kept.append(pair)
    return kept


def split_groups(groups, seed, valid_share=0.05, test_share=0.05):
    """Splits {group: pairs} into train, valid and test by whole groups, then removes from train and valid every
    pair whose source or target side also occurs in a later set, so that nothing held out was seen.

    Groups are drawn in an order that depends on the seed alone. Returns {set: (group names, pairs)}.
    """
    names = sorted(groups)
    random.Random(seed).shuffle(names)
    total = sum(len(groups[name]) for name in names)
    result = {"test": ([], []), "valid": ([], []), "train": ([], [])}
    shares = {"test": test_share, "valid": valid_share, "train": 1.0}
    for name in names:
        for part in ("test", "valid", "train"):
            # A group that would overshoot its set by half the set again goes elsewhere: books differ in size.
            room = shares[part] * total * 1.5
            if part == "train" or (len(result[part][1]) < shares[part] * total
                                   and len(result[part][1]) + len(groups[name]) <= room):
                result[part][0].append(name)
                result[part][1].extend(groups[name])
                break
    if not result["test"][1] or not result["valid"][1]:
        raise CorpusError(f"cannot split {len(names)} groups into train, valid and test")
    sources, targets = set(), set()
    for part in ("test", "valid", "train"):
        kept = [(s, t) for s, t in unique_pairs(result[part][1]) if s not in sources and t not in targets]
        result[part] = (sorted(result[part][0]), kept)
        sources.update(s for s, _ in kept)
        targets.update(t for _, t in kept)
    return result


def write_parallel(output, prefix, groups, seed):
    """Writes PREFIX.{train,valid,test}.tsv (source TAB target) and notes which groups went where."""
    parts = split_groups(groups, seed)
    held_out = {}
    for part in ("train", "valid", "test"):
        names, pairs = parts[part]
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        output.write(f"{prefix}.{part}.tsv", text, pairs=len(pairs), groups=len(names))
        if part != "train":
            held_out[part] = names
    return held_out


def parser(description):
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--out", required=True, metavar="FOLDER", help="where the text and its manifest go")
    result.add_argument("--debs", metavar="FOLDER", help="take .deb files from here instead of downloading")
    return result


def main(build, arguments):
    """Runs build(parsed arguments, work folder); a CorpusError is one line on stderr and exit status 1."""
    parsed = arguments.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="corpus-") as work:
            build(parsed, work)
    except (CorpusError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(1)
