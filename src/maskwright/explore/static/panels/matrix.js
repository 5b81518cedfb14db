// A matrix as a table of aligned numbers, shaded by how large they are; hidden cells are hatched.

import { make } from "./parts.js";
import { exact, shown } from "./numbers.js";

// A wide table scrolls within its own frame, which the keyboard can reach only while it does.
const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const scrolls = target.scrollWidth > target.clientWidth + 1;
    if (scrolls) {
      target.tabIndex = 0;
      target.setAttribute("role", "region");
    } else {
      target.removeAttribute("tabindex");
      target.removeAttribute("role");
    }
  }
});

/**
 * The table, in a frame that scrolls when it is too wide.
 *
 * `heat` is "share" for numbers from 0 to 1 and "signed" for others; `write` makes texts of numbers;
 * `onCell(row, column)` hears of
 * the cell under the pointer, and of (null, null) when it leaves.
 */
export function matrix({
  values,
  hidden = null,
  rows = null,
  columns = null,
  name,
  heat = "signed",
  write = shown,
  t,
  onCell = null,
}) {
  const largest = heat === "share" ? 1 : peak(values);
  const table = make(
    "table",
    { class: `numbers ${heat}` },
    make("caption", { class: "hidden-label", text: name }),
  );
  if (columns) table.append(make("thead", {}, headline(columns, rows !== null)));
  const body = make("tbody");
  values.forEach((line, row) => {
    const tr = make("tr");
    if (rows) tr.append(heading("row", rows[row]));
    line.forEach((value, column) =>
      tr.append(cell(value, hidden?.[row]?.[column] ?? false, { largest, write, t })),
    );
    body.append(tr);
  });
  table.append(body);
  if (onCell) listen(body, rows !== null, onCell);
  const frame = make("div", { class: "matrix", "aria-label": name }, table);
  watcher.observe(frame);
  return frame;
}

/** Let a frame of any wide content be scrolled by the keyboard. */
export function scrollable(element, name) {
  element.setAttribute("aria-label", name);
  watcher.observe(element);
  return element;
}

/** Mark a row, a column, or one cell of a matrix; null takes the marks away. */
export function light(frame, row, column) {
  for (const td of frame.querySelectorAll("td.lit")) td.classList.remove("lit");
  if (row === null && column === null) return;
  const lines = frame.querySelectorAll("tbody tr");
  lines.forEach((tr, index) => {
    if (row !== null && index !== row) return;
    tr.querySelectorAll("td").forEach((td, place) => {
      if (column === null || place === column) td.classList.add("lit");
    });
  });
}

function headline(columns, corner) {
  const line = make("tr");
  if (corner) line.append(make("td", { class: "corner" }));
  for (const column of columns) line.append(heading("col", column));
  return line;
}

function heading(scope, text) {
  return make("th", { scope, title: text }, make("span", { class: "word", dir: "auto", text }));
}

function cell(value, hidden, { largest, write, t }) {
  const td = make("td", { title: exact(value) });
  if (hidden) {
    td.className = "hid";
    td.append(make("span", { class: "hidden-label", text: `${t("parts.hidden")} ` }));
  } else if (typeof value === "number" && largest > 0) {
    td.className = value < 0 ? "minus" : "plus";
    td.style.setProperty("--heat", Math.min(Math.abs(value) / largest, 1).toFixed(3));
  }
  td.append(write(value));
  return td;
}

function peak(values) {
  let largest = 0;
  for (const line of values) {
    for (const value of line) {
      // The fill of hidden cells would make all others look pale.
      if (typeof value === "number" && Math.abs(value) < 1e6) largest = Math.max(largest, Math.abs(value));
    }
  }
  return largest;
}

function listen(body, headed, onCell) {
  body.addEventListener("pointerover", (event) => {
    const td = event.target.closest("td");
    if (!td) return;
    onCell(td.parentElement.sectionRowIndex, td.cellIndex - (headed ? 1 : 0));
  });
  body.addEventListener("pointerleave", () => onCell(null, null));
}
