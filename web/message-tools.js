// @ts-check
/** What can be done with one message: copy, edit, make again, look at another version, see how fast it was. */
import { parse } from "./attachments.js";
import { copyText } from "./clipboard.js";
import { element, icon, iconButton } from "./dom.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").Message} Message */
/**
 * @typedef {object} MessageActions
 * @property {(message: Message) => string} textOf what copying it gives
 * @property {(message: Message) => boolean} canRewrite whether its turn can be said or answered anew
 * @property {(message: Message) => void} regenerate
 * @property {(message: Message, text: string) => void} rewrite
 * @property {(message: Message) => string | null} edited what was typed in its place; null: it is not being edited
 * @property {(message: Message, typed: string | null) => void} editing
 * @property {(text: string) => void} keepTyped what was typed into a message that is gone
 * @property {(message: Message) => { index: number, count: number } | null} versions null: there is only this one
 * @property {(message: Message, step: -1 | 1) => void} showVersion
 * @property {(message: Message) => string | null} figures
 */

const ENDED = new Set(["completed", "stopped", "shortened", "failed"]);

export class MessageTools {
  root = element("div", { class: "tools" });
  #message;
  #holder;
  #actions;
  #copy;
  #edit;
  #again;
  #info;
  #figures = element("span", { class: "figures", role: "status" });
  #versions = element("span", { class: "versions" });
  #place = element("span");
  #earlier;
  #later;
  /** @type {{ root: HTMLFormElement, field: HTMLTextAreaElement, send: HTMLButtonElement } | null} */ #form = null;

  /** @param {Message} message @param {HTMLElement} holder its text @param {MessageActions} actions */
  constructor(message, holder, actions) {
    this.#message = message;
    this.#holder = holder;
    this.#actions = actions;
    this.#earlier = iconButton("back", t("earlierVersion"), () => actions.showVersion(message, -1));
    this.#later = iconButton("forward", t("laterVersion"), () => actions.showVersion(message, 1));
    this.#copy = iconButton("copy", t("copy"), () => this.#copied());
    this.#edit = iconButton("edit", t("edit"), () => this.edit());
    this.#again = iconButton("regenerate", t("regenerate"), () => actions.regenerate(message));
    this.#info = iconButton("info", t("figures"), () => this.#toggleFigures());
    this.#info.setAttribute("aria-expanded", "false");
    this.#versions.append(this.#earlier, this.#place, this.#later);
    this.root.append(this.#versions, this.#copy, this.#edit, this.#again, this.#info, this.#figures);
  }

  /** Shows what is possible now. */
  update() {
    const { role, status } = this.#message;
    const isOver = ENDED.has(status);
    const canRewrite = isOver && this.#actions.canRewrite(this.#message);
    const versions = this.#actions.versions(this.#message);
    this.root.hidden = !isOver || this.#form !== null;
    if (this.#form) this.#form.send.disabled = !canRewrite; // not while an answer is being made
    this.#copy.hidden = this.#message.text === "";
    this.#edit.hidden = role !== "user" || !canRewrite;
    this.#again.hidden = role !== "assistant" || !canRewrite;
    this.#info.hidden = this.#actions.figures(this.#message) === null;
    this.#versions.hidden = versions === null;
    if (versions === null) return;
    const { index, count } = versions;
    this.#place.textContent = `${index + 1} / ${count}`;
    this.#place.setAttribute("aria-label", t("versionOf", { index: index + 1, count }));
    this.#earlier.disabled = index === 0 || !canRewrite;
    this.#later.disabled = index === count - 1 || !canRewrite;
  }

  /** What stands in the text field in the message's place; null without one. */
  get typed() {
    return this.#form?.field.value ?? null;
  }

  /** Puts a text field in the message's place. @param {string} [typed] what stands in it; none: what the message says */
  edit(typed = parse(this.#message.text).text) {
    if (this.#form || this.#edit.hidden) return;
    const field = element("textarea", { rows: "1", dir: "auto", "aria-label": t("editMessage") });
    field.value = typed;
    const cancel = element("button", { type: "button", class: "quiet" }, t("cancel"));
    const send = element("button", { class: "solid" }, t("send"));
    const form = element("form", { class: "edit" }, field, element("div", {}, cancel, send));
    cancel.addEventListener("click", () => this.#close());
    field.addEventListener("input", () => this.#actions.editing(this.#message, field.value));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit(field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.#close();
      }
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.#submit(field.value);
    });
    this.#form = { root: form, field, send };
    this.#actions.editing(this.#message, typed);
    this.#holder.hidden = this.root.hidden = true;
    this.#holder.after(form);
    field.focus();
  }

  /** @param {string} text */
  #submit(text) {
    if (!text.trim() || !this.#actions.canRewrite(this.#message)) return;
    this.#close();
    this.#actions.rewrite(this.#message, text);
  }

  #close() {
    this.#actions.editing(this.#message, null);
    this.#form?.root.remove();
    this.#form = null;
    this.#holder.hidden = false;
    this.update();
    this.#edit.focus();
  }

  async #copied() {
    if (!(await copyText(this.#actions.textOf(this.#message)))) return;
    this.#copy.replaceChildren(icon("check"));
    setTimeout(() => this.#copy.replaceChildren(icon("copy")), 1_500);
  }

  #toggleFigures() {
    const shows = this.#figures.textContent === "";
    this.#figures.textContent = shows ? this.#actions.figures(this.#message) : "";
    this.#info.setAttribute("aria-expanded", String(shows));
  }
}
