// Answers to the page's requests: from the server or, in an exported page, from the files beside it.

const KEPT = "dreamgym token";
let token = "";

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function isExport() {
  return globalThis.dreamgymExport !== undefined;
}

// The token is in the part of the address after `#`, which browsers do not send. It is kept in this tab.
export function takeToken() {
  const found = /^#token=([^&/]+)$/.exec(location.hash);
  if (found) history.replaceState(null, "", location.pathname);
  keepToken(found ? decodeURIComponent(found[1]) : (sessionStorage.getItem(KEPT) ?? ""));
}

// Takes the token from the address, and gives it to other tabs of this page that ask for it.
export function listen() {
  takeToken();
  const tabs = new BroadcastChannel(KEPT);
  tabs.addEventListener("message", (event) => {
    if (event.data === "?" && token) tabs.postMessage({ token });
    else if (event.data?.token && !token) {
      keepToken(event.data.token);
      dispatchEvent(new Event("hashchange"));
    }
  });
  if (!token) tabs.postMessage("?");
}

export function keepToken(given) {
  token = given;
  if (given) sessionStorage.setItem(KEPT, given);
  else sessionStorage.removeItem(KEPT);
}

function headers() {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export async function ask(name, given = {}, signal) {
  const kept = Object.entries(given).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  if (isExport()) return exported(name, Object.fromEntries(kept));
  return answered(fetch(`api/${name}?${new URLSearchParams(kept)}`, { headers: headers(), signal }));
}

export async function send(name, body) {
  const given = { method: "POST", body: JSON.stringify(body), headers: { ...headers(), "Content-Type": "application/json" } };
  return answered(fetch(`api/${name}`, given));
}

async function answered(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer.", 0);
  }
  const body = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    if (response.ok) throw new Refused("The server's answer broke off.", 0);
    return {};
  });
  if (!response.ok) throw new Refused(body.error ?? `The server answered ${response.status}.`, response.status);
  return body;
}

// Calls `tell` with each change of an episode until it is over. A broken connection is opened again.
export async function watch(episode, signal, tell) {
  while (!signal.aborted) {
    try {
      const response = await fetch(`api/events?${new URLSearchParams({ id: episode })}`, { headers: headers(), signal });
      if (!response.ok) throw new Refused("", response.status);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const change = JSON.parse(part.replace(/^data: /, ""));
          tell(change);
          if (change.gone || change.stop_reason) return;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      tell({ away: "The server does not answer." });
    }
    await pause(2000, signal);
  }
}

export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}

// --- an exported page ---

const loaded = new Map();
// Names of files such as `e12` come from the exported page itself. The browser accepts only script addresses from here.
const policy = isExport() ? globalThis.trustedTypes?.createPolicy("dreamgym", { createScriptURL: (file) => file }) : undefined;

function address(file) {
  return policy ? policy.createScriptURL(file) : file;
}

function load(file) {
  if (!loaded.has(file)) {
    loaded.set(
      file,
      new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = address(`data/${file}.js`);
        script.addEventListener("load", () => resolve());
        script.addEventListener("error", () => reject(new Refused(`The file data/${file}.js is missing beside this page.`, 404)));
        document.head.append(script);
      }),
    );
  }
  return loaded.get(file);
}

async function exported(name, given) {
  const site = globalThis.dreamgymExport;
  if (name === "episodes") return filtered(site.episodes, given);
  if (name === "behind") return behind(site, given);
  const key = `${name}?${Object.keys(given).sort().map((one) => `${one}=${given[one]}`).join("&")}`;
  if (key in site.answers) return site.answers[key];
  const file = site.files[`${given.place ?? ""}~${given.id ?? given.ids ?? ""}`];
  if (file === undefined) throw new Refused("This is not in the exported copy. `dreamgym view` shows it.", 404);
  await load(file);
  if (!(key in site.answers)) throw new Refused("This is not in the exported copy. `dreamgym view` shows it.", 404);
  return site.answers[key];
}

const CHUNK = 50;

// The steps behind a number of a report, in the requested order.
async function behind(site, given) {
  await load(site.behind[given.name]);
  const { steps, not_means: notMeans, places } = site.steps[given.name];
  const turn = given.order === "highest" ? -1 : 1;
  const found = steps.filter((one) => one.setting === given.setting && given.cell in one.values).map((one) => ({ ...one, value: one.values[given.cell] }));
  found.sort((a, b) => turn * (a.value - b.value));
  const first = Number(given.first ?? 1);
  const mean = !found.length || notMeans.includes(given.cell) ? null : found.reduce((sum, one) => sum + one.value, 0) / found.length;
  return { setting: given.setting, cell: given.cell, total: found.length, mean, first, steps: found.slice(first - 1, first - 1 + CHUNK), places };
}

function filtered(everything, given) {
  const text = (given.text ?? "").toLowerCase();
  const passing = everything.filter(
    (one) =>
      (!given.place || given.place === one.place || (given.place === "folder" && one.place !== "store")) &&
      (!given.env || one.env === given.env) &&
      (!given.source || one.source === given.source) &&
      (!given.task || one.task === given.task) &&
      (!given.group || one.group === given.group || (/[-/]$/.test(given.group) && (one.group ?? "").startsWith(given.group))) &&
      (!given.state || one.state === given.state) &&
      (!given.tier || given.tier in one.tiers) &&
      (!given.success || String(one.success) === given.success) &&
      (!given.policy_version || String(one.policy_version) === given.policy_version) &&
      (!text || one.id.toLowerCase().includes(text) || String(one.instruction.text ?? one.instruction).toLowerCase().includes(text)),
  );
  const first = Number(given.after ?? 0);
  const next = first + CHUNK < passing.length ? String(first + CHUNK) : null;
  return { episodes: passing.slice(first, first + CHUNK), matching: passing.length, looked: everything.length, next };
}
