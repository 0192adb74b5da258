// The parts of a browser that the page's modules use, so that they run in Node. Scripts are loaded from the folder `site`.

import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {}, listeners: {}, style: {} });
  }

  append(...children) {
    for (const child of children) if (child instanceof Element) child.parent = this;
    this.children.push(...children);
  }

  replaceChildren(...children) {
    this.children = [];
    this.append(...children);
  }

  remove() {
    this.parent.children = this.parent.children.filter((child) => child !== this);
  }

  setAttribute(name, value) {
    this.attributes[name] = value;
  }

  addEventListener(name, listener) {
    this.listeners[name] = listener;
  }

  get firstChild() {
    return this.children[0];
  }

  get childElementCount() {
    return this.children.length;
  }

  get textContent() {
    return this.children.map((child) => (child instanceof Element ? child.textContent : String(child))).join("");
  }

  set textContent(text) {
    this.children = [text];
  }
}

export function run(script) {
  runInThisContext(readFileSync(`site/${script}`, "utf-8"));
}

// The text of a view once everything that it loads later is there.
export async function text(content) {
  await new Promise((resolve) => setTimeout(resolve));
  return [content].flat().filter(Boolean).map((one) => one.textContent).join("\n");
}

// All elements of a kind in a view.
export function all(content, tag) {
  const inside = [content].flat().filter((one) => one instanceof Element);
  return inside.flatMap((one) => [...(one.tag === tag ? [one] : []), ...all(one.children, tag)]);
}

export const CONTEXT = { signal: new AbortController().signal, about: { folder: {}, writes: false }, away() {} };

globalThis.document = {
  createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  head: {
    append(script) {
      run(script.src);
      script.listeners.load();
    },
  },
};
globalThis.IntersectionObserver = class {
  constructor(seen) {
    this.seen = seen;
  }

  observe() {
    this.seen([{ isIntersecting: true }], this);
  }

  disconnect() {}
};
globalThis.ResizeObserver = class {
  observe() {}
};
globalThis.matchMedia = () => ({ addEventListener() {} });
