"""A cache tier behind the GPU: the KV of one prefix, layer by layer, in one file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from depthchart.files import whole_file

__all__ = ["LayerStore", "StoredLayer"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """Where a layer lies in its file: ``offset`` and ``nbytes`` in bytes after the file's first line."""

    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str


class LayerStore:
    """Files ``<key>.layers`` in a folder: one line of JSON that describes the layers, then their bytes.

    ``bytes_read`` counts what this process has read of layers.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder, self.bytes_read = Path(folder), 0

    def save(self, key: str, layers: Sequence[Tensor]) -> Path:
        """Write all layers of a prefix; the file is whole or not there. Raises ValueError for another dtype."""
        described, offset = [], 0
        for at, layer in enumerate(layers):
            if layer.dtype not in _NAMES:
                raise ValueError(f"layers[{at}] is {layer.dtype}; legal are {', '.join(_DTYPES)}")
            size = layer.numel() * layer.element_size()
            described.append(StoredLayer(offset, size, tuple(layer.shape), _NAMES[layer.dtype]))
            offset += size
        path = self._path(key)
        with whole_file(path) as draft, draft.open("wb") as file:
            file.write(
                json.dumps([[s.offset, s.nbytes, s.shape, s.dtype] for s in described]).encode() + b"\n"
            )
            for layer in layers:
                file.write(_bytes_of(layer.detach().cpu()).numpy().tobytes())
        return path

    def layers(self, key: str) -> tuple[StoredLayer, ...]:
        """What is stored under a key. Raises FileNotFoundError, naming the keys there are."""
        with self._open(key) as file:
            rows = json.loads(file.readline())
        return tuple(StoredLayer(a, b, tuple(shape), dtype) for a, b, shape, dtype in rows)

    def read(self, key: str, layer: int) -> Tensor:
        """One layer's bytes, uint8 [nbytes]. Raises OSError where the file is shorter than it says."""
        stored = self.layers(key)[layer]
        with self._open(key) as file:
            file.readline()
            file.seek(stored.offset, os.SEEK_CUR)
            data = file.read(stored.nbytes)
        if len(data) < stored.nbytes:
            raise OSError(
                f"{self._path(key)}: layer {layer} has {len(data)} of {stored.nbytes} bytes; the file is damaged"
            )
        self.bytes_read += len(data)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def _path(self, key: str) -> Path:
        if not key or any(sign in key for sign in "/\\\0") or key.startswith("."):
            raise ValueError(f"key={key!r}: must be a plain file name, such as 'prefix-1'")
        return self.folder / f"{key}.layers"

    def _open(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except FileNotFoundError:
            known = sorted(path.stem for path in self.folder.glob("*.layers"))
            raise FileNotFoundError(
                f"key={key!r}: is not stored; there are {', '.join(known) or 'none'}"
            ) from None


def as_layer(data: Tensor, stored: StoredLayer) -> Tensor:
    """uint8 bytes as the layer's own dtype and shape, without a copy."""
    return data.view(_DTYPES[stored.dtype]).view(stored.shape)


def _bytes_of(layer: Tensor) -> Tensor:
    return layer.contiguous().flatten().view(torch.uint8)
