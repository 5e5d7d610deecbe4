"""Safetensors headers: what a weight file holds and how long it must be, from its first bytes alone.

Format: 8 bytes little endian header length, the header as JSON, then the tensors
(https://github.com/huggingface/safetensors, "Format").
"""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from exo_celery.errors import ModelFolderError

MAX_HEADER_BYTES: Final = 100_000_000  # what the format's own reader accepts
BITS: Final = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip


class TruncatedHeaderError(ModelFolderError):
    """The file ends inside its header: the rest is missing, what is there may be right."""


@dataclass(frozen=True)
class Header:
    """A parsed header: its own length, and `name → {dtype, shape, data_offsets}`."""

    length: int
    tensors: dict[str, dict[str, Any]]

    @property
    def file_bytes(self) -> int:
        """How long the whole file must be."""
        return 8 + self.length + max((tensor["data_offsets"][1] for tensor in self.tensors.values()), default=0)

    def tensor_bytes(self, name: str) -> int:
        """How many bytes one tensor takes."""
        start, end = self.tensors[name]["data_offsets"]
        return int(end - start)


def read_header(path: Path) -> Header:
    """Read the header of a safetensors file.

    Raises:
        TruncatedHeaderError: the file ends before its header does.
        ModelFolderError: the content is something else; the message says what it looks like.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        first = file.read(8)
        if len(first) < 8:
            raise TruncatedHeaderError(f"{path.name}: only {len(first)} bytes")
        (length,) = struct.unpack("<Q", first)
        if not 2 <= length <= MAX_HEADER_BYTES:
            raise ModelFolderError(f"{path.name}: {foreign(first + file.read(56))}")
        raw = file.read(length)
    if len(raw) < length:
        raise TruncatedHeaderError(f"{path.name}: ends inside its header, at {8 + len(raw)} of {8 + length} bytes")
    return Header(length, parse(raw, path.name))


def parse(raw: bytes, name: str) -> dict[str, dict[str, Any]]:
    """Parse header JSON into tensors, checked far enough that lengths can be trusted."""
    try:
        tensors = json.loads(raw)
        tensors.pop("__metadata__", None)
        for tensor in tensors.values():
            start, end = tensor["data_offsets"]
            bits = BITS.get(tensor["dtype"])
            if not 0 <= start <= end or (bits and (end - start) * 8 != bits * prod(tensor["shape"])):
                raise ValueError(f"a tensor of shape {tensor['shape']} at bytes {start} to {end}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFolderError(f"{name}: its safetensors header is not valid ({error})") from error
    return dict(tensors)


def foreign(start: bytes) -> str:
    """Say what a file that is no safetensors file looks like."""
    head = start.lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer instead of the weights (run `git lfs pull`, or download the model again)"
    if head.startswith((b"<!doctype", b"<html")):
        return "an HTML page instead of the weights"
    return "not a safetensors file"
