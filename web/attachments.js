// @ts-check
/** Text files in a message: how they are read, how they stand in its text, and how they are found there again. */

/** @typedef {{ name: string, text: string }} Attachment */

/** Bytes of all files of a message: with them its frame stays under the server's 1 MiB. */
export const ATTACHMENTS_MAX_BYTES = 700_000;

/** @param {Attachment[]} files @param {string} text */
export function compose(files, text) {
  const blocks = files.map((file) => {
    // Longer than any fence in the file: what is in it can never end it.
    const longest = Math.max(3, ...Array.from(file.text.matchAll(/`+/g), ([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File: ${file.name}\n${fence}\n${file.text}\n${fence}\n\n`;
  });
  return blocks.join("") + text;
}

/** @param {string} text @returns {{ files: Attachment[], text: string }} */
export function parse(text) {
  /** @type {Attachment[]} */
  const files = [];
  let rest = text;
  for (let match; (match = /^File: (.+)\n(`{4,})\n([^]*?)\n\2\n\n/.exec(rest)); rest = rest.slice(match[0].length)) {
    files.push({ name: match[1], text: match[3] });
  }
  return { files, text: rest };
}

/**
 * A file's text; null where it is none.
 * @param {File} file
 * @returns {Promise<string | null>}
 */
export async function readText(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    return text.includes("\0") ? null : text.replace(/\r\n?/g, "\n");
  } catch {
    return null; // not UTF-8
  }
}
