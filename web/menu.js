// @ts-check
/** A menu beside a button: arrow keys, Home, End, Escape, and a click elsewhere closes it. */
import { element } from "./dom.js";

/**
 * `checked`: one of several choices, and whether it is the current one. `detail`: small print behind the label.
 * @typedef {{ label: string, detail?: string, state?: string, checked?: boolean, danger?: boolean, action: () => void }} MenuItem
 */

const GAP_PX = 6;
/** Menus that are open, by their buttons. @type {WeakMap<HTMLElement, HTMLElement>} */
const menus = new WeakMap();

/** Shows other items in a button's menu, where it is open; the focus stays. @param {HTMLElement} button @param {MenuItem[]} items */
export function updateMenu(button, items) {
  const menu = menus.get(button);
  if (!menu) return;
  const focused = [...menu.children].indexOf(/** @type {Element} */ (document.activeElement));
  menu.replaceChildren(...items.map((item) => entry(button, item)));
  if (focused >= 0) /** @type {HTMLElement} */ (menu.children[Math.min(focused, items.length - 1)]).focus();
}

/**
 * Opens a menu, or closes it where it is open.
 * @param {HTMLElement} button
 * @param {MenuItem[]} items
 * @param {string} label what the menu is for
 */
export function toggleMenu(button, items, label) {
  if (button.getAttribute("aria-expanded") === "true") return close(button);
  const menu = element("div", { class: "menu", role: "menu", "aria-label": label, popover: "auto" });
  menu.append(...items.map((item) => entry(button, item)));
  menu.addEventListener("keydown", (event) => move(menu, event));
  menu.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState === "open") return;
    button.setAttribute("aria-expanded", "false");
    if (menus.get(button) === menu) menus.delete(button);
    menu.remove();
  });
  button.setAttribute("aria-haspopup", "menu");
  button.setAttribute("aria-expanded", "true");
  document.body.append(menu);
  menus.set(button, menu);
  menu.showPopover();
  place(menu, button);
  const current = items.findIndex(({ checked }) => checked);
  /** @type {HTMLElement} */ (menu.children[Math.max(0, current)]).focus();
}

/** @param {HTMLElement} button @param {MenuItem} item */
function entry(button, { label, detail, state, checked, danger, action }) {
  const role = checked === undefined ? "menuitem" : "menuitemradio";
  const made = element("button", { type: "button", role, tabindex: "-1", ...(danger && { class: "danger" }), ...(state && { "data-state": state }) }, element("span", {}, label));
  if (checked !== undefined) made.setAttribute("aria-checked", String(checked));
  if (detail) made.append(element("small", {}, detail));
  made.addEventListener("click", () => {
    close(button);
    action();
  });
  return made;
}

/** @param {HTMLElement} button */
function close(button) {
  menus.get(button)?.hidePopover();
  button.focus();
}

/** Below the button, or above where there is no room; never off the screen. @param {HTMLElement} menu @param {HTMLElement} button */
function place(menu, button) {
  const box = button.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - menu.offsetWidth - GAP_PX);
  const below = box.bottom + GAP_PX;
  const top = below + menu.offsetHeight <= innerHeight ? below : Math.max(GAP_PX, box.top - menu.offsetHeight - GAP_PX);
  menu.style.left = `${Math.max(GAP_PX, left)}px`;
  menu.style.top = `${top}px`;
}

/** @param {HTMLElement} menu @param {KeyboardEvent} event */
function move(menu, event) {
  const items = /** @type {HTMLElement[]} */ ([...menu.children]);
  const index = items.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  const target = { ArrowDown: index + 1, ArrowUp: index - 1 + items.length, Home: 0, End: items.length - 1 }[event.key];
  if (event.key === "Escape") event.stopPropagation(); // it closes the menu, and nothing else
  if (event.key === "Tab") menu.hidePopover();
  if (target === undefined) return;
  event.preventDefault();
  items[target % items.length].focus();
}
