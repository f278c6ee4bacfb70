// The page around the figures: headline, what the runs were given, navigation, and news while a run goes on.

// ---------------------------------------------------------------- overview
function overview() {
  const runs = DATA.runs, one = !several(), run = runs[0], going = runs.filter(r => !r.finished).length;
  const facts = ({ config: c, rounds }) => [
    typeof c.data === "string" && c.data.split("/").pop(),
    there(c.clients) && plural(c.clients, "client") + (c.alpha === "given" ? ", as given" : ""),
    there(c.alpha) && `alpha ${c.alpha}`, rounds && plural(rounds, "round"), there(c.seed) && `seed ${c.seed}`,
  ];
  const common = facts(run).filter((fact, i) => fact && runs.every(r => facts(r)[i] === fact));
  const saying = new Map(); // runs by their remark: of a comparison without its data all have the same
  for (const r of runs) for (const text of [!followed && r.unfinished, ...r.remarks].filter(Boolean))
    saying.set(text, [...saying.get(text) || [], r]);
  const remarks = [...saying].map(([text, of]) => one ? text : `${named(of, 4)}: ${text}`);
  const far = `${run.done} of ${run.rounds || "?"}`;
  const progress = !going ? one ? "Finished" : `${runs.length} runs` : !one ? `${going} of ${runs.length} runs not finished`
    : followed ? `Round ${far}` : run.done ? `Not finished: round ${far}` : "Not finished: before the first round";
  const means = DATA.comparison?.some(row => row.seeds > 1), rows = one ? [] : means ? rowsOfGroups() : rowsOfRuns();
  return h("div", { id: "overview" },
    h("div", { class: "lead" },
      h("div", { class: `state ${!going ? "" : followed ? "going" : "stopped"}`, id: "state" }, progress),
      h("h1", {}, DATA.comparison && runs.length > 4 ? counted(runs) : named(runs, 4)),
      h("p", {}, common.join(" · ")), answer(rows),
      !one && h("div", { class: "chips", role: "group", "aria-label": "Runs shown" }, groupsOf(runs.map(looks)).map(chip)),
      remarks.length > 0 && h("ul", { class: "remarks", id: "remarks" }, remarks.map(text => h("li", {}, text)))),
    one ? tiles(run) : h("div", { class: "card", id: "headline" }, standings(rows),
      means && h("details", {}, h("summary", {}, "Every run by itself"), standings(rowsOfRuns())),
      h("p", { class: "note" }, "Accuracy is that of each client's own model on its own test pictures, at the round of best mean "
        + `validation accuracy${means ? " (± standard deviation over seeds)" : ""}. Harmed: clients that are then more than `
        + `${100 * DATA.harm} points below training alone. Label error: wrong pseudo labels in the last round. `
        + `Coloured: the best${differ("data") ? " on its data" : ""}${differ("alpha") ? " at its alpha" : ""}.`)));
}
const named = (runs, most) => runs.slice(0, most).map(r => r.name).join(" · ")
  + (runs.length > most ? ` and ${runs.length - most} more` : "");
const differ = name => new Set(DATA.runs.map(r => r.config[name])).size > 1;
const kind = ({ like }) => `${like?.config.alpha} ${like?.config.data}`; // only of one kind can one be the best
/** In words, for every kind of rows: who is the most accurate, by how much, and whether that harms anybody. */
function answer(rows) {
  const told = [...new Set(rows.map(kind))].map(each => {
    const [best, next] = rows.filter(row => kind(row) === each && there(row.test)).sort((a, b) => b.test - a.test);
    if (!next) return null;
    const { like: { config: c }, gain, harmed } = best, name = row => row.name.replace(` a${c.alpha}`, "");
    const place = [differ("data") && `On ${String(c.data).split("/").pop()}`, differ("alpha") && `At alpha ${c.alpha}`].filter(Boolean);
    const lead = Math.round(1000 * best.test) - Math.round(1000 * next.test), alike = 1000 * (best.test_sd + next.test_sd) > lead;
    const soFar = DATA.runs.some(r => !r.finished && kind({ like: r }) === each) ? " so far" : "";
    return h("li", {}, place.length > 0 && `${place.join(", ")}: `, h("strong", {}, name(best)),
      ` is the most accurate${soFar}, ${pct(best.test)}, ` + (lead === 0 ? `as is ${name(next)}.`
        : `${(lead / 10).toFixed(1)} points ahead of ${name(next)}${alike ? ", less than seeds differ" : ""}.`),
    there(gain) && ` Its clients ${gain < 0 ? "lose" : "gain"} ${points(Math.abs(gain)).slice(1)} points against training alone; `
      + `${harmed ? `${percent(harmed)} of them are` : "none is"} harmed.`);
  }).filter(Boolean);
  return told.length > 0 && told.length < 5 && h("ul", { class: "answer", id: "answer" }, told);
}
/** What a comparison compares: methods, alphas, seeds. */
function counted(runs) {
  const values = of => new Set(runs.map(of)), methods = values(r => r.method);
  const several = (word, { size }) => size > 1 && plural(size, word);
  return [several("method", methods) || runs[0].method, several("alpha", values(r => r.config.alpha)),
    several("seed", values(r => r.config.seed))].filter(Boolean).join(" · ");
}
function chip({ run: { group }, colour, style }) {
  const pressed = () => String(!state.hidden.has(group));
  const toggle = () => {
    state.hidden.delete(group) || state.hidden.add(group);
    button.setAttribute("aria-pressed", pressed());
    redraw();
  };
  const button = h("button", { type: "button", class: "chip", "aria-pressed": pressed(), onclick: toggle },
    glyph("dot", colour, style), group);
  return button;
}
function tiles({ headline: n, curve, audit, cost, machine }) {
  const at = curve && !curve.val.some(there) ? "the last round: nobody has validation pictures"
    : `the best validation round (${n.round})`;
  const tile = (name, value, note) => {
    const [number, unit] = value.split(" ");
    const figure = h("dd", {}, number, unit && h("small", {}, ` ${unit}`));
    return h("div", { class: "tile" }, h("dt", {}, name), figure, h("dd", { class: "note" }, note));
  };
  return h("dl", { class: "tiles", id: "headline" },
    tile("Test accuracy", pct(n.test), there(n.round) ? `mean over clients, at ${at}` : ""),
    tile("Worst tenth of clients", pct(n.worst_decile), `variance over clients ${variance(n.variance)}`),
    audit && tile("Label error in the last round", pct(n.label_error),
      `wrong pseudo labels; ${percent(n.coverage)} of the pictures got one`),
    cost && tile("Moved", mb(n.megabytes), "all models sent, up and down"),
    cost && tile("Time", time(n.seconds), typeof machine.device === "string" ? `on ${machine.device}` : ""));
}
const rowsOfRuns = () => DATA.runs.map(run => ({ ...run.headline, name: run.name, alpha: run.config.alpha, like: run }));
const rowsOfGroups = () => DATA.comparison.map(row => ({ ...row, like: DATA.runs.find(run => run.group === row.name) }));
function standings(rows) {
  const accuracy = (v, { test_sd: sd }) => pct(v) + (there(sd) ? ` ± ${(100 * sd).toFixed(1)}` : "");
  const columns = [ // name, key, form, and whether more is better (1), less (-1), or neither
    ["test accuracy", "test", accuracy, 1], ["gain over local", "gain", points, 1], ["harmed", "harmed", percent, -1],
    ["worst 10%", "worst_decile", pct, 1], ["variance", "variance", variance, -1], ["best of any round", "best_test", pct, 1],
    ["label error", "label_error", pct, 0], ["coverage", "coverage", percent, 0], ["moved", "megabytes", mb, 0],
    ["time", "seconds", time, 0], ["seeds", "seeds", count, 0],
  ].filter(([, key]) => rows.some(row => there(row[key])));
  const isBest = (row, key, sign) => {
    const all = rows.filter(other => kind(other) === kind(row)).map(other => other[key]).filter(there);
    return sign && all.length > 1 && there(row[key]) && all.every(other => sign * row[key] >= sign * other);
  };
  const cell = (row, [, key, format, sign]) =>
    h("td", { class: isBest(row, key, sign) ? "best" : null }, format(row[key], key === "test" ? row : undefined));
  const mark = ({ like }) => like && glyph("dot", looks(like).colour, looks(like).style);
  return region("Headline numbers", h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, rows[0].seeds ? "method" : "run"),
      columns.map(([name]) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((row, i) => h("tr", { class: i && kind(rows[i - 1]) !== kind(row) ? "apart" : null },
      h("th", { scope: "row" }, mark(row), row.name), columns.map(column => cell(row, column)))))));
}

// ---------------------------------------------------------------- data
function data() {
  if (!DATA.runs.some(run => run.split)) return null;
  return section("data", "The data", "Who was dealt what.", splitCard(current()));
}
function splitCard(run) {
  const d = run.split, names = d ? d.classes.map(String) : [], short = shortNames(names, 13);
  return card("split", "w12", "Training pictures by client and class", {
    run,
    caption: "The area of a bubble is the number of pictures; the full disc in it, how many are labelled. "
      + "Below: the client's label ratio.",
    key: () => [["training pictures", "var(--pale)", "dot"],
      ["of them labelled", "var(--c0)", "dot"], ["label ratio", "var(--c1)", "box"]],
    alt: () => `${d.every.length} clients, ${names.length} classes, ${count(total(d.every.flat()))} training pictures, `
      + `${count(total(d.labelled.flat()))} labelled`,
    table: () => [["client", "labelled", ...names],
      d.every.map((row, k) => [called(run, k), count(total(d.labelled[k])), ...row.map(count)])],
    draw: width => {
      if (!d) return `The data set of ${run.name} is not here.`;
      const K = d.every.length, C = names.length, head = 20, left = 12 + widest([...short, "ratio", "client"]);
      const room = width - left - 4, most = Math.max(1, Math.floor(room / (K > 200 ? 13 : 21)));
      const per = Math.ceil(K / Math.ceil(K / most)); // clients in a row: about as many in each
      const cell = Math.min(110, room / per), row = Math.min(cell, 30), wide = Math.min(40, cell * .72);
      const slanted = isNamed(run) && cell < 90, band = C * row + (slanted ? 96 : 46);
      const largest = Math.max(...d.every.map(r => Math.max(...r)), 1), radius = n => row * .49 * Math.sqrt(n / largest);
      const svg = canvas(width, head + Math.ceil(K / per) * band), spots = [];
      let every = "", known = "", bars = "", ground = "", rules = "";
      d.every.forEach((counts, k) => {
        const x = left + cell * (k % per + .5), top = head + Math.floor(k / per) * band, base = top + C * row + 24;
        counts.forEach((n, c) => {
          const y = top + row * (c + .5), labelled = d.labelled[k][c];
          if (!n) return;
          every += disc(x, y, Math.max(1, radius(n)));
          if (labelled) known += disc(x, y, Math.max(.7, radius(labelled)));
          const text = `client ${called(run, k)}, ${classTold(run, c)}\n${count(n)} pictures, ${count(labelled)} labelled`;
          spots.push({ x, y, r: radius(n), pick: () => select(k), text });
        });
        const bar = height => `M${x - wide / 2},${base}h${wide}v${(-height).toFixed(1)}h${-wide}Z`;
        ground += bar(18);
        bars += bar(18 * (share(total(d.labelled[k]), total(counts)) || 0));
        const numbered = k % per % Math.ceil((K > 100 ? 34 : 21) / cell) === 0, y = base + 13;
        const turned = slanted && { "text-anchor": "end", transform: `rotate(-45 ${x} ${y})` };
        if (numbered) svg.append(
          s("text", { class: "client", x, y, "text-anchor": "middle", ...turned }, tickOf(run, k, slanted ? 76 : cell - 8)));
        if (k % per) return;
        const tell = (name, y) => svg.append(s("text", { x: left - 8, y, "text-anchor": "end" }, name));
        short.forEach((name, c) => tell(name, top + row * (c + .5) + 4));
        tell("ratio", base - 5);
        tell("client", base + 13);
        for (let c = 0; c <= C; c++) rules += `M${left},${top + row * c}h${cell * Math.min(per, K - k)}`;
      });
      svg.prepend(s("path", { d: rules, class: "rule", fill: "none" }),
        s("text", { x: left - 8, y: 12, "text-anchor": "end" }, "class"));
      svg.append(s("path", { d: every, fill: "var(--pale)" }), s("path", { d: known, fill: "var(--c0)" }),
        s("path", { d: ground, fill: "var(--faint)" }), s("path", { d: bars, fill: "var(--c1)" }));
      hover(svg, spots, 20);
      return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The split" }, svg);
    },
  });
}

// ---------------------------------------------------------------- settings
function settings() {
  const show = v => !given(v) && v !== false ? "–" : typeof v === "number" && v > 9999 ? count(v)
    : typeof v === "object" ? JSON.stringify(v) : String(v);
  const value = (name, v) => name.startsWith("split") && typeof v === "string" ? v.slice(0, 16) : show(v);
  const words = name => name.replaceAll("_", " ");
  const used = ({ config: c, machine: m }) => ({ ...c, // what the run made of them
    ..."label_ratio" in c && { label_ratio: c.label_ratio ?? "each client's own" },
    ...["eager", "workers"].includes(m.compute) && { precision: "fp32" } });
  const origin = r => ({ "numbers in a model": r.model_numbers, "split (sha256)": r.split_hash, folder: r.folder });
  if (!several()) {
    const r = DATA.runs[0];
    const fact = ([name, v]) => [h("dt", {}, words(name)), h("dd", {}, value(name, v))];
    const facts = (title, values) => h("div", { class: "card w4" }, h("div", { class: "head" }, h("h3", {}, title)),
      h("dl", { class: "facts" }, Object.entries(values).flatMap(fact)));
    return section("settings", "Settings", "Everything that it takes to do this run again.",
      facts("The run", used(r)), facts(`The method: ${r.method}`, r.settings),
      facts("Where and with what", { ...r.machine, ...r.versions, ...origin(r) }));
  }
  const named = (word, values) => Object.fromEntries(Object.entries(values).map(([name, v]) => [`${word}: ${name}`, v]));
  const all = DATA.runs.map(r => ({ method: r.method, ...used(r), ...r.settings, ...named("machine", r.machine),
    ...named("version", r.versions), ...origin(r) }));
  const names = [...new Set(all.flatMap(Object.keys))], differs = name => new Set(all.map(run => show(run[name]))).size > 1;
  const row = name => h("tr", {}, h("th", { scope: "row" }, words(name)), all.map(run => h("td", {}, value(name, run[name]))));
  const same = name => h("div", {}, h("dt", {}, words(name)), h("dd", {}, value(name, all[0][name])));
  return section("settings", "Settings", "What differs between the runs comes first.",
    h("div", { class: "card w12 settings" }, region("Settings", h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), DATA.runs.map(r => h("th", { scope: "col" }, r.name)))),
      h("tbody", {}, names.filter(differs).map(row))))),
    h("div", { class: "card w12" }, h("div", { class: "head" }, h("h3", {}, "The same in all runs")),
      h("dl", { class: "facts same" }, names.filter(name => !differs(name)).map(same))));
}

// ---------------------------------------------------------------- the whole
/** Draw everything anew; focus, place and open tables stay. */
function render() {
  const focused = document.activeElement, home = focused?.closest("[id]")?.id, y = scrollY; // what has no id: by its place there
  const inside = box => box ? [...box.querySelectorAll(focused.localName)] : [];
  const place = inside(document.getElementById(home)).indexOf(focused);
  const open = [...document.querySelectorAll("[id]:has(> details[open])")].map(card => card.id);
  cards = [];
  state.run = Math.min(state.run, DATA.runs.length - 1);
  const parts = [overview(), accuracy(), fairness(), helpers(), labels(), cost(), models(), data(), settings()].filter(Boolean);
  main.replaceChildren(...parts, h("footer", {}, `Made by kithkin ${DATA.kithkin}. This page needs no network.`));
  document.getElementById("nav").replaceChildren(...parts.map(({ id }) => h("a", { href: `#${id}` }, id)));
  document.getElementById("pick").hidden = !several();
  document.getElementById("run").replaceChildren(
    ...DATA.runs.map((r, i) => h("option", { value: i, selected: i === state.run }, r.name)));
  redraw();
  for (const id of open) document.querySelector(`#${id} details`)?.setAttribute("open", "");
  const box = document.getElementById(home);
  (inside(box)[place] ?? box)?.focus({ preventScroll: true });
  scrollTo({ top: y, behavior: "instant" });
  followSections(parts);
  document.documentElement.dataset.ready = "";
}
let spy = null;
function followSections(parts) {
  spy?.disconnect();
  const nav = document.getElementById("nav");
  spy = new IntersectionObserver(entries => entries.filter(e => e.isIntersecting).forEach(({ target }) => {
    for (const a of nav.children) {
      const here = a.hash === `#${target.id}`;
      a.setAttribute("aria-current", here);
      if (here) nav.scrollLeft = a.offsetLeft - nav.offsetLeft - (nav.clientWidth - a.offsetWidth) / 2; // it stays in sight
    }
  }), { rootMargin: "-25% 0px -70% 0px" });
  parts.forEach(part => spy.observe(part));
}

const kept = { // for as long as the tab is open; a page from disk may have no storage
  get: key => { try { return sessionStorage.getItem(key); } catch { return null; } },
  set: (key, v) => { try { sessionStorage.setItem(key, v); } catch { /* then it is forgotten */ } },
};
const root = document.documentElement, { live, reload } = root.dataset, followed = Boolean(live || +reload);
const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => { root.dataset.theme = kept.get("theme") || (dark.matches ? "dark" : "light"); };
theme();
dark.addEventListener("change", theme);
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  kept.set("theme", root.dataset.theme);
});
function turnTo(run, client) {
  Object.assign(state, { run: DATA.runs.indexOf(run), client, step: null, audit: -1, greedy: null });
  render();
}
document.getElementById("run").addEventListener("change", event => {
  const run = DATA.runs[event.target.value];
  turnTo(run, sameClients(run) ? state.client : null);
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  forget();
  if (state.client !== null) select(null);
});
let wide = innerWidth, waiting = 0;
addEventListener("resize", () => {
  if (innerWidth === wide) return;
  wide = innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(redraw, 120);
});
addEventListener("beforeprint", () => cards.forEach(card => card.redraw(760))); // what a page of paper holds, one beside none
addEventListener("afterprint", () => redraw());

// ---------------------------------------------------------------- news
async function ask() {
  let answer = null, news = null;
  try {
    answer = await fetch(`${live}?since=${DATA.stamp}`, { cache: "no-store" });
    news = answer.status === 200 ? await answer.json() : null;
  } catch { answer = null; /* told below */ }
  if (news) {
    const { folder, helpers: net } = current(), following = net && state.step === net.round.length - 1;
    DATA = news;
    state.run = Math.max(0, DATA.runs.findIndex(run => run.folder === folder));
    if (following) state.step = null;
    render();
  }
  document.getElementById("lost").hidden = Boolean(answer?.ok);
  setTimeout(ask, 1500);
}
state.run = Math.max(0, DATA.runs.findIndex(run => run.helpers));
if (+reload) Object.assign(state, JSON.parse(kept.get("state") || "{}")); // a page of a running run reads itself again
render();
if (live) setTimeout(ask, 1500);
if (+reload) {
  const keep = () => {
    const { client, audit, x, y } = state;
    kept.set("state", JSON.stringify({ client, audit, x, y }));
  };
  for (const chosen of ["change", "click", "keydown"]) addEventListener(chosen, keep); // as the page goes may be too late
  const age = (Date.now() - new Date(document.lastModified)) / 1000; // whoever was killed writes no other: it is asked ever less
  setTimeout(() => location.reload(), 1000 * Math.min(86400, Math.max(reload, age / 10)));
}
