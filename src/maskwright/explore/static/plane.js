// The picture of the mask: its facts, planes, the reason of a cell, and files of it.

import { onAnswer } from "./answer.js";
import { file, isAbort, post } from "./api.js";
import { byId, h, nextOf, rested, save, svg } from "./dom.js";
import { drawGrid } from "./grid.js";
import { kindName, swatch } from "./paint.js";
import { set, state, subject, subscribe, SUBJECT_KEYS } from "./state.js";
import { LEAST, pan, zoom } from "./view.js";
import { number, percent, t } from "./words.js";

let answer = null;
let picture = null;
let hovered = null; // {row, key}
let asking = new AbortController();

/** Start the card; `say` speaks to who listens. */
export function startPlane(say) {
  onAnswer((news) => {
    showError(news.error);
    if (!news.answer) return;
    ({ answer } = news);
    show();
    askWhy();
  });
  subscribe((_, keys) => {
    if (keys.has("lang") && answer) show();
    if (keys.has("query") || keys.has("key")) picture?.choose(state.query, state.key);
    if (["query", "key", "lang"].some((name) => keys.has(name))) askWhy();
    if ([...SUBJECT_KEYS, "view"].some((name) => keys.has(name))) askWhy.cancel();
  });
  byId("zoom-in").addEventListener("click", () => zoom(0.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", () => zoom(Infinity));
  for (const format of ["svg", "png"]) {
    byId(`save-${format}`).addEventListener("click", () => download(format, say));
  }
  idle();
}

function show() {
  const { grid, frame } = answer;
  byId("frame-says").textContent = sizesSay(frame);
  picture = drawGrid(byId("stage"), grid, {
    label: t("grid_label", { rows: grid.shape[0], columns: grid.shape[1] }),
    chosen: state.query === null ? null : { row: state.query, key: state.key },
    onCell,
    onPan: pan,
    onZoom: zoom,
    pannable: state.view !== null,
    most: Math.min(640, Math.max(330, innerHeight * (grid.shape[0] > 16 ? 0.6 : 0.46))),
  });
  showFacts();
  showPlanes();
  showLegend();
  showOverview(frame);
  byId("zoom-in").disabled = Math.max(...grid.extent) <= LEAST;
  byId("zoom-out").disabled = byId("zoom-all").disabled = state.view === null;
  byId("description").textContent = answer.description;
}

function showError(error) {
  byId("stage").classList.toggle("stale", Boolean(error));
  if (error?.status === 413) byId("zoom-in").disabled = false; // a part may be light enough
  const ours = error && !error.at && error.status !== 422; // that of the expression stands there
  byId("grid-error").textContent = ours
    ? error.kind === "Offline"
      ? t("offline")
      : error.message
    : "";
}

function sizesSay({ q_len: q, kv_len: k, batch, heads }) {
  const parts = [t("sizes", { q: number(q), k: number(k) })];
  if (batch > 1) parts.push(t("sizes_batch", { n: number(batch) }));
  if (heads > 1) parts.push(t("sizes_heads", { n: number(heads) }));
  return parts.join(t("comma"));
}

// Facts --------------------------------------------------------------------------------------

function showFacts() {
  const { density, count, cells, empty_rows: empty, unseen_keys: unseen } = answer;
  if (density === null) {
    byId("facts").replaceChildren(h("span", {}, t("not_counted", { cells: number(cells) })));
    return;
  }
  const facts = [
    h("span", {}, `${t("density")} `, h("strong", {}, percent(density))),
    h("span", {}, t("cells_seen", { count: number(count), cells: number(cells) })),
  ];
  if (empty)
    facts.push(warning(empty === 1 ? t("empty_row") : t("empty_rows", { n: number(empty) })));
  if (unseen)
    facts.push(warning(unseen === 1 ? t("unseen_key") : t("unseen_keys", { n: number(unseen) })));
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
    const next = nextOf(tabs, event.key);
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
  const found = [...new Set(atob(answer.grid.kinds))].map((letter) => letter.charCodeAt(0));
  const [q, k] = answer.grid.block;
  const entries = found
    .sort((one, other) => other - one)
    .map((kind) => h("span", { class: "legend-entry" }, swatch(kind), t(kindName(kind))));
  if (q * k > 1) entries.push(h("span", {}, t("tile_is", { q: number(q), k: number(k) })));
  byId("legend").replaceChildren(...entries);
}

function showOverview({ q_len: queries, kv_len: keys }) {
  const { view } = state;
  if (!view) return byId("overview").replaceChildren();
  const share = (part, whole) => Math.max(part / whole, 0) * 42;
  const place = {
    row: view.row,
    last_row: view.row + view.rows - 1,
    key: view.key,
    last_key: view.key + view.keys - 1,
  };
  const said = Object.fromEntries(
    Object.entries(place).map(([name, value]) => [name, number(value)]),
  );
  byId("overview").replaceChildren(
    h("span", {}, t("where", said)),
    svg(
      "svg",
      { viewBox: "0 0 44 44", role: "img", "aria-label": t("overview") },
      svg("rect", { class: "overview-all", x: 0.5, y: 0.5, width: 43, height: 43 }),
      svg("rect", {
        class: "overview-part",
        x: Math.min(1 + share(view.key, keys), 40),
        y: Math.min(1 + share(view.row, queries), 40),
        width: Math.max(share(view.keys, keys), 3),
        height: Math.max(share(view.rows, queries), 3),
      }),
    ),
  );
}

// Why ----------------------------------------------------------------------------------------

function onCell(row, key, how) {
  if (how.type === "choose") {
    hovered = null;
    set({ query: row, key });
    askWhy();
    return;
  }
  hovered = how.type === "hover" ? { row, key } : null;
  askWhy();
}

const askWhy = rested(45, async () => {
  asking.abort();
  asking = new AbortController();
  const cell = hovered ?? (state.query === null ? null : { row: state.query, key: state.key });
  if (!cell || !answer) return idle();
  const { row, key } = cell;
  const { batch, head } = state;
  try {
    const why = await post(
      "why",
      { subject: subject(), query: row, key, batch, head },
      asking.signal,
    );
    const sentence = (state.lang === "zh" && why.sentence_zh) || why.sentence;
    tell(`${tileSays(row, key)}${sentence}`, why.allowed ? "is-seen" : "is-hidden");
  } catch (error) {
    if (!isAbort(error) && error.status !== 422) tell(error.message, "is-idle");
  }
});

function tileSays(row, key) {
  const { start, block, extent, shape, kinds, shades } = answer.grid;
  if (block[0] * block[1] === 1) return "";
  const at = [row, key].map((place, axis) => Math.floor((place - start[axis]) / block[axis]));
  if (at.some((index, axis) => index < 0 || index >= shape[axis])) return "";
  const index = at[0] * shape[1] + at[1];
  const kind = atob(kinds).charCodeAt(index);
  const share = kind === 1 ? atob(shades).charCodeAt(index) / 255 : kind === 2 ? 1 : 0;
  const last = (axis) => start[axis] + Math.min((at[axis] + 1) * block[axis], extent[axis]) - 1;
  return t("tile_says", {
    row: number(start[0] + at[0] * block[0]),
    last_row: number(last(0)),
    key: number(start[1] + at[1] * block[1]),
    last_key: number(last(1)),
    share: percent(share),
  });
}

function tell(text, look) {
  const line = byId("why");
  line.className = `why ${look}`;
  if (line.textContent !== text) line.textContent = text;
}

function idle() {
  tell(t("point"), "is-idle");
}

// Files --------------------------------------------------------------------------------------

async function download(format, say) {
  const { batch, head, view } = state;
  const theme = document.documentElement.dataset.theme;
  try {
    const blob = await file("picture", { subject: subject(), batch, head, view, format, theme });
    save(blob, `mask.${format}`);
  } catch (error) {
    byId("grid-error").textContent = error.message;
    say(error.message);
  }
}
