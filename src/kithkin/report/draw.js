"use strict";
// What every figure is made of: nodes, numbers, axes, tooltips, cards.
// Text from the data only ever becomes text nodes, never markup.

let DATA = JSON.parse(document.getElementById("gathered").textContent);
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
const variance = v => there(v) ? v.toFixed(4) : "–"; // as the terminal has it
const num = v => !there(v) ? "–" : v === 0 ? "0" : Math.abs(v) >= 1000 ? count(v) : String(+v.toPrecision(3));
const mb = v => !there(v) ? "–" : v >= 1e6 ? `${num(v / 1e6)} TB` : v >= 1000 ? `${num(v / 1000)} GB` : `${num(v)} MB`;
const time = v => !there(v) ? "–" : v < 100 ? `${num(v)} s` : v < 6000 ? `${count(v / 60)} min`
  : `${(v / 3600).toFixed(1)} h`;
const share = (a, b) => b ? a / b : null;
const total = values => values.reduce((a, b) => a + b, 0);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
/** At most so many letters: the first, and where two names would look alike, the last too. */
const shorten = (text, most, tail = 0) => text.length <= most ? text
  : `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
const shortNames = (names, most) => {
  const cut = names.map(name => shorten(name, most));
  return cut.map((text, i) => cut.indexOf(text) === cut.lastIndexOf(text) ? text : shorten(names[i], most, Math.floor(most / 2)));
};
const ruler = document.createElement("canvas").getContext("2d");
/** How wide a figure's text is, in pixels. */
const widthOf = (text, weight = 400) => {
  ruler.font = `${weight} 12px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
};
const fitted = (text, room) => {
  let most = text.length;
  while (most > 1 && widthOf(shorten(text, most)) > room) most--;
  return shorten(text, most);
};
const widest = (texts, weight) => Math.max(...texts.map(text => widthOf(text, weight)), 0);
const bounds = values => {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (there(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  return low > high ? [0, 1] : [low, high];
};

// ---------------------------------------------------------------- runs
const hue = i => `var(--c${i % 11})`;
const DASHES = ["", "8 6", "1 5", "12 5 1 5", "18 6", "4 5"];
const disc = (x, y, r) => `M${(x - r).toFixed(1)},${y.toFixed(1)}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`;
const corners = (...at) => (x, y, r) =>
  `M${at.map(([a, b]) => `${(x + a * r).toFixed(1)},${(y + b * r).toFixed(1)}`).join("L")}Z`;
const SHAPES = [
  disc, corners([0, -1.3], [1.2, .8], [-1.2, .8]), corners([-.9, -.9], [.9, -.9], [.9, .9], [-.9, .9]),
  corners([0, -1.35], [1.35, 0], [0, 1.35], [-1.35, 0]), corners([0, 1.3], [1.2, -.8], [-1.2, -.8]),
  corners([-1, -.4], [-.4, -1], [1, .4], [.4, 1]),
];
const looks = run => ({ run, colour: hue(run.look[0]), style: run.look[1] % 6 }); // a style is a line's dash, a dot's shape
const shown = () => DATA.runs.filter(run => !state.hidden.has(run.group)).map(looks);
const groupsOf = sets => [...new Map(sets.map(set => [set.run.group, set])).values()]; // seeds look alike
const current = () => DATA.runs[state.run];
const several = () => DATA.runs.length > 1;
const sameClients = run => run === current() || given(run.split_hash) && run.split_hash === current().split_hash;
const called = (run, k) => { // a client by its number and, where it has another name, by that
  const name = run.client_names[k] ?? `${k}`;
  return name === `${k}` ? name : `${k} (${name})`;
};
const isNamed = ({ client_names: names }) => names.length <= 30 && names.some((name, k) => name !== `${k}`);
const tickOf = (run, k, room) => isNamed(run) ? fitted(`${k} ${run.client_names[k] ?? ""}`, room) : `${k}`;
const className = (run, c) => String(run.split?.classes[c] ?? `class ${c}`);
const classTold = (run, c) => className(run, c).replace(/^\d+$/, "class $&"); // a bare number needs the word, away from an axis

const listOf = run => run.helpers.lists[state.step];
const pairs = row => row.filter((_, i) => i % 2 === 0).map((j, i) => [j, row[2 * i + 1] / 1000]); // [helper, relation]
function timesHelping(run) {
  const n = listOf(run).map(() => 0);
  listOf(run).forEach((row, k) => pairs(row).forEach(([j]) => { if (j !== k) n[j]++; }));
  return n;
}
/** The counts of several stretches of rounds together. */
function together(steps) {
  const add = (a, b) => b.map((row, i) => row.map((v, j) => v + (a[i]?.[j] || 0)));
  const all = { by_class: [], by_entropy: [], by_helper: {} };
  for (const step of steps) {
    for (const [who, pair] of Object.entries(step.by_helper)) all.by_helper[who] = add([all.by_helper[who] || []], [pair])[0];
    for (const name of ["by_class", "by_entropy"]) all[name] = add(all[name], step[name]);
  }
  return all;
}

// ---------------------------------------------------------------- one plot
/** Round values between two others, at least two if there are; whole ones, where the axis counts something. */
function niceTicks(min, max, wanted, whole) {
  const least = Math.max((max - min) / Math.max(1, wanted), whole ? 1 : 0), unit = 10 ** Math.floor(Math.log10(least || 1));
  const steps = [1, 2, 2.5, 5, 10].map(m => m * unit).filter(step => !whole || Number.isInteger(step));
  const at = step => {
    const first = Math.ceil(min / step - 1e-9), last = Math.floor(max / step + 1e-6);
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step);
  };
  const fits = steps.findIndex(m => m >= least * 0.999);
  return steps.slice(0, fits + 1).reverse().map(at).find(ticks => ticks.length > 1) || at(steps[fits]);
}
const shares = label => ({ min: 0, max: 1, label, format: percent });
const rounds = (first, last) => ({ label: "round", format: count,
  ...first === last ? { min: first - 1, max: last + 1, ticks: [first] } : { min: first, max: last, ends: true } });

/** Axes with a grid; x and y: {min, max, label, format, ticks, ends: tick both}. Gives the svg and both scales. */
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
  const taken = [];
  for (const v of [...x.ends ? [x.min, x.max] : [], ...ticksOf(x, (width - left) / 80)]) {
    const text = (x.format || num)(v), at = Math.min(X(v), width - 3.4 * text.length);
    if (taken.some(other => Math.abs(at - other) < 7.5 * text.length + 8)) continue;
    taken.push(at);
    if (more.upright) svg.append(s("line", { class: "rule", x1: X(v), x2: X(v), y1: top, y2: height - bottom }));
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
  const at = xs.map((_, i) => i).filter(i => there(low[i]) && there(high[i])), [only] = at;
  if (at.length === 1) { // as wide as can be seen
    const x = p.X(xs[only]), from = Math.max(p.left, x - 24), to = Math.min(p.width - p.right, x + 24);
    return `M${from},${p.Y(high[only])}H${to}V${p.Y(low[only])}H${from}Z`;
  }
  const corner = (i, side) => `${p.X(xs[i]).toFixed(1)},${p.Y(side[i]).toFixed(1)}`;
  return at.length ? `M${at.map(i => corner(i, high)).join("L")}L${at.reverse().map(i => corner(i, low)).join("L")}Z` : "";
};

/** A line, and a dot where a point has no neighbour: a line through it alone would not be seen. */
function line(p, xs, ys, colour, style = 0, width = 2.2) {
  const drawn = i => there(xs[i]) && there(ys[i]), all = xs.map((_, i) => i).filter(drawn), r = all.length > 1 ? 3 : 4.5;
  const dots = all.filter(i => !drawn(i - 1) && !drawn(i + 1)).map(i => SHAPES[style](p.X(xs[i]), p.Y(ys[i]), r));
  if (dots.length) p.svg.append(s("path", { class: "dots", d: dots.join(""), fill: colour }));
  if (dots.length < all.length) p.svg.append(s("path", {
    d: path(xs, ys, p), fill: "none", stroke: colour, "stroke-width": width, "stroke-dasharray": DASHES[style],
    "stroke-linejoin": "round", "stroke-linecap": "round",
  }));
}

/** Where each client stands on the ring, and the arc of each class. */
function ring(run, width) {
  const K = listOf(run).length, centre = width / 2, groups = run.clients?.class, named = isNamed(run);
  const order = [...Array(K).keys()].sort((a, b) => groups ? groups[a] - groups[b] || a - b : a - b);
  const used = new Set(groups).size, gap = used > 1 ? Math.min(.09, .8 / used) : 0, step = (2 * Math.PI - gap * used) / K;
  const told = named || 2.4 * width / K > 16; // by names, which stand like rays, or by numbers
  const room = named ? Math.min(110, .2 * width) : told ? 16 : 0, edge = groups ? 20 : 12, radius = centre - edge - room - 6;
  const place = new Array(K), arcs = new Map();
  const at = (a, r) => ({ x: centre + r * Math.cos(a), y: centre + r * Math.sin(a) });
  let angle = -Math.PI / 2 + gap / 2, before = null;
  for (const k of order) {
    const g = groups?.[k];
    if (before !== null && g !== before) angle += gap;
    before = g;
    angle += step;
    place[k] = { a: angle - step / 2, ...at(angle - step / 2, radius) };
    if (groups) arcs.set(g, [arcs.get(g)?.[0] ?? angle - step, angle]);
  }
  const label = k => {
    const { a } = place[k], { x, y } = at(a, radius + edge + (named ? 2 : 8)), left = Math.cos(a) < 0;
    const turned = `rotate(${180 * a / Math.PI + (left ? 180 : 0)} ${x} ${y})`;
    const along = named && { "text-anchor": left ? "end" : "start", transform: turned };
    return told && s("text", { class: "client", x, y, dy: 4, "text-anchor": "middle", ...along }, tickOf(run, k, room));
  };
  return { place, arcs, radius, centre, step, at, label };
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
let forget = () => {}; // what the last figure that was pointed at tells
document.addEventListener("pointerdown", () => forget(), true);
/** The nearest of `spots` ({x, y, text, pick}) tells itself under the pointer or finger, and can be picked. */
function hover(svg, spots, reach = 26, onlyX = false) {
  const ring = onlyX ? s("line", { class: "cross" }) : s("circle", { fill: "none", stroke: "var(--ink)", "stroke-width": 2 });
  const show = spot => {
    ring.setAttribute("visibility", spot ? "visible" : "hidden");
    if (!spot) return;
    if (onlyX) put(ring, { x1: spot.x, x2: spot.x, y1: spot.top, y2: spot.bottom }, []);
    else put(ring, { cx: spot.x, cy: spot.y, r: (spot.r || 4) + 3 }, []);
  };
  const nearest = event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const px = (event.clientX - box.left) * scale, py = (event.clientY - box.top) * scale;
    let spot = null, least = reach * reach;
    for (const other of spots) {
      const d = (other.x - px) ** 2 + (onlyX ? 0 : (other.y - py) ** 2);
      if (d < least) { least = d; spot = other; }
    }
    return { spot, py };
  };
  const leave = () => { tell(null, ""); show(null); };
  const point = event => {
    const { spot, py } = nearest(event);
    show(spot);
    svg.style.cursor = spot?.pick ? "pointer" : "";
    forget = leave;
    tell(event, typeof spot?.text === "function" ? spot.text(py) : spot?.text);
  };
  show(null);
  svg.append(ring);
  for (const name of ["pointermove", "pointerdown"]) svg.addEventListener(name, point);
  svg.addEventListener("pointerleave", event => { if (event.pointerType !== "touch") leave(); }); // a lifted finger leaves too
  svg.addEventListener("pointercancel", leave);
  svg.addEventListener("click", event => nearest(event).spot?.pick?.());
}
/** Tells the lines at the nearest x; of many, the highest, the lowest, and those nearest to the pointer.
 *  Series are {name, xs, ys, format}. */
function hoverLines(p, series, word = "round", xFormat = count) {
  const most = 12, at = new Map();
  for (const { name, xs, ys, format = v => pct(v) } of series) xs.forEach((x, i) => {
    if (!there(ys[i])) return;
    if (!at.has(x)) at.set(x, []);
    at.get(x).push({ y: p.Y(ys[i]), text: `${name}: ${format(ys[i], i)}` });
  });
  const some = (lines, py) => {
    if (lines.length <= most) return lines;
    const down = [...lines].sort((a, b) => a.y - b.y), near = [...lines].sort((a, b) => Math.abs(a.y - py) - Math.abs(b.y - py));
    const kept = [...new Set([down[0], down.at(-1), ...near])].slice(0, most);
    return [...down.filter(line => kept.includes(line)), { text: `… and ${lines.length - most} more` }];
  };
  hover(p.svg, [...at].map(([x, lines]) => {
    const text = py => [`${word} ${xFormat(x)}`, ...some(lines, py).map(line => line.text)].join("\n");
    return { x: p.X(x), top: p.top, bottom: p.height - p.bottom, text };
  }), 1e4, true);
}

// ---------------------------------------------------------------- cards
/** A figure: title, controls, drawing, caption, and its numbers as a table for those who cannot or will not look.
 *  `draw` gives an svg, a node with one, or the reason why there is nothing; `tall` bounds the width of square figures;
 *  `run` is the one that it is about, if not about all that are shown. */
function card(id, span, title, { caption, draw, alt, table, controls, key, tall, run }) {
  const whose = run && several() ? ` · ${run.name}` : "";
  const box = h("div", { class: "plot" }), keys = h("div", { class: "keys" });
  const numbers = h("details", { hidden: !table }, h("summary", {}, "Numbers"));
  const node = h("figure", { class: `card ${span}`, id, "data-figure": id },
    h("div", { class: "head" }, h("h3", {}, title, h("span", { class: "muted" }, whose)),
      controls && h("div", { class: "controls" }, controls)),
    keys, box, h("figcaption", {}, caption), numbers);
  const fill = () => {
    numbers.querySelector(".table")?.remove();
    if (numbers.open) numbers.append(tableOf(...table()));
  };
  numbers.addEventListener("toggle", fill);
  const redraw = room => { // given for paper, on which a square is smaller, so that its words are drawn larger
    const width = room || Math.floor(box.clientWidth);
    if (!width) return;
    let drawn;
    if (!run && !shown().length) drawn = "All runs are switched off at the top.";
    else try { drawn = draw(tall ? Math.min(width, room ? 460 : tall) : width); }
    catch (error) { console.error(id, error); drawn = "This figure could not be drawn."; }
    const remark = typeof drawn === "string";
    node.dataset.drawn = remark ? "remark" : "yes";
    keys.replaceChildren(...(key && !remark ? [keyOf(key())] : []));
    numbers.hidden = remark || !table;
    box.replaceChildren(remark ? h("div", { class: "none" }, drawn) : drawn);
    if (remark) return;
    const svg = box.querySelector("svg");
    if (svg) {
      put(svg, { role: "img", "aria-label": `${title}${whose}. ${alt()}` }, []);
      svg.style.width = `${svg.getAttribute("width")}px`;
      if (tall) Object.assign(svg.style, { margin: "0 auto", maxWidth: `${tall}px` });
    }
    fill();
  };
  cards.push({ id, redraw });
  return node;
}
const redraw = (...ids) => cards.forEach(c => { if (!ids.length || ids.includes(c.id)) c.redraw(); });
/** A line, dot or box as in a figure, for keys and tables; drawn, because print leaves backgrounds out. */
function glyph(kind, colour, style = 0) {
  const wide = kind === "line" ? 30 : 14, round = { "stroke-linecap": "round", "stroke-dasharray": DASHES[style] };
  return s("svg", { class: "glyph", viewBox: `0 0 ${wide} 14`, width: wide, height: 14, "aria-hidden": "true" },
    kind === "line" ? s("path", { d: "M2,7H28", stroke: colour, "stroke-width": 3, ...round })
      : kind === "box" ? s("rect", { x: 1, y: 1, width: 12, height: 12, rx: 3, fill: colour })
        : s("path", { d: SHAPES[style](7, 7, 5), fill: colour, stroke: colour, "stroke-width": 1.5 }));
}
const keyOf = items => h("ul", { class: "key" }, items.map(([name, colour, kind, style]) =>
  h("li", {}, colour && glyph(kind, colour, style), name)));
const runsKey = (kind, has = () => true) => () => {
  const sets = several() ? shown().filter(({ run }) => has(run)) : [];
  const seeds = group => sets.filter(({ run }) => run.group === group).length;
  const name = ({ group }) => seeds(group) > 1 ? `${group}, ${seeds(group)} seeds` : group;
  return groupsOf(sets).map(({ run, colour, style }) => [name(run), colour, kind, style]);
};
/** Which class a client's colour means; none where colours come twice. */
const classesKey = (run, classes) => {
  const used = [...new Set(classes)].filter(given).sort((a, b) => a - b);
  return used.length && used.at(-1) < 11 ? [["mostly of class"], ...used.map(c => [className(run, c), hue(c), "dot"])] : [];
};
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
