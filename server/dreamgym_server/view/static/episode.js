// One episode as a conversation of calls and answers, with the known origin of each answer.

import { el, isCut, link, number, percent, plural, recordedText, seconds, svg, when, whole } from "./dom.js";
import { ask, isExport, watch } from "./data.js";
import { differing } from "./difference.js";
import { forkButton, handSection } from "./hand.js";
import { ENDS, call, compareLink, empty, ending, episodeLink, instruction, outcome, sourceChip, spent, stepsOf, tierBar, tierChip } from "./parts.js";

const PAGE = 100;

export async function episodeView(given, { signal, about, away }) {
  const name = { place: given.place ?? "store", id: given.id };
  const one = await ask("episode", name, signal);
  one.forks = about.writes && one.on_a_server;
  // a link may be older than the episode, which may have fewer steps now
  const wanted = Math.max(1, Math.min(Number(given.step) || 1, one.steps));
  const state = { one, name, first: Math.floor((wanted - 1) / PAGE) * PAGE + 1, forks: one.forks };
  if (one.state === "running" && !given.step) state.first = Math.max(0, Math.ceil(one.steps / PAGE) - 1) * PAGE + 1;
  const page = await ask("steps", { ...name, first: state.first }, signal);
  state.shown = state.first - 1 + page.steps.length;
  const steps = el("ol.steps", { "aria-label": "Steps", start: state.first }, page.steps.map((step) => stepView(step, one)));
  const head = header(one);
  const status = el("p.live", { role: "status" });
  const content = [
    head,
    status,
    stripView(one, name),
    start(one, state.first),
    pages(one, name, state.first),
    page.steps.length ? steps : null,
    page.steps.length ? null : empty(one.state === "running" ? "No call was made yet. The first one is shown when it comes." : "No call was made in this episode."),
    pages(one, name, state.first),
    finish(one),
    one.forks && one.state === "running" ? await handSection(one, signal) : null,
  ].filter(Boolean);
  content.afterShown = () => {
    if (given.step) reveal(wanted);
    if (one.state === "running" && one.place === "store" && !isExport()) follow(state, steps, status, signal, away);
  };
  return content;
}

function reveal(step) {
  const found = document.getElementById(`step-${step}`);
  if (!found) return;
  found.classList.add("wanted");
  found.scrollIntoView({ block: "center" });
  found.focus({ preventScroll: true });
}

// Adds new steps of an episode while it is being played, if the page shows its end.
function follow(state, steps, status, signal, away) {
  status.textContent = "Live: steps appear here as they are taken.";
  const isAtEnd = state.shown >= state.one.steps;
  let shown = state.shown;
  let busy = Promise.resolve();
  watch(state.one.id, signal, (change) => {
    if (change.away) {
      away(`${change.away} The steps so far stay visible, and the page continues when the server answers.`);
      return;
    }
    away("");
    if (change.gone) {
      status.textContent = "This episode was deleted. What you see is what was shown before.";
      return;
    }
    busy = busy.then(() => add(change)).catch((error) => signal.aborted || away(error.message));
  });

  async function add(change) {
    const isNear = window.innerHeight + window.scrollY > document.body.scrollHeight - 200;
    while (isAtEnd && shown < change.steps) {
      const page = await ask("steps", { ...state.name, first: shown + 1 }, signal);
      if (!page.steps.length) break;
      if (!steps.isConnected) document.querySelector("main .empty")?.replaceWith(steps);
      steps.append(...page.steps.map((step) => stepView(step, { ...state.one, forks: state.forks })));
      shown += page.steps.length;
    }
    const words = plural(Math.max(shown, change.steps), "step");
    if (change.stop_reason) {
      state.one = await ask("episode", state.name, signal);
      document.querySelector("main .facts").replaceWith(facts(state.one));
      status.textContent = `It is over after ${words}: ${ending(state.one)}.`;
    } else {
      status.textContent = `Live: ${words} so far.`;
    }
    document.querySelector("main .strip")?.replaceWith(stripView(await ask("episode", state.name, signal), state.name));
    if (isNear) steps.lastElementChild?.scrollIntoView({ block: "end" });
  }
}

function header(one) {
  return el(
    "section.head",
    {},
    el("p.crumb.faint", {}, el("a", { href: link("episodes", { place: one.place === "store" ? "store" : "folder", task: one.task }) }, `${one.env} · ${one.task}`)),
    el("h1", {}, instruction(one)),
    whole(one.instruction).trim().includes("\n") ? el("details", {}, el("summary", {}, "The whole task"), recordedText(one.instruction)) : null,
    facts(one),
    twins(one),
  );
}

function facts(one) {
  const told = [
    ["Played in", sourceChip(one.source)],
    ["Outcome", el("span", {}, outcome(one), el("span.faint", {}, ` ${ending(one)}`))],
    ["Steps", `${number(one.steps)}${one.errors ? `, ${number(one.errors)} refused` : ""}`],
    ["Answered by", tierBar(one.tiers)],
    spent(one) ? ["Model", spent(one)] : null,
    one.policy_version === null ? null : ["Policy version", one.policy_version],
    one.group ? ["Group", el("a", { href: link("episodes", { place: one.place, group: one.group }) }, one.group)] : null,
    one.parent ? ["Varied from", el("a", { href: link("episodes", { place: one.place, task: one.parent }) }, one.parent)] : null,
    ["Episode", el("code", {}, one.id)],
    one.at ? ["When", when(one.at)] : null,
  ].filter(Boolean);
  return el("dl.facts", {}, told.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function twins(one) {
  const others = one.twins.filter((twin) => twin.state !== "running");
  const side = one.source === "synthetic" ? "reality" : "a dream";
  if (!others.length) return el("p.faint", {}, `This task was not played in ${side} yet.`);
  const [first, ...rest] = others;
  return el(
    "div.twins",
    {},
    el("a.button", { href: compareLink(one, first) }, `Beside ${side}: where do they part?`),
    rest.length
      ? el(
          "details",
          {},
          el("summary", {}, `${plural(one.twins_in_all, "episode")} of this task in ${side}`),
          el("ul", {}, others.map((twin) => el("li", {}, el("a", { href: compareLink(one, twin) }, twin.id), " ", outcome(twin), ` ${stepsOf(twin)}`))),
          one.twins_in_all > others.length ? el("p.faint", {}, `${number(others.length)} of ${number(one.twins_in_all)} are listed.`) : null,
        )
      : null,
  );
}

const STRIP_HEIGHT = 22;

// All steps of the episode in one picture: which tier answered, which calls were refused, which steps had a reward.
function stripView(one, name) {
  const count = one.strip.length;
  const box = el("figure.strip", {});
  if (!count) return box;
  const picture = svg("svg", { viewBox: `0 0 ${count} ${STRIP_HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  let from = 0;
  while (from < count) {
    const kind = one.strip[from];
    let to = from;
    while (to < count && one.strip[to] === kind) to += 1;
    const { tier, error, reward } = one.kinds[kind];
    picture.append(svg("rect", { x: from, y: error ? 8 : 3, width: to - from, height: error ? 11 : 16, class: `tier-${tier}` }));
    if (reward > 0) picture.append(svg("rect", { x: from, y: 0, width: Math.max(to - from, count / 300), height: STRIP_HEIGHT, class: "rewarded" }));
    from = to;
  }
  picture.addEventListener("click", (event) => {
    const place = picture.getBoundingClientRect();
    const step = Math.min(count, 1 + Math.floor((count * (event.clientX - place.left)) / place.width));
    location.hash = link("episode", { ...name, step });
  });
  const used = [...new Set(one.kinds.map((kind) => kind.tier))];
  const jump = el("input", { type: "number", min: 1, max: count, "aria-label": `Go to a step, 1 to ${count}` });
  const form = el("form.jump", {}, el("label", {}, "Step ", jump), el("button", { type: "submit" }, "Go"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (jump.value) location.hash = link("episode", { ...name, step: jump.value });
  });
  box.append(
    picture,
    el("figcaption", {}, el("span.legend", {}, used.map(tierChip)), el("span.faint", {}, `${stepsOf(one)}; low bars are refused calls, full-height bars are rewards`), count > 10 ? form : null),
  );
  return box;
}

function start(one, first) {
  if (one.start === null || first !== 1) return null;
  return el("section.start", { "aria-label": "Start" }, el("h2", {}, "Start"), recordedText(one.start, null, "start"), one.forks ? forkButton(one, 0) : null);
}

function pages(one, name, first) {
  if (one.steps <= PAGE) return null;
  const last = Math.min(one.steps, first + PAGE - 1);
  return el(
    "nav.pages",
    { "aria-label": "Pages of steps" },
    first > 1 ? el("a", { href: link("episode", { ...name, step: first - PAGE }), rel: "prev" }, "Earlier steps") : null,
    el("span", {}, `Steps ${number(first)} to ${number(last)} of ${number(one.steps)}`),
    last < one.steps ? el("a", { href: link("episode", { ...name, step: last + 1 }), rel: "next" }, "Later steps") : null,
  );
}

function finish(one) {
  if (one.state === "running") return null;
  return el(
    "section.finish",
    { "aria-label": "End" },
    el("h2", {}, "End"),
    el("p", {}, outcome(one), ` ${ending(one)}`),
    one.answer ? el("div", {}, el("h3", {}, "Final answer"), recordedText(one.answer, null, "answer")) : null,
    one.error ? el("p.note", {}, `Error: ${whole(one.error)}`) : null,
  );
}

export function stepView(step, one) {
  const name = { place: one.place, id: one.id };
  const fetchWhole = (part) => async () => (await ask("step", { ...name, step: step.step }))[part];
  const share = el("a.anchor", { href: episodeLink(one, { step: step.step }), title: "A link to this step" }, `#${step.step}`);
  const article = el("li.step", { id: `step-${step.step}`, "data-step": step.step, tabindex: -1, value: step.step });
  const badges = [
    step.is_error && !step.stop ? el("span.badge.bad", {}, "refused") : null,
    step.reward ? el(`span.badge.${step.reward > 0 ? "good" : "bad"}`, {}, `reward ${number(step.reward)}`) : null,
    step.terminated ? el("span.badge", {}, "ends the task") : null,
    step.stop ? el("span.badge.bad", {}, ENDS[step.stop] ?? "no answer") : step.truncated ? el("span.badge", {}, step.open_end ? "over" : "limit reached") : null,
    step.open_end ? el("span.badge", { title: "Nobody knows if this step ended the task" }, "open end") : null,
    step.unbounded ? el("span.badge", { title: "It changed the state in a way that no recording shows" }, "beyond recordings") : null,
  ];
  const parts = [
    el("div.said", {}, share, call(step), copyButton(one, step)),
    Object.values(step.arguments).some(isCut) ? el("details.more", {}, el("summary", {}, "Whole arguments"), later(async () => recordedText(joined((await ask("step", { ...name, step: step.step })).arguments)))) : null,
    el(`div.answer${step.is_error ? ".refused" : ""}`, {}, recordedText(step.observation, fetchWhole("observation"), "answer")),
    el("p.origin", {}, tierChip(step.tier), ...badges, ...origin(step), one.forks && !step.terminated && !step.truncated ? forkButton(one, step.step) : null),
    el("div.why", {}, reasons(step, one, fetchWhole)),
  ];
  article.append(...parts.filter(Boolean));
  return article;
}

// The arguments of a call, which are JSON texts, as one JSON object.
function joined(texts) {
  return `{${Object.entries(texts).map(([name, text]) => `${JSON.stringify(name)}: ${text}`).join(", ")}}`;
}

function copyButton(one, step) {
  const button = el("button.quiet.copy", { type: "button", "aria-label": `Copy the link to step ${step.step}` }, "copy link");
  button.addEventListener("click", async () => {
    const address = `${location.href.split("#")[0]}${episodeLink(one, { step: step.step })}`;
    try {
      await navigator.clipboard.writeText(address);
      button.textContent = "copied";
    } catch {
      prompt("The link to this step", address); // some browsers forbid a page from a file to write to the clipboard
    }
  });
  return button;
}

function origin(step) {
  return [
    step.blocks.length ? `with ${step.blocks.join(", ")}` : "",
    step.model && step.tier !== "real" ? `model ${step.model}` : "",
    step.confidence === null ? "" : `confidence ${percent(step.confidence)}`,
    step.exact ? "same state and call recorded" : "",
    step.checked === null ? "" : `check: ${step.checked ? "accomplished" : "not accomplished"}`,
    step.judged === null ? "" : `judge: ${step.judged ? "accomplished" : "not accomplished"}`,
    spent(step) ?? "",
    step.seconds === null ? "" : seconds(step.seconds),
  ]
    .filter(Boolean)
    .map((words) => el("span.faint", {}, words));
}

function reasons(step, one, fetchWhole) {
  const parts = [];
  if (step.state.kind === "fields") {
    parts.push(el("details", { open: step.state.changed <= 8 }, el("summary", {}, `State: ${plural(step.state.changed, "field")} changed`), fieldDiff(step, one)));
  } else if (step.state.kind === "text") {
    const whole = isCut(step.state.before) || isCut(step.state.after) ? el("div.two", {}, el("div", {}, el("p.part", {}, "before"), recordedText(step.state.before, wholeState(step, one, "before"), "state")), el("div", {}, el("p.part", {}, "after"), recordedText(step.state.after, wholeState(step, one, "after"), "state"))) : null;
    parts.push(el("details", {}, el("summary", {}, "State: what changed"), el("div", {}, differing(step.state.before, step.state.after), whole)));
  } else if (step.state.kind === "same") {
    parts.push(el("span.faint", {}, "State: unchanged"));
  } else if (step.state.kind === "answer") {
    parts.push(el("span.faint", {}, "State: what the answer says"));
  }
  if (step.reasoning) parts.push(el("details", {}, el("summary", {}, "Reasoning"), recordedText(step.reasoning, fetchWhole("reasoning"), "reasoning")));
  if (step.retrieved.length) {
    parts.push(el("details", {}, el("summary", {}, `Made from ${plural(step.retrieved.length, "recorded step")}`), later(() => neighbours(step, one))));
  }
  return parts;
}

function wholeState(step, one, side) {
  return async () => (await ask("step", { place: one.place, id: one.id, step: step.step })).states[side];
}

// Content that is requested only when it becomes visible, such as when its summary is opened.
export function later(make) {
  const box = el("div.later", {}, el("p.faint", {}, "Loading …"));
  new IntersectionObserver(async (entries, observer) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    try {
      box.replaceChildren(await make());
    } catch (error) {
      box.replaceChildren(el("p.note", { role: "alert" }, error.message));
    }
  }).observe(box);
  return box;
}

async function neighbours(step, one) {
  const { recorded } = await ask("recorded", { env: one.env, ids: step.retrieved.join(",") });
  return el("ol.neighbours", {}, recorded.map(neighbour));
}

export function neighbour(found) {
  if (!found.episode) return el("li", {}, el("span.faint", {}, `A transition that is not stored here any more (${found.id.slice(0, 8)})`));
  return el(
    "li",
    {},
    el("p", {}, sourceChip(found.source), " ", el("a", { href: episodeLink({ place: found.place, id: found.episode }, { step: found.step }) }, `${found.episode}, step ${found.step}`), el("span.faint", {}, ` ${instruction(found)}`)),
    call(found),
    recordedText(found.observation, async () => (await ask("step", { place: found.place, id: found.episode, step: found.step })).observation, "answer"),
  );
}

function fieldDiff(step, one) {
  const rows = step.state.changes.map((change) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("code", {}, change.path || "/")),
      el("td", {}, "before" in change ? el("del", {}, whole(change.before), isCut(change.before) ? "…" : "") : el("span.faint", {}, "was not there")),
      el("td", {}, "after" in change ? el("ins", {}, whole(change.after), isCut(change.after) ? "…" : "") : el("span.faint", {}, "gone")),
    ),
  );
  const left = step.state.changed - rows.length;
  return el(
    "div",
    {},
    el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Changed fields" }, el("table.diff", {}, el("thead", {}, el("tr", {}, ["field", "before", "after"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows))),
    left > 0 ? el("p.faint", {}, `${plural(left, "more field")} changed; the whole states have them.`) : null,
    el("details", {}, el("summary", {}, "The whole state after this step"), later(async () => recordedText((await ask("step", { place: one.place, id: one.id, step: step.step })).states.after, null, "state"))),
  );
}

