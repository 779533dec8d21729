// @ts-check
/** One short notice at a time, with something to do about it. */
import { byId } from "./dom.js";

const STAYS_MS = 6_000;

export class ToastView {
  #state;
  #leave;
  #root;
  #text;
  #action;
  /** @type {ReturnType<typeof setTimeout> | undefined} */ #timer;

  /** @param {Document} document @param {import("./state.js").ChatState} state @param {() => void} leave takes the focus that was in a notice which is over */
  constructor(document, state, leave) {
    this.#state = state;
    this.#leave = leave;
    this.#root = byId(document, "toast", HTMLElement);
    this.#text = byId(document, "toast-text", HTMLElement);
    this.#action = byId(document, "toast-action", HTMLButtonElement);
    this.#action.addEventListener("click", () => {
      const act = this.#state.toast?.act;
      this.#state.setToast(null);
      act?.();
    });
    byId(document, "toast-close", HTMLButtonElement).addEventListener("click", () => this.#state.setToast(null));
  }

  render() {
    const { toast } = this.#state;
    clearTimeout(this.#timer);
    const hadFocus = this.#root.contains(document.activeElement);
    this.#root.hidden = toast === null;
    if (!toast && hadFocus) this.#leave();
    if (!toast) return;
    this.#text.textContent = toast.text;
    this.#action.textContent = toast.action ?? "";
    this.#action.hidden = toast.action === undefined;
    this.#timer = setTimeout(() => this.#state.setToast(null), toast.ms ?? STAYS_MS);
  }
}
