// Reports of `dreamgym fidelity` and `dreamgym check` as pages: their tables, in which a number leads to the steps or the episodes behind it.

import { el, link, number, plural } from "./dom.js";
import { ask } from "./data.js";
import { empty, episodeLink } from "./parts.js";

export async function reportsView(given, { signal }) {
  const { reports } = await ask("reports", {}, signal);
  const heading = el("h1", {}, "Fidelity");
  if (!reports.length) return [heading, el("p.lead", {}, "How often a dream gives the same answer as reality, measured on recordings that the dream does not have."), empty("No report is in a run folder that is shown here. ", el("code", {}, "dreamgym fidelity ENV --out RUNFOLDER"), " writes one, or ", el("code", {}, "dreamgym check"), ", and ", el("code", {}, "dreamgym view RUNFOLDER"), " shows it.")];
  const name = reports.some((one) => one.name === given.name) ? given.name : reports[0].name;
  const report = await ask("report", { name }, signal);
  const others = reports.length > 1 ? el("ul", {}, reports.map((one) => el("li", {}, el("a", { href: link("reports", { name: one.name }), "aria-current": one.name === name ? "true" : null }, one.name === "." ? "this folder" : one.name), " ", el("span.faint", {}, one.about)))) : null;
  const hasLinks = report.settings.some((one) => one.sections.some((each) => each.rows.some((row) => row.cells.some((cell) => cell.steps))));
  return [
    heading,
    others,
    el("p.lead", {}, report.about),
    hasLinks ? el("p.faint", {}, "A number leads to the steps behind it.") : report.settings.length ? el("p.note", {}, "This report was written without the steps behind its numbers. Measure again to get them.") : null,
    ...report.settings.flatMap((one) => setting(one, report.places, name)),
    report.differences ? section(report.differences, name) : null,
  ].filter(Boolean);
}

function setting(one, places, name) {
  return [el("h2", {}, one.setting), ...one.sections.map((each) => section(each, name)), one.worst.length ? el("section", {}, el("h3", {}, "Wrong steps, the least alike first"), el("ol.neighbours", {}, one.worst.map((wrong) => predictedStep(wrong, places)))) : null].filter(Boolean);
}

const CLOSED_LOOP = { "success in the dream": { source: "synthetic" }, "answered by": { source: "synthetic" }, "in reality": { source: "real" } };
const REPLAYED = new Set(["dreamed calls valid", "same answer"]);

// The link of a cell that counts episodes: to those of the dream, of reality, or of dreamed calls made again.
function episodesOf(group, head) {
  if (REPLAYED.has(head)) return link("episodes", { place: "folder", group: group.replace("/closed loop/", "/replay/") });
  return link("episodes", { place: "folder", group, ...CLOSED_LOOP[head] });
}

function section(one, name) {
  const [head, ...rows] = one.rows;
  const titles = head?.cells.map((cell) => cell.text) ?? [];
  const shown = (cell, group, counts) => {
    if (cell.steps) return el("a", { href: link("behind", { name, setting: cell.setting, cell: cell.cell }), title: plural(cell.steps, "step") }, cell.text);
    if (group && counts && cell.text && cell.text !== "-") return el("a", { href: episodesOf(group, counts) }, cell.text);
    return cell.text;
  };
  return el(
    "section",
    {},
    el("h3", {}, one.title),
    head
      ? el("div.scroll", { tabindex: 0, role: "region", "aria-label": one.title }, el("table.report", {}, el("thead", {}, el("tr", {}, titles.map((title) => (title ? el("th", { scope: "col" }, title) : el("td"))))), el("tbody", {}, rows.map(({ cells, group }) => el("tr", {}, cells.map((cell, index) => (index ? el("td", {}, shown(cell, group, titles[index])) : el("th", { scope: "row" }, cell.text))))))))
      : null,
    one.notes.map((parts) => el("p.faint", {}, parts.map((part) => shown(part, part.group, part.head)))),
  );
}

// The most steps in one answer of the server.
const STEPS_BEHIND = 50;

export async function behindView(given, { signal }) {
  const asked = { name: given.name, setting: given.setting, cell: given.cell, order: given.order };
  const found = await ask("behind", { ...asked, first: given.first ?? "" }, signal);
  const [table, row, column] = (found.cell ?? "").split(" | ");
  const last = found.first + found.steps.length - 1;
  const isHighest = given.order === "highest";
  return [
    el("p.crumb", {}, el("a", { href: link("reports", { name: given.name }) }, "Fidelity"), el("span.faint", {}, ` · ${found.setting} · ${table}`)),
    el("h1", {}, [row, column].filter((words) => words && words !== "share").join(", ")),
    el("p", {}, found.mean !== null ? `The mean over ${plural(found.total, "step")} is ${number(found.mean)}. ` : found.total ? `It is computed from ${plural(found.total, "step")}. ` : "No step is behind this number.", found.total ? el("a", { href: link("behind", { ...asked, order: isHighest ? "" : "highest" }) }, isHighest ? "Lowest values first" : "Highest values first") : null),
    el("ol.neighbours", { start: found.first }, found.steps.map((step) => predictedStep(step, found.places, step.value))),
    found.total > found.steps.length
      ? el(
          "nav.pages",
          { "aria-label": "Pages of steps" },
          found.first > 1 ? el("a", { href: link("behind", { ...asked, first: Math.max(1, found.first - STEPS_BEHIND) }), rel: "prev" }, "Steps before") : null,
          el("span", {}, `${number(found.first)} to ${number(last)} of ${number(found.total)}`),
          last < found.total ? el("a", { href: link("behind", { ...asked, first: last + 1 }), rel: "next" }, "Next steps") : null,
        )
      : null,
  ].filter(Boolean);
}

function predictedStep(one, places, value = null) {
  const place = places[one.trajectory];
  const where = one.step ? `${one.trajectory}, step ${one.step}` : one.trajectory;
  const changes = (some) => (some.length ? el("p.faint", {}, `state: ${some.join("; ")}`) : null);
  const told = value === null ? null : el(`span.badge${value === 1 ? ".good" : value === 0 ? ".bad" : ""}`, {}, number(value));
  return el(
    "li",
    {},
    el("p.said", {}, told, place ? el("a", { href: episodeLink({ place, id: one.trajectory }, one.step ? { step: one.step } : {}) }, where) : el("span", {}, where, el("span.faint", {}, " (the recording is not open here)"))),
    el("code.call", {}, one.action),
    one.recorded === one.got && `${one.recorded_changes}` === `${one.got_changes}`
      ? el("div.answer", {}, el("p.faint", {}, "recorded and predicted alike"), el("pre", {}, one.recorded), changes(one.recorded_changes))
      : el("div.two", {}, el("div.answer", {}, el("p.part", {}, "recorded"), el("pre", {}, one.recorded), changes(one.recorded_changes)), el("div.answer", {}, el("p.part", {}, "predicted"), el("pre", {}, one.got), changes(one.got_changes))),
  );
}
