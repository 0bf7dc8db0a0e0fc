"""Style sheet and script of HTML reports, both written into the file."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Final

from depthchart.charts.style import PALETTES

__all__ = ["SCRIPT", "STYLE", "themed"]

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2733; --page: #fff; --line: #dfe4ea; --lead: #414c58; --link: #00487a;
        --muted: #5b6673; --soft: #f4f7fa; --edge: #c4ccd5; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf1; --page: #14181d; --line: #2b333c; --lead: #c2cad3; --link: #8cc8f0;
          --muted: #94a1b0; --soft: #1d232a; --edge: #46515d;
          __DARK__ } }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink); background: var(--page);
       max-width: 60rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .5rem; padding-top: .7rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .5rem 0; }
.lead { font-size: 1.05rem; color: var(--lead); }
nav ol { margin: .6rem 0 0; padding-left: 1.3rem; }
a { color: var(--link); }
figure { margin: 1.2rem 0; }
figcaption, .caption { color: var(--muted); font-size: .9rem; max-width: 46rem; margin: .3rem 0; }
.drawing svg, .drawing img { max-width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; margin: .8rem 0; }
.long { max-height: 26rem; overflow-y: auto; border: 1px solid var(--line); border-radius: 4px; }
.long table { margin: 0 !important; }
.long thead th { position: sticky; top: 0; background: var(--page); box-shadow: inset 0 -1.5px var(--muted); }
table { font-size: .9rem; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 1.5px solid var(--muted); vertical-align: bottom; }
tbody tr:nth-child(even) td { background: var(--soft); }
td { vertical-align: top; }
th button { font: inherit; font-weight: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
            text-align: inherit; }
th button::after { content: "\\2195"; opacity: .35; margin-left: .3em; }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
pre { background: var(--soft); padding: .8rem 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.4;
      border-radius: 4px; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--link); }
.film { border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; }
.film .controls { display: flex; gap: .5rem; align-items: center; flex-wrap: wrap; }
.film input { flex: 1 1 16rem; accent-color: var(--link); }
.film output { flex: 1 0 100%; font-size: .9rem; font-variant-numeric: tabular-nums; font-weight: 600; }
.film .controls button { font: inherit; padding: .1rem .6rem; border: 1px solid var(--edge); border-radius: 4px;
                         background: var(--soft); cursor: pointer; min-width: 2.4rem; }
.film ul { margin: .2rem 0; padding-left: 1.2rem; font-size: .85rem; min-height: 4rem; }
.wide td { white-space: nowrap; } .wide td.words { white-space: normal; min-width: 16rem; }
svg { max-width: 100%; height: auto; }
h1, h2, p, figcaption, code, li { overflow-wrap: anywhere; }
@media (max-width: 30rem) { body { padding: 1rem .8rem 3rem; font-size: 14px; } .film .controls button { min-width: 2rem; }
  .drawing { overflow-x: auto; } .drawing svg, .drawing img { min-width: 560px; } }
@media print { nav, .controls { display: none; } h2 { break-after: avoid; } figure { break-inside: avoid; }
               .long { max-height: none; } }
"""

# A figure's colours of the light theme become variables of the page, so that it follows the reader's theme.
_THEMED: Final = {
    getattr(PALETTES["light"], field.name): field.name.replace("_", "-")
    for field in fields(PALETTES["light"])
}
_DARK = " ".join(
    f"--c-{field.name.replace('_', '-')}: {getattr(PALETTES['dark'], field.name)};"
    for field in fields(PALETTES["dark"])
)
STYLE: Final = _STYLE.replace("__DARK__", _DARK)


def themed(svg: str) -> str:
    """An SVG whose colours with a meaning follow the page's theme; on paper, and where that is not known, they stay."""
    return _COLOUR.sub(lambda found: f"{found[1]}var(--c-{_THEMED[found[2]]}, {found[2]})", svg)


_COLOUR = re.compile(rf"((?:fill|stroke): )({'|'.join(map(re.escape, _THEMED))})\b")


SCRIPT: Final = """
"use strict";
for (const table of document.querySelectorAll("table[data-sort]")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  const value = cell => {
    const text = cell.textContent.trim(), plain = text.replace(/,/g, "").replace(/\\u2212/g, "-").replace(/%$/, "");
    return text === "\\u2013" || text === "" ? null : plain !== "" && isFinite(plain) ? Number(plain) : text;
  };
  const compare = (a, b) => a === null ? 1 : b === null ? -1 : typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), "en", {numeric: true});
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map(row => [value(row.cells[column]), row]);
      rows.sort(([a], [b]) => a === null || b === null ? compare(a, b) : down ? compare(b, a) : compare(a, b));
      body.append(...rows.map(([, row]) => row));
    });
  });
}
for (const film of document.querySelectorAll("[data-film]")) {
  const frames = [...film.querySelectorAll(".frame")], range = film.querySelector("input");
  const told = film.querySelector("output"), play = film.querySelector("[data-play]");
  let timer = null;
  const show = at => {
    range.value = Math.max(0, Math.min(frames.length - 1, at));
    frames.forEach((frame, index) => { frame.hidden = index !== Number(range.value); });
    told.textContent = `${Number(range.value) + 1} of ${frames.length}: ${frames[range.value].dataset.label}`;
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
  range.addEventListener("input", () => { stop(); show(Number(range.value)); });
  film.querySelector("[data-back]").addEventListener("click", () => { stop(); show(Number(range.value) - 1); });
  film.querySelector("[data-on]").addEventListener("click", () => { stop(); show(Number(range.value) + 1); });
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (Number(range.value) === frames.length - 1) show(0);
    play.textContent = "Stop";
    timer = setInterval(() => {
      show(Number(range.value) + 1);
      if (Number(range.value) === frames.length - 1) stop();
    }, 500);
  });
  show(Number(range.value));
}
"""
