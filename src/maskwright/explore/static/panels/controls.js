// Controls that show a key of the state and change it.

import { changedAny, make } from "./parts.js";

/** A box for a whole number. */
export function numberBox(ctx, key, word, { least, most, usual }) {
  const input = make("input", {
    type: "number",
    class: "field",
    min: least,
    max: most,
    step: 1,
    inputmode: "numeric",
  });
  input.addEventListener("change", () => {
    const value = Math.min(most, Math.max(least, Math.round(Number(input.value))));
    ctx.set({ [key]: Number.isFinite(value) ? value : usual });
    input.value = ctx.state[key];
  });
  return bound(ctx, key, input, word, () => {
    if (document.activeElement !== input) input.value = ctx.state[key] ?? usual;
  });
}

/** A tick box. */
export function tickBox(ctx, key, word, usual) {
  const input = make("input", { type: "checkbox", role: "switch" });
  input.addEventListener("change", () => ctx.set({ [key]: input.checked }));
  return bound(ctx, key, input, word, () => (input.checked = Boolean(ctx.state[key] ?? usual)), "switch");
}

/** A choice among few; `choices` is [[value, text], …]. */
export function choiceBox(ctx, key, word, choices, usual) {
  const input = make("select", { class: "field" });
  for (const [value, text] of choices) input.append(make("option", { value: String(value), text }));
  input.addEventListener("change", () => {
    ctx.set({ [key]: choices.find(([value]) => String(value) === input.value)[0] });
  });
  return bound(ctx, key, input, word, () => (input.value = String(ctx.state[key] ?? usual)));
}

/** A row of buttons of which one is pressed; `choices` is [[value, word], …]. */
export function pressOne(ctx, key, label, choices, usual) {
  const row = make("div", { class: "chips views", role: "group", label });
  const buttons = choices.map(([value, word]) => {
    const button = make("button", { type: "button", class: "chip", word });
    button.addEventListener("click", () => ctx.set({ [key]: value }));
    row.append(button);
    return [value, button];
  });
  const show = () => {
    const now = ctx.state[key] ?? usual;
    for (const [value, button] of buttons) button.setAttribute("aria-pressed", String(value === now));
  };
  ctx.subscribe((state, changed) => changedAny(changed, key) && show());
  show();
  return row;
}

function bound(ctx, key, input, word, show, kind = "labelled") {
  const name = make("span", { word });
  ctx.subscribe((state, changed) => changedAny(changed, key) && show());
  show();
  return make("label", { class: kind }, ...(kind === "switch" ? [input, " ", name] : [name, input]));
}
