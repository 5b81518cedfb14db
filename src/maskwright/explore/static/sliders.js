// A slider for every number in the expression; dragging it changes the text.

import { byId, h } from "./dom.js";
import { set, state } from "./state.js";
import { t } from "./i18n.js";

let numbers = []; // of the last response; offsets follow the changes of the sliders

/** Show a slider for every number that the server found in the expression. */
export function showSliders(entries) {
  const container = byId("sliders");
  const sameNames =
    entries.length === numbers.length &&
    entries.every((entry, n) => nameOf(entry) === nameOf(numbers[n]));
  numbers = entries.map((entry) => ({ ...entry }));
  if (!sameNames) container.replaceChildren(...numbers.map((_, n) => slider(n)));
  numbers.forEach((entry, n) => {
    const input = container.children[n].querySelector("input");
    input.min = entry.least;
    input.max = Math.max(entry.most, entry.value);
    input.value = entry.value;
    container.children[n].querySelector("output").textContent = entry.value;
  });
}

function slider(n) {
  const name = nameOf(numbers[n]);
  const output = h("output", {});
  const input = h("input", {
    type: "range",
    step: 1,
    "aria-label": name,
    oninput: () => slide(n, input, output),
  });
  return h("label", { class: "slider" }, h("span", { class: "slider-name" }, name), input, output);
}

const nameOf = ({ name, index = [] }) =>
  `${name || t("number")}${index.map((at) => `[${at}]`).join("")}`;

function slide(n, input, output) {
  const entry = numbers[n];
  const characters = [...state.expression]; // offsets count code points
  const old = String(entry.value);
  if (characters.slice(entry.start, entry.stop).join("") !== old) return; // edited meanwhile
  const value = Number(input.value);
  characters.splice(entry.start, entry.stop - entry.start, ...String(value));
  const shift = String(value).length - (entry.stop - entry.start);
  entry.value = value;
  entry.stop += shift;
  for (const other of numbers) {
    if (other.start > entry.start) {
      other.start += shift;
      other.stop += shift;
    }
  }
  output.textContent = value;
  set({ expression: characters.join("") });
}
