// @ts-check
/** What stands above the messages: the title, the model, how it answers, and what can be done with the conversation. */
import { byId, element } from "./dom.js";
import { toggleMenu, updateMenu } from "./menu.js";
import { optionsOf } from "./metadata.js";
import { titleFromMessage, titleOf } from "./titles.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").ChatState} ChatState */
/** @typedef {import("./state.js").Model} Model */
/** @typedef {import("./menu.js").MenuItem} MenuItem */
/**
 * @typedef {object} HeaderActions
 * @property {(id: string) => MenuItem[]} conversationMenu
 * @property {(id: string) => void} rename
 * @property {(model: string | null) => void} chooseModel
 * @property {() => void} refreshModels
 * @property {() => void} showOptions
 */

/** @type {Record<string, import("./words.js").Word>} */
const STATES = {
  asleep: "modelAsleep", closed: "modelClosed", draining: "modelDraining", failed: "modelFailed", loading: "modelLoading", ready: "modelReady", unloaded: "modelUnloaded",
};

export class Header {
  #document;
  #state;
  #actions;
  #title;
  #model;
  #more;

  /** @param {Document} document @param {ChatState} state @param {HeaderActions} actions */
  constructor(document, state, actions) {
    this.#document = document;
    this.#state = state;
    this.#title = byId(document, "title", HTMLHeadingElement);
    this.#model = byId(document, "model", HTMLButtonElement);
    this.#more = byId(document, "bar-more", HTMLButtonElement);
    this.#title.addEventListener("dblclick", () => state.current.id !== null && actions.rename(state.current.id));
    byId(document, "options", HTMLButtonElement).addEventListener("click", () => actions.showOptions());
    this.#more.addEventListener("click", () => {
      const { id } = state.current;
      if (id !== null) toggleMenu(this.#more, actions.conversationMenu(id), t("conversation"));
    });
    this.#actions = actions;
    this.#model.addEventListener("click", () => {
      actions.refreshModels();
      toggleMenu(this.#model, this.#choices(), t("model"));
    });
  }

  render() {
    const { id, messages } = this.#state.current;
    const known = id === null ? undefined : this.#state.conversation(id);
    const first = messages[0] ? titleFromMessage(messages[0].text) : t("newConversation");
    const title = known ? titleOf(known) : first;
    this.#title.textContent = title;
    this.#more.hidden = id === null;
    this.#document.title = id === null ? "Tokenwire" : `${title} · Tokenwire`;
    this.#renderModel();
  }

  /** Models are not what they were: also in the menu, where it is open. */
  renderModels() {
    this.#renderModel();
    updateMenu(this.#model, this.#choices());
  }

  #renderModel() {
    const model = this.#current();
    this.#model.hidden = model === undefined;
    if (!model) return;
    this.#model.dataset.state = model.state ?? "ready";
    const state = model.state && model.state !== "ready" ? stateOf(model) : "";
    this.#model.replaceChildren(element("span", {}, model.id), ...(state ? [element("small", {}, state)] : []));
    this.#model.setAttribute("aria-label", `${t("model")}: ${model.id}${state && `, ${state}`}`);
  }

  /** The model that answers here. Which one is the server's default is not told where there are several. @returns {Model | undefined} */
  #current() {
    const { models } = this.#state;
    const chosen = this.#chosen();
    if (chosen !== null) return models.find(({ id }) => id === chosen) ?? { id: chosen, state: "missing" };
    return models.length > 1 ? { id: t("defaultModel") } : models[0];
  }

  #chosen() {
    return optionsOf(this.#state.metadataOf(this.#state.current)).model;
  }

  /** @returns {MenuItem[]} */
  #choices() {
    const actions = this.#actions;
    const chosen = this.#chosen();
    const models = this.#state.models.map((model) => ({
      label: model.id,
      detail: stateOf(model),
      state: model.state ?? "ready",
      checked: model.id === chosen,
      action: () => actions.chooseModel(model.id),
    }));
    return [{ label: t("defaultModel"), checked: chosen === null, action: () => actions.chooseModel(null) }, ...models];
  }
}

/** How a model is, in words; a state that this page does not know is told as it came. @param {Model} model */
export function stateOf({ state = "ready", progress, detail }) {
  if (state === "missing") return t("modelMissing");
  const word = STATES[state] ? t(STATES[state]) : state;
  if (state === "loading" && typeof progress === "number") return `${word} ${Math.round(progress * 100)} %`;
  return state === "failed" && detail ? `${word}: ${detail}` : word;
}
