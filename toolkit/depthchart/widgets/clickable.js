// A picture whose parts can be clicked: the spots of Python, in shares of the picture, are looked up under the pointer.

const REACH = 5; // pixels around a spot that still count as it

/** The spot at a point in pixels: the smallest that holds it, else the nearest within reach. */
function lookUp(spots, x, y, wide, high) {
  let best = null, rank = [REACH, Infinity];
  for (const spot of spots) {
    const [, left, top, right, bottom] = spot;
    const dx = Math.max(left * wide - x, 0, x - right * wide), dy = Math.max(top * high - y, 0, y - bottom * high);
    const far = Math.hypot(dx, dy), area = (right - left) * (bottom - top);
    if (far < rank[0] || (far === rank[0] && area < rank[1])) { best = spot; rank = [far, area]; }
  }
  return best;
}

/** Whether the page around an element is dark: Jupyter says so, else the colour behind it. */
function isDark(element) {
  const told = document.body.dataset.jpThemeLight;
  if (told !== undefined) return told === "false";
  for (let at = element; at; at = at.parentElement) {
    const [r, g, b, a] = (getComputedStyle(at).backgroundColor.match(/[\d.]+/g) || []).map(Number);
    if (r !== undefined && a !== 0) return 0.3 * r + 0.59 * g + 0.11 * b < 128;
  }
  return false;
}

function render({ model, el }) {
  el.classList.add("depthchart-clickable");
  const box = document.createElement("div"), image = document.createElement("img"), over = document.createElement("div");
  const marks = document.createElement("div");
  box.className = "depthchart-picture"; over.className = "depthchart-over"; over.hidden = true;
  image.draggable = false;
  box.append(image, marks, over);
  el.append(box);

  const lay = (node, [, left, top, right, bottom]) => Object.assign(node.style, {
    left: `${left * 100}%`, top: `${top * 100}%`,
    width: `${(right - left) * 100}%`, height: `${(bottom - top) * 100}%`,
  });
  const show = () => {
    const value = model.get("value");
    box.hidden = !value || !value.byteLength;
    if (box.hidden) return;
    const old = image.src;
    image.src = URL.createObjectURL(new Blob([value], { type: "image/svg+xml" }));
    if (old) URL.revokeObjectURL(old);
    over.hidden = true;
  };
  const outline = () => {
    el.spots = model.get("spots"); // for tests and for whoever scripts the page
    const chosen = new Set(model.get("chosen"));
    marks.replaceChildren(...model.get("spots").filter(([key]) => chosen.has(key)).map(spot => {
      const node = document.createElement("div");
      node.className = "depthchart-chosen";
      node.dataset.key = spot[0];
      lay(node, spot);
      return node;
    }));
  };
  const under = event => {
    const area = image.getBoundingClientRect();
    return lookUp(model.get("spots"), event.clientX - area.left, event.clientY - area.top, area.width, area.height);
  };
  image.addEventListener("mousemove", event => {
    const spot = under(event);
    over.hidden = !spot;
    image.style.cursor = spot ? "pointer" : "";
    image.title = spot ? spot[5] : "";
    if (spot) lay(over, spot);
  });
  image.addEventListener("mouseleave", () => { over.hidden = true; });
  image.addEventListener("click", event => {
    const spot = under(event);
    if (spot) model.send({ click: spot[0] });
  });

  const alt = () => { image.alt = model.get("alt"); };
  const theme = () => {
    const dark = isDark(el);
    if (dark !== model.get("dark")) { model.set("dark", dark); model.save_changes(); }
  };
  const watch = new MutationObserver(theme);
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class", "style"] });
  model.on("change:value", show);
  model.on("change:spots", outline);
  model.on("change:chosen", outline);
  model.on("change:alt", alt);
  show(); outline(); alt();
  requestAnimationFrame(() => {
    theme();
    if (!model.get("reveal")) return;
    model.set("reveal", false); // once
    model.save_changes();
    image.decode().catch(() => {}).then(() => el.scrollIntoView({ block: "center" }));
  });
  return () => {
    watch.disconnect();
    model.off("change:value", show); model.off("change:spots", outline);
    model.off("change:chosen", outline); model.off("change:alt", alt);
    URL.revokeObjectURL(image.src);
  };
}

export default { render };
