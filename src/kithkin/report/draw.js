"use strict";
// What every figure is made of: nodes, numbers, axes, tooltips, cards. Text from the data only ever becomes text nodes, never markup.

let DATA = JSON.parse(document.getElementById("data").textContent);
const state = { run: 0, hidden: new Set(), client: null, step: null, audit: -1, x: "ratio", y: "test", greedy: null };
const SVG = "http://www.w3.org/2000/svg";
const main = document.getElementById("main"), tip = document.getElementById("tip");
let cards = [];

// ---------------------------------------------------------------- small words
const put = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "hue") node.style.setProperty("--hue", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter(c => c !== null && c !== undefined && c !== false).map(c => typeof c === "number" ? String(c) : c));
  return node;
};
const h = (tag, attributes, ...children) => put(document.createElement(tag), attributes, children);
const s = (tag, attributes, ...children) => put(document.createElementNS(SVG, tag), attributes, children);
const hue = i => `var(--c${i % 11})`;
const dash = i => ["", "7 4", "2 3", "9 3 2 3"][Math.floor(i / 8) % 4];
const there = v => v !== null && v !== undefined && Number.isFinite(v);
const pct = (v, digits = 1) => there(v) ? `${(100 * v).toFixed(digits)}%` : "–";
const gainTick = v => Math.abs(v) < 1e-9 ? "0" : `${v > 0 ? "+" : "−"}${num(Math.abs(100 * v))}`;
const points = v => there(v) ? `${v >= 0 ? "+" : "−"}${Math.abs(100 * v).toFixed(1)}` : "–";
const count = v => there(v) ? Math.round(v).toLocaleString("en") : "–";
const num = v => !there(v) ? "–" : v === 0 ? "0" : Math.abs(v) >= 1000 ? count(v) : String(+v.toPrecision(3));
const mb = v => !there(v) ? "–" : v >= 1e6 ? `${num(v / 1e6)} TB` : v >= 1000 ? `${num(v / 1000)} GB` : `${num(v)} MB`;
const time = v => !there(v) ? "–" : v < 100 ? `${num(v)} s` : v < 6000 ? `${Math.round(v / 60)} min` : `${(v / 3600).toFixed(1)} h`;
const share = (a, b) => b ? a / b : null;
const bounds = values => { let a = Infinity, b = -Infinity; for (const v of values) if (there(v)) { if (v < a) a = v; if (v > b) b = v; } return a > b ? [0, 1] : [a, b]; };
const shown = () => DATA.runs.map((run, i) => ({ run, i, colour: hue(i % 8), dash: dash(i) })).filter(e => !state.hidden.has(e.run.folder));
const current = () => DATA.runs[state.run];
const classes = run => run.split ? run.split.classes : null;
const className = (run, c) => classes(run) && classes(run)[c] !== undefined ? String(classes(run)[c]) : `class ${c}`;

// ---------------------------------------------------------------- one plot
function niceTicks(min, max, wanted) {
  const step0 = (max - min) / Math.max(1, wanted), unit = 10 ** Math.floor(Math.log10(step0 || 1));
  const step = [1, 2, 2.5, 5, 10].map(m => m * unit).find(m => m >= step0 * 0.999) || unit;
  const ticks = [];
  for (let v = Math.ceil(min / step - 1e-9) * step; v <= max + step * 1e-6; v += step) ticks.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return ticks;
}

/** Axes with a grid; x and y: {min, max, label, format, ticks}. Gives the svg and both scales. */
function plot(width, height, x, y, more = {}) {
  const yTicks = y.ticks || niceTicks(y.min, y.max, Math.max(2, height / 60)), yText = yTicks.map(y.format || num);
  const left = more.left ?? 14 + 7.2 * Math.max(...yText.map(t => t.length), 1), right = more.right ?? 14, top = more.top ?? 26, bottom = 42;
  const X = v => left + (v - x.min) / (x.max - x.min || 1) * (width - left - right);
  const Y = v => height - bottom - (v - y.min) / (y.max - y.min || 1) * (height - top - bottom);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  yTicks.forEach((v, i) => svg.append(
    s("line", { class: v === 0 && y.min < 0 ? "zero" : "rule", x1: left, x2: width - right, y1: Y(v), y2: Y(v) }),
    s("text", { x: left - 8, y: Y(v) + 4, "text-anchor": "end" }, yText[i])));
  let last = -Infinity;
  for (const v of x.ticks || niceTicks(x.min, x.max, Math.max(2, (width - left) / 80))) {
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
  xs.forEach((x, i) => { if (there(ys[i]) && there(x)) { d += `${pen}${p.X(x).toFixed(1)},${p.Y(ys[i]).toFixed(1)}`; pen = "L"; } else pen = "M"; });
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
  if (drawn.length === 1) return p.svg.append(s("circle", { cx: p.X(xs[drawn[0]]), cy: p.Y(ys[drawn[0]]), r: 4.5, fill: colour }));
  p.svg.append(s("path", { d: path(xs, ys, p), fill: "none", stroke: colour, "stroke-width": width, "stroke-dasharray": dashes, "stroke-linejoin": "round", "stroke-linecap": "round" }));
}

// ---------------------------------------------------------------- tooltips
function tell(event, text) {
  if (!text) { tip.hidden = true; return; }
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
  tip.style.top = `${event.clientY - height - 12 < 4 ? event.clientY + 18 : event.clientY - height - 12}px`;
}
/** The nearest of `spots` ({x, y, text, pick}) tells itself under the pointer, and can be picked. */
function hover(svg, spots, reach = 26, onlyX = false) {
  const mark = s("circle", { r: 6, fill: "none", stroke: "var(--ink)", "stroke-width": 2, visibility: "hidden" });
  const rule = s("line", { class: "cross", visibility: "hidden" });
  svg.append(mark, rule);
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
  svg.addEventListener("pointermove", event => {
    const spot = nearest(event);
    mark.setAttribute("visibility", spot && !onlyX ? "visible" : "hidden");
    rule.setAttribute("visibility", spot && onlyX ? "visible" : "hidden");
    if (spot && !onlyX) {
      mark.setAttribute("cx", spot.x); mark.setAttribute("cy", spot.y); mark.setAttribute("r", (spot.r || 4) + 3);
    } else if (spot) {
      for (const [name, value] of Object.entries({ x1: spot.x, x2: spot.x, y1: spot.top || 0, y2: spot.bottom || 0 })) rule.setAttribute(name, value);
    }
    svg.style.cursor = spot && spot.pick ? "pointer" : "";
    tell(event, spot && spot.text);
  });
  svg.addEventListener("pointerleave", event => { tell(event, ""); mark.setAttribute("visibility", "hidden"); rule.setAttribute("visibility", "hidden"); });
  svg.addEventListener("click", event => { const spot = nearest(event); if (spot && spot.pick) spot.pick(); });
}
/** Tells all lines at the nearest x: series are {name, xs, ys, format}. */
function hoverLines(p, series, word = "round", xFormat = count) {
  const at = new Map();
  for (const { name, xs, ys, format } of series) xs.forEach((x, i) => {
    if (!there(ys[i])) return;
    if (!at.has(x)) at.set(x, []);
    if (at.get(x).length < 12) at.get(x).push(`${name}: ${(format || pct)(ys[i])}`);
  });
  hover(p.svg, [...at].map(([x, lines]) => ({ x: p.X(x), top: p.top, bottom: p.height - p.bottom, text: `${word} ${xFormat(x)}\n${lines.join("\n")}` })), 1e4, true);
}

// ---------------------------------------------------------------- cards
/** A figure: title, controls, drawing, caption, and its numbers as a table for those who cannot or will not look. */
function card(id, span, title, { caption, draw, alt, table, controls, key, tall }) {
  const box = h("div", { class: "plot" });
  const node = h("figure", { class: `card ${span}`, id, "data-figure": id },
    h("div", { class: "head" }, h("h3", {}, title), controls && h("div", { class: "controls" }, controls)),
    h("div", { class: "keys" }), box,
    h("figcaption", {}, caption));
  const numbers = h("details", {}, h("summary", {}, "Numbers"));
  if (table) {
    numbers.addEventListener("toggle", () => { if (numbers.open && numbers.childElementCount === 1) numbers.append(tableOf(...table())); });
    node.append(numbers);
  }
  const redraw = () => {
    const width = Math.floor(box.clientWidth);
    if (!width) return;
    const wide = tall ? Math.min(width, tall) : width;
    let drawn;
    try { drawn = draw(wide, box); } catch (error) { console.error(id, error); drawn = "This figure could not be drawn."; }
    box.replaceChildren();
    node.querySelector(".keys").replaceChildren(...(key && typeof drawn !== "string" ? [keyOf(key())] : []));
    node.dataset.drawn = typeof drawn === "string" ? "remark" : "yes";
    numbers.hidden = typeof drawn === "string";
    if (typeof drawn === "string") return box.append(h("div", { class: "none" }, drawn));
    const svg = drawn instanceof SVGElement ? drawn : drawn.querySelector("svg");
    if (svg) { svg.setAttribute("role", "img"); svg.setAttribute("aria-label", `${title}. ${alt ? alt() : ""}`); svg.style.width = `${svg.getAttribute("width")}px`; svg.style.margin = tall ? "0 auto" : ""; }
    box.append(drawn);
    for (const old of numbers.querySelectorAll(".table")) old.remove();
    if (numbers.open && table) numbers.append(tableOf(...table()));
  };
  cards.push({ id, redraw, box });
  return node;
}
const redraw = (...ids) => cards.forEach(c => { if (!ids.length || ids.includes(c.id)) c.redraw(); });
const keyOf = items => h("ul", { class: "key" }, items.map(([name, colour, shape]) => h("li", {}, h("i", { class: shape || "", hue: colour }), name)));
function tableOf(heads, rows) {
  const most = 400;
  return h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Numbers" }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map(name => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.slice(0, most).map(row => h("tr", {}, row.map(cell => h("td", {}, cell)))),
      rows.length > most && h("tr", {}, h("td", { colspan: heads.length }, `… and ${rows.length - most} more; kithkin export-metrics has them all`)))));
}
function choice(label, options, value, change, id) {
  const pick = h("select", { id, onchange: () => change(pick.value) }, options.map(([v, name]) => h("option", { value: v, selected: String(v) === String(value) }, name)));
  return h("label", {}, label, pick);
}
function slider(id, label, most, value, say, change) {
  const out = h("output", { for: id }, say(value));
  const input = h("input", { type: "range", id, min: 0, max: most, step: 1, value, "aria-label": label, "aria-valuetext": say(value), oninput: () => {
    out.textContent = say(+input.value); input.setAttribute("aria-valuetext", say(+input.value)); change(+input.value);
  } });
  input.value = value;
  return h("div", { class: "slider" }, input, out);
}
const runsKey = (shape, has = () => true) => () => DATA.runs.length > 1 ? shown().filter(({ run }) => has(run)).map(({ run, colour }) => [run.name, colour, shape]) : [];
const section = (id, title, text, ...children) => h("section", { id, "aria-label": title }, h("header", {}, h("h2", {}, title), h("p", {}, text)), h("div", { class: "grid" }, children));
