// A grid of signs: pointing, tapping and arrow keys choose a cell; its row and column light up.

import { h, svg } from "./dom.js";
import { labelsOf, layoutOf } from "./layout.js";
import { cellsOf, decoded, frameOf, MOST_IN_SVG, paintCanvas } from "./paint.js";

const drawn = new WeakMap(); // container -> Picture
const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const ZOOMS = { "+": 0.5, "=": 0.5, "-": 2, _: 2 };
const DRAG_FROM = 6; // pixels: less is a tap

/**
 * Draw a GRID into a container; again on the same container redraws in place.
 *
 * options: onCell(row, key, how), chosen {row, key} | null, label, labels, most (pixels of height),
 * onPan(rows, keys), onZoom(factor, row, key), pannable. Without onCell it is a plain picture.
 */
export function drawGrid(container, grid, options = {}) {
  let picture = drawn.get(container);
  if (!picture || !container.contains(picture.root)) {
    picture = new Picture(container);
    drawn.set(container, picture);
  }
  picture.show(decoded(grid), options);
  return { choose: (row, key) => picture.choose(row, key), destroy: () => picture.destroy() };
}

class Picture {
  constructor(container) {
    this.container = container;
    this.root = h("div", { class: "grid" });
    container.replaceChildren(this.root);
    this.hovered = null; // [row, column] of signs
    this.chosen = null;
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
    this.chosen = options.chosen ? this.signOf(options.chosen.row, options.chosen.key) : null;
    this.paint();
    if (this.hovered && this.layout) {
      this.hovered = null; // the pointer rests, but what lies under it is new
      this.hover(this.signAt(this.pointer));
    }
  }

  paint() {
    this.width = this.container.clientWidth;
    if (!this.grid || this.width === 0) return; // hidden: the observer calls again
    this.layout = layoutOf(this.grid, this.width, this.options);
    const { width, height, rows, columns } = this.layout;
    const large = Math.max(rows, columns) > MOST_IN_SVG;
    this.canvas = large ? h("canvas", { "aria-hidden": "true" }) : null;
    this.light = svg("g", {});
    this.drawing = svg(
      "svg",
      { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      large ? frameOf(this.layout) : cellsOf(this.grid, this.layout),
      labelsOf(this.grid, this.layout),
      this.light,
    );
    this.drawing.style.position = "relative";
    this.root.replaceChildren(...(large ? [this.canvas] : []), this.drawing);
    if (large) paintCanvas(this.canvas, this.grid, this.layout);
    this.highlight();
  }

  choose(row, key) {
    this.chosen = row === null || row === undefined ? null : this.signOf(row, key);
    this.highlight();
  }

  destroy() {
    this.observer.disconnect();
    document.removeEventListener("themechange", this.onTheme);
    this.root.remove();
    drawn.delete(this.container);
  }

  // Signs and cells --------------------------------------------------------------------------

  signOf(row, key) {
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

  tell(sign, type) {
    if (!sign) return this.options.onCell?.(null, null, { type });
    const span = (axis) => {
      const { start, block, extent } = this.grid;
      const first = start[axis] + sign[axis] * block[axis];
      return [first, Math.min(first + block[axis], start[axis] + extent[axis]) - 1];
    };
    const [rows, keys] = [span(0), span(1)];
    this.options.onCell?.(rows[0], keys[0], { type, sign, rows, keys });
  }

  signAt(event) {
    const box = this.drawing.getBoundingClientRect();
    const scale = this.layout.width / box.width; // 1, unless the picture is squeezed
    const column = Math.floor(
      ((event.clientX - box.left) * scale - this.layout.left) / this.layout.cw,
    );
    const row = Math.floor(((event.clientY - box.top) * scale - this.layout.top) / this.layout.ch);
    const inside =
      row >= 0 && column >= 0 && row < this.layout.rows && column < this.layout.columns;
    return inside ? [row, column] : null;
  }

  highlight() {
    const sign = this.hovered ?? this.chosen;
    const { left, top, cw, ch, gridWidth, gridHeight, rows, columns } = this.layout ?? {};
    this.light?.replaceChildren();
    for (const text of this.drawing?.querySelectorAll("[data-row], [data-column]") ?? []) {
      const { row, column } = text.dataset;
      const on = sign && (row === undefined ? Number(column) === sign[1] : Number(row) === sign[0]);
      text.classList.toggle("is-on", Boolean(on));
    }
    if (!sign || !this.layout || !this.options.onCell || sign[0] >= rows || sign[1] >= columns)
      return;
    const [x, y] = [left + sign[1] * cw, top + sign[0] * ch];
    const ring = { x: x - 1, y: y - 1, width: cw + 2, height: ch + 2, rx: 2 };
    this.light.append(
      svg("rect", { class: "band", x: left, y, width: gridWidth, height: ch }),
      svg("rect", { class: "band", x, y: top, width: cw, height: gridHeight }),
      svg("rect", { class: "ring", ...ring }),
      svg("rect", { class: "ring-inner", ...ring }),
    );
  }

  // Hands ------------------------------------------------------------------------------------

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

  hover(sign) {
    if (!this.options?.onCell || String(sign) === String(this.hovered)) return;
    this.hovered = sign;
    this.highlight();
    this.tell(sign, sign ? "hover" : "leave");
  }

  move(event) {
    if (this.grip) this.drag(event);
    else if (event.pointerType !== "touch") {
      this.pointer = { clientX: event.clientX, clientY: event.clientY };
      this.hover(this.signAt(event));
    }
  }

  press(event) {
    if (event.button !== 0 || !this.options.onCell) return;
    this.grip = { x: event.clientX, y: event.clientY, moved: false, id: event.pointerId };
  }

  drag(event) {
    const { grip } = this;
    const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
    if (!this.options.pannable || (!grip.moved && Math.hypot(dx, dy) < DRAG_FROM)) return;
    if (!grip.moved) {
      this.root.setPointerCapture(grip.id);
      this.root.classList.add("dragging");
      this.hover(null);
    }
    grip.moved = true;
    const { cw, ch } = this.layout;
    const [rows, columns] = [-Math.trunc(dy / ch), -Math.trunc(dx / cw)];
    if (rows === 0 && columns === 0) return;
    grip.x -= columns * cw;
    grip.y -= rows * ch;
    this.options.onPan?.(rows * this.grid.block[0], columns * this.grid.block[1]);
  }

  release(event) {
    const moved = this.grip?.moved ?? true;
    this.drop();
    const sign = this.signAt(event);
    if (!moved && sign) this.take(sign);
  }

  drop() {
    this.grip = null;
    this.root.classList.remove("dragging");
  }

  take(sign) {
    this.chosen = sign;
    this.highlight();
    this.tell(sign, "choose");
  }

  wheel(event) {
    if (!event.ctrlKey || !this.options.onZoom) return;
    event.preventDefault();
    const sign = this.signAt(event);
    const { start, block } = this.grid;
    const at = sign ? sign.map((index, axis) => start[axis] + index * block[axis]) : [];
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
    const from = this.chosen ?? [down > 0 ? -1 : 0, right > 0 ? -1 : 0];
    const to = [from[0] + down, from[1] + right];
    const beyond = to[0] < 0 || to[1] < 0 || to[0] >= rows || to[1] >= columns;
    if (beyond && this.options.pannable)
      this.options.onPan?.(down * this.grid.block[0], right * this.grid.block[1]);
    this.take([clamp(to[0], rows), clamp(to[1], columns)]);
  }
}

const clamp = (index, count) => Math.min(Math.max(index, 0), count - 1);
