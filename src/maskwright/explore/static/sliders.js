// A slider for each number in the mask: dragging one changes the text.

import { byId, h } from "./dom.js";
import { set, state } from "./state.js";
import { t } from "./words.js";

let numbers = []; // as the server gave them, moved along as sliders change the text

/** Show a slider for every number that the server found in the expression. */
export function showSliders(found) {
  const place = byId("sliders");
  const alike =
    found.length === numbers.length &&
    found.every((entry, n) => nameOf(entry) === nameOf(numbers[n]));
  numbers = found.map((entry) => ({ ...entry }));
  if (!alike) place.replaceChildren(...numbers.map((_, n) => slider(n)));
  numbers.forEach((entry, n) => {
    const input = place.children[n].querySelector("input");
    input.min = entry.least;
    input.max = Math.max(entry.most, entry.value);
    input.value = entry.value;
    place.children[n].querySelector("output").textContent = entry.value;
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
  const letters = [...state.expression];
  const old = String(entry.value);
  if (letters.slice(entry.start, entry.stop).join("") !== old) return; // the text has moved on
  const value = Number(input.value);
  letters.splice(entry.start, entry.stop - entry.start, ...String(value));
  const longer = String(value).length - (entry.stop - entry.start);
  entry.value = value;
  entry.stop += longer;
  for (const other of numbers) {
    if (other.start > entry.start) {
      other.start += longer;
      other.stop += longer;
    }
  }
  output.textContent = value;
  set({ expression: letters.join("") });
}
