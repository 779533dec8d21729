// @ts-check
/** The text field: typing, attaching, sending, stopping. */
import { ATTACHMENTS_MAX_BYTES, readText } from "./attachments.js";
import { byId, element, icon } from "./dom.js";
import { canSend } from "./state.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./attachments.js").Attachment} Attachment */
/**
 * @typedef {object} ComposerActions
 * @property {() => void} send
 * @property {() => void} stop
 * @property {(text: string) => void} type
 * @property {(thread: import("./state.js").Thread, files: Attachment[]) => void} attach all files that are attached from now on
 * @property {() => void} editLast
 * @property {(message: string) => void} problem
 */

export class Composer {
  #state;
  #actions;
  #input;
  #send;
  #stop;
  #files;
  #file;
  /** Names of files that are being read. @type {string[]} */ #reading = [];

  /** @param {Document} document @param {ChatState} state @param {ComposerActions} actions */
  constructor(document, state, actions) {
    this.#state = state;
    this.#actions = actions;
    this.#input = byId(document, "input", HTMLTextAreaElement);
    this.#send = byId(document, "send", HTMLButtonElement);
    this.#stop = byId(document, "stop", HTMLButtonElement);
    this.#files = byId(document, "files", HTMLUListElement);
    this.#file = byId(document, "file", HTMLInputElement);
    this.#listen(document);
  }

  /** @param {Document} document */
  #listen(document) {
    const form = byId(document, "composer", HTMLFormElement);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#actions.send();
    });
    this.#input.addEventListener("input", () => {
      this.#fit();
      this.#actions.type(this.#input.value);
      this.renderButtons();
    });
    this.#input.addEventListener("keydown", (event) => this.#key(event));
    // Not by the second click of a double click on "Send", which was in this place.
    this.#stop.addEventListener("click", ({ detail }) => detail < 2 && this.stop());
    byId(document, "attach", HTMLButtonElement).addEventListener("click", () => this.#file.click());
    this.#file.addEventListener("change", () => {
      this.#read([...(this.#file.files ?? [])]);
      this.#file.value = "";
    });
    this.#input.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      // Cells of a table come as text and as a picture of it: the text is meant.
      if (files.length === 0 || event.clipboardData?.types.includes("text/plain")) return;
      event.preventDefault();
      this.#read(files);
    });
    // Anywhere: beside the text field the browser would leave the page and show the file.
    document.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
    document.addEventListener("drop", (event) => {
      const files = [...(event.dataTransfer?.files ?? [])];
      if (files.length === 0) return;
      event.preventDefault();
      this.#read(files);
    });
  }

  /** Not on touch screens, where it would bring up the keyboard unasked. */
  focus() {
    if (matchMedia("(hover: hover)").matches) this.#input.focus();
  }

  stop() {
    this.#actions.stop();
    this.focus();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key === "ArrowUp" && this.#input.value === "") {
      event.preventDefault();
      return this.#actions.editLast();
    }
    // Enter also ends the choice of a Chinese or Japanese word: that one must not send. Safari tells it by code 229 only.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    this.#actions.send();
  }

  /** What was typed while the page was still loading is not lost. */
  keepTyped() {
    if (this.#input.value && !this.#state.current.draft) this.#actions.type(this.#input.value);
  }

  render() {
    const { draft, files } = this.#state.current;
    if (this.#input.value !== draft) this.#input.value = draft;
    this.#fit();
    this.#renderFiles(files);
    this.renderButtons();
  }

  renderButtons() {
    const { active, draft, files } = this.#state.current;
    const canGo = (draft.trim() !== "" || files.length > 0) && this.#reading.length === 0 && canSend(this.#state.current);
    // One place for both: what was typed goes out also while somebody else is being answered.
    const stops = active !== null && !canGo;
    this.#send.hidden = stops;
    this.#stop.hidden = !stops;
    this.#send.disabled = !canGo;
  }

  // ── files ──

  /** @param {File[]} files */
  async #read(files) {
    const thread = this.#state.current;
    for (const file of files) {
      this.#reading.push(file.name);
      this.#renderFiles(thread.files);
      const problem = await this.#readOne(file, thread);
      this.#reading.splice(this.#reading.indexOf(file.name), 1);
      if (problem) this.#actions.problem(problem);
    }
    this.render();
    this.focus();
  }

  /** @param {File} file @param {import("./state.js").Thread} thread @returns {Promise<string | null>} what is wrong with it */
  async #readOne(file, thread) {
    const size = thread.files.reduce((sum, { text }) => sum + new Blob([text]).size, file.size);
    if (size > ATTACHMENTS_MAX_BYTES) {
      return t("fileTooBig", { name: file.name, size: Math.ceil(size / 1000), limit: ATTACHMENTS_MAX_BYTES / 1000 });
    }
    const text = await readText(file);
    if (text === null) return t("fileIsNoText", { name: file.name });
    const name = file.name.replace(/\s+/g, " "); // a line end in it would end the line that names it
    this.#actions.attach(thread, [...thread.files, { name, text }]);
    return null;
  }

  /** @param {Attachment[]} files */
  #renderFiles(files) {
    const attached = files.map((file) => {
      const remove = element("button", { type: "button", class: "tool", "aria-label": t("removeFile", { name: file.name }) }, icon("close"));
      remove.addEventListener("click", () => {
        const { current } = this.#state;
        this.#actions.attach(current, current.files.filter((other) => other !== file));
        this.#input.focus();
      });
      return element("li", {}, icon("file"), element("span", {}, file.name), remove);
    });
    const reading = this.#reading.map((name) => element("li", {}, element("progress", { "aria-label": t("readingFile", { name }) }), t("readingFile", { name })));
    this.#files.replaceChildren(...attached, ...reading);
    this.#files.hidden = this.#files.childElementCount === 0;
  }

  /** Where the browser cannot do it in CSS. */
  #fit() {
    if (CSS.supports("field-sizing", "content")) return;
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }
}
