// The mask as text: its colours, the place of an error, suggestions, the simpler form.

import { onAnswer } from "./answer.js";
import { showChips, startChips } from "./chips.js";
import { completion } from "./completion.js";
import { byId, h } from "./dom.js";
import { showSliders } from "./sliders.js";
import { set, state, subscribe } from "./state.js";
import { t } from "./words.js";

let vocabulary = { atoms: [], recipes: [] };
let wrong = null; // [start, stop) of the error, in the text's own units
let lastSimplified = null;
const box = byId("expression");
const back = byId("expression-back");

/** Start the card, with the promise of the vocabulary. */
export function startExpression(promised) {
  startBox();
  startChips(write);
  onAnswer(showAnswer);
  subscribe((_, keys) => {
    if (keys.has("expression")) showText();
    if (keys.has("lang")) {
      showChips(vocabulary);
      showSimplified(lastSimplified);
      showSignature();
    }
  });
  showText();
  new ResizeObserver(grow).observe(byId("editor"));
  promised.then(learn, (error) => (byId("expression-error").textContent = error.message));
}

function learn(words) {
  vocabulary = words;
  byId("version").textContent = words.version ?? "";
  showChips(vocabulary);
  paint();
}

// The box ------------------------------------------------------------------------------------

function startBox() {
  const list = completion({
    box,
    list: byId("suggestions"),
    find: suggestions,
    take: takeSuggestion,
    place: placeOf,
    opened: (n) => (byId("said").textContent = t("suggestions_n", { n })),
  });
  box.addEventListener("input", (event) => {
    wrong = null; // the place is of the text before
    set({ expression: box.value });
    if (event.inputType?.startsWith("insert") && !event.isComposing) list.open();
    else list.close();
  });
  for (const name of ["keyup", "click", "focus"]) box.addEventListener(name, showSignature);
}

function showText() {
  if (box.value !== state.expression) {
    box.value = state.expression;
    wrong = null;
  }
  paint();
  grow();
  showSignature();
}

function grow() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

/** Write `text` in place of [start, stop), so that the browser's own undo knows of it. */
function write(text, start = 0, stop = box.value.length) {
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
  if (wrong && wrong[0] >= box.value.length) parts.push(h("span", { class: "is-wrong" }, "\u00a0"));
  back.replaceChildren(...parts);
}

// A piece is cut where the error begins and ends.
function cut(piece, index) {
  const places = (wrong ?? []).map((at) => at - index).filter((at) => at > 0 && at < piece.length);
  const edges = [0, ...new Set(places), piece.length];
  return edges.slice(1).map((stop, n) => [piece.slice(edges[n], stop), index + edges[n]]);
}

function classOf(piece, names) {
  if (/^\d/.test(piece)) return "is-number";
  if (/^[&|~-]$/.test(piece)) return "is-sign";
  return names.has(piece) ? "is-atom" : "";
}

function span(text, name, at) {
  const isWrong = wrong && at >= wrong[0] && at < wrong[1];
  const classes = `${name} ${isWrong ? "is-wrong" : ""}`.trim();
  return classes ? h("span", { class: classes }, text) : text;
}

function placeOf(start) {
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

function suggestions(word) {
  const low = word.toLowerCase();
  const entries = [
    ...vocabulary.atoms.map((atom) => ({
      ...atom,
      name: signatureOf(atom),
      key: atom.name,
      says: atom.summary,
    })),
    ...vocabulary.recipes.map((recipe) => ({ ...recipe, key: recipe.name, says: recipe.summary })),
  ];
  const at = (entry) => entry.key.toLowerCase().indexOf(low);
  const found = entries.filter((entry) => at(entry) >= 0 && (low.length > 1 || at(entry) === 0));
  return found.sort((one, other) => Math.sign(at(one)) - Math.sign(at(other)));
}

function takeSuggestion(item, start, stop) {
  if (item.expression !== undefined) {
    write(item.expression, start, stop);
    return;
  }
  const called = box.value[stop] === "("; // the brackets are there already
  write(called ? item.key : `${item.key}()`, start, stop);
  const takesSomething = !item.name.endsWith("()");
  if (!called && takesSomething) box.setSelectionRange(box.selectionEnd - 1, box.selectionEnd - 1);
  showSignature();
}

/** Below the box: the arguments of the atom that the caret is in. */
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

// What the server says -----------------------------------------------------------------------

function showAnswer({ answer, error, expression }) {
  const isOurs = error && (error.at || error.status === 422);
  wrong = error?.at ? error.at.map((points) => units(expression, points)) : null;
  if (wrong && wrong[1] <= wrong[0]) wrong[1] = wrong[0] + 1;
  byId("editor").classList.toggle("wrong", Boolean(isOurs));
  if (isOurs) box.setAttribute("aria-invalid", "true");
  else box.removeAttribute("aria-invalid");
  byId("expression-error").textContent = isOurs ? error.message : "";
  paint();
  if (!answer) return;
  lastSimplified = answer.simplified;
  showSimplified(answer.simplified);
  showSliders(answer.numbers);
}

/** Offsets come in code points, the box counts in UTF-16 units. */
function units(text, points) {
  return [...text].slice(0, points).join("").length;
}

function showSimplified(simplified) {
  const plain = (text) => text.replace(/\s+/g, "");
  const isOurs = !simplified?.includes("padding(keep=") || state.expression.includes("keep"); // else the tokens' own
  const news = simplified && isOurs && plain(simplified) !== plain(state.expression);
  byId("simpler").replaceChildren(
    ...(news
      ? [
          `${t("simplified")} `,
          h(
            "button",
            {
              type: "button",
              class: "chip",
              "aria-label": t("simplified_use", { text: simplified }),
              onclick: () => write(simplified),
            },
            simplified,
          ),
        ]
      : []),
  );
}
