// Training runs: success in the dream and in the real probe, tiers, dead groups, and the rollouts of an update.

import { el, link, number, percent, plural } from "./dom.js";
import { ask, isExport, pause } from "./data.js";
import { interval, lineChart, shareChart } from "./chart.js";
import { empty, episodeLink, instruction, outcome, stepsOf, tierBar } from "./parts.js";

const AT_ONCE = 4;
const REFRESH_MS = 5000;

export async function trainingView(given, { signal, about, away }) {
  const { runs } = await ask("runs", {}, signal);
  const heading = el("h1", {}, "Training");
  if (!runs.length) {
    const hint = about.folder ? "This run folder does not contain a metrics.jsonl yet. The curves appear after the first update." : "Training is shown for a run folder: ";
    return [heading, empty(hint, about.folder ? "" : el("code", {}, "dreamgym view RUNFOLDER"))];
  }
  const names = runs.map((run) => run.name);
  const asked = (given.runs ?? "").split("|").filter((name) => names.includes(name));
  const chosen = asked.length ? asked : [(runs.find((run) => run.last_probe) ?? runs[0]).name];
  const left = chosen.length - AT_ONCE;
  const curves = el("div.curves");
  const fill = async () => {
    const found = [];
    for (const name of chosen.slice(0, AT_ONCE)) found.push(await ask("run", { name }, signal));
    const some = left > 0 ? el("p.note", { role: "status" }, `${AT_ONCE} runs are drawn at once: ${chosen.slice(0, AT_ONCE).map(label).join(", ")}. Take off one of them to see ${left === 1 ? "the other one" : `another of the other ${left}`}.`) : null;
    curves.replaceChildren(...[some, ...charts(found, given, await playedIn(found, given, signal, about))].filter(Boolean));
  };
  await fill();
  if (!isExport()) redraw(fill, signal, away);
  return [heading, runTable(runs, chosen), curves];
}

async function redraw(fill, signal, away) {
  for (;;) {
    await pause(REFRESH_MS, signal);
    if (signal.aborted) return;
    if (document.hidden || document.querySelector(".curves")?.contains(document.activeElement) || document.querySelector(".curves details[open]")) continue;
    try {
      await fill();
      away("");
    } catch (error) {
      if (!signal.aborted) away(`${error.message} The curves are drawn again when it does.`);
    }
  }
}

function runTable(runs, chosen) {
  const rows = runs.map((run) => {
    const box = el("input", { type: "checkbox", name: "run", value: run.name, "aria-label": `Draw ${label(run.name)}` });
    box.checked = chosen.includes(run.name);
    return el(
      "tr",
      {},
      el("td", {}, box),
      el("th", { scope: "row" }, el("a", { href: link("training", { runs: run.name }) }, label(run.name))),
      el("td", {}, plural(run.updates, "update"), run.broken ? el("span.note", {}, ` ${plural(run.broken, "line")} could not be read`) : null, run.where ? el("span.faint", {}, ` in ${run.where === "real" ? "reality" : "the dream"}`) : null),
      el("td", {}, run.last_probe ? `${percent(run.last_probe.real_success)}${interval(run.last_probe.real_low, run.last_probe.real_high, percent)}` : el("span.faint", {}, "no probe")),
      el("td", {}, tierBar(run.tiers)),
    );
  });
  const head = ["", "Run", "Length", "Last success in reality", "Answered by"].map((name) => (name ? el("th", { scope: "col" }, name) : el("td")));
  const form = el("form", { "aria-label": "Runs" }, el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Training runs" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows))));
  form.addEventListener("change", () => {
    location.hash = link("training", { runs: new FormData(form).getAll("run").join("|") });
  });
  return form;
}

function label(name) {
  return name === "." ? "this folder" : name;
}

// The rollouts of the chosen update: those in the run folder, else those in the store.
async function playedIn(found, given, signal, about) {
  if (found.length !== 1 || !found[0].group) return null;
  const [run] = found;
  const one = run.updates.find((each) => each.step + 1 === (Number(given.update) || run.updates.length));
  if (!one) return null;
  const group = `${run.group}${one.step}-`;
  for (const place of ["folder", ...(about.store ? ["store"] : [])]) {
    const page = await ask("episodes", { place, group }, signal).catch(() => ({ episodes: [] }));
    if (page.episodes.length) return { ...page, group, place };
  }
  return { episodes: [], group };
}

function charts(found, given, played) {
  const several = found.length > 1;
  const of = (run, words) => (several ? `${label(run.name)}: ${words}` : words);
  const pick = several ? null : (update) => (location.hash = link("training", { ...given, runs: found[0].name, update }));
  const line = (run, index, words, name, extra = "") => ({
    name: of(run, words),
    className: `series-${index} ${extra}`.trim(),
    points: run.updates.filter((one) => name(one) !== undefined && name(one) !== null).map((one) => [one.step + 1, name(one)]),
  });
  const success = found.flatMap((run, index) => [
    { ...line(run, index, run.updates[0]?.where === "real" ? "while practising in reality" : "in the dream", (one) => one.inside_success, "dreamed"), points: smoothed(line(run, index, "", (one) => one.inside_success).points) },
    {
      name: of(run, "in reality, with its 95 % interval"),
      className: `series-${index} probed`,
      points: run.probes.map((one) => [one.step, one.real_success]),
      low: run.probes.map((one) => one.real_low),
      high: run.probes.map((one) => one.real_high),
    },
  ]);
  const note = `In the dream: the mean of ${SMOOTHED} updates, each of which plays other tasks. In reality: probes on tasks that are never practised.`;
  const parts = [
    lineChart("Success over updates", success, { share: true, onpick: pick, note }),
    rollouts(found, given, played),
    ...found.map((run) => shareChart(of(run, "Steps by who answered"), run.updates.map((one) => ({ x: one.step + 1, shares: one.tiers })), (name) => `tier-${name}`)),
    lineChart("Dead groups", found.map((run, index) => line(run, index, "share of the groups", (one) => (one.groups ? one.dead_groups / one.groups : undefined))), { share: true, note: "All known rewards of the attempts at a task are the same: GRPO learns nothing from them, PPO does." }),
    lineChart("Refused actions", found.map((run, index) => line(run, index, "share of the actions", (one) => one.refused_share)), { share: true, note: "Actions that the environment answered with an error." }),
    lineChart("Length of an episode", found.map((run, index) => line(run, index, "mean steps", (one) => one.mean_steps))),
    ...["loss", "kl", "entropy"].map((name) => lineChart({ loss: "Loss", kl: "KL divergence from the start policy", entropy: "Entropy" }[name], found.map((run, index) => ({ name: of(run, name), className: `series-${index}`, points: run.learned.filter((one) => typeof one[name] === "number").map((one) => [one.step, one[name]]) })))),
  ];
  return parts.filter(Boolean);
}

const SMOOTHED = 5;

function smoothed(points) {
  return points.map(([x], index) => {
    const window = points.slice(Math.max(0, index - SMOOTHED + 1), index + 1);
    return [x, window.reduce((sum, [, y]) => sum + y, 0) / window.length];
  });
}

function rollouts(found, given, played) {
  if (found.length !== 1) return null;
  const [run] = found;
  const update = Number(given.update) || run.updates.length;
  const one = run.updates.find((each) => each.step + 1 === update);
  if (!one) return null;
  const field = el("input", { type: "number", min: 1, max: run.updates.length, value: update, "aria-label": "Update" });
  const form = el("form.jump", {}, el("label", {}, "Update ", field), el("button", { type: "submit" }, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = link("training", { ...given, runs: run.name, update: field.value });
  });
  const told = [
    `success ${typeof one.inside_success === "number" ? percent(one.inside_success) : "unknown"}`,
    one.groups ? `nothing to learn from ${number(one.dead_groups)} of ${plural(one.groups, "group")}` : "",
    typeof one.refused_share === "number" ? `${percent(one.refused_share)} of actions refused` : "",
    one.mean_steps ? `${number(one.mean_steps)} steps per episode` : "",
    `${plural(one.environment_steps ?? 0, "step")} in all`,
    one.unjudged ? `${plural(one.unjudged, "episode")} not judged` : "",
    one.failed ? `${plural(one.failed, "episode")} failed` : "",
  ].filter(Boolean);
  return el(
    "section.update",
    {},
    el("h2", {}, `Update ${number(update)}`),
    el("p", {}, told.join(", ")),
    form,
    played?.episodes.length ? playedList(played) : el("p.faint", {}, "No rollout of this update is kept here any more."),
  );
}

function playedList({ episodes, matching, group, place }) {
  const items = episodes.map((one) => el("li", {}, outcome(one), " ", el("a", { href: episodeLink(one) }, `${instruction(one)}`), el("span.faint", {}, ` ${one.task}, ${stepsOf(one)}${one.errors ? `, ${one.errors} refused` : ""} `), tierBar(one.tiers)));
  const all = matching > episodes.length ? el("p", {}, el("a", { href: link("episodes", { place, group }) }, `All ${number(matching)} rollouts of this update that are kept`)) : null;
  return el("div", {}, el("h3", {}, place === "folder" ? "A few whole rollouts of it" : "Its rollouts"), el("ul.played", {}, items), all);
}
