// The frame of the page: chooses the view, handles the keyboard, and retries if the server does not answer.

import { el, link } from "./dom.js";
import { Refused, ask, isExport, keepToken, listen, pause, takeToken } from "./data.js";
import { overview } from "./overview.js";
import { episodeList } from "./episodes.js";
import { episodeView } from "./episode.js";
import { compareView } from "./compare.js";
import { trainingView } from "./training.js";
import { curriculumView } from "./curriculum.js";
import { bufferView } from "./buffer.js";
import { behindView, reportsView } from "./reports.js";

const VIEWS = {
  "": ["Overview", overview],
  episodes: ["Episodes", episodeList],
  training: ["Training", trainingView],
  curriculum: ["Curriculum", curriculumView],
  buffer: ["Buffer", bufferView],
  reports: ["Fidelity", reportsView],
  episode: [null, episodeView],
  compare: [null, compareView],
  behind: [null, behindView],
};
const RETRY_MS = 3000;
// Views that are loaded again while they are empty; the other views follow changes by themselves.
const WAITING = new Set(["", "training", "curriculum", "buffer", "reports"]);
let life = new AbortController();

function parsed() {
  const [, name, query] = /^#\/([\w-]*)\??(.*)$/.exec(location.hash) ?? [null, "", ""];
  return [Object.hasOwn(VIEWS, name) ? name : "", Object.fromEntries(new URLSearchParams(query))];
}

async function show() {
  if (location.hash === "#main") return;
  life.abort();
  life = new AbortController();
  const { signal } = life;
  const main = document.getElementById("main");
  const [name, given] = parsed();
  for (const one of document.querySelectorAll("#views a")) {
    if (one.dataset.view === name) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  away("");
  const isNew = main.dataset.shown !== name;
  main.dataset.shown = name;
  if (isNew) main.replaceChildren(el("p.waiting", { role: "status" }, "Loading …"));
  let again = false;
  while (!signal.aborted) {
    try {
      const about = await ask("about", {}, signal);
      placed(about);
      const [title, view] = VIEWS[name];
      const content = await view(given, { signal, about, away });
      if (signal.aborted) return;
      const shown = el("div", {}, [content].flat().filter(Boolean));
      if (again && shown.textContent === main.textContent) {
        await pause(RETRY_MS, signal);
        continue;
      }
      main.replaceChildren(...shown.childNodes);
      const heading = main.querySelector("h1");
      document.title = `${heading?.textContent.slice(0, 60) ?? title} – DreamGym`;
      if (isNew && document.activeElement !== document.body) main.focus({ preventScroll: true });
      main.dispatchEvent(new CustomEvent("shown"));
      content.afterShown?.();
      away("");
      if (isExport() || !WAITING.has(name) || !main.querySelector(".empty")) return;
      again = true;
      await pause(RETRY_MS, signal);
    } catch (error) {
      again = false;
      if (signal.aborted) return;
      if (!(error instanceof Refused)) throw error;
      if (error.status === 401) {
        main.replaceChildren(locked());
        return;
      }
      const isFinal = error.status === 400; // the same request will never be answered
      const heading = el("h1", {}, isFinal ? "This cannot be shown" : "Nothing to show yet");
      const hope = isFinal || isExport() ? null : el("p.faint", {}, "This page asks again by itself.");
      main.replaceChildren(el("section.sorry", {}, heading, el("p", { role: "alert" }, error.message), hope));
      if (isFinal || isExport()) return;
      await pause(RETRY_MS, signal);
    }
  }
}

function locked() {
  const field = el("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const form = el(
    "form.locked",
    {},
    el("h1", {}, "This page needs a token"),
    el("p", {}, "It is the part after #token= of the address that `dreamgym view` printed, or the token of the server."),
    el("label", { for: "token" }, "Token"),
    field,
    el("button", { type: "submit" }, "Open"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepToken(field.value.trim());
    show();
  });
  return form;
}

// Shows a sentence above the view while something is unavailable; an empty sentence removes it.
function away(sentence) {
  const line = document.getElementById("away");
  line.hidden = !sentence;
  if (line.textContent !== sentence) line.textContent = sentence;
}

function placed(about) {
  const parts = [];
  if (about.folder) parts.push(about.folder.name);
  if (about.store) parts.push("the store");
  if (isExport()) parts.push("an exported copy");
  document.getElementById("place").textContent = parts.join(" + ");
}

const KEYS = [
  ["j, k", "next step, step before"],
  ["d", "where dream and reality part"],
  ["e", "the list of episodes"],
  ["o", "the overview"],
  ["/", "the first field of a search"],
  ["?", "this list"],
];

function help() {
  const rows = KEYS.map(([key, does]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, does)));
  const dialog = el("dialog", { "aria-label": "Keys" }, el("h2", {}, "Keys"), el("table", {}, el("tbody", {}, rows)), el("form", { method: "dialog" }, el("button", {}, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function moved(by) {
  const steps = [...document.querySelectorAll("[data-step]")];
  if (!steps.length) return;
  const here = steps.findIndex((one) => one.contains(document.activeElement));
  const next = steps[Math.max(0, Math.min(steps.length - 1, here < 0 ? (by > 0 ? 0 : steps.length - 1) : here + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, select, textarea, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const done = {
    j: () => moved(1),
    k: () => moved(-1),
    d: () => document.querySelector("[data-parts]")?.click(),
    e: () => (location.hash = link("episodes")),
    o: () => (location.hash = "#/"),
    "/": () => document.querySelector("main input[type=search]")?.focus(),
    "?": help,
  }[event.key];
  if (!done) return;
  event.preventDefault();
  done();
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});
document.getElementById("views").append(
  ...Object.entries(VIEWS)
    .filter(([, [title]]) => title)
    .map(([name, [title]]) => el("a", { href: `#/${name}`, "data-view": name }, title)),
  el("button.quiet", { type: "button", onclick: help, "aria-label": "Keys" }, "?"),
);
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) takeToken();
  show();
});
if (!isExport()) listen();
show();
