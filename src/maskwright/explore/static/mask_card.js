// The picture of the mask: statistics, tabs of sequences and heads, the reason of a cell, download.

import { file, isAbort, post } from "./api.js";
import { byId, h, rovingTarget, debounce, downloadBlob, svg } from "./dom.js";
import { drawGrid } from "./grid.js";
import { kindName, swatch } from "./grid_render.js";
import { onMask } from "./mask_loader.js";
import { set, state, subject, subscribe, SUBJECT_KEYS } from "./state.js";
import { MIN_CELLS, pan, zoom } from "./viewport.js";
import { formatNumber, formatPercent, t } from "./i18n.js";

let answer = null;
let picture = null;
let hovered = null; // {row, key}
let controller = new AbortController();

/** Start the card; `announce(text)` speaks to screen readers. */
export function startMaskCard(announce) {
  onMask((event) => {
    showError(event.error);
    if (!event.answer) return;
    ({ answer } = event);
    show();
    loadReason();
  });
  subscribe((_, keys) => {
    if (keys.has("lang") && answer) show();
    if (keys.has("query") || keys.has("key")) picture?.select(state.query, state.key);
    if (["query", "key", "lang"].some((name) => keys.has(name))) loadReason();
    if ([...SUBJECT_KEYS, "view"].some((name) => keys.has(name))) loadReason.cancel();
  });
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", () => zoom(Infinity));
  for (const format of ["svg", "png"]) {
    byId(`save-${format}`).addEventListener("click", () => download(format, announce));
  }
  clearReason();
}

function show() {
  const { grid, frame } = answer;
  byId("size-summary").textContent = formatSizes(frame);
  picture = drawGrid(byId("stage"), grid, {
    label: t("grid_label", { rows: grid.shape[0], columns: grid.shape[1] }),
    selected: state.query === null ? null : { row: state.query, key: state.key },
    onCell,
    onPan: pan,
    onZoom: zoom,
    pannable: state.view !== null,
    maxHeight: Math.min(640, Math.max(330, innerHeight * (grid.shape[0] > 16 ? 0.6 : 0.46))),
  });
  showStatistics();
  showPlanes();
  showLegend();
  showOverview(frame);
  byId("zoom-in").disabled = Math.max(...grid.extent) <= MIN_CELLS;
  byId("zoom-out").disabled = byId("zoom-all").disabled = state.view === null;
  byId("description").textContent = answer.description;
}

function showError(error) {
  byId("stage").classList.toggle("stale", Boolean(error));
  if (error?.status === 413) byId("zoom-in").disabled = false; // a part of the mask may be small enough
  const isOwn = error && !error.at && error.status !== 422; // others stand below the expression
  byId("grid-error").textContent = isOwn
    ? error.kind === "Offline"
      ? t("offline")
      : error.message
    : "";
}

function formatSizes({ q_len: q, kv_len: k, batch, heads }) {
  const parts = [t("sizes", { q: formatNumber(q), k: formatNumber(k) })];
  if (batch > 1) parts.push(t("sizes_batch", { n: formatNumber(batch) }));
  if (heads > 1) parts.push(t("sizes_heads", { n: formatNumber(heads) }));
  return parts.join(t("comma"));
}

// Statistics ---------------------------------------------------------------------------------

function showStatistics() {
  const { density, count, cells, empty_rows: empty, unseen_keys: unseen } = answer;
  if (density === null) {
    byId("facts").replaceChildren(h("span", {}, t("not_counted", { cells: formatNumber(cells) })));
    return;
  }
  const facts = [
    h("span", {}, `${t("density")} `, h("strong", {}, formatPercent(density))),
    h("span", {}, t("cells_visible", { count: formatNumber(count), cells: formatNumber(cells) })),
  ];
  if (empty)
    facts.push(warning(empty === 1 ? t("empty_row") : t("empty_rows", { n: formatNumber(empty) })));
  if (unseen)
    facts.push(warning(unseen === 1 ? t("unseen_key") : t("unseen_keys", { n: formatNumber(unseen) })));
  byId("facts").replaceChildren(...facts);
}

const warning = (text) => h("span", { class: "fact-warning" }, `⚠ ${text}`);

function showPlanes() {
  const [batches, heads] = answer.planes;
  const place = byId("planes");
  const focused = place.contains(document.activeElement) ? document.activeElement.id : null;
  place.replaceChildren(...planeTabs("batch", batches), ...planeTabs("head", heads));
  if (focused) byId(focused)?.focus();
}

function planeTabs(name, count) {
  if (count < 2) return [];
  const tabs = Array.from({ length: count }, (_, n) =>
    h(
      "button",
      {
        type: "button",
        class: "tab",
        role: "tab",
        id: `${name}-${n}`,
        "aria-selected": String(state[name] === n),
        "aria-controls": "stage",
        tabindex: state[name] === n ? 0 : -1,
        onclick: () => set({ [name]: n }),
      },
      t(`${name}_n`, { n }),
    ),
  );
  const onkeydown = (event) => {
    const next = rovingTarget(tabs, event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
    next.click();
  };
  return [
    h("div", { class: "tabs", role: "tablist", "aria-label": t(`${name}_rows`), onkeydown }, tabs),
  ];
}

function showLegend() {
  const kinds = [...new Set(atob(answer.grid.kinds))].map((letter) => letter.charCodeAt(0));
  const [q, k] = answer.grid.block;
  const entries = kinds
    .sort((a, b) => b - a)
    .map((kind) => h("span", { class: "legend-entry" }, swatch(kind), t(kindName(kind))));
  if (q * k > 1) entries.push(h("span", {}, t("square_size", { q: formatNumber(q), k: formatNumber(k) })));
  byId("legend").replaceChildren(...entries);
}

function showOverview({ q_len: queries, kv_len: keys }) {
  const { view } = state;
  if (!view) return byId("overview").replaceChildren();
  const scale = (part, whole) => Math.max(part / whole, 0) * 42;
  const range = {
    row: view.row,
    last_row: view.row + view.rows - 1,
    key: view.key,
    last_key: view.key + view.keys - 1,
  };
  const values = Object.fromEntries(
    Object.entries(range).map(([name, value]) => [name, formatNumber(value)]),
  );
  byId("overview").replaceChildren(
    h("span", {}, t("where", values)),
    svg(
      "svg",
      { viewBox: "0 0 44 44", role: "img", "aria-label": t("overview") },
      svg("rect", { class: "overview-all", x: 0.5, y: 0.5, width: 43, height: 43 }),
      svg("rect", {
        class: "overview-part",
        x: Math.min(1 + scale(view.key, keys), 40),
        y: Math.min(1 + scale(view.row, queries), 40),
        width: Math.max(scale(view.keys, keys), 3),
        height: Math.max(scale(view.rows, queries), 3),
      }),
    ),
  );
}

// Reason of a cell ---------------------------------------------------------------------------

function onCell(row, key, how) {
  if (how.type === "select") {
    hovered = null;
    set({ query: row, key });
    loadReason();
    return;
  }
  hovered = how.type === "hover" ? { row, key } : null;
  loadReason();
}

const loadReason = debounce(45, async () => {
  controller.abort();
  controller = new AbortController();
  const cell = hovered ?? (state.query === null ? null : { row: state.query, key: state.key });
  if (!cell || !answer) return clearReason();
  const { row, key } = cell;
  const { batch, head } = state;
  try {
    const why = await post(
      "why",
      { subject: subject(), query: row, key, batch, head },
      controller.signal,
    );
    const sentence = (state.lang === "zh" && why.sentence_zh) || why.sentence;
    showReason(`${squareText(row, key)}${sentence}`, why.allowed ? "is-seen" : "is-hidden");
  } catch (error) {
    if (!isAbort(error) && error.status !== 422) showReason(error.message, "is-idle");
  }
});

function squareText(row, key) {
  const { start, block, extent, shape, kinds, shades } = answer.grid;
  if (block[0] * block[1] === 1) return "";
  const at = [row, key].map((place, axis) => Math.floor((place - start[axis]) / block[axis]));
  if (at.some((index, axis) => index < 0 || index >= shape[axis])) return "";
  const index = at[0] * shape[1] + at[1];
  const kind = atob(kinds).charCodeAt(index);
  const share = kind === 1 ? atob(shades).charCodeAt(index) / 255 : kind === 2 ? 1 : 0;
  const last = (axis) => start[axis] + Math.min((at[axis] + 1) * block[axis], extent[axis]) - 1;
  return t("square_text", {
    row: formatNumber(start[0] + at[0] * block[0]),
    last_row: formatNumber(last(0)),
    key: formatNumber(start[1] + at[1] * block[1]),
    last_key: formatNumber(last(1)),
    share: formatPercent(share),
  });
}

function showReason(text, look) {
  const line = byId("why");
  line.className = `why ${look}`;
  if (line.textContent !== text) line.textContent = text;
}

function clearReason() {
  showReason(t("point"), "is-idle");
}

// Files --------------------------------------------------------------------------------------

async function download(format, announce) {
  const { batch, head, view } = state;
  const theme = document.documentElement.dataset.theme;
  try {
    const blob = await file("picture", { subject: subject(), batch, head, view, format, theme });
    downloadBlob(blob, `mask.${format}`);
  } catch (error) {
    byId("grid-error").textContent = error.message;
    announce(error.message);
  }
}
