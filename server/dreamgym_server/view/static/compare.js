// Two episodes of one task, call by call. The first call at which they differ is marked.

import { el, link, number, plural, readable, recordedText, whole } from "./dom.js";
import { ask } from "./data.js";
import { call, ending, episodeLink, instruction, outcome, sourceChip, stepsOf, tierBar, tierChip } from "./parts.js";

const COMPARED = 100;

export async function compareView(given, { signal }) {
  const name = { place: given.place ?? "store", id: given.id, other_place: given.other_place ?? "store", other: given.other };
  const found = await ask("compare", { ...name, first: given.first ?? "" }, signal);
  const { one, other, pairs } = found;
  const parts = found.parts_at;
  const told =
    parts === null
      ? found.same_end
        ? "The two are the same to the end: every call, answer, reward and end."
        : "All calls and answers are the same, but the two end differently."
      : parts === 1
        ? "They part at the first call."
        : `The first ${plural(parts - 1, "call")} and their answers are the same. They part at step ${number(parts)}.`;
  const rows = pairs.map((pair) => pairView(pair, found));
  const content = [
    el("section.head", {}, el("p.crumb.faint", {}, `${one.env} · ${one.task}`), el("h1", {}, instruction(one)), el("p.verdict", { role: "status" }, told, " ", parts === null ? null : el("a.button", { href: link("compare", { ...name }), "data-parts": true, onclick: (event) => { if (document.getElementById("parting")) { event.preventDefault(); toParting(); } } }, `Go to step ${number(parts)}`))),
    el("div.two.sides", {}, side(one), side(other)),
    pagesOf(found, name),
    el("ol.pairs-of-calls", { "aria-label": "Calls of both episodes" }, rows),
    pagesOf(found, name),
    el("div.two.sides", {}, end(one), end(other)),
  ];
  content.afterShown = () => {
    if (!given.first) toParting();
  };
  return content;
}

function toParting() {
  const found = document.getElementById("parting");
  found?.scrollIntoView({ block: "center" });
  found?.focus({ preventScroll: true });
}

function side(one) {
  return el("div", {}, el("h2", {}, sourceChip(one.source), " ", el("a", { href: episodeLink(one) }, one.id)), el("p", {}, outcome(one), el("span.faint", {}, ` ${ending(one)}, ${stepsOf(one)} `)), tierBar(one.tiers));
}

function end(one) {
  return el("div", {}, el("h2", {}, "End"), el("p", {}, sourceChip(one.source), " ", outcome(one), ` ${ending(one)}`), one.answer ? recordedText(one.answer, async () => (await ask("episode", { place: one.place, id: one.id })).answer, "answer") : null);
}

function pagesOf(found, name) {
  if (found.total <= found.pairs.length) return null;
  const last = found.first + found.pairs.length - 1;
  return el(
    "nav.pages",
    { "aria-label": "Pages of calls" },
    found.first > 1 ? el("a", { href: link("compare", { ...name, first: Math.max(1, found.first - COMPARED) }), rel: "prev" }, "Earlier calls") : null,
    el("span", {}, `Calls ${number(found.first)} to ${number(last)} of ${number(found.total)}`),
    last < found.total ? el("a", { href: link("compare", { ...name, first: last + 1 }), rel: "next" }, "Later calls") : null,
  );
}

function pairView(pair, found) {
  const isParting = pair.step === found.parts_at;
  const same = pair.same_call && pair.same_answer;
  const item = el(`li.pair-of-calls${same ? ".same" : ""}${isParting ? ".parting" : ""}`, { id: isParting ? "parting" : null, "data-step": pair.step, tabindex: -1, value: pair.step });
  if (isParting) item.append(el("p.mark", {}, reason(pair)));
  if (same) {
    item.append(cellOf(pair.one, pair, found.one), el("p.faint.agrees", {}, "the same answer in ", sourceChip(found.other.source), " ", tierChip(pair.other.tier)));
    return item;
  }
  item.append(el("div.two", {}, cellOf(pair.one, pair, found.one, pair.other), cellOf(pair.other, pair, found.other, pair.one)));
  return item;
}

function reason(pair) {
  if (!pair.one || !pair.other) return "Here they part: one episode is over.";
  if (!pair.same_call) return "Here they part: the calls differ.";
  if (pair.one.is_error !== pair.other.is_error) return "Here they part: one of the two is refused.";
  if (pair.one.terminated !== pair.other.terminated) return "Here they part: only one of the two ends the task.";
  if (pair.one.reward !== pair.other.reward) return "Here they part: the rewards differ.";
  return "Here they part: the same call, another answer.";
}

function cellOf(step, pair, episode, other) {
  if (!step) return el("div.cell.over", {}, sourceChip(episode.source), el("p.faint", {}, "This episode is over."));
  const fetchWhole = async () => (await ask("step", { place: episode.place, id: episode.id, step: pair.step })).observation;
  return el(
    `div.cell${step.is_error ? ".refused" : ""}`,
    {},
    el("p.said", {}, el("a.anchor", { href: episodeLink(episode, { step: pair.step }), title: "This step, and where its answer came from" }, `#${number(pair.step)}`), sourceChip(episode.source), tierChip(step.tier), step.is_error ? el("span.badge.bad", {}, "refused") : null, step.reward ? el("span.badge.good", {}, `reward ${number(step.reward)}`) : null, step.terminated ? el("span.badge", {}, "ends the task") : null),
    call(step),
    el("div.answer", {}, other && pair.same_call ? marked(step.observation, other.observation, fetchWhole) : recordedText(step.observation, fetchWhole, "answer")),
  );
}

const MARKED_CHARACTERS = 4000;

// The text with a mark on all that differs from the other text: all between their common beginning and common end.
function marked(text, other, fetchWhole) {
  const [ours, theirs] = [whole(text), whole(other)].map(readable);
  if (ours === theirs || ours.length > MARKED_CHARACTERS || typeof text !== "string") return recordedText(text, fetchWhole, "answer");
  const most = Math.min(ours.length, theirs.length);
  let begin = 0;
  while (begin < most && ours[begin] === theirs[begin]) begin += 1;
  let end = 0;
  while (end < most - begin && ours[ours.length - 1 - end] === theirs[theirs.length - 1 - end]) end += 1;
  while (begin > 0 && /\w/.test(ours[begin - 1])) begin -= 1;
  while (end > 0 && /\w/.test(ours[ours.length - end])) end -= 1;
  return el("div.recorded", {}, el("pre", {}, ours.slice(0, begin), el("mark", {}, ours.slice(begin, ours.length - end)), ours.slice(ours.length - end)));
}
