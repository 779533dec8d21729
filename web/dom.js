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
