// @ts-check
/** The page's dialogs; loaded when the first of them is wanted. Each returns a promise of what was chosen; null: nothing. */
import { element } from "./dom.js";
import { INSTRUCTIONS_MAX_CHARS } from "./metadata.js";
import { t } from "./words.js";

/** @typedef {import("./metadata.js").Options} Options */
/** @typedef {import("./preferences.js").Theme} Theme */
/** @typedef {import("./preferences.js").Language} Language */

/** What the wire takes (protocol/README.md, "response.create"). */
const LIMITS = { temperature: { min: "0", max: "2", step: "0.1" }, top_p: { min: "0.01", max: "1", step: "0.01" }, max_output_tokens: { min: "1", max: "2147483648", step: "1" } };

/**
 * Shows a form in a dialog until it is sent or left.
 * @param {string} title
 * @param {Node[]} content
 * @param {{ submit: string, cancel?: string | null, mustAnswer?: boolean }} buttons cancel: null for none. mustAnswer: it cannot be left
 * @returns {Promise<FormData | null>}
 */
function ask(title, content, { submit, cancel = t("cancel"), mustAnswer = false }) {
  if (!mustAnswer && document.querySelector("dialog[open]")) return Promise.resolve(null); // a second click, while this file was loading
  const heading = element("h2", { id: "dialog-title" }, title);
  const leave = cancel === null ? [] : [element("button", { type: "button", class: "quiet" }, cancel)];
  const buttons = element("div", { class: "buttons" }, ...leave, element("button", { class: "solid" }, submit));
  const form = element("form", { method: "dialog" }, heading, ...content, buttons);
  const dialog = element("dialog", { "aria-labelledby": "dialog-title" }, form);
  const focused = document.activeElement;
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    let chosen = /** @type {FormData | null} */ (null);
    form.addEventListener("submit", (event) => {
      // Not by the browser: the page's policy forbids forms to go anywhere.
      event.preventDefault();
      chosen = new FormData(form);
      dialog.close();
    });
    leave[0]?.addEventListener("click", () => dialog.close());
    dialog.addEventListener("cancel", (event) => mustAnswer && event.preventDefault());
    // A click beside it, and one that began there: who selects text may let go anywhere; nor the second one of a double
    // click on what opened it. What was changed is not thrown away.
    const given = contents(form);
    let beside = false;
    dialog.addEventListener("pointerdown", (event) => (beside = event.target === dialog));
    const isLeft = (/** @type {MouseEvent} */ { detail, target }) => target === dialog && beside && detail < 2 && contents(form) === given;
    dialog.addEventListener("click", (event) => !mustAnswer && isLeft(event) && dialog.close());
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (focused instanceof HTMLElement) focused.focus();
      resolve(chosen);
    });
  });
}

/** What stands in a form now. @param {HTMLFormElement} form */
function contents(form) {
  return JSON.stringify([...new FormData(form)]);
}

/** @param {string} label @param {HTMLElement} control @param {string} [hint] */
function labelled(label, control, hint) {
  return element("label", { class: "labelled" }, element("span", {}, label), control, ...(hint ? [element("small", {}, hint)] : []));
}

/** @param {string} name @param {[string, string][]} choices value and label @param {string} chosen */
function select(name, choices, chosen) {
  const made = element("select", { name }, ...choices.map(([value, label]) => element("option", { value }, label)));
  made.value = chosen;
  return made;
}

/** @param {string} title @returns {Promise<string | null>} */
export async function askTitle(title) {
  const field = element("input", { name: "title", dir: "auto", maxlength: "200", required: "", autocomplete: "off" });
  field.value = title;
  const asked = ask(t("rename"), [labelled(t("title"), field)], { submit: t("save") });
  field.select();
  return String((await asked)?.get("title") ?? "").trim() || null;
}

/** @param {Options} options @returns {Promise<Options | null>} */
export async function askOptions(options) {
  const instructions = element("textarea", { name: "instructions", dir: "auto", rows: "5", maxlength: String(INSTRUCTIONS_MAX_CHARS), placeholder: t("instructionsHint") });
  instructions.value = options.instructions;
  const number = (/** @type {keyof typeof LIMITS} */ name, /** @type {string} */ label, /** @type {string} */ hint) => {
    const field = element("input", { type: "number", name, placeholder: t("asTheModel"), inputmode: "decimal", ...LIMITS[name] });
    field.value = options[name] === null ? "" : String(options[name]);
    return labelled(label, field, hint);
  };
  const numbers = element("div", { class: "numbers" }, number("temperature", t("temperature"), t("temperatureHint")), number("top_p", "Top p", t("topPHint")), number("max_output_tokens", t("maxTokens"), t("maxTokensHint")));
  const data = await ask(t("options"), [labelled(t("instructions"), instructions, t("instructionsLimit", { limit: INSTRUCTIONS_MAX_CHARS })), numbers], { submit: t("save") });
  if (!data) return null;
  const value = (/** @type {string} */ name) => (data.get(name) ? Number(data.get(name)) : null);
  return { ...options, instructions: String(data.get("instructions")).trim(), temperature: value("temperature"), top_p: value("top_p"), max_output_tokens: value("max_output_tokens") };
}

/**
 * @param {{ theme: Theme, language: Language, isSignedIn: boolean, importFile: () => void, showKeys: () => void, signOut: () => void }} settings
 * @returns {Promise<{ theme: Theme, language: Language } | null>}
 */
export async function askSettings({ theme, language, isSignedIn, importFile, showKeys, signOut }) {
  const themes = select("theme", [["system", t("asTheSystem")], ["light", t("light")], ["dark", t("dark")]], theme);
  const languages = select("language", [["system", t("asTheSystem")], ["en", "English"], ["zh", "中文"]], language);
  const deed = (/** @type {string} */ label, /** @type {() => void} */ act) => {
    const button = element("button", { type: "button", class: "quiet" }, label);
    button.addEventListener("click", () => {
      button.closest("dialog")?.close();
      act();
    });
    return button;
  };
  const deeds = element("div", { class: "deeds" }, deed(t("import"), importFile), deed(t("keys"), showKeys), ...(isSignedIn ? [deed(t("signOut"), signOut)] : []));
  const data = await ask(t("settings"), [labelled(t("theme"), themes), labelled(t("language"), languages), deeds], { submit: t("save") });
  return data && { theme: /** @type {Theme} */ (data.get("theme")), language: /** @type {Language} */ (data.get("language")) };
}

/** @param {boolean} isRefused whether a key was given that the server does not take @returns {Promise<{ key: string, stays: boolean }>} */
export async function askKey(isRefused) {
  const field = element("input", { type: "password", name: "key", required: "", pattern: "[\\w.~+\\-]+", autocomplete: "current-password" });
  const stays = element("label", { class: "check" }, element("input", { type: "checkbox", name: "stays" }), element("span", {}, t("keepKey")));
  const wrong = isRefused ? [element("p", { class: "problem", role: "alert" }, t("keyRefused"))] : [];
  for (;;) {
    const data = await ask(t("signIn"), [...wrong, labelled(t("key"), field), stays], { submit: t("signIn"), cancel: null, mustAnswer: true });
    const key = String(data?.get("key") ?? "").trim();
    if (key) return { key, stays: data?.get("stays") !== null };
  }
}

export async function showKeys() {
  const rows = [
    ["Enter", t("keySend")], ["Shift Enter", t("keyLine")], ["Esc", t("keyStop")], ["↑", t("keyEdit")],
    ["Ctrl K", t("keySearch")], ["Ctrl Shift O", t("newConversation")], ["Ctrl /", t("keys")],
  ];
  const list = element("dl", { class: "keys" }, ...rows.flatMap(([keys, deed]) => [element("dt", {}, ...keys.split(" ").map((key) => element("kbd", {}, key))), element("dd", {}, deed)]));
  await ask(t("keys"), [list], { submit: t("done"), cancel: null });
}
