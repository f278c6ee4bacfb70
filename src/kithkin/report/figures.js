// The figures, section by section, drawn from the JSON in the page.

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
      c.class && `mostly ${className(run, c.class[k])}`].filter(Boolean).join("\n");
  };
  const pick = (label, name, options) =>
    choice(label, options, state[name], v => { state[name] = v; redraw("scatter"); }, label);
  return card("scatter", withGain ? "w7" : "w12", "Every client", {
    caption: "A dot is a client at the best validation round. " + (withGain
      ? "Gain: accuracy less that of the same client training alone."
      : "Give the folder of a local run too, and its gain can be shown."),
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
function gainsCard() {
  const sets = () => shown().filter(({ run }) => run.clients?.gain);
  const steps = ({ clients }) => {
    const ys = clients.gain.filter(there).sort((a, b) => a - b);
    return { xs: ys.map((_, i) => (i + .5) / ys.length), ys };
  };
  return card("gains", "w5", "Who gained, who lost", {
    caption: "Clients from the greatest loss to the greatest gain over training alone. "
      + `Below the dashed line (−${100 * DATA.harm} points) a client counts as harmed.`,
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
      const height = width < 500 ? 320 : Math.max(320, Math.min(520, 36 * judged().length)); // as what stands beside it
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
      `${name}: worst tenth ${pct(f.worst_decile)}, mean ${pct(f.mean)}, variance ${num(f.variance)}`).join("; "),
    table: () => [["run", "mean", "variance", "worst 10%"], judged().map(({ run: { name, clients: { fairness: f } } }) =>
      [name, pct(f.mean), num(f.variance), pct(f.worst_decile)])],
    draw: width => {
      if (!judged().length) return "No client has been evaluated yet.";
      const row = Math.max(36, Math.min(56, 180 / judged().length)), height = 64 + row * judged().length;
      const upright = { left: 6, top: 4, upright: true }, spots = [];
      const p = plot(width, height, shares("test accuracy"), { min: 0, max: 1, ticks: [] }, upright);
      judged().forEach(({ run: { name, clients: { fairness: f } }, colour, style }, i) => {
        const y = row * (i + .5) + 12, across = (a, b) => ({ x1: p.X(a), x2: p.X(b), y1: y, y2: y, stroke: colour });
        const bar = (a, b, more) => s("line", { ...across(a, b), "stroke-linecap": "round", ...more });
        p.svg.append(
          s("text", { class: "strong", x: 6, y: y - 13 }, name),
          bar(f.deciles[0], f.deciles[10], { "stroke-width": 2, opacity: .8 }),
          bar(f.deciles[1], f.deciles[9], { "stroke-width": 10, opacity: .35 }),
          s("line", { ...across(f.worst_decile, f.worst_decile), y1: y - 8, y2: y + 8, "stroke-width": 3 }),
          s("path", { d: SHAPES[style](p.X(f.mean), y, 6), fill: colour, stroke: "var(--card)", "stroke-width": 2 }));
        const lines = [name, `mean ${pct(f.mean)}, variance ${num(f.variance)}`, `worst tenth ${pct(f.worst_decile)}`,
          `median ${pct(f.deciles[5])}`];
        spots.push({ x: p.X(f.mean), y, text: lines.join("\n") });
      });
      hover(p.svg, spots, 300);
      return p.svg;
    },
  });
}

// ---------------------------------------------------------------- helpers
/** Choose a client of a run; that turns the page to this run. */
function select(k, run = current()) {
  if (run !== current()) return turnTo(run, k);
  state.client = k;
  const pick = document.getElementById("client");
  if (pick) pick.value = k ?? "";
  redraw("graph", "person", "scatter", "by-helper");
}
function helpers() {
  if (!DATA.runs.some(run => run.helpers)) return null;
  const run = current(), net = run.helpers;
  if (net && (state.step === null || state.step >= net.round.length)) state.step = net.round.length - 1;
  const nothing = !net && `${run.name} keeps no helper lists${several() ? "; choose another run above" : ""}.`;
  return section("helpers", "Who helps whom",
    "Each client keeps a short list of the models that fit it best. "
      + "Choose a client to see its list; move through the rounds to see it settle.",
    graphCard(run, nothing), h("div", { class: "w4 stack" }, personCard(run), churnCard(run, nothing)));
}
function graphCard(run, nothing) {
  const net = run.helpers, groups = run.clients?.class;
  const drawEdges = (svg, { place, radius, centre }, colour, chosen) => {
    const list = listOf(run), strongest = bounds(list.flatMap(row => row.filter((_, i) => i % 2)))[1] || 1, K = list.length;
    const looks = { rest: [.05, 0], all: K > 300 ? [.05, .05] : K > 100 ? [.12, .1] : [.26, .14], out: [.6, 0], in: [.95, 0] };
    const bundles = new Map(Object.keys(looks).map(role => [role, new Map()])); // lines that look alike are one path
    list.forEach((row, k) => pairs(row).forEach(([j, relation]) => {
      if (j === k) return;
      const a = place[j], b = place[k], pull = .7 - .55 * Math.hypot(a.x - b.x, a.y - b.y) / (2 * radius);
      const bend = (u, v) => (centre + ((u + v) / 2 - centre) * pull).toFixed(1);
      const role = chosen === null ? "all" : k === chosen ? "in" : j === chosen ? "out" : "rest", same = bundles.get(role);
      const look = `${colour(j)}|${Math.max(0, Math.min(3, Math.floor(4 * relation * 1000 / strongest)))}`;
      same.set(look, (same.get(look) || "") + `M${a.x.toFixed(1)},${a.y.toFixed(1)}Q${bend(a.x, b.x)},${bend(a.y, b.y)} `
        + `${b.x.toFixed(1)},${b.y.toFixed(1)}`);
    }));
    for (const [role, same] of bundles) for (const [look, d] of same) {
      const [stroke, level] = look.split("|"), width = (.8 + level * .9) * (K > 150 ? .7 : 1) + (role === "in" ? 1 : 0);
      svg.append(s("path", {
        class: `edge ${role}`, d, fill: "none", stroke, "stroke-width": width,
        opacity: Math.min(1, looks[role][0] + looks[role][1] * level), "stroke-dasharray": role === "out" ? "5 4" : null,
      }));
    }
  };
  const drawArcs = (svg, { arcs, radius, at }) => {
    const R = radius + 14, corner = a => `${at(a, R).x.toFixed(1)},${at(a, R).y.toFixed(1)}`;
    for (const [g, [from, to]] of arcs) svg.append(s("path", {
      d: `M${corner(from)}A${R},${R} 0 ${to - from > Math.PI ? 1 : 0} 1 ${corner(to)}`, fill: "none", stroke: hue(g),
      "stroke-width": 4, "stroke-linecap": "round",
    }));
  };
  const told = (k, helping) => {
    const names = pairs(listOf(run)[k]).filter(([j]) => j !== k).map(([j, r]) => `${called(run, j)}: ${r.toFixed(2)}`).join(", ");
    const mostly = groups ? `, mostly ${className(run, groups[k])}` : "";
    return `client ${called(run, k)}${mostly}\nhelps ${helping}\nhelped by ${names || "nobody"}`;
  };
  return card("graph", "w8", "Helper graph", {
    run,
    caption: (groups ? "Place and colour tell the class that a client has most of; a line has its helper's colour."
      : "The data is not here, so colour tells how many clients a client helps.")
      + " The stronger the relation, the thicker the line; the more clients it helps, the larger the dot."
      + " With a client chosen: solid, its helpers; dashed, those whom it helps.",
    controls: net && [
      slider("step", "Round of the helper graph", net.round.length - 1, state.step, i => `round ${net.round[i]}`,
        i => { state.step = i; redraw("graph", "person"); }),
      choice("client", [["", "all"], ...listOf(run).map((_, k) => [k, called(run, k)])], state.client ?? "",
        v => select(v === "" ? null : +v), "client"),
    ],
    key: () => classesKey(run, groups),
    tall: 620,
    alt: () => {
      const top = timesHelping(run).map((n, k) => [n, k]).sort((a, b) => b[0] - a[0]).slice(0, 3);
      const most = top.map(([n, k]) => `client ${called(run, k)} helps ${n}`).join(", ");
      return `Round ${net.round[state.step]}: ${listOf(run).length} clients; most asked for help: ${most}`;
    },
    table: () => {
      const helping = timesHelping(run), name = (j, k) => j === k ? "itself" : called(run, j);
      return [["client", "helpers: relation", "helps"], listOf(run).map((row, k) =>
        [called(run, k), pairs(row).map(([j, r]) => `${name(j, k)}: ${r.toFixed(2)}`).join(", "), helping[k]])];
    },
    draw: width => {
      if (nothing) return nothing;
      const round = ring(run, width), { place, radius, step, label } = round, K = place.length;
      const helping = timesHelping(run), most = Math.max(...helping, 1), chosen = state.client < K ? state.client : null;
      const colour = k => groups ? hue(groups[k])
        : `color-mix(in srgb, var(--c0) ${Math.round(25 + 75 * helping[k] / most)}%, var(--line))`;
      const svg = canvas(width, width), largest = Math.max(2, Math.min(11, radius * step * .55));
      drawEdges(svg, round, colour, chosen);
      drawArcs(svg, round);
      const spots = place.map(({ x, y }, k) => {
        const r = Math.max(1.4, largest * (.4 + .6 * Math.sqrt(helping[k] / most))), mine = k === chosen;
        svg.append(s("circle", {
          class: mine ? "node chosen" : "node", cx: x, cy: y, r, fill: colour(k), stroke: mine ? "var(--ink)" : "var(--card)",
          "stroke-width": mine ? 3 : K > 150 ? .5 : 1.5,
        }));
        put(svg, {}, [label(k)]);
        return { x, y, r, pick: () => select(mine ? null : k), text: told(k, helping[k]) };
      });
      hover(svg, spots, 24);
      return svg;
    },
  });
}
function personCard(run) {
  const c = run.clients, list = () => run.helpers && listOf(run);
  return card("person", "", "The chosen client", {
    run,
    caption: "Its own test accuracy over rounds (thin: mean of all clients), and its helpers at the round shown; "
      + "the accuracy of a helper is that of its own model on its own pictures.",
    alt: () => `Accuracy of client ${called(run, state.client)} over rounds; the last: ${pct(c.paths.test.at(-1)[state.client])}`,
    draw: width => {
      const k = state.client;
      if (k === null || k >= (list() ?? c?.test ?? []).length)
        return "Choose a client: in the list above the graph, or by pressing its dot in any figure.";
      const facts = [
        ["test accuracy", pct(c?.test[k])],
        c?.gain && ["gain over local", `${points(c.gain[k])} points`],
        c?.size && ["pictures", `${count(c.size[k])}, ${count(c.labelled[k])} labelled`],
        c?.class && ["mostly", className(run, c.class[k])],
        list() && ["helps", plural(timesHelping(run)[k], "client")],
      ].filter(Boolean);
      const box = h("div", {}, h("p", { class: "muted" }, h("strong", { id: "chosen" }, `Client ${called(run, k)}`)),
        h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
      if (c?.paths) {
        const { round, test } = c.paths, upright = { ...shares(), ticks: [0, .5, 1] };
        const p = plot(width, 150, rounds(round[0], round.at(-1)), upright, { top: 10 });
        line(p, run.curve.round, run.curve.mean, "var(--c8)", 0, 1.2);
        line(p, round, test.map(row => row[k]), "var(--accent)", 0, 2.4);
        box.append(p.svg);
      }
      const name = j => j === k ? `${j}, itself` : called(run, j);
      if (list()) box.append(tableOf(["helper", "relation", "its accuracy"],
        pairs(list()[k]).map(([j, r]) => [name(j), r.toFixed(3), pct(c?.test[j])]), "Helpers"));
      return box;
    },
  });
}
function churnCard(run, nothing) {
  const churn = run.helpers?.churn;
  return card("churn", "", "Churn", {
    run,
    caption: "Helpers that are new on a list since the last evaluated round, as a share of all.",
    alt: () => `New helpers: from ${pct(churn.share[0])} to ${pct(churn.share.at(-1))}`,
    table: () => [["round", "new helpers"], churn.round.map((r, i) => [r, pct(churn.share[i])])],
    draw: width => {
      if (nothing) return nothing;
      if (!churn.round.length) return "One evaluated round shows no change.";
      const { round, share: part } = churn, upright = { ...shares("new helpers"), max: Math.max(.1, ...part) };
      const p = plot(width, 190, rounds(round[0], round.at(-1)), upright);
      p.svg.append(s("path", { d: area(round, part.map(() => 0), part, p), fill: "var(--c0)", opacity: .15 }));
      line(p, round, part, "var(--c0)");
      hoverLines(p, [{ name: "new", xs: round, ys: part }]);
      return p.svg;
    },
  });
}

// ---------------------------------------------------------------- pseudo labels
function labels() {
  if (!DATA.runs.some(run => run.audit)) return null;
  const run = current(), audit = run.audit;
  if (audit && state.audit >= audit.steps.length) state.audit = -1;
  const all = audit && together(audit.steps), counts = () => state.audit < 0 ? all : audit.steps[state.audit];
  const nothing = !audit ? `${run.name} gave no pseudo labels${several() ? "; choose another run above" : ""}.`
    : !all.by_class.length && "The sites of this federation tell the sums alone.";
  const say = i => {
    if (i === 0) return "all rounds";
    const [from, to] = audit.steps[i - 1].rounds;
    return from === to ? `round ${from}` : `rounds ${from}–${to}`;
  };
  const words = "Rounds of the three figures below";
  const move = i => { state.audit = i - 1; redraw("reliability", "by-class", "by-helper"); };
  const stretch = () => slider("stretch", words, audit.steps.length, state.audit + 1, say, move);
  return section("labels", "Pseudo labels",
    "Unlabelled pictures get their labels from models. The record knows the truth, the training never does.",
    auditCard("audit", "error", "Wrong among the labels taken; a gap is a round in which none was."),
    auditCard("coverage", "coverage", "The share of unlabelled pictures that got a label."),
    !nothing && h("div", { class: "w12 band" }, h("span", {}, words), stretch()),
    reliabilityCard(run, counts, nothing), byClassCard(run, counts, nothing), byHelperCard(run, counts, nothing));
}
function auditCard(id, what, caption) {
  const sets = () => shown().filter(({ run }) => run.audit);
  return card(id, "w6", what === "error" ? "Label error over rounds" : "Coverage over rounds", {
    caption,
    key: runsKey("line", run => run.audit),
    alt: () => sets().map(({ run: { name, audit: a } }) => `${name}: ${pct(a[what].at(-1))} in the last round`).join("; "),
    table: () => [["run", "round", what], sets().flatMap(({ run: { name, audit: a } }) =>
      a.round.map((r, i) => [name, r, pct(a[what][i])]))],
    draw: width => {
      if (!sets().length) return "None of the runs shown gave pseudo labels.";
      if (!sets().some(({ run }) => run.audit[what].some(there))) return "No label was taken in any round.";
      const p = plot(width, 290, rounds(...bounds(sets().flatMap(({ run }) => run.audit.round))), shares(what));
      for (const { run: { audit: a }, colour, style } of sets()) line(p, a.round, a[what], colour, style);
      hoverLines(p, sets().map(({ run: { name, audit: a } }) => ({ name, xs: a.round, ys: a[what] })));
      return p.svg;
    },
  });
}
function reliabilityCard(run, counts, nothing) {
  const bins = () => counts().by_entropy.map(([n, wrong], i, all) =>
    ({ n, wrong, error: share(wrong, n), from: i / all.length, to: (i + 1) / all.length }));
  const span = b => `${num(100 * b.from)} to ${percent(b.to)}`;
  return card("reliability", "w4", "Does certainty mean right?", {
    run,
    caption: "Error of all answers by how uncertain they were (entropy, as a share of the most possible). "
      + "Grey, below: how many answers.",
    alt: () => bins().filter(b => b.n).map(b => `uncertainty ${span(b)}: ${percent(b.error)} wrong`).join("; "),
    table: () => [["uncertainty", "answers", "wrong", "error"],
      bins().map(b => [span(b), count(b.n), count(b.wrong), pct(b.error)])],
    draw: width => {
      if (nothing) return nothing;
      const upright = { ...shares("wrong answers"), min: -.25, ticks: [0, .25, .5, .75, 1] };
      const p = plot(width, 354, shares("uncertainty of the answer"), upright);
      const most = Math.max(...bins().map(b => b.n), 1), zero = p.Y(0);
      hover(p.svg, bins().filter(b => b.n).map(b => {
        const x = p.X(b.from) + 1.5, width = Math.max(2, p.X(b.to) - p.X(b.from) - 3), y = p.Y(b.error);
        p.svg.append(
          s("rect", { class: "bar", x, width, y, height: Math.max(1, zero - y), rx: 2, fill: "var(--c3)" }),
          s("rect", { x, width, y: zero + 2, height: p.Y(-.22 * b.n / most) - zero, rx: 2, fill: "var(--c8)", opacity: .55 }));
        const text = `uncertainty ${span(b)}\n${pct(b.error)} wrong of ${count(b.n)} answers`;
        return { x: x + width / 2, top: p.top, bottom: p.height - p.bottom, text };
      }), 40, true);
      return p.svg;
    },
  });
}
function byClassCard(run, counts, nothing) {
  const rows = () => counts().by_class.map(([n, wrong], c) => ({ name: className(run, c), n, wrong, error: share(wrong, n) }));
  return card("by-class", "w4", "By true class", {
    run,
    caption: "Wrong labels among those taken, for pictures that are really of this class.",
    alt: () => rows().map(r => `${r.name}: ${percent(r.error)}`).join("; "),
    table: () => [["class", "taken", "wrong", "error"], rows().map(r => [r.name, count(r.n), count(r.wrong), pct(r.error)])],
    draw: width => {
      if (nothing) return nothing;
      const row = rows().length > 12 ? 20 : 27, svg = canvas(width, rows().length * row + 8);
      const names = shortNames(rows().map(r => r.name), 14), left = 8 + widest(names, 600), full = width - left - 52;
      hover(svg, rows().map((r, c) => {
        const y = 4 + c * row, bar = { x: left, y: y + 3, height: row - 6, rx: 3 };
        svg.append(
          s("text", { class: "strong", x: left - 8, y: y + row / 2 + 4, "text-anchor": "end" }, names[c]),
          s("rect", { ...bar, width: full, fill: "var(--faint)" }),
          s("rect", { class: "bar", ...bar, width: r.n ? Math.max(1, r.error * full) : 0, fill: hue(c) }),
          s("text", { x: left + full + 8, y: y + row / 2 + 4 }, percent(r.error)));
        return { x: width / 2, y: y + row / 2, text: `${r.name}\n${count(r.wrong)} wrong of ${count(r.n)} taken` };
      }), width);
      return svg;
    },
  });
}
function byHelperCard(run, counts, nothing) {
  const rows = () => Object.entries(counts().by_helper).map(([k, [n, wrong]]) => ({ k: +k, n, wrong, error: share(wrong, n) }))
    .filter(r => r.n).sort((a, b) => b.n - a.n);
  return card("by-helper", "w4", "By the model that gave them", {
    run,
    caption: "A dot is a model: how many labels it gave, and how many of them were wrong"
      + (run.clients?.class ? "; its colour, the class that its client has most of." : "."),
    key: () => classesKey(run, rows().map(r => run.clients?.class?.[r.k])),
    alt: () => rows().slice(0, 3).map(r => `client ${called(run, r.k)} gave ${count(r.n)}, ${percent(r.error)} wrong`).join("; "),
    table: () => [["model of client", "given", "wrong", "error"],
      rows().map(r => [called(run, r.k), count(r.n), count(r.wrong), pct(r.error)])],
    draw: width => {
      if (nothing) return nothing;
      if (!rows().length) return "No label was taken in these rounds, or each was given by several models together.";
      const r = rows().length > 200 ? 3 : 5.5, most = rows()[0].n;
      const p = plot(width, 354, { min: 0, max: most * 1.05, label: "labels given", format: count }, shares("wrong"));
      hover(p.svg, rows().map(({ k, n, wrong, error }) => {
        const c = run.clients?.class?.[k], x = p.X(n), y = p.Y(error), mine = k === state.client;
        p.svg.append(s("circle", {
          cx: x, cy: y, r: mine ? r + 2 : r, fill: given(c) ? hue(c) : "var(--c0)", "fill-opacity": .8,
          stroke: mine ? "var(--ink)" : "var(--card)", "stroke-width": mine ? 2.5 : 1,
        }));
        const text = `model of client ${called(run, k)}\n${count(wrong)} wrong of ${count(n)} labels`;
        return { x, y, r, pick: () => select(k), text: given(c) ? `${text}\nmostly ${className(run, c)}` : text };
      }));
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
    caption: "All clients' test pictures, each judged by the model that its client ended with. "
      + "Rows: true class; columns: what the model says; the shade is the share of the row.",
    alt: () => matrix.map((row, c) => `${names[c]}: ${percent(share(row[c], total(row)))} right`).join("; "),
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
          const text = `${names[a]} taken for ${names[b]}\n${count(v)} of ${count(all)} (${pct(part)})`;
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
        return { x: X(x), y: Y(f.y[i]), text: `${className(run, f.class[i])}\nof client ${called(run, k)}`, pick: () => select(k) };
      }), 12);
      return svg;
    },
  });
}
