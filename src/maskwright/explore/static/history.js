// Undo and redo: every change of the page is an entry of the browser's history.
//
// Changes that follow each other quickly (typing, dragging a slider) share one entry. Undo and redo
// are the same as the Back and Forward buttons of the browser.

import { byId } from "./dom.js";
import { restore, subscribe, toHash } from "./state.js";

const WRITE_DELAY = 250; // milliseconds before the URL follows a change
const REST = 800; // milliseconds without a change that end an entry
// Keys that do not create an entry: preferences, the selected cell, and the positions of players.
const TRANSIENT = new Set(["tokens", "lang", "theme", "query", "key", "step", "row"]);

const listeners = new Set();
let index = 0; // of the current entry
let last = 0; // of the newest entry
let isOpen = false; // whether the current entry takes further changes
let isDirty = false; // whether a change waits for its entry
let writeTimer = 0;
let restTimer = 0;

/** Call `listener()` when an entry was added, or another one is shown. */
export function onHistory(listener) {
  listeners.add(listener);
}

/** Start with the state of the URL. */
export function startHistory() {
  index = last = history.state?.index ?? 0;
  restore(location.hash);
  history.replaceState({ index }, "");
  subscribe((_, keys, { derived }) => {
    if (!derived && [...keys].some((name) => !TRANSIENT.has(name))) isDirty = true;
    clearTimeout(writeTimer);
    clearTimeout(restTimer);
    writeTimer = setTimeout(write, WRITE_DELAY);
    restTimer = setTimeout(close, REST);
    show();
  });
  addEventListener("popstate", onPopState);
  byId("undo").addEventListener("click", undo);
  byId("redo").addEventListener("click", redo);
  addEventListener("keydown", onKey);
  show();
}

/** End the current entry, so that the next change can be undone by itself. */
export function checkpoint() {
  write();
  close();
}

export function undo() {
  write();
  if (index > 0) history.back();
}

export function redo() {
  if (index < last) history.forward();
}

function write() {
  clearTimeout(writeTimer);
  const hash = toHash();
  const isNew = isDirty && !isOpen && location.hash !== hash;
  if (isNew) {
    index += 1;
    last = index;
    isOpen = true;
    history.pushState({ index }, "", hash);
  } else if (location.hash !== hash) {
    history.replaceState({ index }, "", hash);
  }
  isDirty = false;
  if (isNew) notify();
}

function close() {
  clearTimeout(restTimer);
  isOpen = false;
}

function onPopState({ state }) {
  const isOurs = Number.isInteger(state?.index);
  if (isOurs) index = state.index;
  else {
    // A link was opened in this tab: the browser has dropped the entries after the last one.
    last = index += 1;
    history.replaceState({ index }, "");
  }
  last = Math.max(last, index);
  restore(location.hash, { keepPreferences: isOurs });
  isDirty = isOpen = false;
  notify();
}

function notify() {
  show();
  for (const listener of listeners) listener();
}

function show() {
  const buttons = { undo: index > 0 || isDirty, redo: index < last && !isDirty };
  const focused = document.activeElement;
  for (const [id, enabled] of Object.entries(buttons)) byId(id).disabled = !enabled;
  // A disabled button loses the focus.
  if (focused?.id === "undo" && focused.disabled) byId("redo").focus();
  if (focused?.id === "redo" && focused.disabled) byId("undo").focus();
}

function onKey(event) {
  if (!(event.ctrlKey || event.metaKey) || event.altKey || isTextField(event.target)) return;
  const key = event.key.toLowerCase();
  const isRedo = key === "y" || (key === "z" && event.shiftKey);
  if (!isRedo && key !== "z") return;
  event.preventDefault();
  if (isRedo) redo();
  else undo();
}

/** Text fields have an undo of their own. */
function isTextField(element) {
  const isButton = ["range", "checkbox", "radio", "button", "file"].includes(element.type);
  return element.matches?.("textarea, input") && !isButton;
}
