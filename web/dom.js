// @ts-check
/** The few things that every part of the view does with the DOM. */

/**
 * The element with an id; a page without it is broken, and says so at start.
 * @template {HTMLElement} T
 * @param {Document} document
 * @param {string} id
 * @param {new () => T} type
 * @returns {T}
 */
export function byId(document, id, type) {
  const element = document.getElementById(id);
  if (!(element instanceof type)) throw new Error(`index.html has no ${type.name} #${id}`);
  return element;
}

/**
 * Makes an element. Strings become text, never markup: this is the only way content gets into the page.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string>} [attributes]
 * @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** Outlines on a 24 × 24 grid. */
const ICONS = {
  back: "M15 5l-7 7 7 7",
  check: "M5 13l4 4L19 7",
  clip: "M8 12l6-6a3.5 3.5 0 0 1 5 5l-8.5 8.5a5.5 5.5 0 0 1-8-8L11 3.500",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  forward: "M9 5l7 7-7 7",
  info: "M12 11v6M12 7v.5M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  regenerate: "M20 11a8 8 0 1 0-2.300 6.300M20 5v6h-6",
};

/** @param {keyof typeof ICONS} name */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/**
 * A small button with a picture; its name is read out and shown on hover.
 * @param {keyof typeof ICONS} name
 * @param {string} label
 * @param {() => void} action
 */
export function iconButton(name, label, action) {
  const button = element("button", { type: "button", class: "tool", "aria-label": label, title: label }, icon(name));
  button.addEventListener("click", action);
  return button;
}
