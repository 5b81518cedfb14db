// The tokens card: sentences with their tokens and padding, or only a length.

import { isAbort, post } from "./api.js";
import { byId, h, debounce } from "./dom.js";
import { DEFAULTS, MAX_SIZE, set, setTokens, state, subscribe } from "./state.js";
import { formatNumber, t } from "./i18n.js";

const PAD = "<PAD>";
const SIZE_PRESETS = [8, 64, 1024, 65536, MAX_SIZE];
const SIZE_FIELDS = ["size", "keys", "q_start", "batches", "heads"];

let controller = new AbortController();
let pending = null; // {promise, resolve} while the tokens are not yet those of the text
let lastText = DEFAULTS.text; // restored when the user switches back to sentences

/** Start the card; returns a promise of the tokens of the first text. */
export function startTokens() {
  const reload = debounce(60, loadTokens);
  subscribe((_, keys) => {
    if (keys.has("text") || keys.has("side")) {
      pending ??= deferred();
      reload();
    }
    show(keys);
  });
  startText();
  startSizes();
  show(new Set(["text", "side", "padding", ...SIZE_FIELDS]));
  return loadTokens();
}

/** Wait until the tokens are those of the text. */
export async function tokensReady() {
  await pending?.promise;
}

async function loadTokens() {
  controller.abort();
  controller = new AbortController();
  const { signal } = controller;
  try {
    const tokens = await tokensOf(state.text, signal);
    if (signal.aborted) return;
    showError("");
    setTokens(tokens);
  } catch (error) {
    if (isAbort(error)) return;
    showError(error.kind === "Offline" ? t("offline") : error.message);
  }
  pending?.resolve();
  pending = null;
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
  byId("size-presets").append(
    ...SIZE_PRESETS.map((size) =>
      h(
        "button",
        { type: "button", class: "chip", onclick: () => set({ size, view: null }) },
        formatNumber(size),
      ),
    ),
  );
  for (const name of SIZE_FIELDS) {
    byId(name).addEventListener("input", () => readNumber(name));
    byId(name).addEventListener("change", () => show(new Set([name])));
  }
}

function readNumber(name) {
  const box = byId(name);
  const min = Number(box.min);
  const max = Number(box.max);
  if (box.value === "" && DEFAULTS[name] === null && !box.validity.badInput) {
    showError("");
    set({ [name]: null, view: null });
    return;
  }
  const value = Number(box.value);
  const isValid = box.value !== "" && Number.isInteger(value) && value >= min && value <= max;
  box.setAttribute("aria-invalid", String(!isValid));
  showError(isValid ? "" : t("count_range", { min: formatNumber(min), max: formatNumber(max) }));
  if (isValid) set({ [name]: value, view: null });
}

function show(keys) {
  if (keys.has("text")) showText();
  if (keys.has("side")) pressOption("side", "side", state.side);
  if (keys.has("padding")) byId("padding").checked = state.padding;
  for (const name of SIZE_FIELDS) {
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
  pressOption("tokens-kind", "kind", byText ? "text" : "size");
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
    const near = focused.replace(/-remove-.*/, "-right"); // a removed chip passes its focus on
    (
      place.querySelector(`[data-name="${focused}"]`) ??
      place.querySelector(`[data-name="${near}"]`)
    )?.focus();
  }
}

function sentenceRow(tokens, n) {
  const written = pads(line(n)).length;
  const total = tokens.filter((token) => token === PAD).length;
  let seen = 0; // <PAD> so far, to tell those in the text from those that were added
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

function pressOption(id, name, value) {
  for (const button of byId(id).querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset[name] === value));
  }
}

function showError(message) {
  byId("tokens-error").textContent = message;
}
