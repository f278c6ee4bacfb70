"use strict";
// What every figure is made of: nodes, numbers, axes, tooltips, cards.
// Text from the data only ever becomes text nodes, never markup.

let DATA = JSON.parse(document.getElementById("data").textContent);
const state = { run: 0, hidden: new Set(), client: null, step: null, audit: -1, x: "ratio", y: "test", greedy: null };
const SVG = "http://www.w3.org/2000/svg";
const main = document.getElementById("main"), tip = document.getElementById("tip");
let cards = [];

// ---------------------------------------------------------------- nodes
const given = v => v !== null && v !== undefined && v !== false;
const put = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (!given(value)) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "hue") node.style.setProperty("--hue", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter(given).map(c => typeof c === "number" ? String(c) : c));
  return node;
};
const h = (tag, attributes, ...children) => put(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => put(document.createElementNS(SVG, tag), attributes, children);
const canvas = (width, height) => s("svg", { viewBox: `0 0 ${width} ${height}`, width, height });

// ---------------------------------------------------------------- numbers and words
const there = v => given(v) && Number.isFinite(v);
const pct = (v, digits = 1) => there(v) ? `${(100 * v).toFixed(digits)}%` : "–";
const percent = v => pct(v, 0);
const signed = (v, text) => `${v < 0 ? "−" : "+"}${text}`;
const points = v => there(v) ? signed(v, Math.abs(100 * v).toFixed(1)) : "–";
const gainTick = v => Math.abs(v) < 1e-9 ? "0" : signed(v, num(Math.abs(100 * v)));
const count = v => there(v) ? Math.round(v).toLocaleString("en") : "–";
const num = v => !there(v) ? "–" : v === 0 ? "0" : Math.abs(v) >= 1000 ? count(v) : String(+v.toPrecision(3));
const mb = v => !there(v) ? "–" : v >= 1e6 ? `${num(v / 1e6)} TB` : v >= 1000 ? `${num(v / 1000)} GB` : `${num(v)} MB`;
const time = v => !there(v) ? "–" : v < 100 ? `${num(v)} s` : v < 6000 ? `${count(v / 60)} min`
  : `${(v / 3600).toFixed(1)} h`;
const share = (a, b) => b ? a / b : null;
const total = values => values.reduce((a, b) => a + b, 0);
const shorten = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
const bounds = values => {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (there(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  return low > high ? [0, 1] : [low, high];
};

// ---------------------------------------------------------------- runs
const hue = i => `var(--c${i % 11})`;
const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
const shown = () => DATA.runs
  .map((run, i) => ({ run, colour: hue(i % 8), dash: DASHES[Math.floor(i / 8) % 4] }))
  .filter(({ run }) => !state.hidden.has(run.folder));
const current = () => DATA.runs[state.run];
const several = () => DATA.runs.length > 1;
const called = (run, k) => { // a client by its number and, where it has another name, by that
  const name = run.client_names[k] ?? `${k}`;
  return name === `${k}` ? name : `${k} (${name})`;
};
const className = (run, c) => String(run.split?.classes[c] ?? `class ${c}`);

// ---------------------------------------------------------------- one plot
/** Round values between two others; whole ones, where the axis counts something. */
function niceTicks(min, max, wanted, whole) {
  const least = Math.max((max - min) / Math.max(1, wanted), whole ? 1 : 0), unit = 10 ** Math.floor(Math.log10(least || 1));
  const steps = [1, 2, 2.5, 5, 10].map(m => m * unit).filter(step => !whole || Number.isInteger(step));
  const step = steps.find(m => m >= least * 0.999) || unit;
  const first = Math.ceil(min / step - 1e-9), last = Math.floor(max / step + 1e-6);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
}
const shares = label => ({ min: 0, max: 1, label, format: percent });
const rounds = (first, last) => ({ min: first, max: Math.max(last, first + 1), label: "round", format: count });

/** Axes with a grid; x and y: {min, max, label, format, ticks}. Gives the svg and both scales. */
function plot(width, height, x, y, more = {}) {
  const ticksOf = (axis, wanted) => axis.ticks || niceTicks(axis.min, axis.max, Math.max(2, wanted), axis.format === count);
  const yTicks = ticksOf(y, height / 60), yText = yTicks.map(y.format || num);
  const left = more.left ?? 14 + 7.2 * Math.max(...yText.map(t => t.length), 1), right = 14, top = more.top ?? 26, bottom = 42;
  const X = v => left + (v - x.min) / (x.max - x.min || 1) * (width - left - right);
  const Y = v => height - bottom - (v - y.min) / (y.max - y.min || 1) * (height - top - bottom);
  const svg = canvas(width, height);
  yTicks.forEach((v, i) => svg.append(
    s("line", { class: v === 0 && y.min < 0 ? "zero" : "rule", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }),
    s("text", { x: left - 8, y: Y(v) + 4, "text-anchor": "end" }, yText[i])));
  let last = -Infinity;
  for (const v of ticksOf(x, (width - left) / 80)) {
    const text = (x.format || num)(v), at = Math.min(X(v), width - 3.4 * text.length);
    if (at - last < 7.5 * text.length + 8) continue;
    last = at;
    svg.append(s("text", { x: at, y: height - bottom + 18, "text-anchor": "middle" }, text));
  }
  svg.append(s("line", { class: "zero", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom, opacity: .55 }));
  if (y.label) svg.append(s("text", { x: 0, y: 12 }, y.label));
  if (x.label) svg.append(s("text", { x: width - right, y: height - 5, "text-anchor": "end" }, x.label));
  return { svg, X, Y, left, right, top, bottom, width, height };
}

const path = (xs, ys, p) => {
  let d = "", pen = "M";
  xs.forEach((x, i) => {
    const drawn = there(x) && there(ys[i]);
    if (drawn) d += `${pen}${p.X(x).toFixed(1)},${p.Y(ys[i]).toFixed(1)}`;
    pen = drawn ? "L" : "M";
  });
  return d;
};
const area = (xs, low, high, p) => {
  const at = xs.map((_, i) => i).filter(i => there(low[i]) && there(high[i]));
  const corner = (i, side) => `${p.X(xs[i]).toFixed(1)},${p.Y(side[i]).toFixed(1)}`;
  return at.length ? `M${at.map(i => corner(i, high)).join("L")}L${at.reverse().map(i => corner(i, low)).join("L")}Z` : "";
};
const disc = (x, y, r) => `M${(x - r).toFixed(1)},${y.toFixed(1)}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`;

function line(p, xs, ys, colour, dashes, width = 2.2) {
  const drawn = xs.map((_, i) => i).filter(i => there(ys[i]));
  const [only] = drawn;
  if (drawn.length === 1) return p.svg.append(s("circle", { cx: p.X(xs[only]), cy: p.Y(ys[only]), r: 4.5, fill: colour }));
  p.svg.append(s("path", {
    d: path(xs, ys, p), fill: "none", stroke: colour, "stroke-width": width, "stroke-dasharray": dashes,
    "stroke-linejoin": "round", "stroke-linecap": "round",
  }));
}

// ---------------------------------------------------------------- tooltips
function tell(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
  tip.style.top = `${event.clientY - height - 12 < 4 ? event.clientY + 18 : event.clientY - height - 12}px`;
}
/** The nearest of `spots` ({x, y, text, pick}) tells itself under the pointer, and can be picked. */
function hover(svg, spots, reach = 26, onlyX = false) {
  const mark = onlyX ? s("line", { class: "cross" }) : s("circle", { fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
  const show = spot => {
    mark.setAttribute("visibility", spot ? "visible" : "hidden");
    if (!spot) return;
    if (onlyX) put(mark, { x1: spot.x, x2: spot.x, y1: spot.top, y2: spot.bottom }, []);
    else put(mark, { cx: spot.x, cy: spot.y, r: (spot.r || 4) + 3 }, []);
  };
  const nearest = event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const px = (event.clientX - box.left) * scale, py = (event.clientY - box.top) * scale;
    let best = null, least = reach * reach;
    for (const spot of spots) {
      const d = (spot.x - px) ** 2 + (onlyX ? 0 : (spot.y - py) ** 2);
      if (d < least) { least = d; best = spot; }
    }
    return best;
  };
  show(null);
  svg.append(mark);
  svg.addEventListener("pointermove", event => {
    const spot = nearest(event);
    show(spot);
    svg.style.cursor = spot?.pick ? "pointer" : "";
    tell(event, spot?.text);
  });
  svg.addEventListener("pointerleave", event => { tell(event, ""); show(null); });
  svg.addEventListener("click", event => nearest(event)?.pick?.());
}
/** Tells all lines at the nearest x: series are {name, xs, ys, format}. */
function hoverLines(p, series, word = "round", xFormat = count) {
  const most = 12, at = new Map();
  for (const { name, xs, ys, format = v => pct(v) } of series) xs.forEach((x, i) => {
    if (!there(ys[i])) return;
    if (!at.has(x)) at.set(x, []);
    at.get(x).push(`${name}: ${format(ys[i], i)}`);
  });
  hover(p.svg, [...at].map(([x, lines]) => {
    const text = [`${word} ${xFormat(x)}`, ...lines.slice(0, most), ...(lines.length > most ? ["…"] : [])].join("\n");
    return { x: p.X(x), top: p.top, bottom: p.height - p.bottom, text };
  }), 1e4, true);
}

// ---------------------------------------------------------------- cards
/** A figure: title, controls, drawing, caption, and its numbers as a table for those who cannot or will not look.
 *  `draw` gives an svg, a node with one, or the reason why there is nothing; `tall` bounds the width of square figures. */
function card(id, span, title, { caption, draw, alt, table, controls, key, tall }) {
  const box = h("div", { class: "plot" }), keys = h("div", { class: "keys" });
  const numbers = h("details", { hidden: !table }, h("summary", {}, "Numbers"));
  const node = h("figure", { class: `card ${span}`, id, "data-figure": id },
    h("div", { class: "head" }, h("h3", {}, title), controls && h("div", { class: "controls" }, controls)),
    keys, box, h("figcaption", {}, caption), numbers);
  const fill = () => {
    numbers.querySelector(".table")?.remove();
    if (numbers.open) numbers.append(tableOf(...table()));
  };
  numbers.addEventListener("toggle", fill);
  const redraw = () => {
    const width = Math.floor(box.clientWidth);
    if (!width) return;
    let drawn;
    try { drawn = draw(tall ? Math.min(width, tall) : width); }
    catch (error) { console.error(id, error); drawn = "This figure could not be drawn."; }
    const remark = typeof drawn === "string";
    node.dataset.drawn = remark ? "remark" : "yes";
    keys.replaceChildren(...(key && !remark ? [keyOf(key())] : []));
    numbers.hidden = remark || !table;
    box.replaceChildren(remark ? h("div", { class: "none" }, drawn) : drawn);
    if (remark) return;
    const svg = box.querySelector("svg");
    if (svg) {
      put(svg, { role: "img", "aria-label": `${title}. ${alt()}` }, []);
      svg.style.width = `${svg.getAttribute("width")}px`;
      svg.style.margin = tall ? "0 auto" : "";
    }
    fill();
  };
  cards.push({ id, redraw });
  return node;
}
const redraw = (...ids) => cards.forEach(c => { if (!ids.length || ids.includes(c.id)) c.redraw(); });
const DASHED = new Map([["7 4", "dashed"], ["6 4", "dashed"], ["2 3", "dotted"], ["9 3 2 3", "dashed"]]);
const keyOf = items => h("ul", { class: "key" }, items.map(([name, colour, shape = "", dash = ""]) =>
  h("li", {}, h("i", { class: `${shape} ${DASHED.get(dash) || ""}`, hue: colour }), name)));
const runsKey = (shape, has = () => true) => () => several()
  ? shown().filter(({ run }) => has(run)).map(({ run, colour, dash }) => [run.name, colour, shape, dash]) : [];
const region = (label, ...children) => h("div", { class: "table", tabindex: 0, role: "region", "aria-label": label }, children);
function tableOf(heads, rows, label = "Numbers") {
  const most = 400, more = rows.length - most;
  return region(label, h("table", {},
    h("thead", {}, h("tr", {}, heads.map(name => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.slice(0, most).map(row => h("tr", {}, row.map(cell => h("td", {}, cell)))),
      more > 0 && h("tr", {}, h("td", { colspan: heads.length }, `… and ${more} more: kithkin export-metrics`)))));
}
function choice(label, options, value, change, id) {
  const option = ([v, name]) => h("option", { value: v, selected: String(v) === String(value) }, name);
  const pick = h("select", { id, onchange: () => change(pick.value) }, options.map(option));
  return h("label", {}, label, pick);
}
function slider(id, label, most, value, say, change) {
  const out = h("output", { for: id }, say(value));
  const words = { "aria-label": label, "aria-valuetext": say(value) };
  const input = h("input", { type: "range", id, min: 0, max: most, step: 1, value, ...words });
  input.addEventListener("input", () => {
    out.textContent = say(+input.value);
    input.setAttribute("aria-valuetext", out.textContent);
    change(+input.value);
  });
  return h("div", { class: "slider" }, input, out);
}
const section = (id, title, text, ...children) => h("section", { id, "aria-label": title },
  h("header", {}, h("h2", {}, title), h("p", {}, text)), h("div", { class: "grid" }, children));
