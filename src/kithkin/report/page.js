// The page around the figures: headline, settings, navigation, and news while a run goes on.

// ---------------------------------------------------------------- overview
function overview() {
  const runs = DATA.runs, one = !several(), run = runs[0], going = runs.filter(r => !r.finished).length;
  const facts = ({ config: c, rounds }) => [
    typeof c.data === "string" && c.data.split("/").pop(), there(c.clients) && `${c.clients} clients`, there(c.alpha) && `alpha ${c.alpha}`,
    rounds && `${rounds} rounds`, there(c.seed) && `seed ${c.seed}`,
  ];
  const common = facts(run).filter((fact, i) => fact && runs.every(r => facts(r)[i] === fact));
  const more = runs.length > 4 ? ` and ${runs.length - 4} more` : "";
  const remarks = runs.flatMap(r => r.remarks.map(text => one ? text : `${r.name}: ${text}`));
  const progress = going ? one ? `Round ${run.done} of ${run.rounds || "?"}` : `${going} of ${runs.length} runs not finished`
    : one ? "Finished" : `${runs.length} runs`;
  return h("div", { id: "overview" },
    h("div", { class: "lead" },
      h("div", { class: `state ${going ? "going" : ""}`, id: "state" }, progress),
      h("h1", {}, runs.slice(0, 4).map(r => r.name).join(" · ") + more),
      h("p", {}, common.join(" · ")),
      !one && h("div", { class: "chips", role: "group", "aria-label": "Runs shown" }, runs.map(chip)),
      remarks.length > 0 && h("ul", { class: "remarks", id: "remarks" }, remarks.map(text => h("li", {}, text)))),
    one ? tiles(run) : standings(runs));
}
function chip({ name, folder }, i) {
  const pressed = () => String(!state.hidden.has(folder));
  const toggle = () => {
    state.hidden.delete(folder) || state.hidden.add(folder);
    button.setAttribute("aria-pressed", pressed());
    redraw();
  };
  const looks = { type: "button", class: "chip", hue: hue(i % 8), "aria-pressed": pressed() };
  const button = h("button", { ...looks, onclick: toggle }, h("i"), name);
  return button;
}
function tiles({ headline: n, audit, cost, machine }) {
  const tile = (name, value, note) => {
    const [number, unit] = value.split(" ");
    const figure = h("dd", {}, number, unit && h("small", {}, ` ${unit}`));
    return h("div", { class: "tile" }, h("dt", {}, name), figure, h("dd", { class: "note" }, note));
  };
  return h("dl", { class: "tiles", id: "headline" },
    tile("Test accuracy", pct(n.test), there(n.round) ? `mean over clients, at the best validation round (${n.round})` : ""),
    tile("Worst tenth of clients", pct(n.worst_decile), `variance over clients ${num(n.variance)}`),
    audit && tile("Wrong pseudo labels", pct(n.label_error), `last round; ${percent(n.coverage)} of the pictures labelled`),
    cost && tile("Moved", mb(n.megabytes), "all models sent, up and down"),
    cost && tile("Time", time(n.seconds), typeof machine.device === "string" ? `on ${machine.device}` : ""));
}
function standings(runs) {
  const columns = [ // name, key, form, and whether more is better (1), less (-1), or neither
    ["test", "test", pct, 1], ["best of any round", "best_test", pct, 1], ["worst 10%", "worst_decile", pct, 1],
    ["variance", "variance", num, -1], ["gain over local", "gain", points, 1], ["harmed", "harmed", percent, -1],
    ["label error", "label_error", pct, 0], ["coverage", "coverage", percent, 0], ["moved", "megabytes", mb, 0],
    ["time", "seconds", time, 0],
  ].filter(([, key]) => runs.some(r => there(r.headline[key])));
  const isBest = (v, key, sign) => {
    const all = runs.map(r => r.headline[key]).filter(there);
    return sign && all.length > 1 && there(v) && all.every(other => sign * v >= sign * other);
  };
  const cell = (r, [, key, format, sign]) =>
    h("td", { class: isBest(r.headline[key], key, sign) ? "best" : null }, format(r.headline[key]));
  return h("div", { class: "card", id: "headline" },
    region("Headline numbers of all runs", h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "run"), columns.map(([name]) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, runs.map((r, i) => h("tr", {},
        h("th", { scope: "row" }, h("i", { hue: hue(i % 8) }), r.name), columns.map(column => cell(r, column))))))),
    h("p", { class: "note" }, "Accuracy is that of each client's own model on its own test pictures, at the round of best mean "
      + `validation accuracy. Harmed: clients that end more than ${100 * DATA.harm} points below training alone.`));
}

// ---------------------------------------------------------------- settings
function settings() {
  const show = v => !given(v) && v !== false ? "–" : typeof v === "number" && v > 9999 ? count(v)
    : typeof v === "object" ? JSON.stringify(v) : String(v);
  const value = (name, v) => name.startsWith("split") && typeof v === "string" ? v.slice(0, 16) : show(v);
  const words = name => name.replaceAll("_", " ");
  const origin = r => ({ "numbers in a model": r.model_numbers, "split (sha256)": r.split_hash, folder: r.folder });
  if (!several()) {
    const r = DATA.runs[0];
    const fact = ([name, v]) => [h("dt", {}, words(name)), h("dd", {}, value(name, v))];
    const facts = (title, values) => h("div", { class: "card w4" }, h("div", { class: "head" }, h("h3", {}, title)),
      h("dl", { class: "facts" }, Object.entries(values).flatMap(fact)));
    return section("settings", "Settings", "Everything that it takes to do this run again.",
      facts("The run", r.config), facts(`The method: ${r.method}`, r.settings),
      facts("Where and with what", { ...r.machine, ...r.versions, ...origin(r) }));
  }
  const named = (word, values) => Object.fromEntries(Object.entries(values).map(([name, v]) => [`${word}: ${name}`, v]));
  const all = DATA.runs.map(r => ({ method: r.method, ...r.config, ...r.settings, ...named("machine", r.machine),
    ...named("version", r.versions), ...origin(r) }));
  const names = [...new Set(all.flatMap(Object.keys))], differ = name => new Set(all.map(run => show(run[name]))).size > 1;
  const row = name => h("tr", {}, h("th", { scope: "row" }, words(name)),
    all.map(run => h("td", { class: differ(name) ? null : "muted" }, value(name, run[name]))));
  return section("settings", "Settings", "What differs between the runs comes first.",
    h("div", { class: "card w12 settings" }, region("Settings", h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "setting"), DATA.runs.map(r => h("th", { scope: "col" }, r.name)))),
      h("tbody", {}, [...names.filter(differ), ...names.filter(name => !differ(name))].map(row))))));
}

// ---------------------------------------------------------------- the whole
/** Draw everything anew; focus, place and open tables stay. */
function render() {
  const focused = document.activeElement?.id, y = scrollY;
  const open = [...document.querySelectorAll("figure:has(details[open])")].map(figure => figure.id);
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
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  scrollTo({ top: y, behavior: "instant" });
  followSections(parts);
  document.documentElement.dataset.ready = "";
}
let spy = null;
function followSections(parts) {
  spy?.disconnect();
  spy = new IntersectionObserver(entries => entries.filter(e => e.isIntersecting).forEach(({ target }) => {
    for (const a of document.querySelectorAll("#nav a")) a.setAttribute("aria-current", a.hash === `#${target.id}`);
  }), { rootMargin: "-15% 0px -75% 0px" });
  parts.forEach(part => spy.observe(part));
}

const kept = { // for as long as the tab is open; a page from disk may have no storage
  get: key => { try { return sessionStorage.getItem(key); } catch { return null; } },
  set: (key, v) => { try { sessionStorage.setItem(key, v); } catch { /* then it is forgotten */ } },
};
const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => { root.dataset.theme = kept.get("theme") || (dark.matches ? "dark" : "light"); };
theme();
dark.addEventListener("change", theme);
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  kept.set("theme", root.dataset.theme);
});
document.getElementById("run").addEventListener("change", event => {
  Object.assign(state, { run: +event.target.value, step: null, audit: -1, greedy: null });
  render();
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  tip.hidden = true;
  if (state.client !== null) select(null);
});
let wide = innerWidth, waiting = 0;
addEventListener("resize", () => {
  if (innerWidth === wide) return;
  wide = innerWidth;
  clearTimeout(waiting);
  waiting = setTimeout(redraw, 120);
});

// ---------------------------------------------------------------- news
const { live, reload } = root.dataset;
async function ask() {
  let answer = null;
  try { answer = await fetch(`${live}?since=${DATA.stamp}`, { cache: "no-store" }); } catch { /* told below */ }
  if (answer?.status === 200) {
    const net = current().helpers, following = net && state.step === net.round.length - 1;
    DATA = await answer.json();
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
if (+reload) setTimeout(() => {
  const { client, audit, x, y } = state;
  kept.set("state", JSON.stringify({ client, audit, x, y }));
  location.reload();
}, 1000 * reload);
