// A small table in which people type scores of their own.

import { add } from "../words.js";
import { make } from "./parts.js";
import { scrollable } from "./matrix.js";

// More than this nobody types; the server takes up to 32.
export const MOST = 10;

/** Scores of that size: what is there already, and 0 where nothing is. */
export function sized(scores, size) {
  return Array.from({ length: size }, (_, row) =>
    Array.from({ length: size }, (_, column) => {
      const value = scores?.[row]?.[column];
      return typeof value === "number" && Number.isFinite(value) ? value : 0;
    }),
  );
}

/** The table of boxes; `change(scores)` hears of every new number. */
export function editor(scores, tokens, ctx, change) {
  const typed = scores.map((line) => [...line]); // what the boxes show, which outlive a change
  const table = make(
    "table",
    { class: "numbers typed" },
    make("caption", { class: "hidden-label", word: "scores.caption" }),
  );
  const head = make("tr", {}, make("td", { class: "corner" }));
  for (const token of tokens)
    head.append(make("th", { scope: "col" }, make("span", { class: "word", dir: "auto", text: token })));
  table.append(make("thead", {}, head));
  const body = make("tbody");
  scores.forEach((line, row) => {
    const tr = make(
      "tr",
      {},
      make("th", { scope: "row" }, make("span", { class: "word", dir: "auto", text: tokens[row] })),
    );
    line.forEach((value, column) => {
      const name = ctx.t("scores.cell", { query: tokens[row], key: tokens[column] });
      const box = make("input", { type: "number", step: "any", value, "aria-label": name });
      box.addEventListener("change", () => {
        typed[row][column] = Number(box.value) || 0;
        change(typed.map((line) => [...line]));
      });
      tr.append(make("td", {}, box));
    });
    body.append(tr);
  });
  table.append(body);
  const frame = scrollable(make("div", { class: "matrix" }, table), ctx.t("scores.caption"));
  return [make("p", { class: "note", word: "scores.caption" }), frame];
}

add({
  en: {
    "scores.caption": "Scores of your own: a row for each query, a column for each key",
    "scores.cell": "score of query {query} and key {key}",
  },
  zh: {
    "scores.caption": "自己填写分数：每行一个查询，每列一个键",
    "scores.cell": "查询 {query} 与键 {key} 的分数",
  },
});
