// Positions of the cells and labels of a grid, and the labels.

import { svg } from "./dom.js";
import { formatNumber, t } from "./i18n.js";

const MAX_CELL = 54; // pixels
const FONT_SIZE = 12.5; // pixels
const SLOPE = (52 * Math.PI) / 180; // of labels that are wider than their column

/** The sizes in pixels of a grid in a container of that width. */
export function layoutOf(grid, width, { labels = true, maxHeight = 640 } = {}) {
  const { rowCount: rows, columnCount: columns } = grid;
  const side = labels ? sideLabels(grid, width) : { left: 1, top: 1, right: 1, names: null };
  const space = Math.max(width - side.left - side.right - 1, 40);
  let cw = Math.min(space / columns, MAX_CELL);
  let ch = Math.min(cw, maxHeight / rows, MAX_CELL);
  if (rows < columns) ch = Math.max(ch, Math.min(16, maxHeight / rows));
  else if (columns < rows) cw = Math.max(ch, Math.min(28, space / columns));
  if (rows === columns) cw = ch;
  if (Math.min(cw, ch) >= 5) [cw, ch] = [Math.floor(cw), Math.floor(ch)];
  const turned = labels && grid.columns && widest(grid.columns) > cw - 3;
  const top = labels ? 18 + (turned ? Math.ceil(Math.sin(SLOPE) * side.columnWidth) + 12 : 20) : 1;
  return {
    cw,
    ch,
    rows,
    columns,
    turned,
    labels,
    left: side.left,
    top,
    right: side.right,
    columnWidth: side.columnWidth,
    gridWidth: cw * columns,
    gridHeight: ch * rows,
    width: Math.ceil(side.left + cw * columns + side.right + 1),
    height: Math.ceil(top + ch * rows + 2),
  };
}

function sideLabels(grid, width) {
  const rowWidth = grid.rows
    ? Math.min(widest(grid.rows), width * 0.22, 110)
    : textWidth(lastOf(grid, 0));
  const columnWidth = grid.columns ? Math.min(widest(grid.columns), 84) : 0;
  const left = Math.ceil(Math.max(rowWidth + 10, textWidth(`${t("axis_queries")} ↓`, 11) + 8));
  const needed = Math.cos(SLOPE) * columnWidth - 12;
  return {
    left,
    columnWidth,
    right: grid.columns ? Math.max(6, Math.ceil(Math.min(needed, width * 0.12))) : 6,
  };
}

const lastOf = (grid, axis) => formatNumber(grid.start[axis] + grid.extent[axis]);
const widest = (labels) => Math.max(...labels.map((label) => textWidth(label)));

const measure = document.createElement("canvas").getContext("2d");

function textWidth(text, size = FONT_SIZE) {
  measure.font = `${size}px system-ui, sans-serif`;
  return measure.measureText(text).width;
}

/** The labels of rows and columns; data-row or data-column is the index. */
export function labelsOf(grid, layout) {
  if (!layout.labels) return [];
  const { left, top, cw, ch } = layout;
  const group = [
    svg("text", { class: "axis", x: left, y: 12 }, `${t("axis_keys")} →`),
    svg(
      "text",
      { class: "axis", x: left - 6, y: top - 6, "text-anchor": "end" },
      `${t("axis_queries")} ↓`,
    ),
  ];
  const sparse =
    grid.rows && ch >= 11
      ? 1
      : everyNth(layout.rows, ch, grid.rows || layout.rows <= 32 ? FONT_SIZE + 3 : 24);
  for (let row = 0; row < layout.rows; row += sparse) {
    const y = top + (row + 0.5) * ch;
    group.push(
      svg(
        "text",
        {
          x: left - 6,
          y,
          "text-anchor": "end",
          "dominant-baseline": "central",
          "font-size": Math.min(FONT_SIZE, Math.max(ch, 11)),
          "data-row": row,
        },
        shortened(labelAt(grid, 0, row), left - 8),
      ),
    );
  }
  const space = layout.turned ? FONT_SIZE + 2 : grid.columns ? 1 : textWidth(lastOf(grid, 1)) + 10;
  for (let column = 0; column < layout.columns; column += everyNth(layout.columns, cw, space)) {
    group.push(columnLabel(grid, layout, column));
  }
  return group;
}

function columnLabel(grid, { left, top, cw, turned, columnWidth }, column) {
  const x = left + (column + 0.5) * cw;
  const text = shortened(labelAt(grid, 1, column), turned ? columnWidth : Infinity);
  const size = FONT_SIZE;
  if (!turned)
    return svg(
      "text",
      { x, y: top - 7, "text-anchor": "middle", "font-size": size, "data-column": column },
      text,
    );
  const y = top - 6;
  return svg(
    "text",
    { x: x + 3, y, transform: `rotate(-52 ${x} ${y})`, "font-size": size, "data-column": column },
    text,
  );
}

function labelAt(grid, axis, index) {
  const labels = axis === 0 ? grid.rows : grid.columns;
  return labels ? labels[index] : formatNumber(grid.start[axis] + index * grid.block[axis]);
}

// Steps of 1, 2, 4, 8 … squares, so that labels do not overlap.
function everyNth(count, pitch, space) {
  let step = 1;
  while (step * pitch < space && step < count) step *= 2;
  return step;
}

const letters = new Intl.Segmenter(undefined, { granularity: "grapheme" });

function shortened(text, space) {
  if (textWidth(text) <= space + 1) return text;
  const parts = [...letters.segment(text)].map((part) => part.segment);
  while (parts.length > 1 && textWidth(`${parts.join("")}…`) > space) parts.pop();
  return `${parts.join("")}…`;
}
