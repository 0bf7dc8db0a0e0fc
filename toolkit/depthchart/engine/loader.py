"""Loads a prefix's KV layer by layer onto ranks that hold replicas of it (latent KV under tensor parallelism).

With ``deduplicate`` rank 0 reads each layer once and broadcasts it while it reads the next; without, every rank reads
all. The model can start on a layer as soon as it is there. Ranks first agree on the plan, and every layer travels behind
a header, so that a rank never takes one layer for another, and never waits for ever: a reader that fails tells the
others, one that dies or hangs is noticed after ``timeout_s``.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from depthchart.engine.layer_store import LayerStore, StoredLayer, as_layer
from depthchart.errors import DepthchartError

__all__ = ["LayerEvent", "LayerLoader", "LoadFailed", "LoadPlan", "PlanMismatch"]

READER = 0
AHEAD = 1  # layers read before their turn
_OK, _FAILED = 0, 1


class LoadFailed(DepthchartError):
    """A load did not come to its end; the message says at which layer, and why."""


class PlanMismatch(LoadFailed):
    """Ranks wanted to load different things; nobody loaded anything."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What all ranks load together: the layers stored under ``key``, ``load`` counting the loads of this loader."""

    key: str
    layers: tuple[StoredLayer, ...]
    deduplicate: bool
    load: int

    @property
    def digest(self) -> int:
        """63 bits that differ where plans differ."""
        text = repr(asdict(self)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

    def __str__(self) -> str:
        size = sum(layer.nbytes for layer in self.layers)
        reading = "read once" if self.deduplicate else "read by every rank"
        return f"load {self.load}: {len(self.layers)} layers, {size} bytes of {self.key!r}, {reading}"


class LayerEvent(NamedTuple):
    """``kind``: "read" (from the file), "sent", "received" or "ready" (handed out); ``began_s``, ``ended_s``: seconds
    since the load began on this rank."""

    kind: str
    layer: int
    began_s: float
    ended_s: float


class LayerLoader:
    """One rank's end of the loader. Every rank of the default ``torch.distributed`` group makes one, at the same point.

    ``store``: its folder is seen by all ranks that read; ``timeout_s``: how long a rank waits for another.
    ``events``: of the last load. After a failure between ranks the loader is broken and refuses further loads.
    """

    def __init__(self, store: LayerStore, *, deduplicate: bool = True, timeout_s: float = 30.0) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s}: must be a positive number of seconds; nearest legal: 1")
        self.store, self.deduplicate, self.timeout_s = store, deduplicate, timeout_s
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        # A group of its own: its timeout is ours, and its messages never meet those of the model.
        self._group = dist.new_group(timeout=timedelta(seconds=timeout_s), backend="gloo")
        self._loads, self._broken = 0, ""
        self.events: list[LayerEvent] = []

    def load(self, key: str) -> Iterator[Tensor]:
        """Hand out the layers of ``key`` in order, each as soon as it is here.

        Raises PlanMismatch, before anything is read, where ranks disagree; LoadFailed where the file is damaged, or
        another rank failed, died or let ``timeout_s`` pass.
        """
        if self._broken:
            raise LoadFailed(
                f"rank {self.rank}: this loader is broken ({self._broken}); make a new one on every rank"
            )
        self.events, self._began = [], time.perf_counter()
        plan = self._agree(key)
        layers = self._shared(plan) if plan.deduplicate and self.ranks > 1 else self._own(plan)
        for at, data in enumerate(layers):
            now = self._now()
            self.events.append(LayerEvent("ready", at, now, now))
            yield as_layer(data, plan.layers[at])

    # --- agreeing -----------------------------------------------------------------------------------------

    def _agree(self, key: str) -> LoadPlan:
        """Every rank tells its plan; all refuse where one differs."""
        plan, problem = None, ""
        try:
            plan = LoadPlan(key, self.store.layers(key), self.deduplicate, self._loads)
        except (OSError, ValueError) as error:
            problem = str(error)
        self._loads += 1
        told: list[tuple[int, str]] = [(0, "")] * self.ranks
        with self._between_ranks("before the first layer"):
            dist.all_gather_object(
                told, (plan.digest if plan else -1, str(plan or problem)), group=self._group
            )
        for rank, (digest, words) in enumerate(told):
            if digest == -1:
                raise LoadFailed(f"rank {rank} cannot load {key!r}: {words}")
        for rank, (digest, words) in enumerate(told):
            if digest != told[READER][0]:
                raise PlanMismatch(
                    f"rank {rank} plans [{words}], rank {READER} plans [{told[READER][1]}]; nothing was loaded"
                )
        assert plan is not None
        return plan

    # --- layers -------------------------------------------------------------------------------------------

    def _own(self, plan: LoadPlan) -> Iterator[Tensor]:
        for at in range(len(plan.layers)):
            try:
                yield self._read(plan, at)
            except OSError as error:
                raise LoadFailed(f"rank {self.rank} failed at layer {at}: {error}") from error

    def _shared(self, plan: LoadPlan) -> Iterator[Tensor]:
        if self.rank == READER:
            yield from self._send_all(plan)
            return
        for at in range(len(plan.layers)):
            began = self._now()
            with self._between_ranks(f"at layer {at}"):
                data = self._receive(plan, at)
            self.events.append(LayerEvent("received", at, began, self._now()))
            yield data

    def _send_all(self, plan: LoadPlan) -> Iterator[Tensor]:
        """Broadcast each layer while a thread reads the next."""
        read: queue.Queue[Tensor | Exception] = queue.Queue(maxsize=AHEAD)
        stop = threading.Event()
        thread = threading.Thread(target=self._read_ahead, args=(plan, read, stop), daemon=True)
        thread.start()
        try:
            for at in range(len(plan.layers)):
                data = read.get()
                began = self._now()
                if isinstance(data, Exception):
                    self._tell_failure(plan, at, data)
                    raise LoadFailed(f"rank {READER} failed at layer {at}: {data}") from data
                with self._between_ranks(f"at layer {at}"):
                    self._broadcast_header(_OK, at, len(data), plan.digest)
                    dist.broadcast(data, READER, group=self._group)
                self.events.append(LayerEvent("sent", at, began, self._now()))
                yield data
        finally:
            stop.set()
            while not read.empty():
                read.get_nowait()  # a reader that waits to put something sees the stop

    def _read_ahead(
        self, plan: LoadPlan, read: queue.Queue[Tensor | Exception], stop: threading.Event
    ) -> None:
        for at in range(len(plan.layers)):
            item: Tensor | Exception
            try:
                item = self._read(plan, at)
            except Exception as error:  # whatever it is, the other ranks must hear of it
                item = error
            while not stop.is_set():
                try:
                    read.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if stop.is_set() or isinstance(item, Exception):
                return

    def _read(self, plan: LoadPlan, at: int) -> Tensor:
        began = self._now()
        data = self.store.read(plan.key, at)
        self.events.append(LayerEvent("read", at, began, self._now()))
        return data

    # --- messages -----------------------------------------------------------------------------------------

    def _receive(self, plan: LoadPlan, at: int) -> Tensor:
        header = torch.zeros(4, dtype=torch.int64)
        dist.broadcast(header, READER, group=self._group)
        status, layer, nbytes, digest = header.tolist()
        data = torch.empty(nbytes, dtype=torch.uint8)
        dist.broadcast(data, READER, group=self._group)
        if status == _FAILED:
            raise LoadFailed(f"rank {READER} failed at layer {layer}: {bytes(data.tolist()).decode()}")
        if (layer, digest) != (at, plan.digest):
            raise PlanMismatch(
                f"rank {self.rank} waits for layer {at} of [{plan}], but was sent layer {layer} of another"
            )
        return data

    def _tell_failure(self, plan: LoadPlan, at: int, error: Exception) -> None:
        words = torch.tensor(list(str(error).encode()), dtype=torch.uint8)
        with self._between_ranks(f"at layer {at}"):
            self._broadcast_header(_FAILED, at, len(words), plan.digest)
            dist.broadcast(words, READER, group=self._group)

    def _broadcast_header(self, *values: int) -> None:
        dist.broadcast(torch.tensor(values, dtype=torch.int64), READER, group=self._group)

    def _between_ranks(self, where: str) -> _Between:
        return _Between(self, where)

    def _now(self) -> float:
        return time.perf_counter() - self._began


class _Between:
    """Around messages: what goes wrong there breaks the loader, and is told in words."""

    def __init__(self, loader: LayerLoader, where: str) -> None:
        self.loader, self.where = loader, where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, LoadFailed) or not isinstance(error, Exception):
            return
        self.loader._broken = f"{self.where}: {error}".splitlines()[0][:200]
        raise LoadFailed(
            f"rank {self.loader.rank} lost the other ranks {self.where} (one failed, died, or took longer than "
            f"{self.loader.timeout_s} s): {error}"
        ) from error
