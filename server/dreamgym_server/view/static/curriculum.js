// Tasks by their value for a policy (the variance of the rewards in a group), and the task that each was varied from.

import { el, link, number, percent, plural, whole } from "./dom.js";
import { ask } from "./data.js";
import { empty, instruction } from "./parts.js";
import { differing } from "./difference.js";

const SHOWN_CHILDREN = 12;
// The most tasks in one answer of the server.
const TASKS = 200;

export async function curriculumView(given, { signal, about }) {
  const choices = [
    ...(about.folder?.curricula ?? []).map((run) => ({ words: run === "." ? "the run in this folder" : `run ${run}`, given: { run } })),
    ...(about.store?.environments ?? []).filter((one) => one.tasks).map((one) => ({ words: `${one.env}, in the store`, given: { env: one.env } })),
  ];
  const heading = el("h1", {}, "Curriculum");
  if (!choices.length) return [heading, empty("No tasks are stored here. Training, ", el("code", {}, "dreamgym tasks"), " and ", el("code", {}, "dreamgym seed"), " store them, and a training run keeps its own with each checkpoint.")];
  const chosen = choices.find((one) => (given.run ? one.given.run === given.run : given.env && one.given.env === given.env)) ?? choices[0];
  const found = await ask("tasks", { ...chosen.given, first: given.first ?? 1 }, signal);
  const where = chosen.given.run === undefined ? { place: "store", env: chosen.given.env } : { place: "folder" };
  const rows = found.tasks.map((task) => taskRow(task, where, chosen.given));
  const last = found.first + found.tasks.length - 1;
  return [
    heading,
    chooser("curriculum", chosen, choices),
    el("p.lead", {}, "The value of a task says how much a policy can learn from it: nothing where every attempt succeeds or every attempt fails, most where half of them do. It is the variance of the rewards, at most 0.25. Tasks of high value are played more often, and varied into new ones."),
    el("p.count", {}, `${plural(found.total, "task")}, ${number(found.attempted)} of them attempted. Those of most value come first, those never attempted last.`),
    found.tasks.length
      ? el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Tasks" }, el("table.tasks", {}, el("thead", {}, el("tr", {}, ["Task", "Value", "Success of attempts", "Varied from"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows)))
      : null,
    found.total > found.tasks.length
      ? el(
          "nav.pages",
          { "aria-label": "Pages of tasks" },
          found.first > 1 ? el("a", { href: link("curriculum", { ...chosen.given, first: Math.max(1, found.first - TASKS) }), rel: "prev" }, "Tasks before") : null,
          el("span", {}, `Tasks ${number(found.first)} to ${number(last)} of ${number(found.total)}`),
          last < found.total ? el("a", { href: link("curriculum", { ...chosen.given, first: last + 1 }), rel: "next" }, "Next tasks") : null,
        )
      : null,
  ].filter(Boolean);
}

const ORIGINS = { seed: "recorded or given", generated: "generated", imported: "imported", proposed: "proposed from a recording" };

function taskRow(task, where, given) {
  const { value } = task;
  const bar = el("span.value", { "aria-hidden": "true" }, el("span"));
  bar.firstChild.style.width = `${value ? (100 * value.variance) / 0.25 : 0}%`;
  const last = value && value.total_attempts > value.attempts ? el("span.id.faint", {}, `${percent(value.total_mean)} over all ${number(value.total_attempts)} attempts`) : null;
  return el(
    "tr",
    { id: `task-${task.id}` },
    el("td", {}, el("a.task", { href: link("episodes", { ...where, task: task.id }) }, whole(task.instruction) ? instruction(task) : task.id), el("span.id.faint", {}, task.id), children(task)),
    el("td.nowrap", {}, value ? [bar, ` ${value.variance.toFixed(3)}`] : el("span.faint", {}, "not attempted")),
    el("td", {}, value ? `${percent(value.mean)} of ${number(value.attempts)}` : "", last),
    el("td", {}, task.parent ? [taskLink(task.parent), variation(task)] : el("span.faint", {}, ORIGINS[task.origin] ?? task.origin)),
  );
}

// A link to another row of this page. If the row is on another page, a click shows a note instead.
function taskLink(id) {
  const go = el("a", { href: `#/curriculum`, "data-task": id }, id);
  go.addEventListener("click", (event) => {
    event.preventDefault();
    const row = document.getElementById(`task-${id}`);
    for (const one of document.querySelectorAll("tr.wanted")) one.classList.remove("wanted");
    if (!row) {
      go.after(el("span.note", { role: "status" }, " is on another page"));
      return;
    }
    row.classList.add("wanted");
    row.scrollIntoView({ block: "center" });
    row.querySelector("a").focus({ preventScroll: true });
  });
  return go;
}

function variation(task) {
  const parts = Object.entries(task.varied).map(([name, { before, after }]) => el("div", {}, el("p.part", {}, name === "start" ? "It starts elsewhere" : "Another instruction"), differing(before, after)));
  return parts.length ? el("details", {}, el("summary", {}, "What was varied"), parts) : null;
}

function children(task) {
  if (!task.children.length) return null;
  const shown = task.children.slice(0, SHOWN_CHILDREN);
  const left = task.children.length - shown.length;
  return el("details", {}, el("summary", {}, plural(task.children.length, "variation of it", "variations of it")), el("ul", {}, shown.map((id) => el("li", {}, taskLink(id)))), left ? el("p.faint", {}, `and ${number(left)} more`) : null);
}

// A field to choose what a view shows. `choices`: [{words, given}]; `given` are the parameters of its address.
export function chooser(view, chosen, choices) {
  if (choices.length < 2) return el("p.faint", {}, chosen.words);
  const field = el("select", { "aria-label": "Shown" }, choices.map((one, index) => el("option", { value: index, selected: one === chosen }, one.words)));
  field.addEventListener("change", () => {
    location.hash = link(view, choices[Number(field.value)].given);
  });
  return el("p", {}, field);
}
