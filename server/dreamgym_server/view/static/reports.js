// Reports of `dreamgym fidelity` as pages: their tables, and each wrong step with a link to where it was recorded.

import { el, link } from "./dom.js";
import { ask } from "./data.js";
import { empty, episodeLink } from "./parts.js";

export async function reportsView(given, { signal }) {
  const { reports } = await ask("reports", {}, signal);
  const heading = el("h1", {}, "Fidelity");
  if (!reports.length) return [heading, empty("No report is in the run folder. ", el("code", {}, "dreamgym fidelity ENV --out RUNFOLDER"), " writes one.")];
  const name = reports.some((one) => one.name === given.name) ? given.name : reports[0].name;
  const report = await ask("report", { name }, signal);
  const others = reports.length > 1 ? el("ul", {}, reports.map((one) => el("li", {}, el("a", { href: link("reports", { name: one.name }), "aria-current": one.name === name ? "true" : null }, one.name === "." ? "this folder" : one.name), " ", el("span.faint", {}, one.about)))) : null;
  return [heading, others, el("p.lead", {}, report.about), ...report.settings.flatMap((one) => setting(one, report.places)), report.differences ? section(report.differences) : null].filter(Boolean);
}

function setting(one, places) {
  return [el("h2", {}, one.setting), ...one.sections.map(section), one.worst.length ? el("section", {}, el("h3", {}, "Wrong steps"), el("ol.neighbours", {}, one.worst.map((wrong) => wrongStep(wrong, places)))) : null].filter(Boolean);
}

function section(one) {
  const [head, ...rows] = one.rows;
  return el(
    "section",
    {},
    el("h3", {}, one.title),
    head
      ? el("div.scroll", { tabindex: 0, role: "region", "aria-label": one.title }, el("table", {}, el("thead", {}, el("tr", {}, head.map((cell) => (cell ? el("th", { scope: "col" }, cell) : el("td"))))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, index) => (index ? el("td", {}, cell) : el("th", { scope: "row" }, cell))))))))
      : null,
    one.notes.map((note) => el("p.faint", {}, note)),
  );
}

function wrongStep(wrong, places) {
  const place = places[wrong.trajectory];
  const where = `${wrong.trajectory}, step ${wrong.step}`;
  const changes = (some) => (some.length ? el("p.faint", {}, `state: ${some.join("; ")}`) : null);
  return el(
    "li",
    {},
    el("p", {}, place ? el("a", { href: episodeLink({ place, id: wrong.trajectory }, { step: wrong.step }) }, where) : el("span", {}, where, el("span.faint", {}, " (the recording is not open here)"))),
    el("code.call", {}, wrong.action),
    el("div.two", {}, el("div", {}, el("h4", {}, "recorded"), el("pre", {}, wrong.recorded), changes(wrong.recorded_changes)), el("div", {}, el("h4", {}, "predicted"), el("pre", {}, wrong.got), changes(wrong.got_changes))),
  );
}
