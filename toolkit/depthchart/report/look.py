"""Style sheet and script of HTML reports, both written into the file."""

from __future__ import annotations

from typing import Final

__all__ = ["SCRIPT", "STYLE"]

STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1d2733; background: #fff;
       max-width: 60rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .5rem; padding-top: .7rem; border-top: 1px solid #dfe4ea; }
p { max-width: 46rem; margin: .5rem 0; }
.lead { font-size: 1.05rem; color: #414c58; }
nav ol { margin: .6rem 0 0; padding-left: 1.3rem; }
a { color: #00487a; }
figure { margin: 1.2rem 0; }
figcaption, .caption { color: #5b6673; font-size: .9rem; max-width: 46rem; margin: .3rem 0; }
.drawing svg, .drawing img { max-width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; margin: .8rem 0; }
.long { max-height: 26rem; overflow-y: auto; border: 1px solid #dfe4ea; border-radius: 4px; }
.long table { margin: 0 !important; }
.long thead th { position: sticky; top: 0; background: #fff; box-shadow: inset 0 -1.5px #5b6673; }
table { font-size: .9rem; font-variant-numeric: tabular-nums; }
thead th { border-bottom: 1.5px solid #5b6673; vertical-align: bottom; }
tbody tr:nth-child(even) td { background: #f4f7fa; }
td { vertical-align: top; }
th button { font: inherit; font-weight: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
            text-align: inherit; }
th button::after { content: "\\2195"; opacity: .35; margin-left: .3em; }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
pre { background: #f4f7fa; padding: .8rem 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.4; border-radius: 4px; }
details { margin: .8rem 0; } summary { cursor: pointer; color: #00487a; }
.film { border: 1px solid #dfe4ea; border-radius: 6px; padding: .6rem .8rem; }
.film .controls { display: flex; gap: .5rem; align-items: center; flex-wrap: wrap; }
.film input { flex: 1 1 16rem; accent-color: #00487a; }
.film output { flex: 1 0 100%; font-size: .9rem; font-variant-numeric: tabular-nums; font-weight: 600; }
.film .controls button { font: inherit; padding: .1rem .6rem; border: 1px solid #c4ccd5; border-radius: 4px;
                         background: #f4f7fa; cursor: pointer; min-width: 2.4rem; }
.film ul { margin: .2rem 0; padding-left: 1.2rem; font-size: .85rem; min-height: 4rem; }
@media print { nav, .controls { display: none; } h2 { break-after: avoid; } figure { break-inside: avoid; }
               .long { max-height: none; } }
"""

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
