// A grid of squares. A square is one cell, or a tile of cells in a large mask. The pointer and the
// arrow keys select a square; its row and column are highlighted.

import { h, svg } from "./dom.js";
import { labelsOf, layoutOf } from "./grid_layout.js";
import { cellsOf, decodeGrid, frameOf, MAX_SVG_SQUARES, paintCanvas } from "./grid_render.js";

const views = new WeakMap(); // container -> GridView
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const ZOOMS = { "+": 0.5, "=": 0.5, "-": 2, _: 2 };
const DRAG_DISTANCE = 6; // pixels; less is a tap

/**
 * Draw a grid of the server into a container, or update the one that is there.
 *
 * options: onCell(row, key, {type}), selected {row, key} | null, label, labels, maxHeight (pixels),
 * onPan(rows, keys), onZoom(factor, row, key), pannable. Without onCell it is a static image.
 */
export function drawGrid(container, grid, options = {}) {
  let view = views.get(container);
  if (!view || !container.contains(view.root)) {
    view = new GridView(container);
    views.set(container, view);
  }
  view.show(decodeGrid(grid), options);
  return { select: (row, key) => view.select(row, key), destroy: () => view.destroy() };
}

class GridView {
  constructor(container) {
    this.container = container;
    this.root = h("div", { class: "grid" });
    container.replaceChildren(this.root);
    this.hovered = null; // [row, column] of squares
    this.selected = null;
    this.width = 0;
    this.observer = new ResizeObserver(() => {
      if (Math.abs(container.clientWidth - this.width) > 1) this.paint();
    });
    this.observer.observe(container);
    this.onTheme = () => this.canvas && paintCanvas(this.canvas, this.grid, this.layout);
    document.addEventListener("themechange", this.onTheme);
    this.listen();
  }

  show(grid, options) {
    this.grid = grid;
    this.options = options;
    const live = Boolean(options.onCell);
    this.root.classList.toggle("live", live);
    this.root.setAttribute("role", live ? "application" : "img");
    this.root.setAttribute("aria-label", options.label || grid.title || "grid");
    if (live && options.focusable !== false) this.root.tabIndex = 0;
    this.root.style.touchAction = options.pannable ? "none" : "";
    this.selected = options.selected ? this.squareOf(options.selected.row, options.selected.key) : null;
    this.paint();
    if (this.hovered && this.layout) {
      this.hovered = null; // the pointer is still, but the square under it is new
      this.hover(this.squareAt(this.pointer));
    }
  }

  paint() {
    this.width = this.container.clientWidth;
    if (!this.grid || this.width === 0) return; // hidden: the observer calls again
    this.layout = layoutOf(this.grid, this.width, this.options);
    const { width, height, rows, columns } = this.layout;
    const large = Math.max(rows, columns) > MAX_SVG_SQUARES;
    this.canvas = large ? h("canvas", { "aria-hidden": "true" }) : null;
    this.overlay = svg("g", {});
    this.drawing = svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      large ? frameOf(this.layout) : cellsOf(this.grid, this.layout),
      labelsOf(this.grid, this.layout),
      this.overlay,
    );
    this.drawing.style.position = "relative";
    this.root.replaceChildren(...(large ? [this.canvas] : []), this.drawing);
    if (large) paintCanvas(this.canvas, this.grid, this.layout);
    this.highlight();
  }

  select(row, key) {
    this.selected = row === null || row === undefined ? null : this.squareOf(row, key);
    this.highlight();
  }

  destroy() {
    this.observer.disconnect();
    document.removeEventListener("themechange", this.onTheme);
    this.root.remove();
    views.delete(this.container);
  }

  // Squares and cells ------------------------------------------------------------------------

  squareOf(row, key) {
    const { start, block, extent } = this.grid;
    const inside =
      row >= start[0] &&
      key >= start[1] &&
      row < start[0] + extent[0] &&
      key < start[1] + extent[1];
    return inside
      ? [Math.floor((row - start[0]) / block[0]), Math.floor((key - start[1]) / block[1])]
      : null;
  }

  emit(square, type) {
    if (!square) return this.options.onCell?.(null, null, { type });
    const span = (axis) => {
      const { start, block, extent } = this.grid;
      const first = start[axis] + square[axis] * block[axis];
      return [first, Math.min(first + block[axis], start[axis] + extent[axis]) - 1];
    };
    const [rows, keys] = [span(0), span(1)];
    this.options.onCell?.(rows[0], keys[0], { type, square, rows, keys });
  }

  squareAt(event) {
    const box = this.drawing.getBoundingClientRect();
    const scale = this.layout.width / box.width; // 1, unless the view is squeezed
    const column = Math.floor(
      ((event.clientX - box.left) * scale - this.layout.left) / this.layout.cw,
    );
    const row = Math.floor(((event.clientY - box.top) * scale - this.layout.top) / this.layout.ch);
    const inside =
      row >= 0 && column >= 0 && row < this.layout.rows && column < this.layout.columns;
    return inside ? [row, column] : null;
  }

  highlight() {
    const square = this.hovered ?? this.selected;
    const { left, top, cw, ch, gridWidth, gridHeight, rows, columns } = this.layout ?? {};
    this.overlay?.replaceChildren();
    for (const text of this.drawing?.querySelectorAll("[data-row], [data-column]") ?? []) {
      const { row, column } = text.dataset;
      const on = square && (row === undefined ? Number(column) === square[1] : Number(row) === square[0]);
      text.classList.toggle("is-on", Boolean(on));
    }
    if (!square || !this.layout || !this.options.onCell || square[0] >= rows || square[1] >= columns)
      return;
    const [x, y] = [left + square[1] * cw, top + square[0] * ch];
    const ring = { x: x - 1, y: y - 1, width: cw + 2, height: ch + 2, rx: 2 };
    this.overlay.append(
      svg("rect", { class: "band", x: left, y, width: gridWidth, height: ch }),
      svg("rect", { class: "band", x, y: top, width: cw, height: gridHeight }),
      svg("rect", { class: "ring", ...ring }),
      svg("rect", { class: "ring-inner", ...ring }),
    );
  }

  // Events -----------------------------------------------------------------------------------

  listen() {
    const { root } = this;
    root.addEventListener("pointermove", (event) => this.move(event));
    root.addEventListener("pointerleave", () => this.hover(null));
    root.addEventListener("pointerdown", (event) => this.press(event));
    root.addEventListener("pointerup", (event) => this.release(event));
    root.addEventListener("pointercancel", () => this.drop());
    root.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    root.addEventListener("keydown", (event) => this.key(event));
  }

  hover(square) {
    if (!this.options?.onCell || String(square) === String(this.hovered)) return;
    this.hovered = square;
    this.highlight();
    this.emit(square, square ? "hover" : "leave");
  }

  move(event) {
    if (this.grab) this.drag(event);
    else if (event.pointerType !== "touch") {
      this.pointer = { clientX: event.clientX, clientY: event.clientY };
      this.hover(this.squareAt(event));
    }
  }

  press(event) {
    if (event.button !== 0 || !this.options.onCell) return;
    this.grab = { x: event.clientX, y: event.clientY, moved: false, id: event.pointerId };
  }

  drag(event) {
    const { grab } = this;
    const [dx, dy] = [event.clientX - grab.x, event.clientY - grab.y];
    if (!this.options.pannable || (!grab.moved && Math.hypot(dx, dy) < DRAG_DISTANCE)) return;
    if (!grab.moved) {
      this.root.setPointerCapture(grab.id);
      this.root.classList.add("dragging");
      this.hover(null);
    }
    grab.moved = true;
    const { cw, ch } = this.layout;
    const [rows, columns] = [-Math.trunc(dy / ch), -Math.trunc(dx / cw)];
    if (rows === 0 && columns === 0) return;
    grab.x -= columns * cw;
    grab.y -= rows * ch;
    this.options.onPan?.(rows * this.grid.block[0], columns * this.grid.block[1]);
  }

  release(event) {
    const moved = this.grab?.moved ?? true;
    this.drop();
    const square = this.squareAt(event);
    if (!moved && square) this.selectSquare(square);
  }

  drop() {
    this.grab = null;
    this.root.classList.remove("dragging");
  }

  selectSquare(square) {
    this.selected = square;
    this.highlight();
    this.emit(square, "select");
  }

  deselect() {
    this.selected = null;
    this.highlight();
    this.emit(null, "select");
  }

  wheel(event) {
    if (!event.ctrlKey || !this.options.onZoom) return;
    event.preventDefault();
    const square = this.squareAt(event);
    const { start, block } = this.grid;
    const at = square ? square.map((index, axis) => start[axis] + index * block[axis]) : [];
    this.options.onZoom(event.deltaY > 0 ? 1.25 : 0.8, ...at);
  }

  key(event) {
    if (!this.options.onCell || event.altKey || event.ctrlKey || event.metaKey) return;
    const step = STEPS[event.key];
    const factor = ZOOMS[event.key];
    if (step && event.shiftKey) this.pan(step);
    else if (step) this.walk(step);
    else if (factor && this.options.onZoom) this.options.onZoom(factor);
    else if (event.key === "0" && this.options.onZoom) this.options.onZoom(Infinity);
    else if (event.key === "Escape" && this.selected) this.deselect();
    else return;
    event.preventDefault();
  }

  pan([down, right]) {
    const { extent } = this.grid;
    const part = (axis) => Math.max(1, Math.round(extent[axis] / 8));
    this.options.onPan?.(down * part(0), right * part(1));
  }

  walk([down, right]) {
    this.hovered = null;
    const { rows, columns } = this.layout;
    const from = this.selected ?? [down > 0 ? -1 : 0, right > 0 ? -1 : 0];
    const to = [from[0] + down, from[1] + right];
    const beyond = to[0] < 0 || to[1] < 0 || to[0] >= rows || to[1] >= columns;
    if (beyond && this.options.pannable)
      this.options.onPan?.(down * this.grid.block[0], right * this.grid.block[1]);
    this.selectSquare([clamp(to[0], rows), clamp(to[1], columns)]);
  }
}

const clamp = (index, count) => Math.min(Math.max(index, 0), count - 1);
