// A drop zone with a button that opens the file dialog.

import { el } from "./panel.js";

/**
 * The drop zone; `onFile(file)` gets the file. `msg` and `button` are keys of messages. All of
 * `area` accepts files, since the browser would open a file that is dropped beside the zone.
 */
export function dropZone({ msg, button, accept, onFile, area }) {
  const input = el("input", {
    type: "file",
    accept,
    class: "hidden-label",
    tabindex: -1,
    "aria-hidden": "true",
  });
  input.addEventListener("change", () => {
    if (input.files[0]) onFile(input.files[0]);
    input.value = ""; // so that the same file can be selected again
  });
  const open = el("button", {
    type: "button",
    class: "button",
    msg: button,
    on: { click: () => input.click() },
  });
  const place = el("div", { class: "drop" }, el("p", { class: "note", msg }), open, input);
  const mark = (over) => (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    place.classList.toggle("over", over);
  };
  area.addEventListener("dragenter", mark(true));
  area.addEventListener("dragover", mark(true));
  area.addEventListener("dragleave", mark(false));
  area.addEventListener("drop", (event) => {
    mark(false)(event);
    const [file] = event.dataTransfer?.files ?? [];
    if (file) onFile(file);
  });
  return place;
}

/** The bytes of a file in base64. */
export async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  const parts = [];
  // In chunks, since the number of arguments is limited.
  for (let at = 0; at < bytes.length; at += 32768)
    parts.push(String.fromCharCode(...bytes.subarray(at, at + 32768)));
  return btoa(parts.join(""));
}
