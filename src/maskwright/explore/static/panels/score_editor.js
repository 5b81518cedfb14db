// A table of fields for the scores.

import { addMessages } from "../i18n.js";
import { el } from "./panel.js";
import { scrollable } from "./matrix.js";

export const MAX_TOKENS = 10; // the server accepts up to 32

/** Scores cut or padded with 0 to that number of tokens. */
export function resizeScores(scores, size) {
  return Array.from({ length: size }, (_, row) =>
    Array.from({ length: size }, (_, column) => {
      const value = scores?.[row]?.[column];
      return typeof value === "number" && Number.isFinite(value) ? value : 0;
    }),
  );
}

/** The table of fields; `change(scores)` is called for every new number. */
export function scoreEditor(scores, tokens, ctx, change) {
  const values = scores.map((line) => [...line]); // what the fields show
  const table = el(
    "table",
    { class: "numbers typed" },
    el("caption", { class: "hidden-label", msg: "scores.caption" }),
  );
  const head = el("tr", {}, el("td", { class: "corner" }));
  for (const token of tokens)
    head.append(el("th", { scope: "col" }, el("span", { class: "word", dir: "auto", text: token })));
  table.append(el("thead", {}, head));
  const body = el("tbody");
  scores.forEach((line, row) => {
    const tr = el(
      "tr",
      {},
      el("th", { scope: "row" }, el("span", { class: "word", dir: "auto", text: tokens[row] })),
    );
    line.forEach((value, column) => {
      const name = ctx.t("scores.cell", { query: tokens[row], key: tokens[column] });
      const box = el("input", { type: "number", step: "any", value, "aria-label": name });
      box.addEventListener("input", () => {
        values[row][column] = Number(box.value) || 0;
        change(values.map((line) => [...line]));
      });
      tr.append(el("td", {}, box));
    });
    body.append(tr);
  });
  table.append(body);
  const frame = scrollable(el("div", { class: "matrix" }, table), ctx.t("scores.caption"));
  return [el("p", { class: "note", msg: "scores.caption" }), frame];
}

addMessages({
  en: {
    "scores.caption": "Scores: one row per query, one column per key",
    "scores.cell": "score of query {query} and key {key}",
  },
  zh: {
    "scores.caption": "注意力分数：每行一个查询，每列一个键",
    "scores.cell": "查询 {query} 与键 {key} 的注意力分数",
  },
});
