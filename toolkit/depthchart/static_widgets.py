"""Notebooks for readers without a kernel, a script or a network: widgets become what they last showed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from depthchart.files import write_text

__all__ = ["export_notebook", "static_widgets"]

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
ACTIVE = "depthchart-work"  # boxes that do nothing but start work
_SCRIPT = re.compile(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL)


def export_notebook(
    notebook: str | Path, path: str | Path, *, execute: bool = False, timeout_s: int = 600
) -> Path:
    """Write a notebook as one HTML file that opens offline, its widgets as they were when it was saved.

    ``execute`` runs it first, in its own folder. Raises ValueError where the file is no notebook, CellExecutionError where
    a cell fails. Needs the extra ``lab``.
    """
    import nbformat
    from nbconvert import HTMLExporter

    source = Path(notebook)
    try:
        read = nbformat.read(source, as_version=4)
    except (OSError, ValueError, nbformat.reader.NotJSONError) as fault:
        raise ValueError(f"notebook={str(source)!r}: cannot be read as a notebook: {fault}") from None
    if execute:
        from nbclient import NotebookClient

        where = {"metadata": {"path": str(source.resolve().parent)}}
        NotebookClient(read, timeout=timeout_s, store_widget_state=True, resources=where).execute()
    static = nbformat.from_dict(static_widgets(read))
    body, _ = HTMLExporter(theme="light").from_notebook_node(static, {"metadata": {"name": source.stem}})
    return write_text(path, _SCRIPT.sub(_kept_script, body))


def static_widgets(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook with each widget's view replaced by HTML made from its saved state; the state itself is left out.

    A view whose state was not saved keeps its other representations (a picture, or text).
    """
    made = {**notebook, "metadata": dict(notebook["metadata"])}
    state = made["metadata"].pop("widgets", {}).get(STATE, {}).get("state", {})
    made["cells"] = [
        {**cell, "outputs": [_static_output(out, state) for out in cell["outputs"]]}
        if "outputs" in cell
        else cell
        for cell in notebook["cells"]
    ]
    return made


def _static_output(output: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
    view = output.get("data", {}).get(VIEW)
    if view is None:
        return output
    data = {kind: value for kind, value in output["data"].items() if kind != VIEW}
    if view["model_id"] in state:
        data = {"text/html": _widget(view["model_id"], state), "text/plain": data.get("text/plain", "")}
    return {**output, "data": data}


def _widget(model_id: str, models: Mapping[str, Any]) -> str:
    """One widget and all inside it as HTML."""
    model = models.get(model_id)
    if model is None:
        return ""
    values, kind = model["state"], model["model_name"].removesuffix("Model")
    if _hidden(values, models) or ACTIVE in values.get("_dom_classes", ()):
        return ""
    match kind:
        case "HTML":
            return str(values.get("value", ""))
        case "Image":
            return _image(model)
        case "Any":  # our own pictures and tables
            return _image(model) or str(values.get("html", ""))
        case "VBox" | "HBox" | "Box":
            inside = "".join(_widget(_id(child), models) for child in values.get("children", ()))
            how = (
                "display:flex;flex-wrap:wrap;gap:4px 24px;align-items:baseline"
                if kind == "HBox"
                else "margin:2px 0"
            )
            return f'<div style="{how}">{inside}</div>' if inside else ""
    return _control(values)


def _control(values: Mapping[str, Any]) -> str:
    """What a control was set to; buttons and bars say nothing."""
    name = str(values.get("description", ""))
    if "_options_labels" in values:
        index = values.get("index")
        shown = "" if index is None else str(values["_options_labels"][index])
    elif isinstance(values.get("value"), bool):
        shown = "yes" if values["value"] else "no"
    elif "value" in values and name and "bar_style" not in values:
        shown = str(values["value"])
    else:
        return ""
    return f"<span>{escape(name)}: <b>{escape(shown)}</b></span>"


def _image(model: Mapping[str, Any]) -> str:
    for buffer in model.get("buffers", ()):
        if buffer["path"] == ["value"] and buffer["data"]:
            kind = model["state"].get("format", "svg+xml")
            data = buffer["data"].replace("\n", "")
            return f'<div><img alt="" style="max-width:960px;width:100%" src="data:image/{kind};base64,{data}"></div>'
    return ""


def _hidden(values: Mapping[str, Any], models: Mapping[str, Any]) -> bool:
    layout = models.get(_id(values.get("layout", "")), {}).get("state", {})
    return bool(layout.get("display") == "none" or layout.get("visibility") == "hidden")


def _id(reference: str) -> str:
    return str(reference).removeprefix("IPY_MODEL_")


def _kept_script(script: re.Match[str]) -> str:
    """Nothing of a script that is fetched, or that fetches others: formulas and diagrams stay as they were typed."""
    attributes, code = script.groups()
    remote = (
        "src=" in attributes or "mathjax" in attributes.lower() or "https://" in code or "MathJax" in code
    )
    return "" if remote else script[0]
