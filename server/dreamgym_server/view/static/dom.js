// Makes elements from text. Text is never parsed as HTML: strings become text nodes.

const SVG = "http://www.w3.org/2000/svg";

function made(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function el(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  return made(element, attributes, children);
}

export function svg(tag, attributes, ...children) {
  return made(document.createElementNS(SVG, tag), attributes, children);
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

export function dollars(value) {
  return value >= 0.01 ? `$${value.toFixed(2)}` : `$${value.toPrecision(2)}`;
}

export function seconds(value) {
  return value < 0.001 ? "under 1 ms" : value < 1 ? `${Math.round(1000 * value)} ms` : `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
}

export function number(value) {
  const isLong = Number.isInteger(value) || Math.abs(value) >= 100;
  return isLong ? value.toLocaleString("en", { maximumFractionDigits: 2 }) : Number(value.toPrecision(3)).toString();
}

export function when(text) {
  if (!text) return "";
  const moment = new Date(text);
  const iso = new Date(moment - moment.getTimezoneOffset() * 60000).toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, 16)}`;
}

export function link(view, given) {
  const kept = Object.entries(given ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#/${view}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

// The characters of a text as the server sends it: the text itself, or an object with its beginning and its length.
export function whole(text) {
  return typeof text === "object" && text !== null ? text.text : text;
}

export function isCut(text) {
  return typeof text === "object" && text !== null && "characters" in text;
}

// A JSON text with one line for each field and its numbers as they are written; any other text unchanged.
export function readable(text) {
  const start = text.trimStart()[0];
  if (start !== "{" && start !== "[") return text;
  try {
    JSON.stringify(JSON.parse(text)); // this refuses what is nested too deeply to be indented
  } catch {
    return text;
  }
  return indented(tokens(text));
}

const MARKS = "{}[],: \t\r\n";

// The strings, literals and marks of a valid JSON text. A regular expression fails at strings with a million escapes.
function tokens(json) {
  const found = [];
  let end = 0;
  for (let begin = 0; begin < json.length; begin = end) {
    end = begin + 1;
    if (json[begin] === '"') {
      while (json[end] !== '"') end += json[end] === "\\" ? 2 : 1;
      end += 1;
    } else if (!MARKS.includes(json[begin])) {
      while (!MARKS.includes(json[end])) end += 1;
    }
    const token = json.slice(begin, end);
    if (token.trim()) found.push(token);
  }
  return found;
}

// JSON.stringify would round large numbers and write 10.0 as 10.
function indented(parts) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  const told = parts.map((token, index) => {
    if (token[0] === '"') return JSON.stringify(JSON.parse(token));
    if (token === ":") return ": ";
    if (token === ",") return `,${line()}`;
    if ("{[".includes(token)) {
      depth += 1;
      return "}]".includes(parts[index + 1]) ? token : `${token}${line()}`;
    }
    if (!"}]".includes(token)) return token;
    depth -= 1;
    return "{[".includes(parts[index - 1]) ? token : `${line()}${token}`;
  });
  return told.join("");
}

const SHOWN_LINES = 16;
const SHOWN_CHARACTERS = 1500;

// A recorded text, shortened to some lines. A button shows all of it; `fetchWhole` loads a text that the server has cut.
export function recordedText(text, fetchWhole, describe = "text") {
  const box = el("div.recorded");
  const begun = readable(whole(text));
  const lines = begun.split("\n");
  const short = lines.slice(0, SHOWN_LINES).join("\n").slice(0, SHOWN_CHARACTERS);
  const content = el("pre", {}, short);
  box.append(content);
  if (short.length < begun.length || isCut(text)) {
    const characters = isCut(text) ? text.characters : begun.length;
    content.append("…");
    const button = el("button.quiet", { type: "button" }, `Show all ${plural(characters, "character")} of this ${describe}`);
    const sorry = el("p.note", { role: "alert", hidden: true });
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        content.textContent = isCut(text) ? readable(await fetchWhole()) : begun;
        button.remove();
        sorry.remove();
      } catch (error) {
        button.disabled = false;
        sorry.hidden = false;
        sorry.textContent = error.message;
      }
    });
    box.append(button, sorry);
  }
  return box;
}
