// @ts-check
/** What the reader chose for this browser: theme, language, and the key, for as long as they want it kept. */
import { DRAFTS } from "./drafts.js";

/** @typedef {import("./storage.js").KeptStorage} KeptStorage */
/** @typedef {"system" | "light" | "dark"} Theme */
/** @typedef {"system" | "en" | "zh"} Language */

const PREFIX = "tokenwire.";

export class Preferences {
  #lasting;
  #session;

  /** @param {KeptStorage} lasting for all tabs, for good @param {KeptStorage} session for this tab */
  constructor(lasting, session) {
    this.#lasting = lasting;
    this.#session = session;
  }

  /** @returns {Theme} */
  get theme() {
    const theme = this.#lasting.getItem(`${PREFIX}theme`);
    return theme === "light" || theme === "dark" ? theme : "system";
  }

  set theme(theme) {
    this.#lasting.setItem(`${PREFIX}theme`, theme);
  }

  /** @returns {Language} */
  get language() {
    const language = this.#lasting.getItem(`${PREFIX}language`);
    return language === "en" || language === "zh" ? language : "system";
  }

  set language(language) {
    this.#lasting.setItem(`${PREFIX}language`, language);
  }

  /** The language to speak. @param {readonly string[]} wanted by the browser, most wanted first @returns {"en" | "zh"} */
  spoken(wanted) {
    if (this.language !== "system") return this.language;
    const first = wanted.map((tag) => tag.toLowerCase().split("-")[0]).find((tag) => tag === "en" || tag === "zh");
    return first === "zh" ? "zh" : "en";
  }

  /** @returns {string | null} */
  get key() {
    return this.#session.getItem(`${PREFIX}key`) ?? this.#lasting.getItem(`${PREFIX}key`);
  }

  /** Whether the key is this tab's alone. */
  get hasOwnKey() {
    return this.#session.getItem(`${PREFIX}key`) !== null;
  }

  /** Whether the key is there after a reload, too: the browser may forbid that. */
  get keyLasts() {
    return [this.#lasting, this.#session].every((storage) => storage.lasts(`${PREFIX}key`));
  }

  /** @param {string} key @param {boolean} stays also when the tab is closed */
  keep(key, stays) {
    this.forget();
    (stays ? this.#lasting : this.#session).setItem(`${PREFIX}key`, key);
  }

  /** Forgets the key. */
  forget() {
    for (const storage of [this.#lasting, this.#session]) storage.removeItem(`${PREFIX}key`);
  }

  /** Forgets the key and everything that this tab holds of an account: what was typed, and what was to be deleted. */
  signOut() {
    this.forget();
    for (const storage of [this.#lasting, this.#session]) {
      for (const name of storage.names()) if (name.startsWith(DRAFTS) || name === `${PREFIX}deleting`) storage.removeItem(name);
    }
  }
}
