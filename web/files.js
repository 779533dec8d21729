// @ts-check
/** Files that come in and go out of the browser; loaded when the first one is wanted. */
import { fileName, fromJson, toJson, toMarkdown } from "./conversation-file.js";
import { element } from "./dom.js";
import { titleOf } from "./titles.js";
import { t } from "./words.js";

/** @param {import("./state.js").Conversation} conversation @param {any[]} items @param {"md" | "json"} suffix */
export function save(conversation, items, suffix) {
  const title = titleOf(conversation);
  const text = suffix === "json" ? toJson(conversation, items) : toMarkdown(title, items, { user: t("you"), assistant: t("answer") });
  const url = URL.createObjectURL(new Blob([text], { type: suffix === "json" ? "application/json" : "text/markdown" }));
  element("a", { href: url, download: fileName(title, suffix) }).click();
  URL.revokeObjectURL(url);
}

/** Lets a conversation's file be chosen. @returns {Promise<{ name: string, file: ReturnType<typeof fromJson> }>} */
export function choose() {
  const field = element("input", { type: "file", accept: "application/json,.json", hidden: "", "aria-label": t("import") });
  document.body.append(field);
  return new Promise((resolve) => {
    field.addEventListener("cancel", () => field.remove());
    field.addEventListener("change", async () => {
      const file = field.files?.[0];
      field.remove();
      if (file) resolve({ name: file.name, file: fromJson(await file.text()) });
    });
    field.click();
  });
}
