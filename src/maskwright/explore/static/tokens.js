// The sentences: a text box, their tokens as chips, padding by click; or no tokens, only a size.

import { isAbort, post } from "./api.js";
import { byId, h, rested } from "./dom.js";
import { DEFAULTS, LARGEST, set, setTokens, state, subscribe } from "./state.js";
import { number, t } from "./words.js";

const PAD = "<PAD>";
const PRESETS = [8, 64, 1024, 65536, LARGEST];
const NUMBERS = ["size", "keys", "q_start", "batches", "heads"];

let asking = new AbortController();
let settled = null; // while the tokens are not yet those of the text: {promise, resolve}
let lastText = DEFAULTS.text; // what to come back to from "only a size"

/** Start the card; the promise is kept once the tokens of the first text are there. */
export function startTokens() {
  const later = rested(60, ask);
  subscribe((_, keys) => {
    if (keys.has("text") || keys.has("side")) {
      settled ??= deferred();
      later();
    }
    show(keys);
  });
  startText();
  startSizes();
  show(new Set(["text", "side", "padding", ...NUMBERS]));
  return ask();
}

/** Kept once the tokens are those of the text. */
export async function tokensSettled() {
  await settled?.promise;
}

async function ask() {
  asking.abort();
  asking = new AbortController();
  const { signal } = asking;
  try {
    const tokens = await tokensOf(state.text, signal);
    if (signal.aborted) return;
    complain("");
    setTokens(tokens);
  } catch (error) {
    if (isAbort(error)) return;
    complain(error.kind === "Offline" ? t("offline") : error.message);
  }
  settled?.resolve();
  settled = null;
}

async function tokensOf(text, signal) {
  if (!text?.trim()) return null;
  return (await post("tokens", { text, side: state.side }, signal)).tokens;
}

function deferred() {
  let resolve;
  const promise = new Promise((kept) => (resolve = kept));
  return { promise, resolve };
}

function startText() {
  byId("text").addEventListener("input", (event) => set({ text: event.target.value }));
  new ResizeObserver(() => grow(byId("text"))).observe(byId("by-text"));
  byId("padding").addEventListener("change", (event) => set({ padding: event.target.checked }));
  byId("side").addEventListener("click", (event) => {
    const { side } = event.target.dataset;
    if (side) set({ side });
  });
  byId("tokens-kind").addEventListener("click", (event) => {
    const { kind } = event.target.dataset;
    if (kind === "text" && state.text === null)
      set({ text: lastText, view: null, batch: 0, head: 0 });
    if (kind === "size" && state.text !== null) set({ text: null, view: null, batch: 0, head: 0 });
  });
}

function startSizes() {
  byId("presets").append(
    ...PRESETS.map((size) =>
      h(
        "button",
        { type: "button", class: "chip", onclick: () => set({ size, view: null }) },
        number(size),
      ),
    ),
  );
  for (const name of NUMBERS) {
    byId(name).addEventListener("input", () => readNumber(name));
    byId(name).addEventListener("change", () => show(new Set([name])));
  }
}

function readNumber(name) {
  const box = byId(name);
  const least = Number(box.min);
  const largest = Number(box.max);
  if (box.value === "" && DEFAULTS[name] === null && !box.validity.badInput) {
    complain("");
    set({ [name]: null, view: null });
    return;
  }
  const value = Number(box.value);
  const fine = box.value !== "" && Number.isInteger(value) && value >= least && value <= largest;
  box.setAttribute("aria-invalid", String(!fine));
  complain(fine ? "" : t("count_range", { least: number(least), most: number(largest) }));
  if (fine) set({ [name]: value, view: null });
}

function show(keys) {
  if (keys.has("text")) showText();
  if (keys.has("side")) press("side", "side", state.side);
  if (keys.has("padding")) byId("padding").checked = state.padding;
  for (const name of NUMBERS) {
    if (keys.has(name) && byId(name).value !== String(state[name] ?? "")) {
      byId(name).value = state[name] ?? "";
      byId(name).removeAttribute("aria-invalid");
    }
    if (keys.has(name) && name !== "size" && state[name] !== null) byId("more-sizes").open = true;
  }
  if (["tokens", "text", "lang"].some((name) => keys.has(name))) showChips();
}

function showText() {
  const { text } = state;
  const byText = text !== null;
  press("tokens-kind", "kind", byText ? "text" : "size");
  byId("by-text").hidden = !byText;
  byId("by-size").hidden = byText;
  if (!byText) return;
  lastText = text;
  const box = byId("text");
  if (box.value !== text) box.value = text;
  grow(box);
}

function grow(box) {
  box.style.height = "auto";
  if (box.scrollHeight) box.style.height = `${box.scrollHeight + 2}px`;
}

function showChips() {
  const place = byId("sentences");
  if (state.text === null) return;
  const scrolled = [...place.querySelectorAll(".sentence-tokens")].map((row) => row.scrollLeft);
  const focused = place.contains(document.activeElement)
    ? document.activeElement.dataset.name
    : null;
  const sentences = state.tokens ?? [];
  place.replaceChildren(
    ...(sentences.length
      ? sentences.map(sentenceRow)
      : [h("p", { class: "note" }, t("no_sentence"))]),
  );
  place
    .querySelectorAll(".sentence-tokens")
    .forEach((row, n) => (row.scrollLeft = scrolled[n] ?? 0));
  if (focused) {
    const near = focused.replace(/-remove-.*/, "-right"); // a chip that is gone hands its focus on
    (
      place.querySelector(`[data-name="${focused}"]`) ??
      place.querySelector(`[data-name="${near}"]`)
    )?.focus();
  }
}

function sentenceRow(tokens, n) {
  const written = pads(line(n)).length;
  const total = tokens.filter((token) => token === PAD).length;
  let seen = 0; // paddings so far, to tell those in the text from those that only fill up
  const chips = tokens.map((token) => {
    if (token !== PAD) return h("span", { class: "token" }, token);
    const place = state.side === "left" ? seen - (total - written) : seen;
    seen += 1;
    return place >= 0 && place < written
      ? padButton(n, place)
      : h("span", { class: "token pad", title: t("pad_auto") }, PAD);
  });
  return h(
    "div",
    { class: "sentence", role: "group", "aria-label": t("sentence_n", { n: n + 1 }) },
    addButton(n, "left"),
    h(
      "div",
      { class: "sentence-tokens", tabindex: "0", role: "group", "aria-label": tokens.join(" ") },
      chips,
    ),
    addButton(n, "right"),
  );
}

function addButton(n, side) {
  const label = t(`pad_${side}`, { n: n + 1 });
  const change = side === "left" ? (old) => `${PAD} ${old}` : (old) => `${old} ${PAD}`;
  return h(
    "button",
    {
      type: "button",
      class: "button add-pad",
      title: label,
      "aria-label": label,
      dataset: { name: `pad-${n}-${side}` },
      onclick: () => rewrite(n, change),
    },
    "+",
  );
}

function padButton(n, place) {
  const label = t("pad_remove", { n: n + 1 });
  const cut = (old) => {
    const at = pads(old)[place];
    return `${old.slice(0, at)}${old.slice(at + PAD.length)}`.replace(/\s+/g, " ").trim();
  };
  return h(
    "button",
    {
      type: "button",
      class: "token pad",
      title: label,
      "aria-label": label,
      dataset: { name: `pad-${n}-remove-${place}` },
      onclick: () => rewrite(n, cut),
    },
    PAD,
  );
}

const pads = (text) => [...text.matchAll(/(?<!\S)<PAD>(?!\S)/g)].map((match) => match.index);

// Sentences are the lines that are not blank.
const lineNumbers = () => {
  const lines = state.text.split("\n");
  return lines.map((_, n) => n).filter((n) => lines[n].trim());
};
const line = (n) => state.text.split("\n")[lineNumbers()[n]] ?? "";

function rewrite(n, change) {
  const lines = state.text.split("\n");
  const at = lineNumbers()[n];
  lines[at] = change(lines[at].trim());
  set({ text: lines.join("\n") });
}

function press(id, name, value) {
  for (const button of byId(id).querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset[name] === value));
  }
}

function complain(message) {
  byId("tokens-error").textContent = message;
}
