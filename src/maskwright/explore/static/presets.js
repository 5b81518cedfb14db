// Masks to start from: a click on an atom or a recipe replaces the expression, or extends it.

import { byId, h } from "./dom.js";
import { checkpoint } from "./history.js";
import { t } from "./i18n.js";
import { set, sizes, state, subscribe } from "./state.js";
import { replaceState } from "./toast.js";

const COMMON = "causal window prefix padding documents chunks stride keys queries everything";
const NO_SIZES = { keys: null, q_start: null, batches: null, heads: null };
const NO_SELECTION = { view: null, batch: 0, head: 0, query: null, key: null };

let operator = ""; // "&" or "|": combine the next preset with the expression

/** Connect the buttons. */
export function startPresets() {
  byId("combine").addEventListener("click", (event) => {
    const { operator: pressed } = event.target.dataset;
    if (pressed !== undefined) setOperator(pressed === operator ? "" : pressed);
  });
  byId("negate").addEventListener("click", () => {
    checkpoint();
    set({ expression: negate(state.expression.trim()) });
  });
  subscribe((_, keys) => keys.has("lang") && setOperator(operator));
  setOperator("");
}

function setOperator(value) {
  operator = value;
  for (const button of byId("combine").querySelectorAll("[data-operator]")) {
    button.setAttribute("aria-pressed", String(button.dataset.operator === operator));
  }
  byId("combine-hint").textContent = operator ? t("combine_hint", { operator }) : "";
}

/** Show the atoms and recipes of a vocabulary. */
export function showPresets({ atoms, recipes }) {
  const common = COMMON.split(" ")
    .map((name) => atoms.find((atom) => atom.name === name))
    .filter(Boolean);
  const rest = atoms.filter((atom) => !common.includes(atom));
  byId("atoms").replaceChildren(...common.map(atomChip));
  byId("more-atoms").replaceChildren(...rest.map(atomChip));
  byId("recipes").replaceChildren(...recipes.map(recipeChip));
}

const atomChip = (atom) =>
  chip(atom.name, `${atom.summary}\n${atom.example}`, () => apply(atom.name, atom.example, atom));

const recipeChip = (recipe) =>
  chip(recipe.name, recipe.summary, () => apply(recipe.name, recipe.expression, recipe));

function chip(name, title, click) {
  const button = h("button", { type: "button", class: "chip code-chip", title }, name);
  button.addEventListener("click", () => {
    click();
    button.focus({ preventScroll: true });
  });
  return button;
}

/** An example of an atom that fits the current tokens, or null if there is none. */
export function fittingExample({ name, example, size, least }) {
  const { queries, keys, batch } = sizes();
  if (fits({ size, least })) return example;
  const length = Math.min(queries, keys);
  return length < 2 ? null : (SHORTER[name]?.(length, batch ?? 1) ?? null);
}

// Examples for fewer or more tokens than those of the vocabulary.
const SHORTER = {
  padding: (length, batch) =>
    `padding(lengths=[${Array.from({ length: batch }, (_, n) => (n ? length : length - 1)).join(", ")}])`,
  documents: (length) =>
    `documents(lengths=[[${Math.floor(length / 2)}, ${Math.ceil(length / 2)}]])`,
  graph: (length) => (length > 2 ? "graph([[0, 1], [1, 2]])" : "graph([[0, 1]])"),
  tree: (length) =>
    length > 32
      ? null
      : `tree([${Array.from({ length }, (_, n) => Math.floor((n - 1) / 2)).join(", ")}])`,
};

function fits({ size, least }) {
  const { queries, keys } = sizes();
  return size ? queries === size && keys === size : Math.min(queries, keys) >= (least ?? 1);
}

/** Use a preset; on its own number of tokens if it does not fit the current ones. */
function apply(name, example, entry) {
  const fitting = fittingExample({ ...entry, name, example });
  const old = state.expression.trim();
  const sign = operator;
  setOperator("");
  if (fitting !== null && sign) {
    const expression = combine(old, fitting, sign);
    replaceState({ expression }, t("preset_added", { name, operator: sign }));
  } else if (fitting !== null) {
    // Batch size and heads that were set for the old mask may contradict the new one.
    const changes = { expression: fitting, batches: null, heads: null };
    if (fitting !== old) replaceState(changes, t("preset_replaced", { old: shorten(old), name }));
  } else {
    const size = entry.size ?? entry.least;
    const text = state.text === null ? "preset_resized" : "preset_without_sentences";
    replaceState(
      { expression: example, text: null, size, ...NO_SIZES, ...NO_SELECTION },
      t(text, { old: shorten(old), name, size }),
    );
  }
}

const shorten = (text) => (text.length > 40 ? `${text.slice(0, 39)}…` : text);

function combine(old, added, sign) {
  if (!old || !sign) return added;
  return sign === "|" ? `${old} | ${added}` : `${bracket(old)} & ${bracket(added)}`;
}

const CALL = /^\w+(?=\()/;

function negate(text) {
  if (text.startsWith("~")) {
    const rest = text.slice(1).trim();
    if (isBracketed(rest)) return rest.slice(1, -1);
    if (isBracketed(rest.replace(CALL, ""))) return rest;
  }
  return isBracketed(text.replace(CALL, "")) ? `~${text}` : `~(${text})`;
}

/** Whether the bracket that opens the text is closed by its last character. */
function isBracketed(text) {
  let depth = 0;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "(") depth += 1;
    if (text[at] === ")") depth -= 1;
    if (depth === 0) return at > 0 && at === text.length - 1;
  }
  return false;
}

// & binds tighter than |.
function bracket(text) {
  let depth = 0;
  for (const letter of text) {
    if ("([".includes(letter)) depth += 1;
    if (")]".includes(letter)) depth -= 1;
    if (letter === "|" && depth === 0) return `(${text})`;
  }
  return text;
}
