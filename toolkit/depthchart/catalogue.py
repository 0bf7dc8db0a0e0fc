"""Tables of ``data/`` as mappings by name: read on first use, an unknown name answered with the nearest."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TypeVar

from depthchart.datafiles import data_path

__all__ = ["Catalogue", "UnknownName"]

Entry = TypeVar("Entry")


class Catalogue(Mapping[str, Entry]):
    """Entries of one CSV by name, in the file's order.

    ``what`` is the word for an entry in messages ("model"), ``file`` the path below ``data/``, ``build`` makes an
    entry from a row, ``names`` gives the further names that find it. Names are compared in lower case and without
    an owner before a slash, so that a hub's ``Owner/Name`` is found too.
    """

    def __init__(
        self,
        what: str,
        file: str,
        build: Callable[[dict[str, str]], Entry],
        names: Callable[[dict[str, str]], list[str]] = lambda row: [],
    ) -> None:
        self._what, self._file, self._build, self._names = what, file, build, names
        self._entries: dict[str, Entry] = {}
        self._aliases: dict[str, str] = {}

    def __getitem__(self, name: str) -> Entry:
        self._load()
        key = _plain(name)
        key = self._aliases.get(key, key)
        if key not in self._entries:
            raise UnknownName(self._what, name, [*self._entries, *self._aliases], list(self._entries))
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        self._load()
        return isinstance(name, str) and (_plain(name) in self._entries or _plain(name) in self._aliases)

    def _load(self) -> None:
        if self._entries:
            return
        entries: dict[str, Entry] = {}
        aliases: dict[str, str] = {}
        path = data_path(self._file)
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                try:
                    entries[row["name"]] = self._build(row)
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"{path}, line {number}: {error}") from error
                aliases |= {_plain(alias): row["name"] for alias in self._names(row)}
        self._aliases = {alias: name for alias, name in aliases.items() if alias not in entries}
        self._entries = entries


class UnknownName(KeyError, ValueError):
    """No entry of that name; the message gives the nearest ones and all there are."""

    def __init__(self, what: str, name: object, known: list[str], listed: list[str]) -> None:
        near = get_close_matches(_plain(str(name)), known, n=3, cutoff=0.3)
        hint = f"; nearest: {', '.join(map(repr, near))}" if near else ""
        self.message = f"{what}={name!r}: no such {what}{hint}; there are {', '.join(listed)}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


def _plain(name: str) -> str:
    return name.strip().lower().rpartition("/")[2]
