// The editor of the expression: syntax colours, the position of an error, suggestions, the simpler form.

import { autocomplete } from "./autocomplete.js";
import { byId, h } from "./dom.js";
import { checkpoint } from "./history.js";
import { t } from "./i18n.js";
import { onMask } from "./mask_loader.js";
import { fittingExample, showPresets, startPresets } from "./presets.js";
import { showSliders } from "./sliders.js";
import { set, state, subscribe } from "./state.js";

let vocabulary = { atoms: [], recipes: [] };
let errorRange = null; // [start, stop) of the error, in UTF-16 units
let lastSimplified = null;
const box = byId("expression");
const back = byId("expression-back");

/** Start the card with a promise of the vocabulary. */
export function startExpressionEditor(promise) {
  startBox();
  startPresets();
  onMask(showAnswer);
  subscribe((_, keys) => {
    if (keys.has("expression")) showText();
    if (keys.has("lang")) {
      showPresets(vocabulary);
      showSimplified(lastSimplified);
      showSignature();
    }
  });
  showText();
  new ResizeObserver(grow).observe(byId("editor"));
  promise.then(setVocabulary, (error) => (byId("expression-error").textContent = error.message));
}

function setVocabulary(loaded) {
  vocabulary = loaded;
  byId("version").textContent = loaded.version ?? "";
  showPresets(vocabulary);
  paint();
}

// The box ------------------------------------------------------------------------------------

function startBox() {
  const list = autocomplete({
    box,
    list: byId("suggestions"),
    find: findSuggestions,
    accept: insertSuggestion,
    position: positionOf,
    onOpen: (n) => (byId("announcer").textContent = t("suggestions_n", { n })),
  });
  box.addEventListener("input", (event) => {
    errorRange = null; // of the text before
    set({ expression: box.value });
    if (event.inputType?.startsWith("insert") && !event.isComposing) list.open();
    else list.close();
  });
  for (const name of ["keyup", "click", "focus"]) box.addEventListener(name, showSignature);
}

function showText() {
  if (box.value !== state.expression) {
    box.value = state.expression;
    errorRange = null;
  }
  paint();
  grow();
  showSignature();
}

function grow() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

/** Replace [start, stop) by `text`; insertText keeps the undo of the text field. */
function insert(text, start, stop) {
  box.focus({ preventScroll: true });
  box.setSelectionRange(start, stop);
  if (!document.execCommand("insertText", false, text)) box.setRangeText(text, start, stop, "end");
  set({ expression: box.value });
}

const PIECES = /[A-Za-z_]\w*|\d+|[&|~-]|[^A-Za-z_\d&|~-]+/gu;

function paint() {
  const names = new Set([...vocabulary.atoms, ...vocabulary.recipes].map((entry) => entry.name));
  const parts = [];
  for (const { 0: piece, index } of box.value.matchAll(PIECES)) {
    for (const [text, at] of cut(piece, index)) parts.push(span(text, classOf(piece, names), at));
  }
  if (errorRange && errorRange[0] >= box.value.length) parts.push(h("span", { class: "is-error" }, "\u00a0"));
  back.replaceChildren(...parts);
}

// A piece is cut where the error begins and ends.
function cut(piece, index) {
  const places = (errorRange ?? []).map((at) => at - index).filter((at) => at > 0 && at < piece.length);
  const edges = [0, ...new Set(places), piece.length];
  return edges.slice(1).map((stop, n) => [piece.slice(edges[n], stop), index + edges[n]]);
}

function classOf(piece, names) {
  if (/^\d/.test(piece)) return "is-number";
  if (/^[&|~-]$/.test(piece)) return "is-operator";
  return names.has(piece) ? "is-atom" : "";
}

function span(text, name, at) {
  const isError = errorRange && at >= errorRange[0] && at < errorRange[1];
  const classes = `${name} ${isError ? "is-error" : ""}`.trim();
  return classes ? h("span", { class: classes }, text) : text;
}

function positionOf(start) {
  const range = document.createRange();
  let left = start;
  for (const node of textNodes(back)) {
    if (left <= node.length) {
      range.setStart(node, left);
      break;
    }
    left -= node.length;
  }
  const spot = range.getBoundingClientRect();
  const frame = byId("editor").getBoundingClientRect();
  return { left: spot.left - frame.left - 12, top: spot.bottom - frame.top };
}

function* textNodes(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) yield walker.currentNode;
}

// Suggestions --------------------------------------------------------------------------------

const signatureOf = ({ name, signature = "()" }) =>
  signature.startsWith(name) ? signature : `${name}${signature}`;

function findSuggestions(word) {
  const low = word.toLowerCase();
  const entries = [
    ...vocabulary.atoms.map((atom) => ({
      ...atom,
      key: atom.name,
      label: signatureOf(atom),
    })),
    ...vocabulary.recipes.map((recipe) => ({ ...recipe, key: recipe.name, label: recipe.name })),
  ];
  const at = (entry) => entry.key.toLowerCase().indexOf(low);
  const matches = entries.filter((entry) => at(entry) >= 0 && (low.length > 1 || at(entry) === 0));
  return matches.sort((a, b) => Math.sign(at(a)) - Math.sign(at(b)));
}

function insertSuggestion(item, start, stop) {
  const called = box.value[stop] === "("; // the arguments are there already
  const text = called ? item.key : (item.expression ?? fittingExample(item) ?? item.example);
  insert(text, start, stop);
  // The arguments of an example are selected, so that typing replaces them.
  const isCall = text.startsWith(`${item.key}(`) && !text.endsWith("()");
  if (!called && isCall) box.setSelectionRange(start + item.key.length + 1, start + text.length - 1);
  showSignature();
}

/** Show the signature of the atom at the caret below the editor. */
function showSignature() {
  const name = callAround(box.value, box.selectionStart);
  const atom =
    document.activeElement === box && vocabulary.atoms.find((entry) => entry.name === name);
  byId("signature").classList.toggle("is-hint", !atom);
  byId("signature").replaceChildren(
    ...(atom ? [h("code", {}, signatureOf(atom)), ` ${atom.summary}`] : [t("expression_hint")]),
  );
}

function callAround(text, caret) {
  let depth = 0;
  for (let at = caret - 1; at >= 0; at -= 1) {
    if (text[at] === ")") depth += 1;
    if (text[at] === "(" && depth === 0)
      return /[A-Za-z_]\w*$/.exec(text.slice(0, at))?.[0] ?? null;
    if (text[at] === "(") depth -= 1;
  }
  return null;
}

// Responses -----------------------------------------------------------------------

function showAnswer({ answer, error, expression }) {
  const isInvalid = error && (error.at || error.status === 422);
  errorRange = error?.at ? error.at.map((offset) => utf16Offset(expression, offset)) : null;
  if (errorRange && errorRange[1] <= errorRange[0]) errorRange[1] = errorRange[0] + 1;
  byId("editor").classList.toggle("wrong", Boolean(isInvalid));
  if (isInvalid) box.setAttribute("aria-invalid", "true");
  else box.removeAttribute("aria-invalid");
  byId("expression-error").textContent = isInvalid ? error.message : "";
  paint();
  if (!answer) return;
  if (expression !== state.expression) return; // positions of an earlier text
  lastSimplified = answer.simplified;
  showSimplified(answer.simplified);
  showSliders(answer.numbers);
}

/** Offsets of the server count code points, those of the text field UTF-16 units. */
function utf16Offset(text, offset) {
  return [...text].slice(0, offset).join("").length;
}

function showSimplified(simplified) {
  const compact = (text) => text.replace(/\s+/g, "");
  // The server adds the padding of the sentences, which is not part of the expression.
  const isOwn = !simplified?.includes("padding(keep=") || state.expression.includes("keep");
  const isShorter = simplified && isOwn && compact(simplified) !== compact(state.expression);
  byId("simpler").replaceChildren(
    ...(isShorter
      ? [
          `${t("simplified")} `,
          h(
            "button",
            {
              type: "button",
              class: "chip",
              "aria-label": t("simplified_use", { text: simplified }),
              onclick: () => {
                checkpoint();
                set({ expression: simplified });
              },
            },
            simplified,
          ),
        ]
      : []),
  );
}
