"""One configuration of a sweep: is it legal, and what comes out of it. Runs in any process, with numbers alone."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from depthchart.cache.eviction import ORDERS
from depthchart.cache.states import MATCHINGS, REFRESHES, STATE_POLICIES
from depthchart.capacity import STATE_SHARE
from depthchart.columns import SWEEP
from depthchart.cost import CostModel, LinearCost
from depthchart.depth import RULES
from depthchart.errors import DepthchartError, one_of
from depthchart.geometry import Geometry
from depthchart.kernel_tables import KernelTable
from depthchart.models import MODELS
from depthchart.presets import preset
from depthchart.roofline import Roofline
from depthchart.scheduler.planner import MIN_STATE_SLOTS
from depthchart.scheduler.queue import queue_policy
from depthchart.serial import serve
from depthchart.simulate import simulate
from depthchart.tokens import PrefixIndex
from depthchart.traces.overlap import reusable, seen_prefixes
from depthchart.traces.trace import Trace

__all__ = ["AXES", "Config", "Job", "assumptions", "check", "run_job", "settings_of"]

Config: TypeAlias = dict[str, Any]

GEOMETRY_AXES = (
    "page_size",
    "dcp_size",
    "chunk_width",
    "index_pool",
    "chunked_prefill_size",
    "track_interval",
)
POOL_AXES = ("kv_tokens", "state_slots", "model", "pool_bytes", "state_share")
POLICY_AXES = ("preset", "rule", "eviction", "state_eviction", "refresh", "matching", "max_states_per_path")
TIMED_AXES = ("policy", "mixed", "max_running", "arrivals")
COST_AXES = ("hardware", "tp", "weight_dtype")
AXES = (*GEOMETRY_AXES, *POOL_AXES, *POLICY_AXES, *TIMED_AXES, *COST_AXES)
"""What a sweep may vary. ``preset`` is a whole bundle, on top of which single policies may be set; ``pool_bytes`` with a
``model`` gives both pools, of which states take ``state_share`` (default: 0.9 / 1.9, SGLang's). The last seven
matter to timed sweeps only: where ``model`` and ``hardware`` are named, times are those of ``Roofline`` with ``tp``
ranks and ``weight_dtype``, else those of the linear model."""


class Job(NamedTuple):
    config: Config
    key: str
    timed: bool


def check(config: Config) -> str | None:
    """Why the combination cannot work, in words, or None."""
    try:
        geometry, settings = settings_of(config)
        one_of("eviction", settings.get("eviction", "lru"), ORDERS)
        one_of("state_eviction", settings.get("state_eviction", "lru"), STATE_POLICIES)
        one_of("refresh", settings.get("refresh", "used"), REFRESHES)
        one_of("matching", settings.get("matching", "nearest"), MATCHINGS)
        queue_policy(config.get("policy", "fcfs"))
        _cost(config)
    except ValueError as error:
        return str(error)
    if settings["kv_tokens"] < geometry.tree_page:
        return f"kv_tokens={settings['kv_tokens']}: less than one tree page of {geometry.tree_page}"
    if settings["state_slots"] < MIN_STATE_SLOTS:
        return f"state_slots={settings['state_slots']}: one request takes {MIN_STATE_SLOTS}"
    return None


def run_job(job: Job, *, blob: bytes, digest: str) -> dict[str, Any]:
    """Run one configuration; ``blob`` is the pickled trace, opened once a process. What fails is a row as well."""
    row: dict[str, Any] = dict.fromkeys(SWEEP)
    try:
        trace = _trace(digest, blob)
        geometry, settings = settings_of(job.config)
        index = _index(digest, geometry.tree_page)
        row.update(
            _timed(trace, geometry, settings, job.config, index)
            if job.timed
            else _served(trace, geometry, settings, index, digest)
        )
        row.update(status="ok", reason="", memory_bytes=_memory_bytes(job.config, settings))
    except (ValueError, DepthchartError, AssertionError) as error:
        row.update(status="failed", reason=f"{type(error).__name__}: {error}")
    return row


def settings_of(config: Config) -> tuple[Geometry, dict[str, Any]]:
    """Geometry and keyword arguments of ``serve``. Raises ValueError where they do not go together."""
    given = {name: config[name] for name in GEOMETRY_AXES if name in config}
    if "page_size" not in given:
        raise ValueError("page_size: is missing")
    geometry = Geometry(**given)
    kv_tokens, state_slots = _pools(config)
    settings: dict[str, Any] = {"rule": "absolute", "kv_tokens": kv_tokens, "state_slots": state_slots}
    if config.get("preset") is not None:
        settings = preset(config["preset"]).apply(geometry, kv_tokens, state_slots).settings
    settings |= {name: config[name] for name in POLICY_AXES[1:] if config.get(name) is not None}
    if isinstance(settings["rule"], str):
        RULES[settings["rule"]]
    return geometry, settings


def assumptions(config: Config) -> str:
    """What the times of a timed run rest on."""
    return (_cost(config) or LinearCost()).assumptions


def _pools(config: Config) -> tuple[int, int]:
    if "pool_bytes" not in config:
        missing = [name for name in ("kv_tokens", "state_slots") if name not in config]
        if missing:
            raise ValueError(f"{missing[0]}: is missing; give it, or model and pool_bytes")
        return int(config["kv_tokens"]), int(config["state_slots"])
    if "model" not in config:
        raise ValueError("model: is missing; pool_bytes needs one to be split into KV and states")
    model, share = MODELS[config["model"]], float(config.get("state_share", STATE_SHARE))
    if not 0 < share < 1:
        raise ValueError(
            f"state_share={share}: must lie in (0, 1); nearest legal: {0.01 if share <= 0 else 0.99}"
        )
    size = float(config["pool_bytes"])
    return int(size * (1 - share) / model.kv_bytes_per_token), int(size * share / model.state_bytes)


def _cost(config: Config) -> CostModel | None:
    """The time model of the named model on the named hardware; None stands for the linear one."""
    given = {name: config[name] for name in ("tp", "weight_dtype") if config.get(name) is not None}
    if config.get("hardware") is None:
        if given:
            raise ValueError(f"hardware: is missing; {next(iter(given))} matters to a named device only")
        return None
    if config.get("model") is None:
        raise ValueError("model: is missing; hardware needs one, whose steps are to be timed")
    dcp = config.get("dcp_size", 1)
    more = {**given, "chunk_width": config.get("chunk_width")}
    return Roofline.of(config["model"], config["hardware"], dcp=dcp, table=_table(), **more)


def _memory_bytes(config: Config, settings: dict[str, Any]) -> int | None:
    if config.get("model") is None:
        return None
    model = MODELS[config["model"]]
    return int(settings["kv_tokens"] * model.kv_bytes_per_token + settings["state_slots"] * model.state_bytes)


def _served(
    trace: Trace, geometry: Geometry, settings: dict[str, Any], index: PrefixIndex, digest: str
) -> dict[str, Any]:
    service = serve(trace, geometry, **settings, index=index)
    never = frozenset(at for at, one in enumerate(service.requests) if not one.fits)
    return {
        **_possible(digest, geometry.tree_page, never),
        "prompt_tokens": service.prompt_tokens,
        "kv_hit_tokens": sum(one.kv_tokens for one in service.requests),
        "reused_tokens": service.reused_tokens,
        "lost_tokens": service.lost_tokens,
        "reuse": service.reused_tokens / service.prompt_tokens if service.prompt_tokens else 0.0,
        "wrong_requests": service.wrong_requests,
        "violations": service.counts.get("Violation", 0),
    }


def _timed(
    trace: Trace, geometry: Geometry, settings: dict[str, Any], config: Config, index: PrefixIndex
) -> dict[str, Any]:
    from depthchart.frames import times_per_output_token, wrong_reuse

    more = {name: config[name] for name in TIMED_AXES if name in config}
    run = simulate(trace, geometry, **settings, **more, cost=_cost(config), strict=False, index=index)
    table, wrong = run.requests, wrong_reuse(run.log)
    met = table["reused_tokens"].notna()
    waits = (table["first_token_s"] - table["arrival_s"]).dropna()
    tpot = times_per_output_token(table)
    prompt, reused = (
        int(table["prompt_tokens"].sum()),
        int(table["reused_tokens"].sum() - wrong["reused_tokens"].sum()),
    )
    return {
        "prompt_tokens": prompt,
        "kv_hit_tokens": int(table["kv_hit_tokens"].sum()),
        "reused_tokens": reused,
        "lost_tokens": int(table["lost_tokens"].sum()),
        "possible_tokens": int(table.loc[met, "possible_tokens"].sum()),
        "seen_tokens": int(table.loc[met, "seen_tokens"].sum()),
        "reuse": reused / prompt if prompt else 0.0,
        "wrong_requests": int(wrong["request"].nunique()),
        "violations": run.summary()["violations"],
        "ttft_mean_s": float(waits.mean()) if len(waits) else None,
        "ttft_p95_s": float(waits.quantile(0.95)) if len(waits) else None,
        "tpot_mean_s": float(tpot.mean()) if len(tpot) else None,
        "simulated_s": run.end_s,
        "prompt_tokens_per_s": prompt / run.end_s if run.end_s else None,
    }


_OPENED: dict[str, Trace] = {}  # the last trace of this process, by its digest


def _trace(digest: str, blob: bytes) -> Trace:
    if digest not in _OPENED:
        _OPENED.clear()
        _OPENED[digest] = pickle.loads(blob)
    return _OPENED[digest]


@lru_cache(maxsize=64)
def _possible(digest: str, page: int, never: frozenset[int]) -> dict[str, int]:
    """What earlier requests had computed of each prompt of the open trace; those that never fit compute nothing."""
    requests = [request for at, request in enumerate(_OPENED[digest]) if at not in never]
    seen = list(seen_prefixes(requests))
    pages = (reusable(tokens, r.prompt_tokens, page) for tokens, r in zip(seen, requests, strict=True))
    return {"possible_tokens": sum(pages), "seen_tokens": sum(seen)}


@lru_cache(maxsize=4)
def _index(digest: str, page: int) -> PrefixIndex:
    return PrefixIndex(page)


@lru_cache(maxsize=1)
def _table() -> KernelTable:
    return KernelTable.bundled()
