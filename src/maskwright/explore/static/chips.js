// Atoms and recipes as chips: a click joins one to the mask by & or |, or replaces it.

import { byId, h } from "./dom.js";
import { set, sizes, state } from "./state.js";
import { t } from "./words.js";

const COMMON = "causal window prefix padding documents chunks stride keys queries everything";
let join = "&";
let write = () => {};

/** Start the buttons; `write(text)` puts a text into the box. */
export function startChips(writer) {
  write = writer;
  byId("join").addEventListener("click", (event) => {
    if (event.target.dataset.join === undefined) return;
    join = event.target.dataset.join;
    showJoin();
  });
  byId("negate").addEventListener("click", () => write(negated(state.expression.trim())));
  showJoin();
}

function showJoin() {
  for (const button of byId("join").querySelectorAll("[data-join]")) {
    button.setAttribute("aria-pressed", String(button.dataset.join === join));
  }
}

/** Show the chips of a vocabulary. */
export function showChips({ atoms, recipes }) {
  const common = COMMON.split(" ")
    .map((name) => atoms.find((atom) => atom.name === name))
    .filter(Boolean);
  const rest = atoms.filter((atom) => !common.includes(atom));
  byId("atoms").replaceChildren(...common.map(atomChip));
  byId("more-atoms").replaceChildren(...rest.map(atomChip));
  byId("recipes").replaceChildren(...recipes.map(recipeChip));
}

const atomChip = ({ name, summary, example, size, least }) =>
  chip(name, `${summary}\n${example}`, () => put(name, example, size, least));

const recipeChip = ({ name, summary, expression, size }) =>
  chip(name, summary, () => put(name, expression, size));

/** Join a piece to the mask, or show it alone on its own size where it does not fit this one. */
function put(name, piece, size, least = 1) {
  const { queries, keys } = sizes();
  const fits = size ? queries === size && keys === size : Math.min(queries, keys) >= (least ?? 1);
  if (fits) {
    write(joined(state.expression.trim(), piece));
    return;
  }
  const own = size ?? least;
  set({
    text: null,
    size: own,
    keys: null,
    q_start: null,
    batches: null,
    heads: null,
    view: null,
    batch: 0,
    head: 0,
  });
  write(piece);
  byId("said").textContent = t("recipe_sized", { name, size: own });
}

function chip(name, title, click) {
  const button = h("button", { type: "button", class: "chip code-chip", title }, name);
  button.addEventListener("click", () => {
    click();
    button.focus({ preventScroll: true }); // so that the next chip is one key away
  });
  return button;
}

function joined(old, piece) {
  if (!old || !join) return piece;
  if (join === "|") return `${old} | ${piece}`;
  return `${bracketed(old)} & ${bracketed(piece)}`;
}

const CALL = /^\w+(?=\()/;

function negated(text) {
  if (text.startsWith("~")) {
    const rest = text.slice(1).trim();
    if (isOneBracket(rest)) return rest.slice(1, -1);
    if (isOneBracket(rest.replace(CALL, ""))) return rest;
  }
  return isOneBracket(text.replace(CALL, "")) ? `~${text}` : `~(${text})`;
}

/** Does the bracket that opens the text close at its very end? */
function isOneBracket(text) {
  let depth = 0;
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "(") depth += 1;
    if (text[at] === ")") depth -= 1;
    if (depth === 0) return at > 0 && at === text.length - 1;
  }
  return false;
}

// & binds tighter than |.
function bracketed(text) {
  let depth = 0;
  for (const letter of text) {
    if ("([".includes(letter)) depth += 1;
    if (")]".includes(letter)) depth -= 1;
    if (letter === "|" && depth === 0) return `(${text})`;
  }
  return text;
}
