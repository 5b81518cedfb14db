// Other views of the steps: the weights under three masks, and the effect of scaling.

import { addMessages } from "../i18n.js";
import { matrix } from "./matrix.js";
import { el } from "./panel.js";
import { formatShare, formatValue } from "./format.js";

const MASKS = ["none", "padding", "causal"];

/** Requests for the three masks with the same numbers. */
export function threeRequests(subject, rest) {
  const under = (expression, padding) => ["steps", { ...rest, subject: { ...subject, expression, padding } }];
  return {
    none: under("everything()", false),
    padding: under("everything()", true),
    causal: under("causal()", false),
  };
}

/** The weights without a mask, with the padding mask and with the causal mask. */
export function threeMasks(answers, subject, ctx) {
  const parts = MASKS.map((name) => {
    const weights = answers[name].steps.find((step) => step.name === "weights");
    const title = ctx.t(`views.${name}`);
    return el(
      "section",
      { class: "block" },
      el("h3", { text: title }),
      el("p", { class: "prose", msg: `views.${name}.says` }),
      matrix({
        ...weights,
        columns: weights.columns ?? weights.rows,
        name: title,
        heat: "share",
        format: formatShare,
        t: ctx.t,
      }),
    );
  });
  const columns = el("div", { class: "columns small" }, ...parts);
  columns.style.setProperty("--tokens", answers.none.steps.at(-1).values.length);
  const element = el(
    "div",
    { class: "stack" },
    el("p", { class: "note", msg: "views.masks.says" }),
    columns,
  );
  const padded = subject.tokens?.some((line) => line.includes("<PAD>"));
  if (!padded) element.prepend(example(ctx));
  return element;
}

/** Variance of the scores by head size, with and without dividing by √hs. */
export function scalingTable(rows, ctx) {
  const largest = Math.max(...rows.map((row) => row.variance));
  const head = ["size", "variance", "scaled", "sharp", "scaledsharp"].map((name) =>
    el("th", { scope: "col", msg: `views.scaling.${name}` }),
  );
  const body = rows.map((row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", text: String(row.head_size) }),
      barred(row.variance, row.variance / largest, "second"),
      barred(row.scaled_variance, row.scaled_variance / largest, "seen"),
      barred(row.sharpness, row.sharpness, "second"),
      barred(row.scaled_sharpness, row.scaled_sharpness, "seen"),
    ),
  );
  const table = el(
    "table",
    { class: "table scaling" },
    el("caption", { class: "hidden-label", msg: "views.scaling" }),
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...body),
  );
  const frame = el("div", { class: "matrix", label: "views.scaling", role: "region", tabindex: 0 }, table);
  return el("div", { class: "stack" }, el("p", { class: "prose", msg: "views.scaling.says" }), frame);
}

function barred(value, share, kind) {
  const bar = el("span", { class: `bar ${kind}`, "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.max(0, Math.min(1, share)).toFixed(4));
  return el("td", {}, el("span", { class: "value", text: formatValue(value) }), bar);
}

function example(ctx) {
  const text = ctx.state.lang === "zh" ? "我喜欢猫\n我很喜欢小猫" : "I like cats\nI really like small cats";
  const show = () =>
    ctx.replaceState({ text, side: "right", padding: true, batch: 0 }, ctx.t("views.replaced"));
  return el(
    "div",
    { class: "row" },
    el("p", { class: "note", msg: "views.nopad" }),
    el("button", { type: "button", class: "button", msg: "views.example", on: { click: show } }),
  );
}

addMessages({
  en: {
    "views.none": "No mask",
    "views.none.says": "Every token attends to all tokens, including padding and later tokens.",
    "views.padding": "Padding mask",
    "views.padding.says": "No token attends to <PAD>: its columns are masked.",
    "views.causal": "Causal mask",
    "views.causal.says": "No token attends to later tokens: the upper right is masked.",
    "views.masks.says":
      "The same scores under three masks. Each row of weights sums to 1.",
    "views.nopad": "These tokens contain no <PAD>, so the padding mask has no effect.",
    "views.example": "Use sentences of different lengths",
    "views.replaced": "The sentences were replaced by an example.",
    "views.scaling": "Scores with and without scaling, by head size",
    "views.scaling.says":
      "The variance of the scores QKᵀ grows with the head size, and softmax then gives nearly all weight to one key. Divided by √hs, the scores keep a variance near 1.",
    "views.scaling.size": "head size",
    "views.scaling.variance": "variance of QKᵀ",
    "views.scaling.scaled": "variance of QKᵀ/√hs",
    "views.scaling.sharp": "largest weight, unscaled",
    "views.scaling.scaledsharp": "largest weight, scaled",
  },
  zh: {
    "views.none": "不用掩码",
    "views.none.says": "每个词元都关注所有词元，包括填充和后面的词元。",
    "views.padding": "填充掩码",
    "views.padding.says": "没有词元关注 <PAD>，对应的列被屏蔽。",
    "views.causal": "因果掩码",
    "views.causal.says": "没有词元关注后面的词元，右上角被屏蔽。",
    "views.masks.says": "同样的注意力分数，三种掩码。每一行的权重之和都是 1。",
    "views.nopad": "这些词元里没有 <PAD>，所以填充掩码没有效果。",
    "views.example": "换成长短不一的句子",
    "views.replaced": "句子已替换为示例。",
    "views.scaling": "不同头维度下，缩放前后的分数",
    "views.scaling.says":
      "注意力分数 QKᵀ 的方差随头维度增大，softmax 会把几乎全部权重给一个键。除以 √hs 之后，方差保持在 1 左右。",
    "views.scaling.size": "头维度",
    "views.scaling.variance": "QKᵀ 的方差",
    "views.scaling.scaled": "QKᵀ/√hs 的方差",
    "views.scaling.sharp": "最大权重（未缩放）",
    "views.scaling.scaledsharp": "最大权重（已缩放）",
  },
});
