// Form controls that are bound to a key of the state.

import { hasAny, el } from "./panel.js";

/** A field for an integer; `msg` is the key of its label. */
export function numberField(ctx, key, msg, { min, max, fallback }) {
  const input = el("input", {
    type: "number",
    class: "field",
    min,
    max,
    step: 1,
    inputmode: "numeric",
  });
  input.addEventListener("change", () => {
    const value = Math.min(max, Math.max(min, Math.round(Number(input.value))));
    ctx.set({ [key]: Number.isFinite(value) ? value : fallback });
    input.value = ctx.state[key];
  });
  return bindField(ctx, key, input, msg, () => {
    if (document.activeElement !== input) input.value = ctx.state[key] ?? fallback;
  });
}

/** A switch. */
export function switchField(ctx, key, msg, fallback) {
  const input = el("input", { type: "checkbox", role: "switch" });
  input.addEventListener("change", () => ctx.set({ [key]: input.checked }));
  const show = () => (input.checked = Boolean(ctx.state[key] ?? fallback));
  return bindField(ctx, key, input, msg, show, "switch");
}

/** A select; `choices` is [[value, text], …]. */
export function selectField(ctx, key, msg, choices, fallback) {
  const input = el("select", { class: "field" });
  for (const [value, text] of choices) input.append(el("option", { value: String(value), text }));
  input.addEventListener("change", () => {
    ctx.set({ [key]: choices.find(([value]) => String(value) === input.value)[0] });
  });
  return bindField(ctx, key, input, msg, () => (input.value = String(ctx.state[key] ?? fallback)));
}

/** Buttons of which one is pressed; `choices` is [[value, msg], …]. */
export function toggleGroup(ctx, key, label, choices, fallback) {
  const row = el("div", { class: "chips views", role: "group", label });
  const buttons = choices.map(([value, msg]) => {
    const button = el("button", { type: "button", class: "chip", msg });
    button.addEventListener("click", () => ctx.set({ [key]: value }));
    row.append(button);
    return [value, button];
  });
  const show = () => {
    const now = ctx.state[key] ?? fallback;
    for (const [value, button] of buttons) button.setAttribute("aria-pressed", String(value === now));
  };
  ctx.subscribe((state, changed) => hasAny(changed, key) && show());
  show();
  return row;
}

function bindField(ctx, key, input, msg, show, kind = "labelled") {
  const name = el("span", { msg });
  ctx.subscribe((state, changed) => hasAny(changed, key) && show());
  show();
  return el("label", { class: kind }, ...(kind === "switch" ? [input, " ", name] : [name, input]));
}
