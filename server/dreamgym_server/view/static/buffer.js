// The replay buffer: recorded steps, searched by text or by likeness, and where a dream would have to guess.

import { el, isCut, link, number, percent, plural, whole } from "./dom.js";
import { Refused, ask, isExport } from "./data.js";
import { chooser } from "./curriculum.js";
import { neighbour } from "./episode.js";
import { TIERS, empty } from "./parts.js";

const CONDITIONS = ["source", "task", "tier", "success", "policy_version"];
const ANY = ["", "any"];

export async function bufferView(given, { signal, about }) {
  const choices = [
    ...(about.folder?.environments ?? []).map((env) => ({ words: `${env}, in the run folder`, given: { place: "folder", env } })),
    ...(about.store?.environments ?? []).map((one) => ({ words: `${one.env}, in the store`, given: { env: one.env } })),
  ];
  const heading = el("h1", {}, "Buffer");
  if (!choices.length) return [heading, empty("Nothing is stored. What is recorded, imported or dreamed is found here.")];
  const chosen = choices.find((one) => one.given.env === given.env && (one.given.place ?? "") === (given.place ?? "")) ?? choices.find((one) => one.given.env === given.env) ?? choices[0];
  const which = chosen.given;
  const found = isExport() ? empty("A search needs a server: ", el("code", {}, "dreamgym view"), " has it.") : await results({ ...given, ...which }, signal).catch(refusal);
  const { map } = await ask("coverage", which, signal);
  return [
    heading,
    el("p.lead", {}, "The recorded steps that dreams are made from. A call that was recorded in the same state is answered from the recording; for any other, the dream finds the steps most like it, and has to guess more the less alike they are."),
    chooser("buffer", chosen, choices),
    isExport() ? null : searchForm(given, which),
    found,
    coverage(map, which),
  ].filter(Boolean);
}

// What is wrong with a search, below the form that still holds it.
function refusal(error) {
  if (!(error instanceof Refused) || error.status !== 400) throw error;
  return el("p", { role: "alert" }, error.message);
}

function searchForm(given, which) {
  const select = (name, label, options) => el("label", {}, label, el("select", { name }, options.map(([value, words]) => el("option", { value, selected: value === (given[name] ?? "") }, words))));
  const conditions = () => [
    select("source", "Played in", [ANY, ["real", "reality"], ["imported", "imported"], ["synthetic", "dream"]]),
    el("label", {}, "Task id", el("input", { type: "search", name: "task", value: given.task ?? "" })),
    select("tier", "Answered by", [ANY, ...Object.keys(TIERS).map((tier) => [tier, tier])]),
    select("success", "Success", [ANY, ["true", "yes"], ["false", "no"]]),
    el("label.narrow", {}, "Policy version", el("input", { type: "number", name: "policy_version", min: 0, value: given.policy_version ?? "" })),
  ];
  const byText = el(
    "form.filters",
    { "aria-label": "Search by text" },
    el("label.wide", {}, "Text of a step", el("input", { type: "search", name: "text", value: given.text ?? "", placeholder: "in an answer, a state or a call" })),
    conditions(),
    el("button", { type: "submit" }, "Search"),
  );
  const near = el(
    "form.filters",
    { "aria-label": "Search by likeness" },
    el("label.wide", {}, "State", el("input", { name: "state", value: given.tool ? (given.state ?? "") : "" })),
    el("label", {}, "Tool", el("input", { name: "tool", value: given.tool ?? "", required: true })),
    el("label.wide", {}, "Arguments as JSON", el("input", { name: "arguments", value: given.arguments ?? "", placeholder: "{}" })),
    conditions(),
    el("button", { type: "submit" }, "What is most like it?"),
  );
  for (const form of [byText, near]) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      location.hash = link("buffer", { ...which, ...Object.fromEntries(new FormData(form)) });
    });
  }
  const likeness = which.place === "folder" ? el("p.faint", {}, "A search by likeness needs the store.") : el("details", { open: Boolean(given.tool) }, el("summary", {}, "Search by likeness: what would a dream of this call be made from?"), near);
  return el("div", {}, byText, likeness);
}

async function results(given, signal) {
  const conditions = Object.fromEntries(CONDITIONS.map((name) => [name, given[name] ?? ""]));
  const isChosen = Object.values(conditions).some(Boolean);
  if (given.tool) {
    const { recorded, looked } = await ask("near", { env: given.env, state: given.state, tool: given.tool, arguments: given.arguments, ...conditions }, signal);
    const among = isChosen ? `${plural(recorded.length, "step")} that meet the conditions, among the ${number(looked)} most like it.` : "";
    if (!recorded.length) return empty(isChosen ? `None of the ${number(looked)} steps most like it meets these conditions.` : "Nothing like it is recorded: a dream would have to guess.");
    const items = recorded.map((one) => {
      const item = neighbour(one);
      item.prepend(el("p.faint", {}, one.exact ? "the same state and call" : `likeness ${one.score.toFixed(2)} of 1.5`));
      return item;
    });
    return el("section", { "aria-label": "Most like it" }, el("h2", {}, "Most like it"), among ? el("p.count", { role: "status" }, among) : null, el("ol.neighbours", {}, items));
  }
  if (!given.text && !isChosen) return null;
  const asked = { place: given.place, env: given.env, text: given.text, ...conditions };
  const found = await ask("search", { ...asked, after: given.after }, signal);
  const told = `${plural(found.recorded.length, "step")} found among ${number(found.looked)} that were looked through${found.next ? "; there are more to look through" : ""}`;
  return el(
    "section",
    { "aria-label": "Found" },
    el("p.count", { role: "status" }, told),
    el("ol.neighbours", {}, found.recorded.map(neighbour)),
    found.next ? el("p.pages", {}, el("a", { href: link("buffer", { ...asked, after: found.next }), rel: "next" }, "Look further")) : null,
  );
}

// A call with one argument as that argument, since calls of the same tool begin alike.
function inShort(action) {
  return /^[^{]+\{"[^"]+":"(.*)"\}$/.exec(action)?.[1] ?? action;
}

function coverage(map, which) {
  if (!map) return null;
  const tools = map.tools.map((one) => {
    const bar = el("span.value", { "aria-hidden": "true" }, el("span"));
    bar.firstChild.style.width = `${(100 * one.recorded) / one.keys}%`;
    return el("tr", {}, el("th", { scope: "row" }, el("code", {}, one.tool)), el("td.number", {}, number(one.states)), el("td.number", {}, number(one.recorded)), el("td.number", {}, number(one.keys - one.recorded)), el("td.nowrap", {}, bar, ` ${percent(one.recorded / one.keys)} recorded`));
  });
  const most = Math.max(1, ...map.recorded.flat());
  const short = (count) => (most > 1 ? number(count) : "✓");
  const cells = map.states.map((state, row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", title: whole(state) }, el("span.clip", {}, whole(state), isCut(state) ? "…" : "")),
      map.actions.map((action, column) => {
        const [recorded, dreamed] = [map.recorded[row][column], map.dreamed[row][column]];
        const words = `${action}: ${recorded ? `${plural(recorded, "recorded call")}` : dreamed ? `${plural(dreamed, "call")}, only dreamed` : "never called here: a guess"}`;
        const cell = el(`td.cellmap.${recorded ? "known" : dreamed ? "dreamed" : "guess"}`, { title: words }, recorded ? short(recorded) : dreamed ? `(${short(dreamed)})` : "–");
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
    el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Tools" }, el("table.narrow", {}, el("thead", {}, el("tr", {}, ["Tool", "States it was called in", "Different calls recorded", "Only dreamed", ""].map((name) => (name ? el("th", { scope: "col" }, name) : el("td"))))), el("tbody", {}, tools))),
    map.states.length
      ? [
          el("p", {}, `${map.states_in_all > map.states.length ? `The ${number(map.states.length)} states with most recordings, of ${number(map.states_in_all)},` : plural(map.states.length, "state")} by the ${plural(map.actions.length, "most frequent call")}: ${percent(filled / all)} of these pairs are recorded.`),
          el("p.legend", {}, el("span.cellmap.known", {}, most > 1 ? "3" : "✓"), most > 1 ? " different calls recorded " : " recorded ", el("span.cellmap.dreamed", {}, most > 1 ? "(2)" : "(✓)"), " only dreamed ", el("span.cellmap.guess", {}, "–"), " never called there: a dream would have to guess"),
          el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Map of recorded states and calls" }, el("table.map", {}, el("thead", {}, el("tr", {}, el("td", {}, "state"), map.actions.map((action) => el("th", { scope: "col", title: action }, el("code", {}, inShort(action)))))), el("tbody", {}, cells))),
        ]
      : null,
    el("p", {}, el("a", { href: link("episodes", { place: which.place === "folder" ? "folder" : "store", env: which.env }) }, `All episodes of ${which.env}`)),
  );
}
