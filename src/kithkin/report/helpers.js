// Who helps whom, and whose pseudo labels were right.

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
      const bend = (u, v, aside) => (centre + ((u + v) / 2 - centre) * pull + aside).toFixed(1);
      const aside = .05 + 8 / Math.max(1, Math.hypot(a.x - b.x, a.y - b.y)); // to its left: who help each other have two lines
      const role = chosen === null ? "all" : k === chosen ? "in" : j === chosen ? "out" : "rest", same = bundles.get(role);
      const look = `${colour(j)}|${Math.max(0, Math.min(3, Math.floor(4 * relation * 1000 / strongest)))}`;
      same.set(look, (same.get(look) || "") + `M${a.x.toFixed(1)},${a.y.toFixed(1)}Q${bend(a.x, b.x, aside * (b.y - a.y))},`
        + `${bend(a.y, b.y, aside * (a.x - b.x))} ${b.x.toFixed(1)},${b.y.toFixed(1)}`);
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
    const mostly = groups ? `, mostly ${classTold(run, groups[k])}` : "";
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
        c?.class && ["mostly", classTold(run, c.class[k])],
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
  const rows = () => counts().by_class.map(([n, wrong], c) =>
    ({ name: className(run, c), told: classTold(run, c), n, wrong, error: share(wrong, n) }));
  return card("by-class", "w4", "By true class", {
    run,
    caption: "Wrong labels among those taken, for pictures that are really of this class.",
    alt: () => rows().map(r => `${r.told}: ${percent(r.error)}`).join("; "),
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
        return { x: width / 2, y: y + row / 2, text: `${r.told}\n${count(r.wrong)} wrong of ${count(r.n)} taken` };
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
        return { x, y, r, pick: () => select(k), text: given(c) ? `${text}\nmostly ${classTold(run, c)}` : text };
      }));
      return p.svg;
    },
  });
}
