// The first view: an overview of the data, and the pairs of episodes that compare dream and reality.

import { el, link, plural } from "./dom.js";
import { ask } from "./data.js";
import { TIERS, compareLink, empty, instruction, sourceChip, tierBar, tierChip } from "./parts.js";

export async function overview(given, { signal, about }) {
  const found = await ask("pairs", {}, signal);
  return [
    el("h1", {}, "See inside the dream"),
    el("p.lead", {}, "A dream simulates an environment from recordings of it. Here is what agents did in dreams and in reality, where each answer of a dream came from, and how far it can be trusted."),
    about.absent ? el("p.note", {}, about.absent) : null,
    pairList(found),
    holdings(about),
  ].filter(Boolean);
}

function pairList(found) {
  const section = el("section", { "aria-labelledby": "pairs" }, el("h2", { id: "pairs" }, "Dream beside reality"));
  if (!found.pairs.length) {
    section.append(
      empty(
        "No task was played in a dream and in reality yet. ",
        el("code", {}, "dreamgym demo"),
        " plays one in both, and ",
        el("code", {}, "dreamgym play ENV --against real --store"),
        " plays one in reality.",
      ),
    );
    return section;
  }
  section.append(el("p.lead", {}, "Tasks that were played in both. A pair opens at the first step at which the two part."));
  const used = Object.keys(TIERS).filter((tier) => found.pairs.some((pair) => tier in pair.dream.tiers));
  section.append(el("p.legend", {}, "The bar shows who answered in the dream: ", used.map((tier) => el("span.explained", {}, tierChip(tier), ` ${TIERS[tier]}`))));
  const list = el("ul.pairs", {});
  for (const pair of found.pairs) {
    const same = pair.parts_at === null && pair.same_end;
    const parts = same ? "the same to the end" : pair.parts_at === null ? "they end differently" : `they part at step ${pair.parts_at}`;
    const isOver = (one, where) => (one.stop_reason === "finished" ? `the agent stopped in ${where}` : `${where} was over`);
    const over = { dream: isOver(pair.dream, "the dream"), real: isOver(pair.real, "reality") };
    const how = same ? "" : pair.parts_at === null ? "the same calls and answers" : (over[pair.over] ?? (pair.same_call ? "the same call, another answer" : "the agents made different calls"));
    list.append(
      el(
        "li",
        {},
        el(
          "a.pair",
          { href: compareLink(pair.dream, pair.real), "data-parts": pair.parts_at !== null },
          el("span.task", {}, instruction(pair.dream)),
          el("span.faint", {}, `${pair.dream.env} · ${pair.dream.task}`),
          el("span.sides", {}, sourceChip(pair.dream.source), tierBar(pair.dream.tiers), sourceChip(pair.real.source)),
          el("span", {}, el(`strong.${same ? "same" : "differs"}`, {}, parts), how ? el("span.faint", {}, `: ${how}`) : null),
        ),
      ),
    );
  }
  section.append(list);
  if (found.total > found.pairs.length) {
    section.append(el("p.faint", {}, `The newest ${found.pairs.length} of ${plural(found.total, "such task")}. To find another pair, open one of its episodes.`));
  }
  return section;
}

function holdings(about) {
  const section = el("section", { "aria-labelledby": "held" }, el("h2", { id: "held" }, "What there is"));
  const rows = [];
  for (const file of about.folder?.files ?? []) {
    const broken = file.broken ? el("span.note", {}, ` ${plural(file.broken, "line")} could not be read, perhaps still being written`) : null;
    rows.push(el("tr", {}, el("th", { scope: "row" }, el("a", { href: link("episodes", { place: file.place }) }, file.place)), el("td", {}, plural(file.episodes, "episode"), broken)));
  }
  for (const one of about.store?.environments ?? []) {
    const words = [
      one.real ? `${plural(one.real, "recorded episode")}` : "",
      one.imported ? `${one.imported.toLocaleString("en")} imported` : "",
      one.synthetic ? `${one.synthetic.toLocaleString("en")} dreamed` : "",
      one.tasks ? plural(one.tasks, "task") : "",
    ].filter(Boolean);
    rows.push(el("tr", {}, el("th", { scope: "row" }, el("a", { href: link("episodes", { place: "store", env: one.env }) }, one.env)), el("td", {}, words.join(", "))));
  }
  if (!rows.length) {
    section.append(empty("Nothing is stored yet. ", el("code", {}, "dreamgym record"), ", ", el("code", {}, "dreamgym collect"), " and ", el("code", {}, "dreamgym serve"), " bring episodes; this page shows them as they come."));
    return section;
  }
  section.append(el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Files and environments" }, el("table.holdings", {}, el("tbody", {}, rows))));
  return section;
}
