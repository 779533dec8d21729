// @ts-check
/**
 * What the page keeps with a conversation, in its metadata, so that every device has it: the title, how it is answered,
 * and which turns are versions of each other. Pure. The wire allows 16 keys and 512 characters each, so what may be
 * longer is cut into numbered pieces; keys of others are left as they are.
 */

/** @typedef {Record<string, string>} Metadata */
/**
 * How a conversation is answered; null and "": as the server does.
 * @typedef {{ model: string | null, instructions: string, temperature: number | null, top_p: number | null, max_output_tokens: number | null }} Options
 */
/** One version of a turn. `leaf`: the last turn that was said after it. @typedef {{ turn: string, leaf: string }} Version */

const VALUE_MAX_CHARS = 512;
const PIECES = 5;
export const INSTRUCTIONS_MAX_CHARS = VALUE_MAX_CHARS * PIECES;
const NUMBERS = /** @type {const} */ (["temperature", "top_p", "max_output_tokens"]);
/** Ids are kept without it: there is little room. */
const ID_PREFIX = "resp_";

// ── options ──

/** @param {Metadata} metadata @returns {Options} */
export function optionsOf(metadata) {
  const number = (/** @type {string} */ key) => (metadata[key] && Number.isFinite(Number(metadata[key])) ? Number(metadata[key]) : null);
  return {
    model: metadata.model || null,
    instructions: readLong(metadata, "instructions"),
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_output_tokens: number("max_output_tokens"),
  };
}

/** @param {Metadata} metadata @param {Options} options @returns {Metadata} */
export function withOptions(metadata, options) {
  const { model, temperature, top_p, max_output_tokens, ...others } = metadata;
  const changed = writeLong(others, "instructions", options.instructions);
  if (options.model) changed.model = options.model;
  for (const key of NUMBERS) if (options[key] !== null) changed[key] = String(options[key]);
  return changed;
}

/** The part of `response.create` that says the same. @param {Options} options @returns {Record<string, any>} */
export function requestOf(options) {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== null && value !== ""));
}

// ── versions ──

/** @param {Metadata} metadata @returns {Version[][]} */
export function versionsOf(metadata) {
  const groups = readLong(metadata, "versions").split(";").filter(Boolean);
  return groups.map((group) =>
    group.split(",").map((version) => {
      const [turn, leaf = turn] = version.split(">");
      return { turn: ID_PREFIX + turn, leaf: ID_PREFIX + leaf };
    }),
  );
}

/** The oldest groups are forgotten where the room ends. @param {Metadata} metadata @param {Version[][]} groups @returns {Metadata} */
export function withVersions(metadata, groups) {
  const short = (/** @type {string} */ id) => id.replace(ID_PREFIX, "");
  const written = groups.map((group) => group.map(({ turn, leaf }) => (leaf === turn ? short(turn) : `${short(turn)}>${short(leaf)}`)).join(","));
  while (written.join(";").length > VALUE_MAX_CHARS * PIECES) written.shift();
  return writeLong(metadata, "versions", written.join(";"));
}

/**
 * The versions of a turn after another one was made.
 * @param {Version[][]} groups
 * @param {Version} left the version that was on screen, with the end of what followed it
 * @param {string} made the new one
 * @returns {Version[][]}
 */
export function addVersion(groups, left, made) {
  const known = groups.find((group) => group.some(({ turn }) => turn === left.turn)) ?? [left];
  if (known.some(({ turn }) => turn === made)) return groups;
  const group = [...known.map((version) => (version.turn === left.turn ? left : version)), { turn: made, leaf: made }];
  return [...groups.filter((other) => other !== known), group];
}

/** Remembers what followed a version that is left. @param {Version[][]} groups @param {Version} left @returns {Version[][]} */
export function leaveVersion(groups, left) {
  return groups.map((group) => group.map((version) => (version.turn === left.turn ? left : version)));
}

// ── long values ──

/** @param {string} key @param {number} index */
function piece(key, index) {
  return index === 0 ? key : `${key}.${index + 1}`;
}

/** @param {Metadata} metadata @param {string} key */
function readLong(metadata, key) {
  return Array.from({ length: PIECES }, (_, index) => metadata[piece(key, index)] ?? "").join("");
}

/** @param {Metadata} metadata @param {string} key @param {string} value @returns {Metadata} */
function writeLong(metadata, key, value) {
  const changed = { ...metadata };
  const chars = Array.from(value); // by code point, so that no character is cut in half
  for (let index = 0; index < PIECES; index++) {
    const part = chars.slice(index * VALUE_MAX_CHARS, (index + 1) * VALUE_MAX_CHARS).join("");
    if (part) changed[piece(key, index)] = part;
    else delete changed[piece(key, index)];
  }
  return changed;
}
