// The stages of attention, from X to the output: a strip of buttons, and a card per stage.

import { addMessages, t } from "../i18n.js";
import { highlightCells, matrix } from "./matrix.js";
import { el, localized } from "./panel.js";
import { formatShape, formatValue } from "./format.js";

// The inputs of each stage, the shapes, and which part of each input a cell depends on.
const STAGES = {
  q: { from: ["x"], way: "(T, C) · (C, hs) → (T, hs)", inputs: (row) => [[row, null]] },
  k: { from: ["x"], way: "(T, C) · (C, hs) → (T, hs)", inputs: (row) => [[row, null]] },
  v: { from: ["x"], way: "(T, C) · (C, hs) → (T, hs)", inputs: (row) => [[row, null]] },
  scores: {
    from: ["q", "k"],
    way: "(T, hs) · (hs, T) → (T, T)",
    inputs: (row, column) => [
      [row, null],
      [column, null],
    ],
  },
  scaled: { from: ["scores"], way: "(T, T) → (T, T)", inputs: (row, column) => [[row, column]] },
  capped: { from: ["scaled", "scores"], way: "(T, T) → (T, T)", inputs: (row, column) => [[row, column]] },
  biased: {
    from: ["bias", "capped", "scaled", "scores"],
    way: "(T, T) + (T, T) → (T, T)",
    inputs: (row, column) => [
      [row, column],
      [row, column],
    ],
  },
  masked: { from: ["biased", "capped", "scaled", "scores"], way: "(T, T) → (T, T)", inputs: (row, column) => [[row, column]] },
  weights: { from: ["masked"], way: "(T, T) → (T, T)", inputs: (row) => [[row, null]] },
  sink: { from: ["weights"], way: "(T, T) → (T, 1)", inputs: (row) => [[row, null]] },
  output: {
    from: ["weights", "v"],
    way: "(T, T) · (T, hs) → (T, hs)",
    inputs: (row, column) => [
      [row, null],
      [null, column],
    ],
  },
};
// Stages with alternative inputs: as many of the first that exist are used.
const ALTERNATIVES = { capped: 1, biased: 2, masked: 1 };

/** A strip of buttons: every stage with its shape; the current one is marked. */
export function stageStrip(steps, now, ctx, choose) {
  const list = el("ol", { class: "strip", label: "stages.strip" });
  steps.forEach((step, index) => {
    const button = el(
      "button",
      { type: "button", "aria-current": index === now ? "step" : null, on: { click: () => choose(index) } },
      el("span", { class: "name", text: symbol(step) }),
      el("span", { class: "shape", text: formatShape(step.axes ?? step.shape) }),
    );
    list.append(el("li", {}, button));
  });
  return list;
}

/** All stages, one below the other. */
export function allStages(steps, ctx) {
  return el("div", { class: "stages" }, ...steps.map((step) => card(step, ctx)));
}

/** One stage with its inputs; the pointer on a cell highlights what it depends on. */
export function oneStage(steps, index, ctx) {
  const step = steps[index];
  const known = STAGES[step.name];
  let names = known?.from.filter((name) => steps.some((other) => other.name === name)) ?? [];
  if (step.name in ALTERNATIVES) names = names.slice(0, ALTERNATIVES[step.name]);
  const sources = names.map((name) => steps.find((other) => other.name === name));
  const frames = sources.map((source) => table(source, ctx));
  const onCell = (row, column) => {
    const inputs = row === null ? [] : known.inputs(row, column);
    frames.forEach((frame, place) => highlightCells(frame, ...(inputs[place] ?? [null, null])));
  };
  const result = card(step, ctx, sources.length ? onCell : null);
  result.classList.add("coming");
  const parts = [result];
  if (sources.length) {
    const figures = sources.map((source, place) => el("figure", {}, label(source), frames[place]));
    parts.push(
      el(
        "div",
        { class: "sources" },
        el("h4", { msg: "stages.from" }),
        el("div", { class: "pair" }, ...figures),
      ),
    );
    parts.push(el("p", { class: "note", msg: "stages.point" }));
  }
  return el("div", { class: "stages single" }, ...parts);
}

function card(step, ctx, onCell = null) {
  const lang = ctx.state.lang;
  // Small matrices share a row.
  const narrow = step.values[0]?.length <= 4 && step.name !== "output";
  return el(
    "section",
    { class: narrow ? "block narrow" : "block" },
    el(
      "h3",
      {},
      el("span", { text: localized(step.title, lang) }),
      el("span", { class: "shape", text: sizes(step) }),
    ),
    el("p", { class: "formula" }, el("code", { text: step.formula }), way(step)),
    el("p", { class: "prose", text: localized(step.says, lang) }),
    table(step, ctx, onCell),
  );
}

function table(step, ctx, onCell = null) {
  return matrix({
    values: step.values,
    hidden: step.hidden,
    rows: step.rows,
    columns: step.columns ?? step.values[0]?.map((_, index) => String(index)),
    name: `${symbol(step)} ${formatShape(step.shape)}`,
    heat: step.name === "weights" ? "share" : "signed",
    format: step.name === "weights" && step.values.length <= 5 ? precise : formatValue,
    t: ctx.t,
    onCell,
  });
}

// A few weights get more digits, so that they can be checked by hand.
const precise = (value) => formatValue(value, 4);

function label(step) {
  return el(
    "figcaption",
    {},
    el("span", { class: "name", text: symbol(step) }),
    " ",
    el("span", { class: "shape", text: formatShape(step.shape) }),
  );
}

// X, Q, K and V have capital letters, the other stages a short name.
function symbol(step) {
  return step.name.length === 1 ? step.name.toUpperCase() : t(`stages.${step.name}`);
}

function sizes(step) {
  return step.axes ? `${formatShape(step.axes)} = ${formatShape(step.shape)}` : formatShape(step.shape);
}

function way(step) {
  const known = STAGES[step.name];
  return known ? el("span", { class: "way", text: known.way }) : null;
}

addMessages({
  en: {
    "stages.strip": "Stages of the computation",
    "stages.from": "inputs",
    "stages.point": "Point at a cell to see which numbers it depends on.",
    "stages.scores": "scores",
    "stages.scaled": "scaled",
    "stages.capped": "capped",
    "stages.bias": "bias",
    "stages.biased": "biased",
    "stages.masked": "masked",
    "stages.weights": "weights",
    "stages.sink": "sink",
    "stages.output": "output",
  },
  zh: {
    "stages.strip": "计算的各个阶段",
    "stages.from": "输入",
    "stages.point": "把指针移到某个格子上，可以看到它由哪些数算出。",
    "stages.scores": "分数",
    "stages.scaled": "缩放",
    "stages.capped": "软上限",
    "stages.bias": "偏置",
    "stages.biased": "加偏置",
    "stages.masked": "掩码",
    "stages.weights": "权重",
    "stages.sink": "注意力汇",
    "stages.output": "输出",
  },
});
