"""``depthchart models``: the catalogue of hybrid models, and what each one's caches weigh."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from depthchart.commands.flags import add_verb
from depthchart.display import table_text
from depthchart.models import MODELS, Model, check_ranks

NAME = "models"
HELP = "list hybrid models: bytes of a KV token and of a state, chunk width, operations a token"

_EXAMPLES = """examples:
  depthchart models
  depthchart models qwen3.5-27b --tp 2
  depthchart models moonshotai/Kimi-K3 --tp 8 --dcp 8 --json

grade: A read from the model's own configuration, B quoted from it elsewhere, C from a paper or model card
exit code: 0 fine, 2 the call is wrong"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line's subparsers."""
    parser = add_verb(subparsers, NAME, HELP, _EXAMPLES)
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a model, an alias or a hub name (default: list all)"
    )
    parser.add_argument(
        "--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks (sizes are of one rank)"
    )
    parser.add_argument(
        "--dcp", type=int, default=1, metavar="N", help="ranks of these that share a sequence's KV"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: one object, or a list of all")


def run(args: argparse.Namespace) -> int:
    """Print the answer."""
    check_ranks(args.tp, args.dcp)
    if args.name is None:
        print(_all_json(args) if args.json else _all_text(args))
    else:
        model = MODELS[args.name]
        print(
            json.dumps(_facts(model, args.tp, args.dcp), indent=2)
            if args.json
            else _text(model, args.tp, args.dcp)
        )
    return 0


# --- helpers ----------------------------------------------------------------------------------------------


def _facts(model: Model, tp: int, dcp: int) -> dict[str, object]:
    """All fields of the catalogue, and under ``derived`` what follows from them."""
    kv, state = model.rank_kv_bytes_per_token(tp, dcp), model.rank_state_bytes(tp)
    derived = {
        "tp": tp,
        "dcp": dcp,
        "kv_bytes_per_token": kv,
        "state_bytes": state,
        "state_in_kv_tokens": state / kv,
        "attention_block_tokens": model.attention_block_tokens(),
        "flops_per_token": model.flops_per_token()._asdict(),
        "flops_per_token_at_32768": model.flops_per_token(32768)._asdict(),
    }
    return asdict(model) | {"derived": derived}


def _divides(model: Model, tp: int) -> bool:
    try:
        model.rank_state_bytes(tp)
    except ValueError:
        return False
    return True


def _all_json(args: argparse.Namespace) -> str:
    return json.dumps(
        [_facts(m, args.tp, args.dcp) for m in MODELS.values() if _divides(m, args.tp)], indent=2
    )


def _all_text(args: argparse.Namespace) -> str:
    head = (
        "model",
        "layers",
        "attention",
        "recurrent",
        "chunk",
        "KV B/token",
        "state MiB",
        "state in KV tokens",
        "grade",
    )
    rows: list[tuple[object, ...]] = [head]
    skipped = []
    for model in MODELS.values():
        if not _divides(model, args.tp):
            skipped.append(model.name)
            continue
        kv, state = model.rank_kv_bytes_per_token(args.tp, args.dcp), model.rank_state_bytes(args.tp)
        attention = f"{model.attention_layers} {model.attention_kind}"
        recurrent = f"{model.recurrent_layers} {model.recurrent_kind}"
        sizes = (f"{kv:,.0f}", f"{state / 2**20:,.1f}", f"{state / kv:,.0f}")
        rows.append(
            (model.name, model.layers, attention, recurrent, model.chunk_width or "-", *sizes, model.grade)
        )
    words = [table_text(rows, numeric=(1, 4, 5, 6, 7)), _split_words(args.tp, args.dcp)]
    if skipped:
        words.append(f"left out, {args.tp} ranks do not divide their heads: {', '.join(skipped)}")
    return "\n\n".join(words)


def _split_words(tp: int, dcp: int) -> str:
    whole = "sizes of the whole model" if tp == 1 else f"sizes of one of {tp} ranks"
    shared = f", {dcp} of which share a sequence's KV" if dcp > 1 else ""
    return f"{whole}{shared}; KV and state in the dtypes of the catalogue (see --json)"


def _text(model: Model, tp: int, dcp: int) -> str:
    kv, state = model.rank_kv_bytes_per_token(tp, dcp), model.rank_state_bytes(tp)
    near, far = model.flops_per_token(), model.flops_per_token(32768)
    split = "" if tp == 1 else f", one of {tp} ranks" + (f", {dcp} share a sequence" if dcp > 1 else "")
    rows: list[tuple[object, ...]] = [
        ("fact", "value", "from"),
        ("layers", model.layers, f"{model.attention_layers} attention, {model.recurrent_layers} recurrent"),
        ("attention", model.attention_kind, _attention_words(model)),
        ("recurrence", model.recurrent_kind, _recurrence_words(model)),
        ("chunk_width", model.chunk_width or "none", "tokens a chunk of the model's usual scan kernel"),
        ("KV of a token", f"{kv:,.0f} B", f"{model.kv_dtype}{split}"),
        ("state", f"{state:,} B", f"{model.state_dtype}, convolution {model.conv_dtype}{split}"),
        ("state in KV tokens", f"{state / kv:,.0f}", "so many tokens of KV are as large as one checkpoint"),
        (
            "attention block",
            model.attention_block_tokens(),
            "tokens: the block that vLLM gives this model (one rank)",
        ),
        (
            "parameters",
            f"{model.params / 1e9:g} billion",
            f"{model.active_params / 1e9:g} active; {model.params_source}",
        ),
        (
            "work of a token",
            f"{near.total / 1e9:,.2f} GFLOP",
            f"alone; {far.total / 1e9:,.2f} GFLOP after 32,767 others",
        ),
        ("grade", model.grade, model.source),
        ("page", model.url, model.note),
    ]
    return f"{model.name}\n\n{table_text(rows)}"


def _attention_words(model: Model) -> str:
    if model.attention_kind == "mla":
        words = f"{model.q_heads} heads on a latent of {model.latent_dim} + {model.rope_dim}"
    else:
        words = f"{model.q_heads} query heads, {model.kv_heads} KV heads of {model.qk_dim}"
    return words + (f", at most {model.attention_topk} tokens a query" if model.attention_topk else "")


def _recurrence_words(model: Model) -> str:
    state = (
        f"{model.value_heads} heads of {model.key_dim} x {model.value_dim}"
        if model.value_heads
        else "no state matrix"
    )
    conv = (
        f"convolution of {model.conv_kernel} over {model.conv_channels} channels"
        if model.conv_kernel
        else "no convolution"
    )
    return f"{state}, {conv}"
