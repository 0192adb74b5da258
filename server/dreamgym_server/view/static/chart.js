// Curves and shares over updates. uPlot draws the curves (uplot.min.js, under the licence beside it). Each chart also
// shows its numbers as a table, for people who cannot see a picture or want the numbers.

import { el, number, percent, svg } from "./dom.js";

const HEIGHT = 260;
const MARGIN = 60;

// The range of an axis that shows 0.
function withZero(_, from, to) {
  const [low, high] = [Math.min(0, from), Math.max(0, to)];
  return low === high ? [0, 1] : [low, high];
}

// A chart of lines.
//   lines: [{name, className, points: [[x, y]], low?: [y], high?: [y]}]
export function lineChart(title, lines, { share = false, onpick = null, note = "" } = {}) {
  const drawn = lines.filter((line) => line.points.length);
  if (!drawn.length) return null;
  const tell = share ? percent : number;
  const readout = el("p.readout.faint", { "aria-hidden": "true" }, "");
  const box = el("div.chart", { role: "img", "aria-label": `${title}. Its numbers are in the table below.` });
  whenPlaced(box, () => draw(box, drawn, { share, tell, onpick, readout }));
  const legend = el("p.legend", {}, drawn.map((line) => el(`span.key.${line.className.split(" ").join(".")}`, {}, line.name)));
  return el("figure.figure", {}, el("figcaption", {}, el("h2", {}, title), legend, note ? el("p.faint.note-line", {}, note) : null), box, readout, numbers(title, drawn, tell));
}

// The library measures texts and widths, so it can draw only in an element that is on the page.
function whenPlaced(box, make) {
  let plot = null;
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const again = () => {
    if (!box.isConnected) {
      if (plot) scheme.removeEventListener("change", again); // it was on the page, and is gone
      return;
    }
    plot?.destroy();
    plot = make();
  };
  new ResizeObserver(() => {
    if (!box.isConnected || !box.clientWidth) return;
    if (plot) plot.setSize({ width: box.clientWidth, height: HEIGHT });
    else again();
  }).observe(box);
  scheme.addEventListener("change", again);
}

function draw(box, lines, { share, tell, onpick, readout }) {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const column = (points) => {
    const at = new Map(points);
    return xs.map((x) => at.get(x) ?? null);
  };
  const data = [xs];
  const series = [{}];
  const bands = [];
  for (const line of lines) {
    const colour = colourOf(box, line.className);
    const probed = line.low !== undefined;
    series.push({
      stroke: colour,
      width: 2,
      dash: line.className.includes("dreamed") ? [6, 5] : undefined,
      spanGaps: true,
      points: { show: probed || line.points.length === 1, size: 8, fill: colour },
    });
    data.push(column(line.points));
    if (!probed) continue;
    for (const side of ["high", "low"]) {
      series.push({ stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
      data.push(column(line.points.map(([x], index) => [x, line[side][index]])));
    }
    bands.push({ series: [series.length - 2, series.length - 1], fill: translucent(colour) });
  }
  const faint = style(box, "--faint");
  const axis = { stroke: faint, font: "12px system-ui, sans-serif", ticks: { show: false } };
  const plot = new uPlot(
    {
      width: box.clientWidth,
      height: HEIGHT,
      series,
      bands,
      legend: { show: false },
      scales: { x: { time: false, range: (_, from, to) => (from === to ? [from - 1, to + 1] : [from, to]) }, y: { range: share ? [0, 1] : withZero } },
      axes: [
        { ...axis, grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000], values: (_, marks) => marks.map(number), label: "update", labelFont: axis.font, labelSize: 18, size: 30 },
        { ...axis, grid: { stroke: style(box, "--line"), width: 1 }, values: (_, marks) => marks.map(tell), size: MARGIN },
      ],
      cursor: { points: { size: 9 }, y: false },
      hooks: { setCursor: [(at) => (readout.textContent = told(at.cursor.idx, xs, lines, tell, onpick))] },
    },
    data,
    box,
  );
  if (onpick) {
    box.classList.add("picked");
    plot.over.addEventListener("click", () => plot.cursor.idx !== null && plot.cursor.idx !== undefined && onpick(Math.max(1, xs[plot.cursor.idx])));
  }
  return plot;
}

function told(index, xs, lines, tell, onpick) {
  if (index === null || index === undefined) return "";
  const parts = lines.flatMap((line) => {
    const found = line.points.findIndex(([x]) => x === xs[index]);
    return found < 0 ? [] : [`${line.name} ${tell(line.points[found][1])}${interval(line.low?.[found], line.high?.[found], tell)}`];
  });
  return `update ${number(xs[index])}: ${parts.join(", ")}${onpick ? " (a click shows its rollouts)" : ""}`;
}

// The interval of a number in brackets; nothing if the record does not have it.
export function interval(low, high, tell) {
  return typeof low === "number" && typeof high === "number" ? ` [${tell(low)}, ${tell(high)}]` : "";
}

// The colour that the stylesheet gives a class, as a value for the canvas.
function colourOf(box, className) {
  const probe = el(`span.${className.split(" ").join(".")}`, { hidden: true });
  box.append(probe);
  const colour = style(probe, "--own");
  probe.remove();
  return colour;
}

function style(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim();
}

function translucent(colour) {
  return `color-mix(in srgb, ${colour} 16%, transparent)`;
}

// A stacked chart of the shares of a whole over updates.
//   columns: [{x, shares: {name: count}}]
export function shareChart(title, columns, className) {
  const filled = columns.filter((column) => Object.keys(column.shares ?? {}).length);
  if (!filled.length) return null;
  const names = [...new Set(filled.flatMap((column) => Object.keys(column.shares)))];
  const picture = svg("svg", { viewBox: `0 0 ${filled.length} 100`, preserveAspectRatio: "none", class: "shares", role: "img", "aria-label": `${title}. Its numbers are in the table below.` });
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
  const ends = el("p.ends.faint", { "aria-hidden": "true" }, el("span", {}, `update ${number(filled[0].x)}`), el("span", {}, `update ${number(filled.at(-1).x)}`));
  return el("figure.figure", {}, el("figcaption", {}, el("h2", {}, title), el("p.legend", {}, names.map((name) => el(`span.tier.${className(name)}`, {}, name)))), picture, ends, numbers(title, lines, percent));
}

function numbers(title, lines, tell) {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const body = () =>
    xs.map((x) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, number(x)),
        lines.map((line) => {
          const index = line.points.findIndex(([at]) => at === x);
          return el("td", {}, index < 0 ? "" : `${tell(line.points[index][1])}${interval(line.low?.[index], line.high?.[index], tell)}`);
        }),
      ),
    );
  const table = el("tbody");
  const details = el("details", {}, el("summary", {}, "Numbers"), el("div.scroll", { tabindex: 0, role: "region", "aria-label": `Numbers of ${title}` }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "update"), lines.map((line) => el("th", { scope: "col" }, line.name)))), table)));
  details.addEventListener("toggle", () => table.childElementCount || table.append(...body()), { once: true });
  return details;
}
