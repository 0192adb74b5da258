// Forks an episode at a step and plays on by hand, if the page is allowed to change episodes.

import { el, link } from "./dom.js";
import { ask, send } from "./data.js";

export function forkButton(one, step) {
  const button = el("button.quiet", { type: "button" }, step ? `Fork after step ${step}` : "Fork at the start");
  const sorry = el("span.note", { role: "alert", hidden: true });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const made = await send("fork", { env: one.env, id: one.id, step });
      location.hash = link("episode", { place: "store", id: made.id });
    } catch (error) {
      button.disabled = false;
      sorry.hidden = false;
      sorry.textContent = error.message;
    }
  });
  return el("span", {}, button, sorry);
}

// The form to play an episode that was forked here; null for an episode that an agent plays.
export async function handSection(one, signal) {
  let known;
  try {
    known = await ask("tools", { id: one.id }, signal);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
  const chosen = el("select", { "aria-label": "Tool" }, known.tools.map((tool) => el("option", { value: tool.name }, tool.name)));
  const fields = el("div.filters");
  const told = el("p.faint", {});
  const answer = el("p", { role: "status" });
  const tool = () => known.tools.find((each) => each.name === chosen.value);
  const redo = () => {
    told.textContent = tool().description ?? "";
    fields.replaceChildren(...Object.entries(tool().schema?.properties ?? {}).map(([name, schema]) => field(name, schema, (tool().schema.required ?? []).includes(name))));
  };
  chosen.addEventListener("change", redo);
  redo();
  const button = el("button", { type: "submit" }, "Call");
  const form = el("form", { "aria-label": "Play on by hand" }, chosen, told, fields, button);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const given = Object.fromEntries([...fields.querySelectorAll("[name]")].map((input) => [input.name, read(input)]).filter(([, value]) => value !== undefined));
      const result = await send("call", { id: one.id, tool: chosen.value, arguments: given });
      answer.textContent = result.uncounted ? `The call was not a step: ${result.text}` : "";
    } catch (error) {
      answer.textContent = error.message;
    }
    button.disabled = false;
  });
  return el("section.update", { "aria-labelledby": "by-hand" }, el("h2", { id: "by-hand" }, "Play on by hand"), form, answer, el("p.faint", {}, "An agent can go on at ", el("code", {}, known.mcp_url)));
}

function field(name, schema, required) {
  const words = `${name}${required ? "" : " (optional)"}`;
  if (Array.isArray(schema.enum)) return el("label", {}, words, el("select", { name, "data-type": "json" }, [required ? [] : el("option", { value: "" }, "–"), schema.enum.map((value) => el("option", { value: JSON.stringify(value) }, String(value)))]));
  const type = schema.type;
  if (type === "boolean") return el("label", {}, words, el("select", { name, "data-type": "json" }, required ? [] : el("option", { value: "" }, "–"), el("option", { value: "true" }, "yes"), el("option", { value: "false" }, "no")));
  if (type === "integer" || type === "number") return el("label", {}, words, el("input", { name, type: "number", step: type === "integer" ? 1 : "any", required, "data-type": "json" }));
  if (type === "string") return el("label.wide", {}, words, el("input", { name, required, "data-type": "text" }));
  return el("label.wide", {}, `${words}, as JSON`, el("input", { name, required, "data-type": "json" }));
}

function read(input) {
  if (input.dataset.type === "text") return input.value === "" && !input.required ? undefined : input.value;
  return input.value === "" ? undefined : JSON.parse(input.value, (_, value) => exact(input.name, value));
}

// JavaScript rounds larger whole numbers, and another number would be sent.
function exact(name, value) {
  if (!Number.isInteger(value) || Number.isSafeInteger(value)) return value;
  throw new Error(`${name}: this page cannot send whole numbers beyond ${Number.MAX_SAFE_INTEGER}. An agent can make this call.`);
}
