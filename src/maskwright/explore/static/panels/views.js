// Two more looks at the steps: the weights under three masks side by side, and what scaling is for.

import { add } from "../words.js";
import { matrix } from "./matrix.js";
import { make } from "./parts.js";
import { brief, shown } from "./numbers.js";

const THREE = ["none", "padding", "ahead"];

/** What to ask for the three masks: the same numbers, with and without each mask. */
export function threeRequests(subject, rest) {
  const under = (expression, padding) => ["steps", { ...rest, subject: { ...subject, expression, padding } }];
  return {
    none: under("everything()", false),
    padding: under("everything()", true),
    ahead: under("causal()", false),
  };
}

/** The weights under no mask, the padding mask and the look-ahead mask. */
export function threeMasks(answers, subject, ctx) {
  const parts = THREE.map((name) => {
    const weights = answers[name].steps.find((step) => step.name === "weights");
    const title = ctx.t(`views.${name}`);
    return make(
      "section",
      { class: "block" },
      make("h3", { text: title }),
      make("p", { class: "says", word: `views.${name}.says` }),
      matrix({
        ...weights,
        columns: weights.columns ?? weights.rows,
        name: title,
        heat: "share",
        write: brief,
        t: ctx.t,
      }),
    );
  });
  const abreast = make("div", { class: "abreast small" }, ...parts);
  abreast.style.setProperty("--tokens", answers.none.steps.at(-1).values.length);
  const element = make(
    "div",
    { class: "stack" },
    make("p", { class: "note", word: "views.masks.says" }),
    abreast,
  );
  const padded = subject.tokens?.some((line) => line.includes("<PAD>"));
  if (!padded) element.prepend(example(ctx));
  return element;
}

/** How the spread of the scores grows with the head size, and what dividing by √hs does about it. */
export function scalingTable(rows, ctx) {
  const largest = Math.max(...rows.map((row) => row.variance));
  const head = ["size", "variance", "scaled", "sharp", "scaledsharp"].map((name) =>
    make("th", { scope: "col", word: `views.scaling.${name}` }),
  );
  const body = rows.map((row) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", text: String(row.head_size) }),
      barred(row.variance, row.variance / largest, "second"),
      barred(row.scaled_variance, row.scaled_variance / largest, "seen"),
      barred(row.sharpness, row.sharpness, "second"),
      barred(row.scaled_sharpness, row.scaled_sharpness, "seen"),
    ),
  );
  const table = make(
    "table",
    { class: "table scaling" },
    make("caption", { class: "hidden-label", word: "views.scaling" }),
    make("thead", {}, make("tr", {}, ...head)),
    make("tbody", {}, ...body),
  );
  const frame = make("div", { class: "matrix", label: "views.scaling", role: "region", tabindex: 0 }, table);
  return make("div", { class: "stack" }, make("p", { class: "says", word: "views.scaling.says" }), frame);
}

function barred(value, share, kind) {
  const bar = make("span", { class: `bar ${kind}`, "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.max(0, Math.min(1, share)).toFixed(4));
  return make("td", {}, make("span", { class: "value", text: shown(value) }), bar);
}

function example(ctx) {
  const text = ctx.state.lang === "zh" ? "我喜欢猫\n我很喜欢小猫" : "I like cats\nI really like small cats";
  const show = () => ctx.set({ text, side: "right", padding: true, batch: 0 });
  return make(
    "div",
    { class: "row" },
    make("p", { class: "note", word: "views.nopad" }),
    make("button", { type: "button", class: "button", word: "views.example", on: { click: show } }),
  );
}

add({
  en: {
    "views.none": "No mask",
    "views.none.says": "Every token sees every token, also padding and what comes later.",
    "views.padding": "Padding mask",
    "views.padding.says": "Nobody sees <PAD>; its columns are hidden.",
    "views.ahead": "Look-ahead mask",
    "views.ahead.says": "Nobody sees what comes later; the upper right is hidden.",
    "views.masks.says":
      "The same numbers three times; only the mask differs. Each row of weights adds up to 1.",
    "views.nopad": "There is no <PAD> in these tokens, so the padding mask hides nothing.",
    "views.example": "Use sentences of unequal length",
    "views.scaling": "Scores with and without scaling, by head size",
    "views.scaling.says":
      "With larger heads the scores QKᵀ spread more: their variance grows like the head size, and softmax gives nearly all weight to one key. Divided by √hs they keep a variance near 1.",
    "views.scaling.size": "head size",
    "views.scaling.variance": "variance of QKᵀ",
    "views.scaling.scaled": "variance of QKᵀ/√hs",
    "views.scaling.sharp": "largest weight, unscaled",
    "views.scaling.scaledsharp": "largest weight, scaled",
  },
  zh: {
    "views.none": "不用掩码",
    "views.none.says": "每个词元都能看到所有词元，包括填充和后面的内容。",
    "views.padding": "填充掩码",
    "views.padding.says": "谁也看不到 <PAD>，对应的列被遮住。",
    "views.ahead": "前瞻掩码（因果）",
    "views.ahead.says": "谁也看不到后面的词元，右上角被遮住。",
    "views.masks.says": "三张表用的是同一组数，只有掩码不同。每一行的权重之和都是 1。",
    "views.nopad": "这些词元里没有 <PAD>，所以填充掩码什么也没有遮住。",
    "views.example": "换成长短不一的句子",
    "views.scaling": "不同头维度下，缩放前后的分数",
    "views.scaling.says":
      "头维度越大，分数 QKᵀ 越分散：方差大致与头维度成正比，softmax 会把几乎全部权重给一个键。除以 √hs 之后，方差保持在 1 左右。",
    "views.scaling.size": "头维度",
    "views.scaling.variance": "QKᵀ 的方差",
    "views.scaling.scaled": "QKᵀ/√hs 的方差",
    "views.scaling.sharp": "最大权重（未缩放）",
    "views.scaling.scaledsharp": "最大权重（已缩放）",
  },
});
