// The visible part of the mask: zoom and pan.

import { set, sizes, state } from "./state.js";

export const MIN_CELLS = 8; // per side of the closest view

// From the state: the last response may be of another size.
function wholeMask() {
  const { queries, keys } = sizes();
  return { row: 0, rows: queries, key: 0, keys };
}

/** Zoom in (a factor below 1) or out; the given query and key keep their place on the screen. */
export function zoom(factor, row, key) {
  const all = wholeMask();
  const now = state.view ?? all;
  const rows = scaled(now.rows, factor, all.rows);
  const keys = scaled(now.keys, factor, all.keys);
  if (rows === all.rows && keys === all.keys) return set({ view: null });
  const center = centerOf(now);
  // Views begin at multiples of the square size, so that squares cover the same cells.
  const from = (at, start, old, length, max) => {
    const round = 2 ** Math.max(0, Math.floor(Math.log2(length / 64)));
    const place = Math.round((at - ((at - start) / old) * length) / round) * round;
    return Math.min(Math.max(place, 0), max - length);
  };
  set({
    view: {
      row: from(row ?? center.row, now.row, now.rows, rows, all.rows),
      rows,
      key: from(key ?? center.key, now.key, now.keys, keys, all.keys),
      keys,
    },
  });
}

function scaled(length, factor, max) {
  const wanted = factor < 1 ? Math.floor(length * factor) : Math.ceil(length * factor);
  return Math.min(Math.max(wanted, Math.min(MIN_CELLS, max)), max);
}

function centerOf(view) {
  const { query, key } = state;
  const inside =
    query !== null &&
    query >= view.row &&
    query < view.row + view.rows &&
    key >= view.key &&
    key < view.key + view.keys;
  return inside
    ? { row: query, key }
    : { row: view.row + view.rows / 2, key: view.key + view.keys / 2 };
}

/** Move the visible part by that number of rows and keys. */
export function pan(rows, keys) {
  const { view } = state;
  if (!view) return;
  const all = wholeMask();
  const moved = (at, step, length, max) => Math.min(Math.max(at + step, 0), max - length);
  set({
    view: {
      ...view,
      row: moved(view.row, rows, view.rows, all.rows),
      key: moved(view.key, keys, view.keys, all.keys),
    },
  });
}
