// The part of the mask that is shown: zoom and move it.

import { set, sizes, state } from "./state.js";

export const LEAST = 8; // cells a side of the closest view

// By the state, not by the last answer, which may be of another size.
function whole() {
  const { queries, keys } = sizes();
  return { row: 0, rows: queries, key: 0, keys };
}

/** Show less (a factor below 1) or more; that query and key stay about where they are. */
export function zoom(factor, row, key) {
  const all = whole();
  const now = state.view ?? all;
  const rows = scaled(now.rows, factor, all.rows);
  const keys = scaled(now.keys, factor, all.keys);
  if (rows === all.rows && keys === all.keys) return set({ view: null });
  const center = centerOf(now);
  // What lies under the pointer, or the chosen cell, stays about where it is: views begin at round
  // places, so that tiles do as well.
  const from = (at, start, old, length, most) => {
    const round = 2 ** Math.max(0, Math.floor(Math.log2(length / 64)));
    const place = Math.round((at - ((at - start) / old) * length) / round) * round;
    return Math.min(Math.max(place, 0), most - length);
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

function scaled(length, factor, most) {
  const wanted = factor < 1 ? Math.floor(length * factor) : Math.ceil(length * factor);
  return Math.min(Math.max(wanted, Math.min(LEAST, most)), most);
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

/** Move the part that is shown. */
export function pan(rows, keys) {
  const { view } = state;
  if (!view) return;
  const all = whole();
  const moved = (at, step, length, most) => Math.min(Math.max(at + step, 0), most - length);
  set({
    view: {
      ...view,
      row: moved(view.row, rows, view.rows, all.rows),
      key: moved(view.key, keys, view.keys, all.keys),
    },
  });
}
