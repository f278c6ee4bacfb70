// The sections of the report, drawn from the JSON in the page; draw.js, which comes before, has what they are made of.

// ---------------------------------------------------------------- overview
function overview() {
  const runs = DATA.runs, one = runs.length === 1, run = runs[0], c = run.config;
  const going = runs.filter(r => !r.finished).length;
  const words = [c.data && `${String(c.data).split("/").pop()}`, c.clients && `${c.clients} clients`, there(c.alpha) && `alpha ${c.alpha}`, run.rounds && `${run.rounds} rounds`, there(c.seed) && `seed ${c.seed}`];
  const same = one ? words : words.filter((_, i) => new Set(runs.map(r => String([r.config.data, r.config.clients, r.config.alpha, r.rounds, r.config.seed][i]))).size === 1);
  const remarks = runs.flatMap(r => r.remarks.map(text => one ? text : `${r.name}: ${text}`));
  return h("div", { id: "overview" },
    h("div", { class: "lead" },
      h("div", { class: `state ${going ? "going" : ""}`, id: "state" }, going ? one ? `Round ${run.done} of ${run.rounds || "?"}` : `${going} of ${runs.length} runs not finished` : one ? "Finished" : `${runs.length} runs`),
      h("h1", {}, one ? run.name : runs.slice(0, 4).map(r => r.name).join(" · ") + (runs.length > 4 ? ` and ${runs.length - 4} more` : "")),
      h("p", {}, same.filter(Boolean).join(" · ")),
      !one && h("div", { class: "chips", role: "group", "aria-label": "Runs shown" }, runs.map((r, i) => {
        const chip = h("button", { type: "button", class: "chip", hue: hue(i % 8), "aria-pressed": String(!state.hidden.has(r.folder)), onclick: () => {
          state.hidden.has(r.folder) ? state.hidden.delete(r.folder) : state.hidden.add(r.folder);
          chip.setAttribute("aria-pressed", String(!state.hidden.has(r.folder)));
          redraw();
        } }, h("i"), r.name);
        return chip;
      })),
      remarks.length > 0 && h("ul", { class: "remarks", id: "remarks", role: "note" }, remarks.map(text => h("li", {}, text)))),
    one ? tiles(run) : standings(runs));
}
function tiles(run) {
  const { headline: n, audit, cost } = run;
  const tile = (name, value, unit, note) => h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, value, unit && h("small", {}, ` ${unit}`)), note && h("p", {}, note));
  const [size, unit] = mb(n.megabytes).split(" ");
  return h("dl", { class: "tiles", id: "headline" },
    tile("Test accuracy", pct(n.test), "", there(n.round) ? `mean over clients, at the best validation round (${n.round})` : "mean over clients"),
    tile("Worst tenth of clients", pct(n.worst_decile), "", `variance over clients ${num(n.variance)}`),
    there(n.gain) && tile("Gain over local", points(n.gain), "points", `${pct(n.harmed, 0)} of clients end more than ${100 * DATA.harm} points below`),
    audit && tile("Wrong pseudo labels", pct(n.label_error), "", `last round; ${pct(n.coverage, 0)} of the pictures labelled`),
    cost && tile("Moved", size, unit, "all models sent, up and down"),
    cost && tile("Time", ...time(n.seconds).split(" "), run.machine.device ? `on ${run.machine.device}` : ""));
}
function standings(runs) {
  const columns = [
    ["test", "test", pct, 1], ["best of any round", "best_test", pct, 1], ["worst 10%", "worst_decile", pct, 1], ["variance", "variance", num, -1], ["gain over local", "gain", points, 1],
    ["harmed", "harmed", v => pct(v, 0), -1], ["label error", "label_error", pct, 0], ["coverage", "coverage", v => pct(v, 0), 0], ["moved", "megabytes", mb, 0], ["time", "seconds", time, 0],
  ].filter(([, key]) => runs.some(r => there(r.headline[key])));
  const best = Object.fromEntries(columns.map(([, key, , sign]) => [key, sign ? Math.max(...runs.map(r => r.headline[key]).filter(there).map(v => sign * v)) * sign : null]));
  return h("div", { class: "card", id: "headline" }, h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Headline numbers of all runs" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "run"), columns.map(([name]) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, runs.map((r, i) => h("tr", {}, h("th", { scope: "row" }, h("i", { hue: hue(i % 8) }), r.name),
      columns.map(([, key, format]) => h("td", { class: there(r.headline[key]) && r.headline[key] === best[key] ? "best" : null }, format(r.headline[key])))))))),
    h("figcaption", {}, "Accuracy is that of each client's own model on its own test pictures, at the round of best mean validation accuracy. Harmed: clients more than " + 100 * DATA.harm + " points below training alone."));
}

// ---------------------------------------------------------------- accuracy
function accuracy() {
  const curves = () => shown().filter(({ run }) => run.curve);
  const withGain = DATA.runs.some(r => r.clients && r.clients.gain);
  if (!withGain) state.y = "test";
  return section("accuracy", "Accuracy", "Every client has its own model, tested on its own pictures.",
    card("curve", "w12", "Accuracy over rounds", {
      caption: DATA.runs.length > 2 ? `Test accuracy: mean over clients, and for ${current().name} the band in which the middle 80% of the clients lie; the choice of run at the top changes it.` : "Test accuracy: mean over clients, and the band in which the middle 80% of the clients lie.",
      key: runsKey(),
      alt: () => curves().map(({ run }) => `${run.name} ends at ${pct(run.curve.mean.at(-1))}`).join("; "),
      table: () => [["run", "round", "mean", "10%", "90%", "validation"], curves().flatMap(({ run }) => run.curve.round.map((r, i) => [run.name, r, pct(run.curve.mean[i]), pct(run.curve.low?.[i]), pct(run.curve.high?.[i]), pct(run.curve.val[i])]))],
      draw: width => {
        if (!curves().length) return "No round has been evaluated yet, or marks.jsonl and metrics.jsonl are missing.";
        const last = Math.max(...curves().map(({ run }) => run.curve.round.at(-1))), first = Math.min(...curves().map(({ run }) => run.curve.round[0]));
        const p = plot(width, width < 500 ? 280 : 360, { min: first === last ? first - 1 : first, max: last, label: "round", format: count }, { min: 0, max: 1, format: v => pct(v, 0), label: "test accuracy" });
        const banded = run => run.curve.low && (curves().length < 3 || run === current());
        for (const { run, run: { curve }, colour } of curves()) if (banded(run)) p.svg.append(s("path", { d: area(curve.round, curve.low, curve.high, p), fill: colour, opacity: .14 }));
        for (const { run: { curve }, colour, dash } of curves()) line(p, curve.round, curve.mean, colour, dash);
        hoverLines(p, curves().map(({ run }) => ({ name: run.name, xs: run.curve.round, ys: run.curve.mean, format: v => { const i = run.curve.mean.indexOf(v); return run.curve.low ? `${pct(v)}  (${pct(run.curve.low[i], 0)} to ${pct(run.curve.high[i], 0)})` : pct(v); } })));
        return p.svg;
      },
    }),
    card("scatter", withGain ? "w7" : "w12", "Every client", {
      caption: withGain ? "A dot is a client at the best validation round. Gain: accuracy less that of the same client training alone." : "A dot is a client at the best validation round. Give the folder of a local run too, and its gain can be shown.",
      controls: [
        choice("across", [["ratio", "label ratio"], ["size", "training pictures"]], state.x, v => { state.x = v; redraw("scatter"); }, "across"),
        withGain && choice("up", [["test", "accuracy"], ["gain", "gain over local"]], state.y, v => { state.y = v; redraw("scatter"); }, "up"),
      ],
      key: runsKey("dot"),
      alt: () => `${shown().map(({ run }) => run.clients ? `${run.name}: ${run.clients.test.length} clients` : "").filter(Boolean).join("; ")}, ${state.y} against ${state.x}`,
      table: () => [["run", "client", "label ratio", "pictures", "accuracy", "gain"], shown().filter(({ run }) => run.clients).flatMap(({ run: { name, clients: c } }) => c.test.map((t, k) => [name, k, pct(c.ratio?.[k]), count(c.size?.[k]), pct(t), points(c.gain?.[k])]))],
      draw: width => {
        const sets = shown().filter(({ run }) => run.clients && run.clients[state.x] && run.clients[state.y]);
        if (!sets.length) return "Nothing to show: accuracies or the sizes of the clients are not on record.";
        const [low, high] = bounds(sets.flatMap(({ run }) => run.clients[state.y])), most = bounds(sets.flatMap(({ run }) => run.clients[state.x]))[1];
        const gain = state.y === "gain";
        const p = plot(width, 330, state.x === "ratio" ? { min: 0, max: 1, label: "labelled share of training pictures", format: v => pct(v, 0) } : { min: 0, max: most * 1.03, label: "training pictures", format: count },
          gain ? { min: Math.min(low, -.05), max: Math.max(high, .05), format: gainTick, label: "gain over local, points" } : { min: 0, max: 1, format: v => pct(v, 0), label: "test accuracy" });
        const spots = [], many = sets.reduce((n, { run }) => n + run.clients.test.length, 0), r = many > 1200 ? 2.4 : many > 200 ? 3.2 : 4.5;
        for (const { run, colour } of sets) {
          const c = run.clients;
          let d = "";
          c[state.y].forEach((v, k) => {
            const a = c[state.x][k];
            if (!there(v) || !there(a)) return;
            d += disc(p.X(a), p.Y(v), r);
            spots.push({ x: p.X(a), y: p.Y(v), r, pick: () => select(k), text: `${run.name}, client ${k}\naccuracy ${pct(c.test[k])}${there(c.gain?.[k]) ? `, gain ${points(c.gain[k])}` : ""}\n${count(c.labelled[k])} of ${count(c.size[k])} pictures labelled${c.class ? `\nmostly ${className(run, c.class[k])}` : ""}` });
            if (k === state.client) p.svg.append(s("circle", { class: "chosen", cx: p.X(a), cy: p.Y(v), r: r + 4, fill: "none", stroke: "var(--ink)", "stroke-width": 2 }));
          });
          p.svg.append(s("path", { d, fill: colour, "fill-opacity": .72, stroke: "var(--card)", "stroke-width": many > 400 ? .4 : .8 }));
        }
        hover(p.svg, spots);
        return p.svg;
      },
    }),
    withGain ? card("gains", "w5", "Who gained, who lost", {
      caption: `Clients from the greatest loss to the greatest gain over training alone. Below the dashed line (−${100 * DATA.harm} points) a client counts as harmed.`,
      key: runsKey("", run => run.clients?.gain),
      alt: () => shown().filter(({ run }) => run.clients?.gain).map(({ run }) => `${run.name}: mean gain ${points(run.headline.gain)} points, ${pct(run.headline.harmed, 0)} harmed`).join("; "),
      table: () => [["run", "mean gain", "harmed"], shown().filter(({ run }) => run.clients?.gain).map(({ run }) => [run.name, points(run.headline.gain), pct(run.headline.harmed, 0)])],
      draw: width => {
        const sets = shown().filter(({ run }) => run.clients?.gain);
        if (!sets.length) return "None of the runs shown has a local twin.";
        const [low, high] = bounds(sets.flatMap(({ run }) => run.clients.gain));
        const p = plot(width, 330, { min: 0, max: 1, format: v => pct(v, 0), label: "share of clients" }, { min: Math.min(low, -.1), max: Math.max(high, .1), format: gainTick, label: "gain over local, points" });
        p.svg.append(s("line", { class: "cross", x1: p.left, x2: width - p.right, y1: p.Y(-DATA.harm), y2: p.Y(-DATA.harm) }));
        for (const { run, colour, dash } of sets) {
          const order = run.clients.gain.filter(there).sort((a, b) => a - b);
          line(p, order.map((_, i) => (i + .5) / order.length), order, colour, dash);
        }
        hoverLines(p, sets.map(({ run }) => { const order = run.clients.gain.filter(there).sort((a, b) => a - b); return { name: run.name, xs: order.map((_, i) => (i + .5) / order.length), ys: order, format: points }; }), "at", v => pct(v, 0));
        return p.svg;
      },
    }) : null);
}

// ---------------------------------------------------------------- fairness
function fairnessStrips(span) {
  const sets = () => shown().filter(({ run }) => run.clients);
  return card("strips", span, "From worst to best client", {
    caption: "Thin: all clients. Thick: the middle 80%. Dot: mean. Upright mark: mean of the worst tenth.",
    alt: () => sets().map(({ run }) => `${run.name}: worst tenth ${pct(run.clients.fairness.worst_decile)}, mean ${pct(run.clients.fairness.mean)}, variance ${num(run.clients.fairness.variance)}`).join("; "),
    table: () => [["run", "mean", "variance", "worst 10%", "min", "median", "max"], sets().map(({ run: { name, clients: { fairness: f } } }) => [name, pct(f.mean), num(f.variance), pct(f.worst_decile), pct(f.deciles[0]), pct(f.deciles[5]), pct(f.deciles[10])])],
    draw: width => {
      if (!sets().length) return "No client has been evaluated yet.";
      const row = Math.max(30, Math.min(56, 180 / sets().length)), height = 64 + row * sets().length;
      const p = plot(width, height, { min: 0, max: 1, format: v => pct(v, 0), label: "test accuracy" }, { min: 0, max: 1, ticks: [] }, { left: 6, top: 4 });
      for (const v of [0, .25, .5, .75, 1]) p.svg.append(s("line", { class: "rule", x1: p.X(v), x2: p.X(v), y1: 4, y2: height - 42 }));
      const spots = [];
      sets().forEach(({ run, colour }, i) => {
        const f = run.clients.fairness, y = row * (i + .5) + 12, bar = (a, b, w, o) => s("line", { x1: p.X(a), x2: p.X(b), y1: y, y2: y, stroke: colour, "stroke-width": w, opacity: o, "stroke-linecap": "round" });
        p.svg.append(s("text", { class: "strong", x: 6, y: y - 13 }, `${run.name}`), bar(f.deciles[0], f.deciles[10], 2, .8), bar(f.deciles[1], f.deciles[9], 10, .35),
          s("line", { x1: p.X(f.worst_decile), x2: p.X(f.worst_decile), y1: y - 8, y2: y + 8, stroke: colour, "stroke-width": 3 }),
          s("circle", { cx: p.X(f.mean), cy: y, r: 6, fill: colour, stroke: "var(--card)", "stroke-width": 2 }));
        spots.push({ x: p.X(f.mean), y, text: `${run.name}\nmean ${pct(f.mean)}, variance ${num(f.variance)}\nworst tenth ${pct(f.worst_decile)}\nmedian ${pct(f.deciles[5])}` });
      });
      hover(p.svg, spots, 300);
      return h("div", {}, p.svg, h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Fairness" }, tableOf(["run", "mean", "variance", "worst 10%"], sets().map(({ run: { name, clients: { fairness: f } } }) => [name, pct(f.mean), num(f.variance), pct(f.worst_decile)])).firstChild));
    },
  });
}
function fairness() {
  const sets = () => shown().filter(({ run }) => run.clients);
  return section("fairness", "Fairness", "Is everybody served, or only the mean?",
    card("spread", "w7", "How accuracies are distributed", {
      caption: "Share of clients that reach at most this accuracy: the further right, the better; the steeper, the fairer.",
      key: runsKey(),
      alt: () => sets().map(({ run }) => `${run.name}: half of the clients reach at most ${pct(run.clients.fairness.deciles[5])}`).join("; "),
      table: () => [["run", ...[0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100].map(d => `${d}%`)], sets().map(({ run }) => [run.name, ...run.clients.fairness.deciles.map(v => pct(v))])],
      draw: width => {
        if (!sets().length) return "No client has been evaluated yet.";
        const p = plot(width, 320, { min: 0, max: 1, format: v => pct(v, 0), label: "test accuracy" }, { min: 0, max: 1, format: v => pct(v, 0), label: "clients at or below" });
        const lines = sets().map(({ run, colour, dash }) => {
          const order = run.clients.test.filter(there).sort((a, b) => a - b), xs = [0], ys = [0];
          order.forEach((v, i) => { xs.push(v, v); ys.push(i / order.length, (i + 1) / order.length); });
          xs.push(1); ys.push(1);
          line(p, xs, ys, colour, dash);
          return { run, order };
        });
        const at = [...Array(41).keys()].map(i => i / 40);
        hoverLines(p, lines.map(({ run, order }) => ({ name: run.name, xs: at, ys: at.map(v => order.filter(a => a <= v + 1e-9).length / order.length), format: v => `${pct(v, 0)} of clients` })), "accuracy up to", v => pct(v, 0));
        return p.svg;
      },
    }),
    fairnessStrips("w5"));
}

// ---------------------------------------------------------------- helpers
function select(k) {
  state.client = k;
  const pick = document.getElementById("client");
  if (pick) pick.value = k === null ? "" : k;
  redraw("graph", "person", "scatter", "by-helper");
}
function ring(run, width) {
  const { clients } = run, K = run.helpers.lists[0].length, centre = width / 2, groups = clients?.class;
  const order = [...Array(K).keys()].sort((a, b) => groups ? groups[a] - groups[b] || a - b : a - b);
  const used = groups ? [...new Set(order.map(k => groups[k]))] : [], gap = used.length > 1 ? Math.min(.09, .8 / used.length) : 0;
  const step = (2 * Math.PI - gap * used.length) / K, numbered = K <= 60 && width > 380, radius = centre - (groups ? numbered ? 66 : 52 : numbered ? 34 : 18);
  const place = new Array(K), arcs = new Map();
  let angle = -Math.PI / 2 + gap / 2, before = null;
  for (const k of order) {
    const g = groups ? groups[k] : 0;
    if (before !== null && g !== before) angle += gap;
    before = g;
    angle += step;
    place[k] = { a: angle - step / 2, x: centre + radius * Math.cos(angle - step / 2), y: centre + radius * Math.sin(angle - step / 2) };
    if (groups) arcs.set(g, [arcs.get(g)?.[0] ?? angle - step, angle]);
  }
  return { place, arcs, radius, centre, step, groups, numbered };
}
function helpers() {
  const run = current(), net = run.helpers;
  if (!DATA.runs.some(r => r.helpers)) return null;
  if (net && (state.step === null || state.step >= net.round.length)) state.step = net.round.length - 1;
  const list = () => net.lists[state.step], pairs = row => row.reduce((found, v, i) => i % 2 ? (found.at(-1).push(v / 1000), found) : (found.push([v]), found), []);
  const helped = () => { const n = new Array(list().length).fill(0); list().forEach((row, k) => { for (let i = 0; i < row.length; i += 2) if (row[i] !== k) n[row[i]]++; }); return n; };
  const colourOf = (degree, most) => k => run.clients?.class ? hue(run.clients.class[k]) : `color-mix(in srgb, var(--c0) ${Math.round(25 + 75 * degree[k] / Math.max(1, most))}%, var(--line))`;
  const nothing = `${run.name} keeps no helper lists${DATA.runs.length > 1 ? "; choose another run above" : ""}.`;
  const by = run.clients?.class ? "Clients stand by the class that they have most of; a line has its helper's colour." : "The data is not here, so colour tells how many clients a client helps.";
  return section("helpers", "Who helps whom", "Each client keeps a short list of the models that fit it best. Choose a client to see its list; move through the rounds to see it settle.",
    Object.assign(card("graph", "w8", `Helper graph${DATA.runs.length > 1 ? ` of ${run.name}` : ""}`, {
      caption: `${by} The stronger the relation, the thicker the line; the more clients it helps, the larger the dot. With a client chosen: solid, its helpers; dashed, those whom it helps.`,
      controls: net && [
        slider("step", "Round of the helper graph", net.round.length - 1, state.step, i => `round ${net.round[i]}`, i => { state.step = i; redraw("graph", "person"); }),
        choice("client", [["", "all"], ...list().map((_, k) => [k, k])], state.client ?? "", v => select(v === "" ? null : +v), "client"),
      ],
      tall: 620,
      alt: () => { const n = helped(), top = n.map((v, k) => [v, k]).sort((a, b) => b[0] - a[0]).slice(0, 3); return `Round ${net.round[state.step]}: ${list().length} clients; most asked for help: ${top.map(([v, k]) => `client ${k} helps ${v}`).join(", ")}`; },
      table: () => [["client", "helpers (relation)", "helps"], list().map((row, k) => [k, pairs(row).map(([j, r]) => `${j === k ? "itself" : j} (${r.toFixed(2)})`).join(", "), helped()[k]])],
      draw: width => {
        if (!net) return nothing;
        const { place, arcs, radius, centre, step, groups, numbered } = ring(run, width), degree = helped(), most = Math.max(...degree, 1), colour = colourOf(degree, most);
        const svg = s("svg", { viewBox: `0 0 ${width} ${width}`, width, height: width }), chosen = state.client !== null && state.client < place.length ? state.client : null;
        const [, strongest] = bounds(list().flatMap(row => row.filter((_, i) => i % 2)));
        const bundles = new Map();
        list().forEach((row, k) => pairs(row).forEach(([j, relation]) => {
          if (j === k || !place[j]) return;
          const level = Math.min(3, Math.floor(4 * relation * 1000 / (strongest || 1))), a = place[j], b = place[k], near = Math.hypot(a.x - b.x, a.y - b.y) / (2 * radius);
          const pull = .15 + .55 * (1 - near), cx = centre + ((a.x + b.x) / 2 - centre) * pull, cy = centre + ((a.y + b.y) / 2 - centre) * pull;
          const role = chosen === null ? "all" : k === chosen ? "in" : j === chosen ? "out" : "rest", id = `${role}|${colour(j)}|${level}`;
          bundles.set(id, (bundles.get(id) || "") + `M${a.x.toFixed(1)},${a.y.toFixed(1)}Q${cx.toFixed(1)},${cy.toFixed(1)} ${b.x.toFixed(1)},${b.y.toFixed(1)}`);
        }));
        const look = { all: place.length > 300 ? [.05, .05] : place.length > 100 ? [.12, .1] : [.26, .14], in: [.95, 0], out: [.6, 0], rest: [.05, 0] };
        for (const role of ["rest", "all", "out", "in"]) for (const [id, d] of bundles) {
          const [r, c, level] = id.split("|");
          if (r === role) svg.append(s("path", { class: `edge ${role}`, d, fill: "none", stroke: c, "stroke-width": (.8 + +level * .9) * (place.length > 150 ? .7 : 1) + (role === "in" ? 1 : 0), opacity: Math.min(1, look[role][0] + look[role][1] * level), "stroke-dasharray": role === "out" ? "5 4" : null }));
        }
        for (const [g, [from, to]] of arcs) {
          const at = (angle, r) => `${(centre + r * Math.cos(angle)).toFixed(1)},${(centre + r * Math.sin(angle)).toFixed(1)}`, mid = (from + to) / 2, R = radius + (numbered ? 30 : 13);
          const left = Math.cos(mid) < -.15, right = Math.cos(mid) > .15, name = className(run, g);
          svg.append(s("path", { d: `M${at(from, R)}A${R},${R} 0 ${to - from > Math.PI ? 1 : 0} 1 ${at(to, R)}`, fill: "none", stroke: hue(g), "stroke-width": 4, "stroke-linecap": "round" }),
            s("text", { class: "strong", x: centre + (R + 9) * Math.cos(mid), y: centre + (R + 9) * Math.sin(mid) + 4, "text-anchor": left ? "end" : right ? "start" : "middle" }, name.length > 8 ? `${name.slice(0, 7)}…` : name));
        }
        const largest = Math.max(2, Math.min(11, radius * step * .55)), spots = [];
        place.forEach(({ x, y, a }, k) => {
          const r = Math.max(1.4, largest * (.4 + .6 * Math.sqrt(degree[k] / most)));
          svg.append(s("circle", { class: k === chosen ? "node chosen" : "node", cx: x, cy: y, r, fill: colour(k), stroke: k === chosen ? "var(--ink)" : "var(--card)", "stroke-width": k === chosen ? 3 : place.length > 150 ? .5 : 1.5 }));
          if (numbered) svg.append(s("text", { x: centre + (radius + 19) * Math.cos(a), y: centre + (radius + 19) * Math.sin(a) + 4, "text-anchor": "middle" }, k));
          spots.push({ x, y, r, pick: () => select(chosen === k ? null : k), text: `client ${k}${groups ? `, mostly ${className(run, groups[k])}` : ""}\nhelps ${degree[k]}\nhelped by ${pairs(list()[k]).filter(([j]) => j !== k).map(([j, r]) => `${j} (${r.toFixed(2)})`).join(", ") || "nobody"}` });
        });
        hover(svg, spots, 24);
        return svg;
      },
    })),
    h("div", { class: "w4", style: "display:grid;gap:1rem;align-content:start;grid-template-columns:minmax(0,1fr)" },
      card("person", "", "The chosen client", {
        caption: "Its own test accuracy over rounds (thin: mean of all clients), and its helpers at the round shown.",
        alt: () => state.client === null ? "" : `client ${state.client}`,
        draw: width => {
          if (!net) return nothing;
          const k = state.client, c = run.clients;
          if (k === null || k >= list().length) return "Choose a client: in the list above the graph, or by pressing its dot.";
          const box = h("div"), facts = [["test accuracy", pct(c?.test[k])], c?.gain && ["gain over local", `${points(c.gain[k])} points`], c?.size && ["pictures", `${count(c.size[k])}, ${count(c.labelled[k])} labelled`], c?.class && ["mostly", className(run, c.class[k])], ["helps", `${helped()[k]} clients`]].filter(Boolean);
          box.append(h("p", { class: "muted" }, h("strong", { id: "chosen" }, `Client ${k}`)), h("dl", { class: "facts", style: "margin:.4rem 0 .8rem" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
          if (c?.paths) {
            const { round, test } = c.paths, p = plot(width, 150, { min: round[0], max: Math.max(round.at(-1), round[0] + 1), format: count, label: "round" }, { min: 0, max: 1, ticks: [0, .5, 1], format: v => pct(v, 0) }, { top: 10 });
            if (run.curve) line(p, run.curve.round, run.curve.mean, "var(--c8)", "", 1.2);
            line(p, round, test.map(row => row[k]), "var(--accent)", "", 2.4);
            box.append(p.svg);
          }
          box.append(tableOf(["helper", "relation", "its accuracy"], pairs(list()[k]).map(([j, r]) => [j === k ? `${j} (itself)` : j, r.toFixed(3), pct(c?.test[j])])));
          return box;
        },
      }),
      card("churn", "", "Churn", {
        caption: "Helpers that are new on a list since the last evaluated round, as a share of all.",
        alt: () => `from ${pct(net.churn.share[0])} to ${pct(net.churn.share.at(-1))}`,
        table: () => [["round", "new helpers"], net.churn.round.map((r, i) => [r, pct(net.churn.share[i])])],
        draw: width => {
          if (!net) return nothing;
          if (!net.churn.round.length) return "One evaluated round shows no change.";
          const { round, share: part } = net.churn, p = plot(width, 190, { min: round[0], max: Math.max(round.at(-1), round[0] + 1), format: count, label: "round" }, { min: 0, max: Math.max(.1, ...part), format: v => pct(v, 0), label: "new helpers" });
          p.svg.append(s("path", { d: area(round, part.map(() => 0), part, p), fill: "var(--c0)", opacity: .15 }));
          line(p, round, part, "var(--c0)");
          hoverLines(p, [{ name: "new", xs: round, ys: part }]);
          return p.svg;
        },
      })));
}

// ---------------------------------------------------------------- pseudo labels
function labels() {
  if (!DATA.runs.some(r => r.audit)) return null;
  const run = current(), audit = run.audit;
  if (audit && state.audit >= audit.steps.length) state.audit = -1;
  const nothing = `${run.name} gave no pseudo labels${DATA.runs.length > 1 ? "; choose another run above" : ""}.`;
  const add = (a, b) => b.map((row, i) => row.map((v, j) => v + (a[i]?.[j] || 0)));
  const all = audit && audit.steps.reduce((sum, step) => {
    for (const [who, [taken, wrong]] of Object.entries(step.by_helper)) { const old = sum.by_helper[who] || [0, 0]; sum.by_helper[who] = [old[0] + taken, old[1] + wrong]; }
    return { by_helper: sum.by_helper, by_class: add(sum.by_class, step.by_class), by_entropy: add(sum.by_entropy, step.by_entropy) };
  }, { by_helper: {}, by_class: [], by_entropy: [] });
  const counts = () => state.audit < 0 ? all : audit.steps[state.audit];
  const say = i => i === 0 ? "all rounds" : (([a, b]) => a === b ? `round ${a}` : `rounds ${a}–${b}`)(audit.steps[i - 1].rounds);
  const sets = () => shown().filter(({ run: r }) => r.audit);
  return section("labels", "Pseudo labels", "Unlabelled pictures get their labels from models. The record knows the truth, the training never does.",
    card("audit", "w12", "Error and coverage over rounds", {
      caption: "Solid: wrong among the labels taken. Dotted: coverage, the share of unlabelled pictures that got a label.",
      key: runsKey("", r => r.audit),
      alt: () => sets().map(({ run: r }) => `${r.name}: error ${pct(r.headline.label_error)} in the last round, coverage ${pct(r.headline.coverage)}`).join("; "),
      table: () => [["run", "round", "error", "coverage"], sets().flatMap(({ run: { name, audit: a } }) => a.round.map((r, i) => [name, r, pct(a.error[i]), pct(a.coverage[i])]))],
      draw: width => {
        if (!sets().length) return "None of the runs shown gave pseudo labels.";
        const [first, last] = bounds(sets().flatMap(({ run: r }) => r.audit.round));
        const p = plot(width, 290, { min: first, max: Math.max(last, first + 1), label: "round", format: count }, { min: 0, max: 1, format: v => pct(v, 0), label: "share" });
        for (const { run: { audit: a }, colour, dash } of sets()) { line(p, a.round, a.coverage, colour, "1.5 5", 2); line(p, a.round, a.error, colour, dash); }
        hoverLines(p, sets().flatMap(({ run: r }) => [{ name: `${r.name} error`, xs: r.audit.round, ys: r.audit.error }, { name: `${r.name} coverage`, xs: r.audit.round, ys: r.audit.coverage }]));
        return p.svg;
      },
    }),
    audit && h("div", { class: "w12 band" }, h("span", {}, "Rounds of the three figures below"), slider("stretch", "Rounds of the three figures below", audit.steps.length, state.audit + 1, say, i => { state.audit = i - 1; redraw("reliability", "by-class", "by-helper"); })),
    card("reliability", "w4", "Does certainty mean right?", {
      caption: "Error of all answers by how uncertain they were (entropy, as a share of the most possible). Grey, below: how many answers.",
      alt: () => counts().by_entropy.map(([n, w], i) => n ? `uncertainty ${i * 10} to ${i * 10 + 10}%: ${pct(share(w, n), 0)} wrong` : "").filter(Boolean).join("; "),
      table: () => [["uncertainty", "answers", "wrong", "error"], counts().by_entropy.map(([n, w], i) => [`${i * 10}–${i * 10 + 10}%`, count(n), count(w), pct(share(w, n))])],
      draw: width => {
        if (!audit) return nothing;
        const bins = counts().by_entropy, B = bins.length, most = Math.max(...bins.map(([n]) => n), 1), spots = [];
        const p = plot(width, 354, { min: 0, max: 1, format: v => pct(v, 0), label: "uncertainty of the answer" }, { min: -.25, max: 1, ticks: [0, .25, .5, .75, 1], format: v => pct(v, 0), label: "wrong answers" });
        const w = Math.max(2, p.X(1 / B) - p.X(0) - 3), zero = p.Y(0);
        bins.forEach(([n, wrong], i) => {
          if (!n) return;
          const x = p.X(i / B) + 1.5, y = p.Y(wrong / n);
          p.svg.append(s("rect", { class: "bar", x, width: w, y, height: Math.max(1, zero - y), rx: 2, fill: "var(--c3)" }), s("rect", { x, width: w, y: zero + 2, height: p.Y(-.22 * n / most) - zero, rx: 2, fill: "var(--c8)", opacity: .55 }));
          spots.push({ x: x + w / 2, y, top: p.top, bottom: p.height - p.bottom, text: `uncertainty ${i * 100 / B} to ${(i + 1) * 100 / B}%\n${pct(wrong / n)} wrong of ${count(n)} answers` });
        });
        hover(p.svg, spots, 40, true);
        return p.svg;
      },
    }),
    card("by-class", "w4", "By true class", {
      caption: "Wrong labels among those taken, for pictures that are really of this class.",
      alt: () => counts().by_class.map(([n, w], c) => `${className(run, c)}: ${pct(share(w, n), 0)}`).join("; "),
      table: () => [["class", "taken", "wrong", "error"], counts().by_class.map(([n, w], c) => [className(run, c), count(n), count(w), pct(share(w, n))])],
      draw: width => {
        if (!audit) return nothing;
        const rows = counts().by_class, row = rows.length > 12 ? 20 : 27, name = c => { const t = className(run, c); return t.length > 14 ? `${t.slice(0, 13)}…` : t; };
        const left = 12 + 7 * Math.max(...rows.map((_, c) => name(c).length)), X = v => left + v * (width - left - 52), svg = s("svg", { viewBox: `0 0 ${width} ${rows.length * row + 8}`, width, height: rows.length * row + 8 });
        rows.forEach(([n, w], c) => {
          const y = 4 + c * row, e = share(w, n);
          svg.append(s("text", { class: "strong", x: left - 8, y: y + row / 2 + 4, "text-anchor": "end" }, name(c)), s("rect", { x: left, y: y + 3, width: X(1) - left, height: row - 6, rx: 3, fill: "var(--faint)" }),
            s("rect", { class: "bar", x: left, y: y + 3, width: there(e) ? Math.max(1, X(e) - left) : 0, height: row - 6, rx: 3, fill: hue(c) }), s("text", { x: X(1) + 8, y: y + row / 2 + 4 }, pct(e, 0)));
        });
        hover(svg, rows.map(([n, w], c) => ({ x: width / 2, y: 4 + c * row + row / 2, r: 0, text: `${className(run, c)}\n${count(w)} wrong of ${count(n)} taken` })), width);
        return svg;
      },
    }),
    card("by-helper", "w4", "By the model that gave them", {
      caption: "A dot is a model: how many labels it gave, and how many of them were wrong.",
      alt: () => { const rows = Object.entries(counts().by_helper).sort((a, b) => b[1][0] - a[1][0]).slice(0, 3); return rows.map(([k, [n, w]]) => `client ${k} gave ${count(n)}, ${pct(share(w, n), 0)} wrong`).join("; "); },
      table: () => [["model of client", "given", "wrong", "error"], Object.entries(counts().by_helper).sort((a, b) => b[1][0] - a[1][0]).map(([k, [n, w]]) => [k, count(n), count(w), pct(share(w, n))])],
      draw: width => {
        if (!audit) return nothing;
        const rows = Object.entries(counts().by_helper), most = Math.max(...rows.map(([, [n]]) => n), 1), r = rows.length > 200 ? 3 : 5.5, spots = [];
        const p = plot(width, 354, { min: 0, max: most * 1.05, label: "labels given", format: count }, { min: 0, max: 1, format: v => pct(v, 0), label: "wrong" });
        for (const [who, [n, w]] of rows) {
          const k = +who, c = run.clients?.class?.[k], x = p.X(n), y = p.Y(w / n);
          p.svg.append(s("circle", { cx: x, cy: y, r: k === state.client ? r + 2 : r, fill: c === undefined ? "var(--c0)" : hue(c), "fill-opacity": .8, stroke: k === state.client ? "var(--ink)" : "var(--card)", "stroke-width": k === state.client ? 2.5 : 1 }));
          spots.push({ x, y, r, pick: () => select(k), text: `model of client ${k}\n${count(w)} wrong of ${count(n)} labels${c === undefined ? "" : `\nmostly ${className(run, c)}`}` });
        }
        hover(p.svg, spots);
        return p.svg;
      },
    }));
}

// ---------------------------------------------------------------- cost
function cost() {
  if (!DATA.runs.some(r => r.cost)) return null;
  const run = current(), c = run.cost, causes = c ? Object.keys(c.moved) : [], f = c && c.formulas;
  if (state.greedy === null) state.greedy = Boolean(f && f.greedy_27.at(-1) < 3 * c.megabytes);
  const sets = () => shown().filter(({ run: r }) => r.cost && r.cost.accuracy.test.length);
  const box = h("input", { type: "checkbox", id: "greedy", onchange: () => { state.greedy = box.checked; redraw("bytes"); } });
  box.checked = state.greedy;
  return section("cost", "Cost", "What travelled, why, and what it bought.",
    card("bytes", "w7", `Bytes by cause${DATA.runs.length > 1 ? ` of ${run.name}` : ""}`, {
      caption: f ? "Moved up to each round, stacked by cause, beside the paper's formulas: helper lists (28) and, if asked for, greedy search (27)." : "Moved up to each round, stacked by cause.",
      controls: f && h("label", {}, box, "greedy (27)"),
      key: () => [...causes.map((cause, i) => [cause, hue(i), "box"]), f && ["formula (28)", "var(--ink)"], f && state.greedy && ["formula (27)", "var(--c8)"]].filter(Boolean),
      alt: () => causes.map(cause => `${cause} ${mb(c.moved[cause].at(-1))}`).join("; "),
      table: () => [["round", ...causes, ...(f ? ["(28)", "(27)"] : [])], c.round.map((r, i) => [r, ...causes.map(cause => mb(c.moved[cause][i])), ...(f ? [mb(f.helper_lists_28[i]), mb(f.greedy_27[i])] : [])])],
      draw: width => {
        if (!c) return "metrics.jsonl is missing, so no bytes are known.";
        if (!causes.length) return `${run.name} sends nothing.`;
        const top = Math.max(c.megabytes, f ? f.helper_lists_28.at(-1) : 0, f && state.greedy ? f.greedy_27.at(-1) : 0);
        const p = plot(width, 330, { min: c.round[0], max: Math.max(c.round.at(-1), c.round[0] + 1), label: "round", format: count }, { min: 0, max: top * 1.04, format: mb, label: "moved so far" });
        let base = c.round.map(() => 0);
        causes.forEach((cause, i) => { const next = base.map((v, t) => v + c.moved[cause][t]); p.svg.append(s("path", { d: area(c.round, base, next, p), fill: hue(i), opacity: .82 })); base = next; });
        if (f) { line(p, c.round, f.helper_lists_28, "var(--ink)", "6 4", 2); if (state.greedy) line(p, c.round, f.greedy_27, "var(--c8)", "2 3", 2); }
        hoverLines(p, [...causes.map(cause => ({ name: cause, xs: c.round, ys: c.moved[cause], format: mb })), ...(f ? [{ name: "formula (28)", xs: c.round, ys: f.helper_lists_28, format: mb }, { name: "formula (27)", xs: c.round, ys: f.greedy_27, format: mb }] : [])]);
        return p.svg;
      },
    }),
    card("worth", "w5", "Accuracy for what was moved", {
      caption: "Mean test accuracy against all that was sent so far; a run that sends nothing is a dot at the left.",
      key: runsKey(),
      alt: () => sets().map(({ run: r }) => `${r.name}: ${pct(r.cost.accuracy.test.at(-1))} for ${mb(r.cost.megabytes)}`).join("; "),
      table: () => [["run", "moved", "accuracy", "points per 100 MB"], sets().map(({ run: r }) => [r.name, mb(r.cost.megabytes), pct(r.headline.test), r.cost.megabytes ? num(1e4 * r.headline.test / r.cost.megabytes) : "–"])],
      draw: width => {
        if (!sets().length) return "No round has been evaluated yet.";
        const most = Math.max(...sets().map(({ run: r }) => r.cost.accuracy.megabytes.at(-1)), 1);
        const p = plot(width, 330, { min: 0, max: most * 1.03, label: "moved so far", format: mb }, { min: 0, max: 1, format: v => pct(v, 0), label: "test accuracy" });
        for (const { run: r, colour, dash } of sets()) {
          const { megabytes, test } = r.cost.accuracy;
          if (megabytes.at(-1) === 0) p.svg.append(s("circle", { cx: p.X(0), cy: p.Y(test.at(-1)), r: 5.5, fill: colour, stroke: "var(--card)", "stroke-width": 1.5 }));
          else line(p, megabytes, test, colour, dash);
        }
        hover(p.svg, sets().flatMap(({ run: r }) => r.cost.accuracy.megabytes.map((x, i, all) => (all.at(-1) || i === all.length - 1) ? ({ x: p.X(x), y: p.Y(r.cost.accuracy.test[i]), text: `${r.name}\n${pct(r.cost.accuracy.test[i])} for ${mb(x)}` }) : null).filter(Boolean)), 40);
        return p.svg;
      },
    }));
}

// ---------------------------------------------------------------- models
function models() {
  const run = current(), m = run.confusion, f = run.features;
  if (!DATA.runs.some(r => r.confusion || r.features)) return null;
  const nothing = `Not known for ${run.name}: it needs the finished run's models and the data set.`;
  return section("models", "What the models see", "From the saved models of all clients and the data set, worked out when this page was made.",
    card("confusion", "w6", "What is taken for what", {
      caption: "All clients' test pictures, each judged by its client's own model. Rows: true class; the shade is the share of the row.",
      alt: () => m.map((row, c) => `${className(run, c)}: ${pct(share(row[c], row.reduce((a, b) => a + b, 0)), 0)} right`).join("; "), tall: 560,
      table: () => [["true \\ said", ...m.map((_, c) => className(run, c))], m.map((row, c) => [className(run, c), ...row])],
      draw: width => {
        if (!m) return nothing;
        const n = m.length, name = c => { const t = className(run, c); return t.length > 11 ? `${t.slice(0, 10)}…` : t; }, left = 14 + 7 * Math.max(...m.map((_, c) => name(c).length)), cell = (width - left - 4) / n, height = cell * n + left;
        const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height }), spots = [];
        m.forEach((row, a) => {
          const all = row.reduce((x, y) => x + y, 0);
          svg.append(s("text", { x: left - 8, y: cell * (a + .5) + 4, "text-anchor": "end" }, name(a)));
          const x = left + cell * (a + .5), y = cell * n + 12;
          svg.append(left > 40 ? s("text", { x, y, "text-anchor": "end", transform: `rotate(-60 ${x} ${y})` }, name(a)) : s("text", { x, y: y + 4, "text-anchor": "middle" }, name(a)));
          row.forEach((v, b) => {
            const part = all ? v / all : 0;
            svg.append(s("rect", { class: "cell", x: left + cell * b + .75, y: cell * a + .75, width: cell - 1.5, height: cell - 1.5, rx: 3, fill: a === b ? "var(--c0)" : "var(--c3)", opacity: v ? .08 + .92 * part : .03 }));
            if (cell > 26 && v) svg.append(s("text", { x: left + cell * (b + .5), y: cell * (a + .5) + 4, "text-anchor": "middle", style: part > .55 ? "fill:var(--card)" : "fill:var(--ink)" }, v));
            spots.push({ x: left + cell * (b + .5), y: cell * (a + .5), r: cell / 2 - 4, text: `${className(run, a)} taken for ${className(run, b)}\n${count(v)} of ${count(all)} (${pct(part)})` });
          });
        });
        hover(svg, spots, cell);
        return svg;
      },
    }),
    card("features", "w6", "Latent features", {
      caption: f ? `t-SNE of the last hidden layer of client ${f.model_of}'s model, for test pictures of all clients. Personal models have no space in common, so it is the one with the best validation accuracy.` : "t-SNE of the last hidden layer.",
      key: () => [...new Set(f.class)].sort((a, b) => a - b).map(c => [className(run, c), hue(c), "dot"]), alt: () => `${f.x.length} pictures in ${new Set(f.class).size} classes`, tall: 560,
      draw: width => {
        if (!f) return nothing;
        const [x0, x1] = bounds(f.x), [y0, y1] = bounds(f.y), height = width * .86, X = v => 8 + (v - x0) / (x1 - x0 || 1) * (width - 16), Y = v => 8 + (v - y0) / (y1 - y0 || 1) * (height - 16);
        const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height }), by = new Map();
        f.x.forEach((x, i) => by.set(f.class[i], (by.get(f.class[i]) || "") + disc(X(x), Y(f.y[i]), 3.4)));
        for (const [c, d] of by) svg.append(s("path", { d, fill: hue(c), "fill-opacity": .8 }));
        hover(svg, f.x.map((x, i) => ({ x: X(x), y: Y(f.y[i]), text: `${className(run, f.class[i])}\nof client ${f.client[i]}`, pick: () => select(f.client[i]) })), 12);
        return svg;
      },
    }));
}

// ---------------------------------------------------------------- data
function data() {
  const run = current(), d = run.split;
  if (!DATA.runs.some(r => r.split)) return null;
  return section("data", "The data", "Who was dealt what.",
    card("split", "w12", "Training pictures by client and class", {
      caption: "The area of a bubble is the number of pictures; the full disc in it, how many are labelled. Below: the client's label ratio.",
      key: () => [["training pictures", "color-mix(in srgb, var(--c0) 28%, var(--card))", "dot"], ["of them labelled", "var(--c0)", "dot"], ["label ratio", "var(--c1)", "box"]],
      alt: () => `${d.every.length} clients, ${d.classes.length} classes, ${count(d.every.flat().reduce((a, b) => a + b, 0))} training pictures, ${count(d.labelled.flat().reduce((a, b) => a + b, 0))} labelled`,
      table: () => [["client", "labelled", ...d.classes.map(String)], d.every.map((row, k) => [k, count(d.labelled[k].reduce((a, b) => a + b, 0)), ...row.map(count)])],
      draw: width => {
        if (!d) return `The data set of ${run.name} is not here.`;
        const K = d.every.length, C = d.classes.length, name = c => { const t = String(c); return t.length > 13 ? `${t.slice(0, 12)}…` : t; };
        const left = 14 + 7 * Math.max(...d.classes.map(c => name(c).length), 5), per = Math.max(1, Math.min(K, Math.floor((width - left - 4) / (K > 200 ? 13 : 22)))), cell = Math.min(58, (width - left - 4) / per), row = Math.min(cell, 30);
        const band = C * row + 46, rows = Math.ceil(K / per), height = rows * band, most = Math.max(...d.every.map(r => Math.max(...r)), 1), r = n => row * .49 * Math.sqrt(n / most);
        const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height }), spots = [];
        let every = "", known = "", bars = "", ground = "", rules = "";
        for (let k = 0; k < K; k++) {
          const x = left + cell * (k % per + .5), top = Math.floor(k / per) * band, base = top + C * row + 24, all = d.every[k].reduce((a, b) => a + b, 0), lab = d.labelled[k].reduce((a, b) => a + b, 0), ratio = share(lab, all) || 0, wide = cell * .72;
          d.every[k].forEach((n, c) => {
            const y = top + row * (c + .5);
            if (n) { every += disc(x, y, Math.max(1, r(n))); if (d.labelled[k][c]) known += disc(x, y, Math.max(.7, r(d.labelled[k][c]))); spots.push({ x, y, r: r(n), pick: () => select(k), text: `client ${k}, ${d.classes[c]}\n${count(n)} pictures, ${count(d.labelled[k][c])} labelled` }); }
          });
          ground += `M${x - wide / 2},${base}h${wide}v-18h${-wide}Z`;
          bars += `M${x - wide / 2},${base}h${wide}v${(-18 * ratio).toFixed(1)}h${-wide}Z`;
          if (k % Math.ceil(26 / cell) === 0) svg.append(s("text", { x, y: base + 13, "text-anchor": "middle", "font-size": 10 }, k));
          if (k % per === 0) {
            d.classes.forEach((c, i) => svg.append(s("text", { x: left - 8, y: top + row * (i + .5) + 4, "text-anchor": "end" }, name(c))));
            svg.append(s("text", { x: left - 8, y: base - 5, "text-anchor": "end" }, "ratio"));
            for (let i = 0; i <= C; i++) rules += `M${left},${top + row * i}H${left + cell * Math.min(per, K - k)}`;
          }
        }
        svg.prepend(s("path", { d: rules, class: "rule", fill: "none" }));
        svg.append(s("path", { d: every, fill: "var(--c0)", "fill-opacity": .28 }), s("path", { d: known, fill: "var(--c0)" }), s("path", { d: ground, fill: "var(--faint)" }), s("path", { d: bars, fill: "var(--c1)" }));
        hover(svg, spots, 20);
        return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The split" }, svg);
      },
    }));
}

// ---------------------------------------------------------------- settings
function settings() {
  const runs = DATA.runs, flat = r => ({ method: r.method, ...r.config, ...r.settings, ...Object.fromEntries(Object.entries(r.machine).map(([k, v]) => [`machine: ${k}`, v])), ...Object.fromEntries(Object.entries(r.versions).map(([k, v]) => [`version: ${k}`, v])), "numbers in a model": r.model_numbers, "split (sha256)": r.split_hash, folder: r.folder });
  const all = runs.map(flat), names = [...new Set(all.flatMap(Object.keys))], show = v => v === null || v === undefined ? "–" : typeof v === "number" && v > 9999 ? count(v) : typeof v === "object" ? JSON.stringify(v) : String(v);
  const short = (name, v) => name.startsWith("split") && typeof v === "string" ? v.slice(0, 16) : show(v);
  const facts = (title, values) => h("div", { class: "card w4" }, h("div", { class: "head" }, h("h3", {}, title)), h("dl", { class: "facts" }, Object.entries(values).flatMap(([name, v]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, short(name, v))])));
  if (runs.length === 1) {
    const r = runs[0];
    return section("settings", "Settings", "Everything that it takes to do this run again.", facts("The run", r.config), facts(`The method: ${r.method}`, r.settings),
      facts("Where and with what", { ...r.machine, ...r.versions, "numbers in a model": r.model_numbers, "split (sha256)": r.split_hash, folder: r.folder }));
  }
  const differ = name => new Set(all.map(a => show(a[name]))).size > 1;
  const order = [...names.filter(differ), ...names.filter(name => !differ(name))];
  return section("settings", "Settings", "What differs between the runs comes first.", h("div", { class: "card w12 settings" }, h("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Settings" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), runs.map(r => h("th", { scope: "col" }, r.name)))),
    h("tbody", {}, order.map(name => h("tr", {}, h("th", { scope: "row" }, name.replaceAll("_", " ")), all.map(a => h("td", { class: differ(name) ? "" : "muted" }, short(name, a[name]))))))))));
}

// ---------------------------------------------------------------- the whole
function render() {
  cards = [];
  state.run = Math.min(state.run, DATA.runs.length - 1);
  const focused = document.activeElement?.id;
  const parts = [overview(), accuracy(), fairness(), helpers(), labels(), cost(), models(), data(), settings()].filter(Boolean);
  main.replaceChildren(...parts, h("footer", {}, `Made by kithkin ${DATA.kithkin}. This page needs no network.`));
  const words = { overview: "Overview", accuracy: "Accuracy", fairness: "Fairness", helpers: "Helpers", labels: "Labels", cost: "Cost", models: "Models", data: "Data", settings: "Settings" };
  document.getElementById("nav").replaceChildren(...parts.map(p => h("a", { href: `#${p.id}` }, words[p.id])));
  const pick = document.getElementById("run");
  document.getElementById("pick").hidden = DATA.runs.length < 2;
  pick.replaceChildren(...DATA.runs.map((r, i) => h("option", { value: i, selected: i === state.run }, r.name)));
  redraw();
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  watchSections(parts);
  document.documentElement.dataset.ready = String(+(document.documentElement.dataset.ready || 0) + 1);
}
let spy = null;
function watchSections(parts) {
  spy?.disconnect();
  spy = new IntersectionObserver(entries => entries.forEach(e => {
    if (!e.isIntersecting) return;
    for (const a of document.querySelectorAll("#nav a")) a.getAttribute("href") === `#${e.target.id}` ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current");
  }), { rootMargin: "-15% 0px -75% 0px" });
  parts.forEach(p => spy.observe(p));
}

function theme(name) { document.documentElement.dataset.theme = name; }
const dark = matchMedia("(prefers-color-scheme: dark)");
const kept = { get: key => { try { return sessionStorage.getItem(key); } catch { return null; } }, set: (key, v) => { try { sessionStorage.setItem(key, v); } catch { /* a page from disk may have no storage */ } } };
theme(kept.get("theme") || (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => { if (!kept.get("theme")) theme(dark.matches ? "dark" : "light"); });
document.getElementById("theme").addEventListener("click", () => { const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; theme(next); kept.set("theme", next); });
document.getElementById("run").addEventListener("change", event => { state.run = +event.target.value; state.step = null; state.audit = -1; state.greedy = null; const y = scrollY; render(); scrollTo({ top: y, behavior: "instant" }); });
document.addEventListener("keydown", event => { if (event.key === "Escape") { tip.hidden = true; if (state.client !== null) select(null); } });

const { live, reload } = document.documentElement.dataset;
state.run = Math.max(0, DATA.runs.findIndex(r => r.helpers));
if (+reload) Object.assign(state, JSON.parse(kept.get("state") || "{}")); // a page of a running run reads itself again
render();
let wide = innerWidth, waiting = 0;
addEventListener("resize", () => { if (innerWidth === wide) return; wide = innerWidth; clearTimeout(waiting); waiting = setTimeout(() => redraw(), 120); });

// ---------------------------------------------------------------- news
async function ask() {
  try {
    const answer = await fetch(`${live}?since=${encodeURIComponent(DATA.stamp || "")}`, { cache: "no-store" });
    if (answer.status === 200) { const y = scrollY, last = current().helpers && state.step === current().helpers.round.length - 1; DATA = await answer.json(); if (last) state.step = null; render(); scrollTo({ top: y, behavior: "instant" }); }
  } catch { /* the server is gone for now; the page stays as it is */ }
  setTimeout(ask, 1500);
}
if (live) setTimeout(ask, 1500);
if (+reload) setTimeout(() => {
  const { client, audit, x, y } = state;
  kept.set("state", JSON.stringify({ client, audit, x, y }));
  location.reload();
}, 1000 * reload);
