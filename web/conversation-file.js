// @ts-check
/** Conversations as files: out as JSON and Markdown, in from JSON. Pure. */

import { titleFromMessage } from "./titles.js";

/** @typedef {import("./state.js").Conversation} Conversation */

const FORMAT = "tokenwire.conversation";
/** One of them is for the turn that others are versions of. */
const METADATA_MAX_KEYS = 15;
const ROLES = new Set(["user", "assistant", "system", "developer"]);

/** @param {any} item */
function textOf(item) {
  if (typeof item.content === "string") return item.content;
  return (Array.isArray(item.content) ? item.content : []).map((/** @type {any} */ part) => (typeof part?.text === "string" ? part.text : "")).join("");
}

/** Without which turns are versions of each other: they have other ids elsewhere. @param {Record<string, string>} metadata */
function portable(metadata) {
  return Object.fromEntries(Object.entries(metadata).filter(([key]) => !/^(?:versions(?:\.\d)?|root)$/.test(key)));
}

/** @param {Conversation} conversation @param {any[]} items */
export function toJson({ created_at, metadata = {} }, items) {
  const messages = items.filter(({ type }) => type === "message").map((item) => ({ role: item.role, content: textOf(item) }));
  return JSON.stringify({ format: FORMAT, version: 1, created_at, metadata: portable(metadata), messages }, null, 2) + "\n";
}

/** @param {string} title @param {any[]} items @param {{ user: string, assistant: string }} names */
export function toMarkdown(title, items, names) {
  const shown = items.filter(({ type, role }) => type === "message" && (role === "user" || role === "assistant"));
  const parts = shown.map((item) => `## ${names[/** @type {"user" | "assistant"} */ (item.role)]}\n\n${textOf(item).trim()}\n`);
  return [`# ${title}\n`, ...parts].join("\n");
}

/**
 * What `conversation.create` needs to make it again. Lists of `{ role, content }` of other programs are taken as well.
 * @param {string} text
 * @returns {{ metadata: Record<string, string>, items: { role: string, content: string }[] } | null} null: no conversation
 */
export function fromJson(text) {
  let read;
  try {
    read = JSON.parse(text);
  } catch {
    return null;
  }
  const messages = Array.isArray(read) ? read : read?.messages;
  if (!Array.isArray(messages) || messages.length === 0 || !messages.every((message) => ROLES.has(message?.role))) return null;
  const items = messages.map((message) => ({ role: message.role, content: textOf(message) }));
  // What the wire would refuse is left out: a conversation is worth more than what is noted with it.
  const metadata = Object.entries(read.metadata ?? {}).filter(([key, value]) => key.length <= 64 && typeof value === "string" && value.length <= 512);
  const title = titleFromMessage(items.find(({ role }) => role === "user")?.content ?? "");
  const kept = { ...(title && { title }), ...portable(Object.fromEntries(/** @type {[string, string][]} */ (metadata))) };
  return { metadata: Object.fromEntries(Object.entries(kept).slice(0, METADATA_MAX_KEYS)), items };
}

/** A file name that every system takes. @param {string} title @param {string} suffix */
export function fileName(title, suffix) {
  const name = title.replace(/[^\p{L}\p{N} _-]+/gu, " ").trim().replace(/\s+/g, "-").slice(0, 60);
  return `${name || "conversation"}.${suffix}`;
}
