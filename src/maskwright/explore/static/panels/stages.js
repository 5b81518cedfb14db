// The stages of attention, from X to the output: a strip of names to go by, and a card for each.

import { add } from "../words.js";
import { light, matrix } from "./matrix.js";
import { make, spoken } from "./parts.js";
import { shape, shown } from "./numbers.js";

// What each stage is made of, how the shapes meet, and which parts of its sources a cell comes from.
const WAYS = {
  q: { from: ["x"], way: "(T, C) · (C, hs) → (T, hs)", needs: (row) => [[row, null]] },
  k: { from: ["x"], way: "(T, C) · (C, hs) → (T, hs)", needs: (row) => [[row, null]] },
  v: { from: ["x"], way: "(T, C) · (C, hs) → (T, hs)", needs: (row) => [[row, null]] },
  scores: {
    from: ["q", "k"],
    way: "(T, hs) · (hs, T) → (T, T)",
    needs: (row, column) => [
      [row, null],
      [column, null],
    ],
  },
  scaled: { from: ["scores"], way: "(T, T) → (T, T)", needs: (row, column) => [[row, column]] },
  masked: { from: ["scaled", "scores"], way: "(T, T) → (T, T)", needs: (row, column) => [[row, column]] },
  weights: { from: ["masked"], way: "(T, T) → (T, T)", needs: (row) => [[row, null]] },
  output: {
    from: ["weights", "v"],
    way: "(T, T) · (T, hs) → (T, hs)",
    needs: (row, column) => [
      [row, null],
      [null, column],
    ],
  },
};
// Where a stage may have come from either of two, the nearest that is there.
const EITHER = new Set(["masked"]);

/** The strip: every stage with its shape; the one being looked at is marked. */
export function strip(steps, now, ctx, choose) {
  const list = make("ol", { class: "strip", label: "stages.strip" });
  steps.forEach((step, index) => {
    const button = make(
      "button",
      { type: "button", "aria-current": index === now ? "step" : null, on: { click: () => choose(index) } },
      make("span", { class: "name", text: sign(step) }),
      make("span", { class: "shape", text: shape(step.axes ?? step.shape) }),
    );
    list.append(make("li", {}, button));
  });
  return list;
}

/** All stages, one below the other. */
export function all(steps, ctx) {
  return make("div", { class: "stages" }, ...steps.map((step) => card(step, ctx)));
}

/** One stage beside what it is made of; pointing at a cell shows where it comes from. */
export function one(steps, index, ctx) {
  const step = steps[index];
  const known = WAYS[step.name];
  let names = known?.from.filter((name) => steps.some((other) => other.name === name)) ?? [];
  if (EITHER.has(step.name)) names = names.slice(0, 1);
  const sources = names.map((name) => steps.find((other) => other.name === name));
  const frames = sources.map((source) => table(source, ctx));
  const onCell = (row, column) => {
    const needs = row === null ? [] : known.needs(row, column);
    frames.forEach((frame, place) => light(frame, ...(needs[place] ?? [null, null])));
  };
  const result = card(step, ctx, sources.length ? onCell : null);
  result.classList.add("coming");
  const parts = [result];
  if (sources.length) {
    const made = sources.map((source, place) => make("figure", {}, label(source), frames[place]));
    parts.push(
      make(
        "div",
        { class: "sources" },
        make("h4", { word: "stages.from" }),
        make("div", { class: "pair" }, ...made),
      ),
    );
    parts.push(make("p", { class: "note", word: "stages.point" }));
  }
  return make("div", { class: "stages single" }, ...parts);
}

function card(step, ctx, onCell = null) {
  const lang = ctx.state.lang;
  // Small matrices stand beside each other where there is room.
  const narrow = step.values[0]?.length <= 4 && step.name !== "output";
  return make(
    "section",
    { class: narrow ? "block narrow" : "block" },
    make(
      "h3",
      {},
      make("span", { text: spoken(step.title, lang) }),
      make("span", { class: "shape", text: sizes(step) }),
    ),
    make("p", { class: "formula" }, make("code", { text: step.formula }), way(step)),
    make("p", { class: "says", text: spoken(step.says, lang) }),
    table(step, ctx, onCell),
  );
}

function table(step, ctx, onCell = null) {
  return matrix({
    values: step.values,
    hidden: step.hidden,
    rows: step.rows,
    columns: step.columns ?? step.values[0]?.map((_, index) => String(index)),
    name: `${sign(step)} ${shape(step.shape)}`,
    heat: step.name === "weights" ? "share" : "signed",
    write: step.name === "weights" && step.values.length <= 5 ? byHand : shown,
    t: ctx.t,
    onCell,
  });
}

// Few weights are checked by hand, so they have more places.
const byHand = (value) => shown(value, 4);

function label(step) {
  return make(
    "figcaption",
    {},
    make("span", { class: "name", text: sign(step) }),
    " ",
    make("span", { class: "shape", text: shape(step.shape) }),
  );
}

// Matrices are written by a capital letter.
export function sign(step) {
  return step.name.length === 1 ? step.name.toUpperCase() : step.name;
}

function sizes(step) {
  return step.axes ? `${shape(step.axes)} = ${shape(step.shape)}` : shape(step.shape);
}

function way(step) {
  const known = WAYS[step.name];
  return known ? make("span", { class: "way", text: known.way }) : null;
}

add({
  en: {
    "stages.strip": "Stages of the calculation",
    "stages.from": "made of",
    "stages.point": "Point at a cell to see which numbers it comes from.",
  },
  zh: {
    "stages.strip": "计算的各个阶段",
    "stages.from": "由此得来",
    "stages.point": "把指针移到某个格子上，可以看到它由哪些数算出。",
  },
});
