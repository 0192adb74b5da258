// The list of episodes, with filters, pages and the number of episodes.

import { el, link, number, plural, when } from "./dom.js";
import { ask, isExport, pause } from "./data.js";
import { TIERS, empty, episodeLink, instruction, outcome, sourceChip, tierBar, tierChip } from "./parts.js";

const LIVE_MS = 3000;

export async function episodeList(given, { signal, about, away }) {
  const chosen = { place: about.folder ? "folder" : "store", ...given };
  const page = el("div");
  const fill = async () => page.replaceChildren(...table(await ask("episodes", chosen, signal), chosen));
  await fill();
  if (!isExport() && !chosen.after) live(fill, signal, away);
  return [el("h1", {}, "Episodes"), filters(chosen, about), page];
}

async function live(fill, signal, away) {
  for (;;) {
    await pause(LIVE_MS, signal);
    if (signal.aborted) return;
    if (document.hidden || document.querySelector("main form")?.contains(document.activeElement)) continue;
    const focused = document.activeElement?.dataset?.id;
    try {
      await fill();
      away("");
      if (focused) document.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    } catch (error) {
      if (!signal.aborted) away(`${error.message} This list is filled again when it does.`);
    }
  }
}

function filters(chosen, about) {
  const places = [
    ...(about.folder ? [["folder", `run folder ${about.folder.name}`]] : []),
    ...(about.store ? [["store", "store"]] : []),
  ];
  if (!places.some(([place]) => place === chosen.place)) places.push([chosen.place, `file ${chosen.place}`]);
  const names = chosen.place === "store" ? (about.store?.environments ?? []).map((one) => one.env) : (about.folder?.environments ?? []);
  const envs = [...new Set([...names, ...(chosen.env ? [chosen.env] : [])])].map((name) => [name, name]);
  const field = (name, label, choices) =>
    el("label", {}, label, el("select", { name }, choices.map(([value, words]) => el("option", { value, selected: value === (chosen[name] ?? "") }, words))));
  const any = ["", "any"];
  const form = el(
    "form.filters",
    { "aria-label": "Filters" },
    el("label.wide", {}, "Task or id", el("input", { type: "search", name: "text", value: chosen.text ?? "", placeholder: "contains …" })),
    places.length > 1 ? field("place", "Where", places) : null,
    envs.length > 1 || chosen.env ? field("env", "Environment", [any, ...envs]) : null,
    field("source", "Played in", [any, ["synthetic", "dream"], ["real", "reality"], ["imported", "imported"]]),
    field("success", "Success", [any, ["true", "yes"], ["false", "no"]]),
    field("tier", "Answered by", [any, ...Object.keys(TIERS).map((tier) => [tier, tier])]),
    field("state", "State", [any, ["running", "running"], ["over", "over"], ["failed", "failed"]]),
    el("label.narrow", {}, "Policy version", el("input", { type: "number", name: "policy_version", min: 0, value: chosen.policy_version ?? "" })),
    chosen.task ? el("label.wide", {}, "Task id", el("input", { type: "search", name: "task", value: chosen.task })) : null,
    chosen.group ? el("label.wide", {}, "Group", el("input", { type: "search", name: "group", value: chosen.group })) : null,
    el("button", { type: "submit" }, "Apply"),
  );
  const apply = () => {
    location.hash = link("episodes", Object.fromEntries(new FormData(form)));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    apply();
  });
  form.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT") apply();
  });
  return form;
}

function table(page, chosen) {
  const filtered = ["text", "env", "source", "success", "tier", "state", "policy_version", "task", "group"].some((name) => chosen[name]);
  const count =
    page.matching === null
      ? `${plural(page.episodes.length, "episode")} found among ${number(page.looked)} that were looked through${page.next ? "; there are more to look through" : ""}`
      : `${plural(page.matching, "episode")}${filtered ? " match" : ""}${page.matching > page.episodes.length ? `, ${number(page.episodes.length)} of them on this page` : ""}`;
  const used = Object.keys(TIERS).filter((tier) => page.episodes.some((one) => tier in one.tiers));
  const parts = [el("p.count", {}, el("span", { role: "status" }, count), " ", el("span.legend", {}, used.map(tierChip)))];
  if (page.episodes.length) {
    parts.push(
      el(
        "div.scroll",
        { tabindex: 0, role: "region", "aria-label": "Episodes" },
        el(
          "table.episodes",
          {},
          el("thead", {}, el("tr", {}, ["Task", "Played in", "Outcome", "Steps", "Answered by", "When"].map((name) => el("th", { scope: "col" }, name)))),
          el("tbody", {}, page.episodes.map(row)),
        ),
      ),
    );
  } else if (!page.next) {
    parts.push(empty(filtered ? "No episode meets these conditions." : "Nothing was played yet. An episode is shown here when it begins."));
  }
  parts.push(
    el(
      "p.pages",
      {},
      chosen.after ? el("a", { href: link("episodes", { ...chosen, after: "" }) }, "Newest") : null,
      page.next ? el("a", { href: link("episodes", { ...chosen, after: page.next }), rel: "next" }, page.matching === null ? "Look further" : "Older") : null,
    ),
  );
  return parts;
}

function row(one) {
  const id = el("span.id.faint", {}, `${one.task} · ${one.id}${one.policy_version === null ? "" : ` · policy ${one.policy_version}`}`);
  return el(
    "tr",
    {},
    el("td", {}, el("a.task", { href: episodeLink(one), "data-id": one.id }, instruction(one)), id),
    el("td", {}, sourceChip(one.source)),
    el("td", {}, outcome(one)),
    el("td.number", {}, number(one.steps), one.errors ? el("span.faint", {}, ` (${one.errors} refused)`) : null),
    el("td", {}, tierBar(one.tiers)),
    el("td.faint.nowrap", {}, when(one.at)),
  );
}
