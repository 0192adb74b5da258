// Elements that several views show: tiers, outcomes, tokens, calls.

import { dollars, el, isCut, link, number, percent, plural, whole } from "./dom.js";

export const TIERS = {
  real: "the real environment answered",
  recorded: "a recorded answer to the same call in the same state",
  check: "a check refused the call with a recorded message",
  effects: "a program learned from recordings answered",
  views: "recordings and the calls of this session show the answer",
  plugin: "a tier of another package answered",
  cache: "a model had predicted it before",
  model: "a model predicted the answer",
};

export function tierChip(tier) {
  return el(`span.tier.tier-${tier}`, { title: TIERS[tier] ?? "" }, tier);
}

export function sourceChip(source) {
  const words = { real: "reality", imported: "imported", synthetic: "dream" };
  return el(`span.source.source-${source}`, {}, words[source] ?? source);
}

export const ENDS = {
  terminated: "the task ended",
  max_steps: "step limit",
  finished: "the agent finished",
  out_of_support: "the dream was not sure enough",
  closed: "closed",
  error: "failed",
};

export function outcome(one) {
  if (one.state === "running") return el("span.outcome.running", {}, "running");
  if (one.state === "failed") return el("span.outcome.failed", {}, "failed");
  const told = one.success === true ? "success" : one.success === false ? "no success" : "not judged";
  const kind = one.success === true ? "good" : one.success === false ? "bad" : "open";
  const reward = one.reward === null ? "reward unknown" : `reward ${number(one.reward)}`;
  return el(`span.outcome.${kind}`, { title: `${wordsOfEnd(one)}, ${reward}` }, told);
}

export function ending(one) {
  if (one.state === "running") return "it is being played";
  const reward = one.reward === null ? "its reward is unknown" : `reward ${number(one.reward)}`;
  return `${wordsOfEnd(one)}, ${reward}`;
}

// A step that was the last one, but whose end nobody could judge, stops an episode as the limit does; a list cannot tell.
function wordsOfEnd(one) {
  return one.stop_reason === "max_steps" && one.reward === null ? "step limit, or an end without a verdict" : (ENDS[one.stop_reason] ?? one.stop_reason);
}

// A bar of how many steps each tier answered, with its description in words.
export function tierBar(tiers) {
  const all = Object.values(tiers).reduce((sum, count) => sum + count, 0);
  if (!all) return el("span.faint", {}, "no steps");
  const told = Object.entries(tiers).sort((a, b) => b[1] - a[1]);
  const words = told.map(([tier, count]) => `${tier} ${percent(count / all)}`).join(", ");
  const bar = el("span.tierbar", { role: "img", "aria-label": `answered by ${words}`, title: words });
  for (const [tier, count] of told) {
    const part = el(`span.tier-${tier}`);
    part.style.flexGrow = count;
    bar.append(part);
  }
  return bar;
}

// A call in readable form: name(argument, …). Its arguments are JSON texts. The argument's name is left out if a text is the only argument.
export function call(step) {
  const given = Object.entries(step.arguments);
  const told = given.map(([name, value]) => {
    const text = `${whole(value)}${isCut(value) ? "…" : ""}`;
    return given.length === 1 && text.startsWith('"') ? text : `${name}: ${text}`;
  });
  const line = el("code.call", {}, el("b", {}, step.tool), "(");
  told.forEach((text, index) => line.append(index ? ", " : "", text));
  line.append(")");
  return line;
}

export function spent(step) {
  if (!step.prompt_tokens && !step.completion_tokens) return null;
  const cached = step.cached_tokens ? `, ${number(step.cached_tokens)} of them cached` : "";
  const money = step.dollars === null || step.dollars === undefined ? "" : `, ${dollars(step.dollars)}`;
  return `${number(step.prompt_tokens)} tokens in${cached}, ${number(step.completion_tokens)} out${money}`;
}

export function episodeLink(one, more) {
  return link("episode", { place: one.place, id: one.id, ...more });
}

export function compareLink(one, other, more) {
  return link("compare", { place: one.place, id: one.id, other_place: other.place, other: other.id, ...more });
}

export function instruction(one) {
  const text = whole(one.instruction).trim();
  const first = text.split("\n")[0] || "a task without an instruction";
  return text.length > first.length || isCut(one.instruction) ? `${first} …` : first;
}

export function empty(...words) {
  return el("p.empty", {}, ...words);
}

export function stepsOf(one) {
  return plural(one.steps, "step");
}
