// A place to drop a file, with a button that opens one.

import { make } from "./parts.js";

/**
 * The place; `take(file)` gets what was dropped or chosen. `word` says what it takes. All of
 * `around` takes files, since a browser leaves the page for one that misses its place.
 */
export function dropPlace({ word, button, accept, take, around }) {
  const input = make("input", {
    type: "file",
    accept,
    class: "hidden-label",
    tabindex: -1,
    "aria-hidden": "true",
  });
  input.addEventListener("change", () => {
    if (input.files[0]) take(input.files[0]);
    input.value = ""; // so that the same file can be chosen again
  });
  const open = make("button", {
    type: "button",
    class: "button",
    word: button,
    on: { click: () => input.click() },
  });
  const place = make("div", { class: "drop" }, make("p", { class: "note", word }), open, input);
  const mark = (over) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    place.classList.toggle("over", over);
  };
  around.addEventListener("dragenter", mark(true));
  around.addEventListener("dragover", mark(true));
  around.addEventListener("dragleave", mark(false));
  around.addEventListener("drop", (event) => {
    mark(false)(event);
    const [file] = event.dataTransfer?.files ?? [];
    if (file) take(file);
  });
  return place;
}

/** The bytes of a file in base64. */
export async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const parts = [];
  // In pieces, since a call takes only so many arguments.
  for (let at = 0; at < bytes.length; at += 32768)
    parts.push(String.fromCharCode(...bytes.subarray(at, at + 32768)));
  return btoa(parts.join(""));
}
