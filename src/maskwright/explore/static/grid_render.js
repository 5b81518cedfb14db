// Draws the cells of a grid: as SVG paths, or on a canvas if there are many.

import { svg } from "./dom.js";

export const MAX_SVG_SQUARES = 64; // per side; above it a canvas
const NAMES = ["hidden", "some", "seen", "first", "second", "mixed"];
const NUM_SHADES = 12;
const MIN_SHADE = 0.16; // a square with one visible cell must not look masked

/** A grid of the server with its bytes decoded. */
export function decodeGrid(grid) {
  const [rows, columns] = grid.shape;
  return {
    ...grid,
    rowCount: rows,
    columnCount: columns,
    kindAt: decodeBytes(grid.kinds),
    shadeAt: grid.shades ? decodeBytes(grid.shades) : null,
  };
}

function decodeBytes(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export const kindName = (kind) => NAMES[kind];

/** The opacity of a square, from 0 to 1. */
function opacity(grid, at) {
  if (grid.kindAt[at] === 0) return 0;
  return grid.shadeAt && grid.kindAt[at] === 1 ? Math.max(grid.shadeAt[at] / 255, MIN_SHADE) : 1;
}

// Cells as SVG -------------------------------------------------------------------------------

let patterns = 0; // ids are unique on the page, so every drawing has its own hatch

/** The cells as one path per kind and shade; runs in a row are joined. */
export function cellsOf(grid, layout) {
  const { left, top, cw, ch, gridWidth, gridHeight } = layout;
  const id = `hatch-${(patterns += 1)}`;
  const area = { x: left, y: top, width: gridWidth, height: gridHeight };
  const parts = [svg("rect", { ...area, class: "cell-ground" })];
  if (Math.min(cw, ch) >= 4) parts.push(hatch(id), svg("rect", { ...area, fill: `url(#${id})` }));
  for (const [name, path] of pathsByStyle(grid, layout)) {
    const [kind, level] = name.split(" ");
    parts.push(
      svg("path", {
        d: path.join(""),
        class: `kind-${kind}`,
        "fill-opacity": level === String(NUM_SHADES) ? null : (level / NUM_SHADES).toFixed(3),
      }),
    );
  }
  if (Math.min(cw, ch) >= 7) parts.push(...lines(layout), ...marks(grid, layout));
  parts.push(frameOf(layout));
  return parts;
}

export function frameOf({ left, top, gridWidth, gridHeight }) {
  return svg("rect", {
    x: left,
    y: top,
    width: gridWidth,
    height: gridHeight,
    class: "cell-frame",
  });
}

function hatch(id) {
  return svg(
    "pattern",
    { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
    svg("path", { d: "M-1 7L7 -1M-1 1L1 -1M5 7L7 5", class: "cell-hatch" }),
  );
}

function pathsByStyle(grid, { left, top, cw, ch, rows, columns }) {
  const paths = new Map();
  const styleAt = (at) =>
    grid.kindAt[at] === 0
      ? null
      : `${NAMES[grid.kindAt[at]]} ${Math.max(1, Math.round(opacity(grid, at) * NUM_SHADES))}`;
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns;) {
      const style = styleAt(row * columns + column);
      let stop = column + 1;
      while (stop < columns && styleAt(row * columns + stop) === style) stop += 1;
      if (style) {
        if (!paths.has(style)) paths.set(style, []);
        paths
          .get(style)
          .push(
            `M${left + column * cw} ${top + row * ch}h${(stop - column) * cw}v${ch}h${-(stop - column) * cw}z`,
          );
      }
      column = stop;
    }
  }
  return paths;
}

function lines({ left, top, cw, ch, rows, columns, gridWidth, gridHeight }) {
  const path = [];
  for (let row = 1; row < rows; row += 1) path.push(`M${left} ${top + row * ch}h${gridWidth}`);
  for (let column = 1; column < columns; column += 1)
    path.push(`M${left + column * cw} ${top}v${gridHeight}`);
  return path.length ? [svg("path", { d: path.join(""), class: "cell-lines" })] : [];
}

// Marks that do not depend on colours: \ first, – second, × mixed, · some.
const MARKS = {
  1: (x, y, r) => `M${x - r * 0.35} ${y}h${r * 0.7}`,
  3: (x, y, r) => `M${x - r} ${y - r}l${2 * r} ${2 * r}`,
  4: (x, y, r) => `M${x - r} ${y}h${2 * r}`,
  5: (x, y, r) => `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x + r} ${y - r}l${-2 * r} ${2 * r}`,
};

function marks(grid, { left, top, cw, ch, rows, columns }) {
  const path = [];
  const r = Math.min(cw, ch) * 0.2;
  for (let at = 0; at < rows * columns; at += 1) {
    const mark = MARKS[grid.kindAt[at]];
    if (mark)
      path.push(
        mark(left + ((at % columns) + 0.5) * cw, top + (Math.floor(at / columns) + 0.5) * ch, r),
      );
  }
  return path.length ? [svg("path", { d: path.join(""), class: "kind-mark" })] : [];
}

// Cells on a canvas --------------------------------------------------------------------------

/** Paint the cells on a canvas, and place it where the cells belong. */
export function paintCanvas(canvas, grid, layout) {
  const { left, top, cw, ch, rows, columns, gridWidth, gridHeight } = layout;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(gridWidth * scale);
  canvas.height = Math.round(gridHeight * scale);
  Object.assign(canvas.style, {
    left: `${left}px`,
    top: `${top}px`,
    width: `${gridWidth}px`,
    height: `${gridHeight}px`,
  });
  const context = canvas.getContext("2d");
  const colours = NAMES.map((name) => colour(canvas, `--${name === "some" ? "seen" : name}`));
  context.fillStyle = colours[0];
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = hatchOf(context, colour(canvas, "--hatch"), scale);
  context.fillRect(0, 0, canvas.width, canvas.height);
  const x = edges(columns, cw * scale);
  const y = edges(rows, ch * scale);
  for (let at = 0; at < rows * columns; at += 1) {
    const kind = grid.kindAt[at];
    if (kind === 0) continue;
    const [row, column] = [Math.floor(at / columns), at % columns];
    context.globalAlpha = opacity(grid, at);
    context.fillStyle = colours[kind];
    context.fillRect(x[column], y[row], x[column + 1] - x[column], y[row + 1] - y[row]);
  }
}

// Whole pixels, so that there are no gaps or overlaps between neighbours.
const edges = (count, pitch) => Array.from({ length: count + 1 }, (_, n) => Math.round(n * pitch));

function colour(element, name) {
  element.style.color = `var(${name})`; // the value of the variable may be light-dark(…)
  return getComputedStyle(element).color;
}

function hatchOf(context, stroke, scale) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(6 * scale);
  const tileContext = tile.getContext("2d");
  tileContext.scale(tile.width / 6, tile.height / 6);
  tileContext.strokeStyle = stroke;
  tileContext.stroke(new Path2D("M-1 7L7 -1M-1 1L1 -1M5 7L7 5"));
  return context.createPattern(tile, "repeat");
}

/** The symbol of a kind in a legend. */
export function swatch(kind) {
  const grid = { kindAt: [kind], shadeAt: kind === 1 ? [140] : null };
  const layout = {
    left: 0,
    top: 0,
    cw: 16,
    ch: 16,
    rows: 1,
    columns: 1,
    gridWidth: 16,
    gridHeight: 16,
  };
  return svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, cellsOf(grid, layout));
}
