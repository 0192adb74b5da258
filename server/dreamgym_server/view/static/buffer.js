// The replay buffer: what is recorded, searched by text or by likeness, and where a dream would have to guess.

import { el, isCut, link, number, percent, plural, whole } from "./dom.js";
import { ask, isExport } from "./data.js";
import { chooser } from "./curriculum.js";
import { neighbour } from "./episode.js";
import { empty } from "./parts.js";

export async function bufferView(given, { signal, about }) {
  const envs = (about.store?.environments ?? []).map((one) => one.env);
  const heading = el("h1", {}, "Buffer");
  if (isExport()) return [heading, empty("A search needs the store: ", el("code", {}, "dreamgym view"), " has it. An exported copy lists the episodes.")];
  if (!envs.length) return [heading, empty("Nothing is stored. What is recorded, imported or dreamed is found here.")];
  const env = envs.includes(given.env) ? given.env : envs[0];
  const [found, map] = [await results({ ...given, env }, signal), await ask("coverage", { env }, signal)];
  return [heading, chooser("buffer", env, envs), searchForm(given, env), found, coverage(map.map, env)].filter(Boolean);
}

function searchForm(given, env) {
  const byText = el(
    "form.filters",
    { "aria-label": "Search by text" },
    el("label.wide", {}, "Text in a recorded step", el("input", { type: "search", name: "text", value: given.text ?? "", placeholder: "a word of an answer, a state, a call" })),
    el("button", { type: "submit" }, "Search"),
  );
  const near = el(
    "form.filters",
    { "aria-label": "Search by likeness" },
    el("label.wide", {}, "State", el("input", { name: "state", value: given.state ?? "" })),
    el("label", {}, "Tool", el("input", { name: "tool", value: given.tool ?? "", required: true })),
    el("label.wide", {}, "Arguments as JSON", el("input", { name: "arguments", value: given.arguments ?? "", placeholder: "{}" })),
    el("button", { type: "submit" }, "What is most like it?"),
  );
  for (const form of [byText, near]) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      location.hash = link("buffer", { env, ...Object.fromEntries(new FormData(form)) });
    });
  }
  return el("div", {}, byText, el("details", { open: Boolean(given.tool) }, el("summary", {}, "Search by likeness: what would a dream of this call be made from?"), near));
}

async function results(given, signal) {
  if (given.tool) {
    const { recorded } = await ask("near", { env: given.env, state: given.state, tool: given.tool, arguments: given.arguments }, signal);
    if (!recorded.length) return empty("Nothing like it is recorded: a dream would have to guess.");
    const items = recorded.map((one) => {
      const item = neighbour(one);
      item.prepend(el("p.faint", {}, one.exact ? "the same state and call" : `likeness ${one.score.toFixed(2)} of 1.5`));
      return item;
    });
    return el("section", { "aria-label": "Most like it" }, el("h2", {}, "Most like it"), el("ol.neighbours", {}, items));
  }
  if (!given.text) return null;
  const found = await ask("search", { env: given.env, text: given.text, after: given.after }, signal);
  const told = `${plural(found.recorded.length, "step")} found among ${number(found.looked)} that were looked through${found.next ? "; there are more to look through" : ""}`;
  return el(
    "section",
    { "aria-label": "Found" },
    el("p.count", { role: "status" }, told),
    el("ol.neighbours", {}, found.recorded.map(neighbour)),
    found.next ? el("p.pages", {}, el("a", { href: link("buffer", { env: given.env, text: given.text, after: found.next }) }, "Look further")) : null,
  );
}

// Of a call with one argument, that argument: the others of its kind begin alike.
function inShort(action) {
  return /^[^{]+\{"[^"]+":"(.*)"\}$/.exec(action)?.[1] ?? action;
}

function coverage(map, env) {
  if (!map) return null;
  const tools = map.tools.map((one) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, one.tool)), el("td.number", {}, number(one.recorded)), el("td.number", {}, number(one.keys - one.recorded)), el("td.number", {}, number(one.states))));
  const most = Math.max(1, ...map.recorded.flat());
  const cells = map.states.map((state, row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", title: whole(state) }, el("span.clip", {}, whole(state), isCut(state) ? "…" : "")),
      map.actions.map((action, column) => {
        const [recorded, dreamed] = [map.recorded[row][column], map.dreamed[row][column]];
        const cell = el(`td.cellmap.${recorded ? "known" : dreamed ? "dreamed" : "guess"}`, { title: `${action}: ${recorded} recorded, ${dreamed} only dreamed` }, recorded ? number(recorded) : dreamed ? `(${number(dreamed)})` : "–");
        if (recorded) cell.style.setProperty("--part", `${Math.round(25 + (60 * recorded) / most)}%`);
        return cell;
      }),
    ),
  );
  const filled = map.recorded.flat().filter(Boolean).length;
  const all = map.states.length * map.actions.length;
  return el(
    "section",
    { "aria-labelledby": "coverage" },
    el("h2", { id: "coverage" }, "What is recorded, and where the dream would have to guess"),
    el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Tools" }, el("table.narrow", {}, el("thead", {}, el("tr", {}, ["Tool", "Recorded pairs of state and call", "Only dreamed", "Different states"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, tools))),
    map.states.length
      ? [
          el("p", {}, `The ${number(map.states.length)} states with most recordings, of ${number(map.states_in_all)}, and the ${plural(map.actions.length, "most frequent call")}: ${percent(filled / all)} of these pairs are recorded. A number is of recordings, (n) was only dreamed, – is a guess.`),
          el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Map of recorded states and calls" }, el("table.map", {}, el("thead", {}, el("tr", {}, el("td", {}, ""), map.actions.map((action) => el("th", { scope: "col", title: action }, el("code", {}, inShort(action)))))), el("tbody", {}, cells))),
        ]
      : null,
    el("p", {}, el("a", { href: link("episodes", { place: "store", env }) }, `All episodes of ${env}`)),
  );
}
