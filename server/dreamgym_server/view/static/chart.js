// Curves and shares over updates, as SVG of our own: the text in it is text, its colours are those of the page, and each
// has its numbers as a table. A charting library would be more code than this, and draws what no reader can read.

import { el, number, percent, svg } from "./dom.js";

const WIDTH = 720;
const HEIGHT = 240;
const LEFT = 46;
const RIGHT = 12;
const TOP = 10;
const BOTTOM = 30;

// A chart of lines.
//   lines: [{name, className, points: [[x, y]], low?: [y], high?: [y]}]
export function lineChart(title, lines, { share = false, onpick = null } = {}) {
  const drawn = lines.filter((line) => line.points.length);
  if (!drawn.length) return null;
  const xs = drawn.flatMap((line) => line.points.map(([x]) => x));
  const ys = drawn.flatMap((line) => [...line.points.map(([, y]) => y), ...(line.high ?? []), ...(line.low ?? [])]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)];
  const top = share ? 1 : Math.max(...ys, 0) || 1;
  const bottom = share ? 0 : Math.min(...ys, 0);
  const x = (value) => LEFT + ((value - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - bottom) / (top - bottom || 1)) * (HEIGHT - TOP - BOTTOM);
  const tell = share ? percent : number;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": title });
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const value = bottom + part * (top - bottom);
    picture.append(svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "grid" }), svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, tell(value)));
  }
  for (const value of marks(x0, x1)) picture.append(svg("text", { x: x(value), y: HEIGHT - 10, "text-anchor": "middle" }, number(value)));
  for (const line of drawn) {
    if (line.low) {
      const band = [...line.points.map(([at], i) => [x(at), y(line.high[i])]), ...line.points.map(([at], i) => [x(at), y(line.low[i])]).reverse()];
      picture.append(svg("polygon", { points: band.map((point) => point.join(",")).join(" "), class: `band ${line.className}` }));
    }
    picture.append(svg("polyline", { points: line.points.map(([at, value]) => `${x(at)},${y(value)}`).join(" "), class: `line ${line.className}` }));
    if (line.points.length <= 60) for (const [at, value] of line.points) picture.append(svg("circle", { cx: x(at), cy: y(value), r: line.low ? 4 : 2.5, class: line.className }, svg("title", {}, `${line.name}, update ${at}: ${tell(value)}`)));
  }
  if (onpick) {
    picture.classList.add("picked");
    picture.addEventListener("click", (event) => {
      const place = picture.getBoundingClientRect();
      const at = x0 + (((event.clientX - place.left) / place.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT) * (x1 - x0);
      onpick(Math.round(Math.max(x0, Math.min(x1, at))));
    });
  }
  const legend = el("p.legend", {}, drawn.map((line) => el(`span.key.${line.className.split(" ").join(".")}`, {}, line.name)));
  return el("figure.figure", {}, el("figcaption", {}, el("h2", {}, title), legend), picture, numbers(drawn, tell));
}

// Shares of a whole over updates, stacked.
//   columns: [{x, shares: {name: count}}]
export function shareChart(title, columns, className) {
  const filled = columns.filter((column) => Object.keys(column.shares ?? {}).length);
  if (!filled.length) return null;
  const names = [...new Set(filled.flatMap((column) => Object.keys(column.shares)))];
  const picture = svg("svg", { viewBox: `0 0 ${filled.length} 100`, preserveAspectRatio: "none", class: "shares", role: "img", "aria-label": title });
  filled.forEach((column, index) => {
    const all = Object.values(column.shares).reduce((sum, count) => sum + count, 0);
    let from = 0;
    for (const name of names) {
      const height = (100 * (column.shares[name] ?? 0)) / all;
      if (height) picture.append(svg("rect", { x: index, y: from, width: 1.02, height, class: className(name) }));
      from += height;
    }
  });
  const lines = names.map((name) => {
    const points = filled.map((column) => [column.x, (column.shares[name] ?? 0) / Object.values(column.shares).reduce((sum, count) => sum + count, 0)]);
    return { name, points };
  });
  return el("figure.figure", {}, el("figcaption", {}, el("h2", {}, title), el("p.legend", {}, names.map((name) => el(`span.tier.${className(name)}`, {}, name)))), picture, numbers(lines, percent));
}

function numbers(lines, tell) {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const body = () =>
    xs.map((x) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, number(x)),
        lines.map((line) => {
          const index = line.points.findIndex(([at]) => at === x);
          if (index < 0) return el("td", {}, "");
          const interval = line.low ? ` [${tell(line.low[index])}, ${tell(line.high[index])}]` : "";
          return el("td", {}, tell(line.points[index][1]), interval);
        }),
      ),
    );
  const table = el("tbody");
  const details = el("details", {}, el("summary", {}, "Numbers"), el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Numbers" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "update"), lines.map((line) => el("th", { scope: "col" }, line.name)))), table)));
  details.addEventListener("toggle", () => table.childElementCount || table.append(...body()), { once: true });
  return details;
}

function marks(from, to) {
  const step = Math.max(1, 10 ** Math.floor(Math.log10(to - from || 1)));
  const every = (to - from) / step > 5 ? 2 * step : (to - from) / step < 2 ? step / 2 : step;
  const found = [];
  for (let value = Math.ceil(from / every) * every; value <= to; value += every) found.push(Number(value.toPrecision(6)));
  return found;
}
