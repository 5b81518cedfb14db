// Generate: decoding one token at a time, compared with one pass over all tokens.

import { addMessages, formatPercent } from "../i18n.js";
import { numberField } from "./controls.js";
import { highlightCells, matrix } from "./matrix.js";
import { formatShare } from "./format.js";
import { definePanel, el, fetchWhileShown } from "./panel.js";
import { player } from "./player.js";
import { valuesOf } from "./steps.js";

function build(root, ctx) {
  let rows = [];
  const body = el("div", { class: "panel-body" });
  const playback = player(ctx, {
    key: "row",
    label: "generate.player",
    count: () => rows.length,
    describe: (index) => sentence(rows, index, ctx),
    pause: 1400,
  });
  root.append(
    el("p", { class: "note", msg: "generate.intro" }),
    el(
      "div",
      { class: "controls" },
      numberField(ctx, "seed", "generate.seed", { min: 0, max: 9999, fallback: 0 }),
    ),
    playback.element,
    body,
  );
  root.addEventListener("keydown", playback.onKey);
  return fetchWhileShown(ctx, root, {
    body,
    player: playback,
    request: () => ({
      generate: [
        "generate",
        {
          subject: ctx.subject(),
          values: valuesOf(ctx.state),
          batch: ctx.state.batch ?? 0,
          head: ctx.state.head ?? 0,
        },
      ],
    }),
    viewState: () => ctx.state.row,
    draw(answers) {
      rows = answers.generate.rows;
      playback.show();
      body.replaceChildren(...(rows.length ? drawn(rows, playback.at(), ctx) : []));
    },
  });
}

function drawn(rows, index, ctx) {
  const row = rows[index];
  return [
    tokenList(rows, index),
    el("p", { class: "prose", text: sentence(rows, index, ctx) }),
    el(
      "div",
      { class: "columns close" },
      el("section", { class: "block" }, el("h3", { msg: "generate.matrix" }), decodedWeights(rows, index, ctx)),
      el("section", { class: "block" }, el("h3", { msg: "generate.weights" }), bars(rows, index, ctx)),
    ),
    el(
      "section",
      { class: "block pass" },
      el("h3", {}, el("span", { msg: "generate.output" }), verdict(row)),
      el("p", { class: "prose", msg: row.equal ? "generate.equal.says" : "generate.unequal.says" }),
      matrix({
        values: [row.alone, row.output],
        rows: [ctx.t("generate.alone"), ctx.t("generate.pass")],
        columns: row.output.map((_, place) => String(place)),
        name: ctx.t("generate.output"),
        t: ctx.t,
      }),
    ),
  ];
}

/** The tokens; those that are not generated yet are dimmed. */
function tokenList(rows, index) {
  const list = el("ol", { class: "tokens-so-far", label: "generate.tokens" });
  rows.forEach((row, place) => {
    const when = place < index ? "past" : place === index ? "now" : "later";
    list.append(
      el("li", {
        class: when,
        dir: "auto",
        "aria-current": when === "now" ? "step" : null,
        text: row.token,
      }),
    );
  });
  return list;
}

/** The softmax weights of the tokens so far. */
function decodedWeights(rows, index, ctx) {
  const upTo = rows.slice(0, index + 1);
  const keys = rows.slice(0, numKeys(upTo)).map((row) => row.token);
  const frame = matrix({
    values: upTo.map((row) => keys.map((_, key) => row.weights[key] ?? 0)),
    hidden: upTo.map((row) => keys.map((_, key) => !row.weights[key])),
    rows: upTo.map((row) => row.token),
    columns: keys,
    name: ctx.t("generate.matrix"),
    heat: "share",
    format: formatShare,
    t: ctx.t,
  });
  highlightCells(frame, index, null);
  return frame;
}

function bars(rows, index, ctx) {
  const { weights } = rows[index];
  const list = el("ul", { class: "bars" });
  rows.slice(0, Math.max(index + 1, numKeys([rows[index]]))).forEach((row, key) => {
    const weight = weights[key] ?? 0;
    const later = key > index;
    const bar = el("span", { class: later ? "bar first" : "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", weight.toFixed(4));
    const name = later ? `${row.token} (${ctx.t("generate.later")})` : row.token;
    list.append(
      el(
        "li",
        {},
        el("span", { class: "word", dir: "auto", text: name }),
        el("span", { class: "track" }, bar),
        el("span", { class: "value", text: formatPercent(weight) }),
      ),
    );
  });
  return list;
}

/** Number of keys that the rows attend to; larger than that of rows if the mask is not causal. */
function numKeys(rows) {
  const last = rows.map((row) => row.weights.findLastIndex((weight) => weight > 0));
  return Math.max(rows.length, ...last.map((key) => key + 1));
}

function verdict(row) {
  return el("span", {
    class: `verdict ${row.equal ? "good" : "bad"}`,
    msg: row.equal ? "generate.equal" : "generate.unequal",
  });
}

function sentence(rows, index, ctx) {
  const row = rows[index];
  return row
    ? ctx.t(index ? "generate.row" : "generate.row0", {
        row: row.position,
        token: row.token,
        count: index + 1,
      })
    : "";
}

export const panel = definePanel("generate", build);

addMessages({
  en: {
    "generate.title": "Generate",
    "generate.intro":
      "When generating, a model computes one row at a time, from the tokens so far. In training it computes all rows in one pass. With a causal mask both give the same result.",
    "generate.player": "Tokens",
    "generate.seed": "Seed",
    "generate.tokens": "Tokens so far",
    "generate.matrix": "Rows computed so far",
    "generate.weights": "Softmax weights of this row",
    "generate.output": "Output of this row",
    "generate.later": "later",
    "generate.alone": "step by step",
    "generate.pass": "in one pass",
    "generate.equal": "equal",
    "generate.unequal": "not equal",
    "generate.equal.says":
      "The row does not depend on later tokens, so it can be computed before they exist.",
    "generate.unequal.says":
      "This row attends to later tokens, so it cannot be computed one token at a time.",
    "generate.row": "Row {row}, “{token}”: computed from the first {count} tokens.",
    "generate.row0": "Row {row}, “{token}”: computed from this token alone.",
  },
  zh: {
    "generate.title": "逐步生成",
    "generate.intro":
      "生成时，模型每次只算一行，只用到目前为止的词元；训练时，所有行一次算完。使用因果掩码时，两者结果相同。",
    "generate.player": "逐个词元查看",
    "generate.seed": "随机种子",
    "generate.tokens": "目前的词元",
    "generate.matrix": "目前算出的行",
    "generate.weights": "这一行的 softmax 权重",
    "generate.output": "这一行的输出",
    "generate.later": "在后面",
    "generate.alone": "逐步计算",
    "generate.pass": "一次算完",
    "generate.equal": "相等",
    "generate.unequal": "不相等",
    "generate.equal.says": "这一行不依赖后面的词元，因此在它们出现之前就能算出。",
    "generate.unequal.says": "这一行关注后面的词元，所以无法逐个词元计算。",
    "generate.row": "第 {row} 行“{token}”：由前 {count} 个词元算出。",
    "generate.row0": "第 {row} 行“{token}”：只由这一个词元算出。",
  },
});
