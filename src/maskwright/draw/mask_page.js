"use strict";
const grids = JSON.parse(document.getElementById("data").textContent);
const box = document.getElementById("picture");
const picture = box.querySelector("svg");
const line = document.getElementById("cell");
const source = new XMLSerializer().serializeToString(picture) + "\n";
const name = picture.querySelector("title").textContent;

// The browser would show the picture's title over each cell; it becomes the label.
picture.setAttribute("aria-label", name);
picture.removeAttribute("aria-labelledby");
picture.querySelector("title").remove();
box.style.setProperty("--least", 0.6 * picture.getAttribute("width") + "px");

const cursor = document.createElementNS(picture.namespaceURI, "rect");
cursor.id = "cursor";
cursor.setAttribute("visibility", "hidden");
picture.append(cursor);
let at = null;

function describe(grid, row, column) {
  const runs = grid.runs[row];
  let i = 0;
  for (let left = column; left >= runs[i]; i += 2) left -= runs[i];
  const place = grid.rows[row] + ", " + grid.columns[column];
  return (grid.title ? grid.title + ", " : "") + place + ": " + grid.kinds[runs[i + 1]];
}

function show(number, row, column) {
  const grid = grids[number];
  at = [number, row, column];
  const width = Math.max(grid.wide, 7), height = Math.max(grid.tall, 7);  // large enough to see
  const sizes = {x: grid.x + (column + 0.5) * grid.wide - width / 2,
    y: grid.y + (row + 0.5) * grid.tall - height / 2, width, height};
  for (const key in sizes) cursor.setAttribute(key, sizes[key]);
  cursor.setAttribute("visibility", "visible");
  line.textContent = describe(grid, row, column);
}

function point(event) {
  const spot = new DOMPoint(event.clientX, event.clientY)
    .matrixTransform(picture.getScreenCTM().inverse());
  grids.forEach((grid, number) => {
    const row = Math.floor((spot.y - grid.y) / grid.tall);
    const column = Math.floor((spot.x - grid.x) / grid.wide);
    if (row < 0 || column < 0 || row >= grid.rows.length || column >= grid.columns.length) return;
    if (!at || at[0] !== number || at[1] !== row || at[2] !== column) show(number, row, column);
  });
}

function move(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const ways = {ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0], ArrowLeft: [0, 0, -1],
    ArrowRight: [0, 0, 1], Home: [0, 0, -Infinity], End: [0, 0, Infinity],
    PageUp: [-1, 0, 0], PageDown: [1, 0, 0]};
  const way = ways[event.key];
  const first = grids.findIndex((grid) => grid.rows.length && grid.columns.length);
  if (!way || first < 0) return;
  event.preventDefault();
  if (!at) return show(first, 0, 0);
  const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
  let number = within(at[0] + way[0], grids.length);
  if (!grids[number].rows.length || !grids[number].columns.length) number = at[0];
  const grid = grids[number];
  show(number, within(at[1] + way[1], grid.rows.length),
    within(at[2] + way[2], grid.columns.length));
  const edge = cursor.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (edge.right > frame.right) box.scrollLeft += edge.right - frame.right + 8;
  if (edge.left < frame.left) box.scrollLeft -= frame.left - edge.left + 8;
  cursor.scrollIntoView({block: "nearest", inline: "nearest"});
}

function done(text) {
  document.getElementById("done").textContent = text;
}

async function copy() {
  try {
    await navigator.clipboard.writeText(source);
  } catch {
    const field = document.createElement("textarea");
    field.value = source;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (!copied) return done("The browser does not let the page copy; save the picture instead.");
  }
  done("Copied.");
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([source], {type: "image/svg+xml"}));
  link.download = "mask.svg";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  done("Saved as mask.svg.");
}

box.addEventListener("pointermove", point);
box.addEventListener("click", point);
box.addEventListener("keydown", move);
document.getElementById("copy").addEventListener("click", copy);
document.getElementById("save").addEventListener("click", save);
