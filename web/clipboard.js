// @ts-check
/** Copying, also where the page has no secure origin. */
import { element } from "./dom.js";

/** @param {string} text @returns {Promise<boolean>} whether it worked */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // refused, or not there: a page over plain HTTP in a home network
  }
}

/** @param {string} text */
function copyBySelection(text) {
  const field = element("textarea", { class: "unseen" });
  field.value = text;
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return done;
}
