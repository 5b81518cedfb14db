// A matrix as a table of numbers, shaded by magnitude; masked cells are hatched.

import { el } from "./panel.js";
import { formatExact, formatValue } from "./format.js";

// A frame that scrolls can be focused, so that it can be scrolled with the keyboard.
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
 * The table in a frame that scrolls if it is too wide.
 *
 * `heat` is "share" for numbers from 0 to 1 and "signed" for others; `format` formats a number;
 * `onCell(row, column)` gets the cell under the pointer, and (null, null) when the pointer leaves.
 */
export function matrix({
  values,
  hidden = null,
  rows = null,
  columns = null,
  name,
  heat = "signed",
  format = formatValue,
  t,
  onCell = null,
}) {
  const largest = heat === "share" ? 1 : peak(values);
  const table = el(
    "table",
    { class: `numbers ${heat}` },
    el("caption", { class: "hidden-label", text: name }),
  );
  if (columns) table.append(el("thead", {}, headline(columns, rows !== null)));
  const body = el("tbody");
  values.forEach((line, row) => {
    const tr = el("tr");
    if (rows) tr.append(heading("row", rows[row]));
    line.forEach((value, column) =>
      tr.append(cell(value, hidden?.[row]?.[column] ?? false, { largest, format, t })),
    );
    body.append(tr);
  });
  table.append(body);
  if (onCell) listen(body, rows !== null, onCell);
  const frame = el("div", { class: "matrix", "aria-label": name }, table);
  watcher.observe(frame);
  return frame;
}

/** Make a frame scrollable with the keyboard if its content is too wide. */
export function scrollable(element, name) {
  element.setAttribute("aria-label", name);
  watcher.observe(element);
  return element;
}

/** Highlight one row, column or cell of a matrix; nulls remove the highlight. */
export function highlightCells(frame, row, column) {
  for (const td of frame.querySelectorAll("td.highlight")) td.classList.remove("highlight");
  if (row === null && column === null) return;
  const lines = frame.querySelectorAll("tbody tr");
  lines.forEach((tr, index) => {
    if (row !== null && index !== row) return;
    tr.querySelectorAll("td").forEach((td, place) => {
      if (column === null || place === column) td.classList.add("highlight");
    });
  });
}

function headline(columns, corner) {
  const line = el("tr");
  if (corner) line.append(el("td", { class: "corner" }));
  for (const column of columns) line.append(heading("col", column));
  return line;
}

function heading(scope, text) {
  return el("th", { scope, title: text }, el("span", { class: "word", dir: "auto", text }));
}

function cell(value, hidden, { largest, format, t }) {
  const td = el("td", { title: formatExact(value) });
  if (hidden) {
    td.className = "masked";
    td.append(el("span", { class: "hidden-label", text: `${t("panel.masked")} ` }));
  } else if (typeof value === "number" && largest > 0) {
    td.className = value < 0 ? "minus" : "plus";
    td.style.setProperty("--heat", Math.min(Math.abs(value) / largest, 1).toFixed(3));
  }
  td.append(format(value));
  return td;
}

function peak(values) {
  let largest = 0;
  for (const line of values) {
    for (const value of line) {
      // The fill value of masked cells would make all others look pale.
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
