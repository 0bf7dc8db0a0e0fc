// A table whose rows can be clicked or opened with Enter, and sorted by a click on a heading.

function value(cell) {
  const text = cell.textContent.trim(), plain = text.replace(/,/g, "").replace(/\u2212/g, "-").replace(/%$/, "");
  return text === "\u2013" || text === "" ? null : plain !== "" && isFinite(plain) ? Number(plain) : text;
}

function compare(a, b, down) {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1; // what is missing comes last
  const order = typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -order : order;
}

function sort(table, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map(row => [value(row.cells[head.cellIndex]), row]);
  rows.sort(([a], [b]) => compare(a, b, down));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function render({ model, el }) {
  const box = document.createElement("div");
  box.className = "depthchart-rows";
  el.append(box);
  const choose = () => {
    const chosen = new Set(model.get("chosen"));
    let first = null;
    for (const row of box.querySelectorAll("tr[data-key]")) {
      row.classList.toggle("chosen", chosen.has(row.dataset.key));
      if (!first && chosen.has(row.dataset.key)) first = row;
    }
    if (first) { // bring it into the box, without moving the page
      const above = first.offsetTop - 40 - box.scrollTop, below = first.offsetTop + first.offsetHeight - box.scrollTop - box.clientHeight;
      if (above < 0) box.scrollTop += above; else if (below > 0) box.scrollTop += below;
    }
  };
  const show = () => {
    box.innerHTML = model.get("html");
    for (const row of box.querySelectorAll("tr[data-key]")) row.tabIndex = 0;
    for (const head of box.querySelectorAll("thead th")) { head.tabIndex = 0; head.title = "sort"; }
    choose();
  };
  const act = event => {
    const head = event.target.closest("thead th"), row = event.target.closest("tr[data-key]");
    if (head) sort(head.closest("table"), head);
    else if (row) model.send({ click: row.dataset.key });
  };
  box.addEventListener("click", act);
  box.addEventListener("keydown", event => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    act(event);
  });
  model.on("change:html", show);
  model.on("change:chosen", choose);
  show();
  return () => { model.off("change:html", show); model.off("change:chosen", choose); };
}

export default { render };
