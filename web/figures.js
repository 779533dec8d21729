// @ts-check
/** How fast an answer came, in words. */
import { t } from "./words.js";

/**
 * Null where there is nothing to tell. The first token's time is not in the rate: it is mostly waiting.
 * @param {import("./state.js").Timing | null} timing
 * @returns {string | null}
 */
export function figuresOf(timing) {
  if (timing?.first == null || timing.last == null) return null;
  const first = ((timing.first - timing.sent) / 1000).toFixed(2);
  const seconds = (timing.last - timing.first) / 1000;
  if (timing.tokens === null || timing.tokens < 2 || seconds <= 0) return t("figuresFirst", { first });
  return t("figuresAll", { tokens: timing.tokens, rate: ((timing.tokens - 1) / seconds).toFixed(1), first });
}
