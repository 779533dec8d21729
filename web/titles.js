// @ts-check
/** What conversations are called. Pure. */
import { parse } from "./attachments.js";
import { t } from "./words.js";

export const TITLE_MAX_CHARS = 80;

/**
 * A conversation's title, made from its first turn.
 * @param {string} text
 */
export function titleFrom(text) {
  const line = text.replace(/\s+/g, " ").trim();
  const chars = Array.from(line); // by code point, so that no emoji is cut in half
  return chars.length <= TITLE_MAX_CHARS ? line : chars.slice(0, TITLE_MAX_CHARS - 1).join("").trimEnd() + "…";
}

/** The same for a message with files: without a word of one's own, it is called after them. @param {string} text */
export function titleFromMessage(text) {
  const said = parse(text);
  const names = said.files.map(({ name }) => name).join(", ");
  return titleFrom(names && said.text === t("summarise") ? names : said.text);
}

/** @param {import("./state.js").Conversation | undefined} conversation */
export function titleOf(conversation) {
  return conversation?.metadata?.title || conversation?.title || t("untitled");
}
