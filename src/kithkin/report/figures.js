// Accuracy, fairness, cost and models, drawn from the JSON in the page.

// ---------------------------------------------------------------- accuracy
function accuracy() {
  const withGain = DATA.runs.some(run => run.clients?.gain);
  if (!withGain) state.y = "test";
  return section("accuracy", "Accuracy", "Every client has its own model, tested on its own pictures.",
    curveCard(), scatterCard(withGain), withGain && gainsCard());
}
function curveCard() {
  const sets = () => shown().filter(({ run }) => run.curve);
  const banded = run => run.curve.low && (sets().length < 3 || run === current());
  const range = ({ curve: { low, high } }) => (v, i) => pct(v) + (low ? `  (${percent(low[i])} to ${percent(high[i])})` : "");
  const band = DATA.runs.length < 3 ? "the band in which the middle 80% of the clients lie"
    : `for ${current().name} the band in which the middle 80% of the clients lie; the choice of run at the top changes it`;
  return card("curve", "w12", "Accuracy over rounds", {
    caption: `Test accuracy: mean over clients, and ${band}.`,
    key: runsKey("line"),
    alt: () => sets().map(({ run }) => `${run.name} ends at ${pct(run.curve.mean.at(-1))}`).join("; "),
    table: () => [["run", "round", "mean", "10%", "90%", "validation"], sets().flatMap(({ run: { name, curve: c } }) =>
      c.round.map((r, i) => [name, r, pct(c.mean[i]), pct(c.low?.[i]), pct(c.high?.[i]), pct(c.val[i])]))],
    draw: width => {
      if (!sets().length) return "No round has been evaluated yet, or marks.jsonl and metrics.jsonl are missing.";
      const [first, last] = bounds(sets().flatMap(({ run }) => run.curve.round));
      const p = plot(width, width < 500 ? 280 : 360, rounds(first, last), shares("test accuracy"));
      for (const { run, colour } of sets()) {
        const c = run.curve;
        if (banded(run)) p.svg.append(s("path", { d: area(c.round, c.low, c.high, p), fill: colour, opacity: .14 }));
      }
      for (const { run: { curve }, colour, style } of sets()) line(p, curve.round, curve.mean, colour, style);
      hoverLines(p, sets().map(({ run }) => ({ name: run.name, xs: run.curve.round, ys: run.curve.mean, format: range(run) })));
      return p.svg;
    },
  });
}
function scatterCard(withGain) {
  const sets = () => shown().filter(({ run }) => run.clients?.[state.x] && run.clients[state.y]);
  const told = (run, k) => {
    const c = run.clients, gain = there(c.gain?.[k]) ? `, gain ${points(c.gain[k])}` : "";
    return [`${run.name}, client ${called(run, k)}`, `accuracy ${pct(c.test[k])}${gain}`,
      `${count(c.labelled[k])} of ${count(c.size[k])} pictures labelled`,
      c.class && `mostly ${classTold(run, c.class[k])}`].filter(Boolean).join("\n");
  };
  const pick = (label, name, options) =>
    choice(label, options, state[name], v => { state[name] = v; redraw("scatter"); }, label);
  return card("scatter", withGain ? "w7" : "w12", "Every client", {
    caption: "A dot is a client at the best validation round. " + (withGain
      ? "Gain: accuracy less that of the same client training alone."
      : "Give the folder of a local run with the same settings too, and its gain can be shown."),
    controls: [
      pick("across", "x", [["ratio", "label ratio"], ["size", "training pictures"]]),
      withGain && pick("up", "y", [["test", "accuracy"], ["gain", "gain over local"]]),
    ],
    key: runsKey("dot", run => run.clients?.[state.y]),
    alt: () => `${state.y === "gain" ? "Gain over local" : "Accuracy"} by ${state.x === "ratio" ? "label ratio" : "size"}: `
      + sets().map(({ run }) => `${run.name}, ${run.clients.test.length} clients`).join("; "),
    table: () => [["run", "client", "label ratio", "pictures", "accuracy", "gain"],
      sets().flatMap(({ run, run: { clients: c } }) =>
        c.test.map((t, k) => [run.name, called(run, k), pct(c.ratio[k]), count(c.size[k]), pct(t), points(c.gain?.[k])]))],
    draw: width => {
      if (!sets().length) return "Nothing to show: accuracies or the sizes of the clients are not on record.";
      const [low, high] = bounds(sets().flatMap(({ run }) => run.clients[state.y]));
      const most = bounds(sets().flatMap(({ run }) => run.clients[state.x]))[1];
      const p = plot(width, 330,
        state.x === "ratio" ? shares("labelled share of training pictures")
          : { min: 0, max: most * 1.03, label: "training pictures", format: count },
        state.y === "test" ? shares("test accuracy")
          : { min: Math.min(low, -.05), max: Math.max(high, .05), format: gainTick, label: "gain over local, points" });
      const many = total(sets().map(({ run }) => run.clients.test.length)), r = many > 1200 ? 2.4 : many > 200 ? 3.2 : 4.5;
      const spots = [];
      for (const { run, colour, style } of sets()) {
        let dots = "";
        run.clients[state.y].forEach((v, k) => {
          const across = run.clients[state.x][k];
          if (!there(v) || !there(across)) return;
          const x = p.X(across), y = p.Y(v);
          dots += SHAPES[style](x, y, r);
          spots.push({ x, y, r, pick: () => select(k, run), text: told(run, k) });
          if (k === state.client && sameClients(run)) p.svg.append(
            s("circle", { class: "chosen", cx: x, cy: y, r: r + 4, fill: "none", stroke: "var(--ink)", "stroke-width": 2 }));
        });
        const edge = { stroke: "var(--card)", "stroke-width": many > 400 ? .4 : .8 };
        p.svg.append(s("path", { d: dots, fill: colour, "fill-opacity": .72, ...edge }));
      }
      hover(p.svg, spots);
      return p.svg;
    },
  });
}
/** What to think of harm where a client's test picture weighs more than the points that count. */
function luck() {
  const few = Math.min(...DATA.runs.map(run => run.clients?.tested ?? Infinity));
  return few * DATA.harm < 1 ? ` Half of the clients have ${few} test pictures or fewer: that a few are harmed may be luck.` : "";
}
function gainsCard() {
  const sets = () => shown().filter(({ run }) => run.clients?.gain);
  const steps = ({ clients }) => {
    const ys = clients.gain.filter(there).sort((a, b) => a - b);
    return { xs: ys.map((_, i) => (i + .5) / ys.length), ys };
  };
  return card("gains", "w5", "Who gained, who lost", {
    caption: "Clients from the greatest loss to the greatest gain over training alone. "
      + `Below the dashed line (−${100 * DATA.harm} points) a client counts as harmed.${luck()}`,
    key: runsKey("line", run => run.clients?.gain),
    alt: () => sets().map(({ run: { name, headline: n } }) =>
      `${name}: mean gain ${points(n.gain)} points, ${percent(n.harmed)} harmed`).join("; "),
    table: () => [["run", "mean gain", "harmed"],
      sets().map(({ run: { name, headline: n } }) => [name, points(n.gain), percent(n.harmed)])],
    draw: width => {
      if (!sets().length) return "None of the runs shown has a local twin.";
      const [low, high] = bounds(sets().flatMap(({ run }) => run.clients.gain));
      const gains = { min: Math.min(low, -.1), max: Math.max(high, .1), format: gainTick, label: "gain over local, points" };
      const p = plot(width, 330, shares("share of clients"), gains), harm = p.Y(-DATA.harm);
      p.svg.append(s("line", { class: "cross", x1: p.left, x2: width - p.right, y1: harm, y2: harm }));
      for (const { run, colour, style } of sets()) line(p, steps(run).xs, steps(run).ys, colour, style);
      hoverLines(p, sets().map(({ run }) => ({ name: run.name, ...steps(run), format: points })), "at", percent);
      return p.svg;
    },
  });
}

// ---------------------------------------------------------------- fairness
function fairness() {
  return section("fairness", "Fairness", "Is everybody served, or only the mean?", spreadCard(), stripsCard());
}
const judged = () => shown().filter(({ run }) => run.clients);
function spreadCard() {
  return card("spread", "w7", "How accuracies are distributed", {
    caption: "Share of clients that reach at most this accuracy: the further right, the better; the steeper, the fairer.",
    key: runsKey("line", run => run.clients),
    alt: () => judged().map(({ run }) =>
      `${run.name}: half of the clients reach at most ${pct(run.clients.fairness.deciles[5])}`).join("; "),
    table: () => [["run", ...[...Array(11).keys()].map(d => `${10 * d}%`)],
      judged().map(({ run }) => [run.name, ...run.clients.fairness.deciles.map(v => pct(v))])],
    draw: width => {
      if (!judged().length) return "No client has been evaluated yet.";
      const beside = width > 500 && width < 700; // then as tall as what stands there
      const height = beside ? Math.max(320, Math.min(520, 36 * judged().length)) : 320;
      const p = plot(width, height, shares("test accuracy"), shares("clients at or below"));
      const grid = [...Array(41).keys()].map(i => i / 40);
      const series = judged().map(({ run, colour, style }) => {
        const order = run.clients.test.filter(there).sort((a, b) => a - b), n = order.length;
        line(p, [0, ...order.flatMap(v => [v, v]), 1], [0, ...order.flatMap((_, i) => [i / n, (i + 1) / n]), 1], colour, style);
        const below = grid.map(v => order.filter(a => a <= v + 1e-9).length / n);
        return { name: run.name, xs: grid, ys: below, format: v => `${percent(v)} of clients` };
      });
      hoverLines(p, series, "accuracy up to", percent);
      return p.svg;
    },
  });
}
function stripsCard() {
  return card("strips", "w5", "From worst to best client", {
    caption: "Thin: all clients. Thick: the middle 80%. Dot: mean. Upright mark: mean of the worst tenth.",
    alt: () => judged().map(({ run: { name, clients: { fairness: f } } }) =>
      `${name}: worst tenth ${pct(f.worst_decile)}, mean ${pct(f.mean)}, variance ${variance(f.variance)}`).join("; "),
    table: () => [["run", "mean", "variance", "worst 10%"], judged().map(({ run: { name, clients: { fairness: f } } }) =>
      [name, pct(f.mean), variance(f.variance), pct(f.worst_decile)])],
    draw: width => {
      if (!judged().length) return "No client has been evaluated yet.";
      const row = Math.max(36, Math.min(56, 180 / judged().length)), height = 64 + row * judged().length;
      const upright = { left: 6, top: 4, upright: true }, spots = [];
      const p = plot(width, height, shares("test accuracy"), { min: 0, max: 1, ticks: [] }, upright);
      judged().forEach(({ run: { name, clients: { fairness: f } }, colour, style }, i) => {
        const y = row * (i + .5) + 12, across = (a, b) => ({ x1: p.X(a), x2: p.X(b), y1: y, y2: y, stroke: colour });
        const bar = (a, b, more) => s("line", { ...across(a, b), ...more });
        p.svg.append(
          s("text", { class: "strong", x: 6, y: y - 13 }, name),
          bar(f.deciles[0], f.deciles[10], { "stroke-width": 2, opacity: .8 }),
          bar(f.deciles[1], f.deciles[9], { "stroke-width": 10, opacity: .35 }),
          s("line", { ...across(f.worst_decile, f.worst_decile), y1: y - 8, y2: y + 8, "stroke-width": 3 }),
          s("path", { d: SHAPES[style](p.X(f.mean), y, 6), fill: colour, stroke: "var(--card)", "stroke-width": 2 }));
        const lines = [name, `mean ${pct(f.mean)}, variance ${variance(f.variance)}`, `worst tenth ${pct(f.worst_decile)}`,
          `median ${pct(f.deciles[5])}`];
        spots.push({ x: p.X(f.mean), y, text: lines.join("\n") });
      });
      hover(p.svg, spots, 300);
      return p.svg;
    },
  });
}

// ---------------------------------------------------------------- cost
function cost() {
  if (!DATA.runs.some(run => run.cost)) return null;
  return section("cost", "Cost", "What travelled, why, and what it bought.", bytesCard(current()), worthCard());
}
function bytesCard(run) {
  const c = run.cost, causes = Object.keys(c?.moved || {}), f = c?.formulas;
  if (state.greedy === null) state.greedy = Boolean(f && f.greedy_27.at(-1) < 3 * c.megabytes);
  const formulas = (all = state.greedy) => !f ? [] : [
    { name: "formula (28)", ys: f.helper_lists_28, colour: "var(--ink)", style: 1 },
    all && { name: "formula (27)", ys: f.greedy_27, colour: "var(--c8)", style: 2 },
  ].filter(Boolean);
  const columns = () => [...causes.map(name => ({ name, ys: c.moved[name] })), ...formulas(true)];
  const box = h("input", { type: "checkbox", id: "greedy", onchange: () => { state.greedy = box.checked; redraw("bytes"); } });
  box.checked = state.greedy;
  return card("bytes", "w7", "Bytes by cause", {
    run,
    caption: "Moved up to each round, stacked by cause"
      + (f ? ", beside the paper's formulas: helper lists (28) and, if asked for, greedy search (27)." : "."),
    controls: f && h("label", {}, box, "greedy (27)"),
    key: () => [...causes.map((cause, i) => [cause, hue(i), "box"]), ...formulas().map(l => [l.name, l.colour, "line", l.style])],
    alt: () => causes.map(cause => `${cause} ${mb(c.moved[cause].at(-1))}`).join("; "),
    table: () => [["round", ...columns().map(l => l.name)], c.round.map((r, i) => [r, ...columns().map(l => mb(l.ys[i]))])],
    draw: width => {
      if (!c) return "metrics.jsonl is missing, so no bytes are known.";
      if (!causes.length) return `${run.name} sends nothing.`;
      const top = Math.max(c.megabytes, ...formulas().map(l => l.ys.at(-1)));
      const upright = { min: 0, max: top * 1.04, format: mb, label: "moved so far" };
      const p = plot(width, 330, rounds(c.round[0], c.round.at(-1)), upright);
      let base = c.round.map(() => 0);
      causes.forEach((cause, i) => {
        const next = base.map((v, t) => v + c.moved[cause][t]);
        p.svg.append(s("path", { d: area(c.round, base, next, p), fill: hue(i), opacity: .82 }));
        base = next;
      });
      for (const { ys, colour, style } of formulas()) line(p, c.round, ys, colour, style, 2);
      hoverLines(p, columns().map(({ name, ys }) => ({ name, xs: c.round, ys, format: mb })));
      return p.svg;
    },
  });
}
function worthCard() {
  const sets = () => shown().filter(({ run }) => run.cost?.accuracy.test.length);
  const course = run => { // a run that sends nothing is one point
    const { megabytes, test } = run.cost.accuracy;
    return megabytes.at(-1) ? { xs: megabytes, ys: test } : { xs: [0], ys: test.slice(-1) };
  };
  return card("worth", "w5", "Accuracy for what was moved", {
    caption: "Mean test accuracy against all that was sent so far; a run that sends nothing is a dot at the left.",
    key: runsKey("line", run => run.cost?.accuracy.test.length),
    alt: () => sets().map(({ run }) => `${run.name}: ${pct(course(run).ys.at(-1))} for ${mb(run.cost.megabytes)}`).join("; "),
    table: () => [["run", "moved", "accuracy", "points per 100 MB"],
      sets().map(({ run: { name, cost: { megabytes: all }, headline: n } }) =>
        [name, mb(all), pct(n.test), all ? num(1e4 * n.test / all) : "–"])],
    draw: width => {
      if (!sets().length) return "No round has been evaluated yet.";
      const most = Math.max(...sets().map(({ run }) => course(run).xs.at(-1)), 1);
      const p = plot(width, 330, { min: 0, max: most * 1.03, label: "moved so far", format: mb }, shares("test accuracy"));
      hover(p.svg, sets().flatMap(({ run, colour, style }) => {
        const { xs, ys } = course(run);
        line(p, xs, ys, colour, style);
        return xs.map((x, i) => ({ x: p.X(x), y: p.Y(ys[i]), text: `${run.name}\n${pct(ys[i])} for ${mb(x)}` }));
      }), 40);
      return p.svg;
    },
  });
}

// ---------------------------------------------------------------- models
function models() {
  if (!DATA.runs.some(run => run.confusion || run.features)) return null;
  const run = current();
  const nothing = `Not known for ${run.name}: its models are not here, or were not asked. `
    + "kithkin report --models always asks those of every finished run.";
  return section("models", "What the models see",
    "From the models that the clients ended with, worked out when this page was made.",
    confusionCard(run, nothing), featuresCard(run, nothing));
}
function confusionCard(run, nothing) {
  const matrix = run.confusion, names = (matrix || []).map((_, c) => className(run, c)), short = shortNames(names, 11);
  return card("confusion", "w6", "What is taken for what", {
    run,
    caption: "All clients' test pictures, each judged by its client's model of the last round, not of the best validation round. "
      + "Rows: true class; columns: what the model says; the shade is the share of the row.",
    alt: () => matrix.map((row, c) => `${classTold(run, c)}: ${percent(share(row[c], total(row)))} right`).join("; "),
    table: () => [["true \\ said", ...names], matrix.map((row, c) => [names[c], ...row])],
    tall: 560,
    draw: width => {
      if (!matrix) return nothing;
      const n = matrix.length, left = 12 + widest(short);
      const cell = (width - left - 4) / n, svg = canvas(width, cell * n + left), spots = [], slanted = left > 40;
      const middle = i => cell * (i + .5);
      matrix.forEach((row, a) => {
        const all = total(row), x = left + middle(a), y = cell * n + 12, name = short[a];
        svg.append(
          s("text", { x: left - 8, y: middle(a) + 4, "text-anchor": "end" }, name),
          slanted ? s("text", { x, y, "text-anchor": "end", transform: `rotate(-60 ${x} ${y})` }, name)
            : s("text", { x, y: y + 4, "text-anchor": "middle" }, name));
        row.forEach((v, b) => {
          const part = share(v, all) || 0, x = left + middle(b), y = middle(a), size = cell - 1.5;
          svg.append(s("rect", { // never so dark that ink on it could not be read
            class: "cell", x: x - size / 2, y: y - size / 2, width: size, height: size, rx: 3,
            fill: a === b ? "var(--c0)" : "var(--c3)", opacity: v ? .08 + .52 * part : .03,
          }));
          if (cell > 26 && v) svg.append(s("text", { class: "ink", x, y: y + 4, "text-anchor": "middle" }, v));
          const text = `${classTold(run, a)} taken for ${classTold(run, b)}\n${count(v)} of ${count(all)} (${pct(part)})`;
          spots.push({ x, y, r: cell / 2 - 4, text });
        });
      });
      hover(svg, spots, cell);
      return svg;
    },
  });
}
function featuresCard(run, nothing) {
  const f = run.features, classes = [...new Set(f?.class)].sort((a, b) => a - b);
  return card("features", "w6", "Latent features", {
    run,
    caption: "t-SNE of the last hidden layer" + (f ? ` of the model of client ${called(run, f.model_of)}, for test pictures of all clients. `
      + "Personal models have no space in common, so it is the one with the best validation accuracy." : "."),
    key: () => classes.map(c => [className(run, c), hue(c), "dot"]),
    alt: () => `${f.x.length} pictures in ${classes.length} classes`,
    tall: 560,
    draw: width => {
      if (!f) return nothing;
      const height = width * .86, svg = canvas(width, height), dots = new Map();
      const scale = (values, size) => { const [a, b] = bounds(values); return v => 8 + (v - a) / (b - a || 1) * (size - 16); };
      const X = scale(f.x, width), Y = scale(f.y, height);
      f.x.forEach((x, i) => dots.set(f.class[i], (dots.get(f.class[i]) || "") + disc(X(x), Y(f.y[i]), 3.4)));
      for (const [c, d] of dots) svg.append(s("path", { d, fill: hue(c), "fill-opacity": .8 }));
      hover(svg, f.x.map((x, i) => {
        const k = f.client[i];
        return { x: X(x), y: Y(f.y[i]), text: `${classTold(run, f.class[i])}\nof client ${called(run, k)}`, pick: () => select(k) };
      }), 12);
      return svg;
    },
  });
}
