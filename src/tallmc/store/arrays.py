"""Arrays in .npz files, uncompressed and without pickles.

A file whose headers do not match its size is refused before any array is read.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.files import FileDigest, replaced, sum_of
from .files import StoreError, open_inside

_MOST_ARRAYS = 10_000
_DTYPE_KINDS = "biuf"
_LOCAL_HEADER = 30  # bytes of a ZIP entry before its name


def write_arrays(folder: Path, name: str, arrays: Mapping[str, np.ndarray]) -> FileDigest:
    """Write arrays under their names; a name may be any text without line breaks."""
    numbered = {f"{number}": np.asarray(values) for number, values in enumerate(arrays.values())}
    names = np.frombuffer("\n".join(arrays).encode(), np.uint8)
    with replaced(folder, name) as file:
        np.savez(file, allow_pickle=False, names=names, **numbered)
        file.seek(0)  # digest at the end, because ZIP archives are not written sequentially
        return sum_of(file)


def read_arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Read arrays written by `write_arrays`."""
    try:
        with open_inside(folder, name) as file, zipfile.ZipFile(file) as archive:
            entries = _checked_entries(folder, name, archive, os.fstat(file.fileno()).st_size)
            found = {
                entry.filename: _read_array(folder, f"{name}, {entry.filename}", file, entry)
                for entry in entries
            }
    except (OSError, zipfile.BadZipFile, EOFError, struct.error) as error:
        raise StoreError(folder, "hold readable files", f"{name}: {error}") from None
    names = found.pop("names.npy", np.zeros(0, np.uint8))
    try:
        text = names.astype(np.uint8).tobytes().decode()
    except UnicodeDecodeError:
        raise StoreError(folder, "name its arrays", name) from None
    labels = text.split("\n") if found else []
    if len(set(labels)) != len(found) or set(found) != {
        f"{number}.npy" for number in range(len(labels))
    }:
        raise StoreError(
            folder, "name its arrays", f"{len(labels)} names for {len(found)} arrays in {name}"
        )
    return {label: found[f"{number}.npy"] for number, label in enumerate(labels)}


def _checked_entries(
    folder: Path, name: str, archive: zipfile.ZipFile, file_size: int
) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    stored = all(
        entry.compress_type == zipfile.ZIP_STORED and entry.file_size == entry.compress_size
        for entry in entries
    )
    total = sum(entry.file_size for entry in entries)
    if len(entries) > _MOST_ARRAYS or not stored or total > file_size:
        raise StoreError(
            folder,
            "hold arrays that are not compressed",
            f"{name}: {len(entries)} entries, {total} bytes",
        )
    return entries


def _read_array(folder: Path, name: str, file: BinaryIO, entry: zipfile.ZipInfo) -> np.ndarray:
    """Read one array. Its header must account for every byte of the entry.

    Reads directly from the file, because `zipfile` would copy and checksum every byte again.
    """
    file.seek(entry.header_offset)
    name_length, extra_length = struct.unpack("<26xHH", file.read(_LOCAL_HEADER))
    start = entry.header_offset + _LOCAL_HEADER + name_length + extra_length
    file.seek(start)
    try:
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read_header(file)
    except ValueError as error:
        raise StoreError(folder, "hold NumPy arrays", f"{name}: {error}") from None
    if (
        dtype.kind not in _DTYPE_KINDS
        or dtype.hasobject
        or not dtype.isnative
        or any(length < 0 for length in shape)
    ):
        raise StoreError(folder, "hold numbers", f"{name}: {dtype} {shape}")
    count = math.prod(shape)
    if count * dtype.itemsize != start + entry.file_size - file.tell():
        sizes = f"{count * dtype.itemsize} bytes in {entry.file_size}"
        raise StoreError(folder, "hold arrays that match their headers", f"{name}: {sizes}")
    values = np.fromfile(file, dtype, count)
    if len(values) != count:
        raise StoreError(folder, "hold whole arrays", name)
    return values.reshape(shape, order="F" if fortran else "C")
