// Shows how a text changed, with marks on the differences: line by line, or word by word for texts of one line.

import { el, isCut, readable, whole } from "./dom.js";

const MOST = 400;
const AROUND = 2;

// The longest common subsequence of two lists as a list of ["same" | "gone" | "new", item].
function steps(before, after) {
  const length = Array.from({ length: before.length + 1 }, () => new Uint16Array(after.length + 1));
  for (let i = before.length - 1; i >= 0; i -= 1)
    for (let j = after.length - 1; j >= 0; j -= 1) length[i][j] = before[i] === after[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < before.length || j < after.length) {
    if (i < before.length && j < after.length && before[i] === after[j]) {
      found.push(["same", before[i]]);
      i += 1;
      j += 1;
    } else if (j >= after.length || (i < before.length && length[i + 1][j] >= length[i][j + 1])) {
      found.push(["gone", before[i]]);
      i += 1;
    } else {
      found.push(["new", after[j]]);
      j += 1;
    }
  }
  return found;
}

const TAGS = { same: "span", gone: "del", new: "ins" };

// The two texts merged, with marks on the differences. Texts that are too long for that are shown side by side.
export function differing(before, after) {
  const [one, other] = [whole(before), whole(after)].map(readable);
  const cut = isCut(before) || isCut(after) ? el("p.faint", {}, "The beginning of both texts.") : null;
  const lines = [one.split("\n"), other.split("\n")];
  if (lines[0].length > 1 || lines[1].length > 1) {
    if (lines.some((some) => some.length > MOST)) return apart(one, other, cut);
    return el("div.change", {}, cut, el("pre", {}, folded(steps(...lines)).map(([kind, text]) => el(kind === "left" ? "span.faint" : TAGS[kind], {}, `${text}\n`))));
  }
  const words = [one, other].map((text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s]/gu) ?? []);
  if (words.some((some) => some.length > MOST)) return apart(one, other, cut);
  return el("div.change", {}, cut, el("pre", {}, steps(...words).map(([kind, text]) => el(TAGS[kind], {}, text))));
}

function apart(one, other, cut) {
  return el("div.two.change", {}, el("div", {}, el("p.part", {}, "before"), el("pre", {}, one)), el("div", {}, el("p.part", {}, "after"), el("pre", {}, other)), cut);
}

// Leaves out equal lines, except those around a change, and shows how many were left out.
function folded(found) {
  const isNear = found.map((_, index) => found.slice(Math.max(0, index - AROUND), index + AROUND + 1).some(([kind]) => kind !== "same"));
  const shown = [];
  let left = 0;
  found.forEach((step, index) => {
    if (isNear[index]) {
      if (left) shown.push(["left", `… ${left} lines are the same …`]);
      left = 0;
      shown.push(step);
    } else left += 1;
  });
  if (left) shown.push(["left", `… ${left} lines are the same …`]);
  return shown;
}
