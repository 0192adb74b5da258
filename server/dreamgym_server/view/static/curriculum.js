// Tasks by what they are worth to a policy: the variance of success within a group, and what was varied from what.

import { el, link, number, percent, plural } from "./dom.js";
import { ask } from "./data.js";
import { empty, instruction } from "./parts.js";

export async function curriculumView(given, { signal, about }) {
  const envs = (about.store?.environments ?? []).filter((one) => one.tasks).map((one) => one.env);
  const heading = el("h1", {}, "Curriculum");
  if (!envs.length) return [heading, empty("No tasks are stored here. Training, ", el("code", {}, "dreamgym tasks"), " and ", el("code", {}, "dreamgym seed"), " store them.")];
  const env = envs.includes(given.env) ? given.env : envs[0];
  const found = await ask("tasks", { env, first: given.first ?? "" }, signal);
  const children = new Map();
  for (const task of found.tasks) if (task.parent) children.set(task.parent, (children.get(task.parent) ?? 0) + 1);
  const rows = found.tasks.map((task) => taskRow(task, children.get(task.id) ?? 0, env));
  const last = found.first + found.tasks.length - 1;
  return [
    heading,
    chooser("curriculum", env, envs),
    el("p.lead", {}, "The value of a task is the variance of its rewards within a group: 0 where a policy always or never succeeds, and most, 0.25, where every second attempt does."),
    el("p.count", {}, `${plural(found.total, "task")}, ${number(found.attempted)} of them attempted. Those of most value come first, those never attempted last.`),
    found.tasks.length
      ? el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Tasks" }, el("table", {}, el("thead", {}, el("tr", {}, ["Task", "Origin", "Value", "Success", "Attempts"].map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows)))
      : null,
    found.total > found.tasks.length
      ? el("nav.pages", { "aria-label": "Pages of tasks" }, el("span", {}, `Tasks ${number(found.first)} to ${number(last)} of ${number(found.total)}`), last < found.total ? el("a", { href: link("curriculum", { env, first: last + 1 }) }, "Next tasks") : null)
      : null,
  ].filter(Boolean);
}

function taskRow(task, children, env) {
  const { value } = task;
  const bar = el("span.value", { "aria-hidden": "true" }, el("span"));
  bar.firstChild.style.width = `${value ? (100 * value.variance) / 0.25 : 0}%`;
  return el(
    "tr",
    { id: `task-${task.id}` },
    el("td", {}, el("a.task", { href: link("episodes", { place: "store", env, task: task.id }) }, instruction(task)), el("span.id.faint", {}, task.id)),
    el("td", {}, task.parent ? el("span", {}, "varied from ", el("a", { href: link("episodes", { place: "store", env, task: task.parent }) }, task.parent)) : task.origin, children ? el("span.faint", {}, `, ${plural(children, "child", "children")}`) : null),
    el("td.nowrap", {}, value ? [bar, ` ${value.variance.toFixed(3)}`] : el("span.faint", {}, "not attempted")),
    el("td", {}, value ? `${percent(value.mean)}, over all ${percent(value.total_mean)}` : ""),
    el("td.number", {}, value ? number(value.total_attempts) : ""),
  );
}

export function chooser(view, env, envs) {
  if (envs.length < 2) return el("p.faint", {}, env);
  const field = el("select", { "aria-label": "Environment" }, envs.map((one) => el("option", { value: one, selected: one === env }, one)));
  field.addEventListener("change", () => {
    location.hash = link(view, { env: field.value });
  });
  return el("p", {}, field);
}
