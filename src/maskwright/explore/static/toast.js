// A message at the bottom of the page about what was replaced, with a button that undoes it.

import { byId, h } from "./dom.js";
import { checkpoint, onHistory, undo } from "./history.js";
import { t } from "./i18n.js";
import { set } from "./state.js";

const DURATION = 12_000; // milliseconds

let timer = 0;

/** Hide the message when the state that it is about is undone or changed. */
export function startToast() {
  onHistory(hide);
  const toast = byId("toast");
  for (const name of ["pointerenter", "focusin"]) toast.addEventListener(name, stop);
  for (const name of ["pointerleave", "focusout"]) toast.addEventListener(name, restart);
}

/** Apply a change that replaces the user's input; `text` says what, and the change can be undone. */
export function replaceState(changes, text) {
  checkpoint();
  set(changes);
  checkpoint();
  showToast(text);
}

/** Show a message that can be undone by the last entry of the history. */
export function showToast(text) {
  const button = (key, onclick) =>
    h("button", { type: "button", class: "button", onclick }, t(key));
  const dismiss = button("dismiss", hide);
  byId("toast-text").textContent = text;
  byId("toast-buttons").replaceChildren(button("undo", undo), dismiss);
  byId("toast").hidden = false;
  restart();
}

function hide() {
  stop();
  byId("toast-text").textContent = "";
  byId("toast-buttons").replaceChildren();
  byId("toast").hidden = true;
}

function restart() {
  stop();
  timer = setTimeout(hide, DURATION);
}

function stop() {
  clearTimeout(timer);
}
