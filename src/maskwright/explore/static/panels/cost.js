// Cost: visible cells, tiles, memory of the mask, and the backend and work of attention under it.

import { add, number, percent } from "../words.js";
import { follow, make } from "./parts.js";
import { bytes } from "./numbers.js";

let following = null;

function mount(root, ctx) {
  const body = make("div", { class: "panel-body" });
  root.append(make("p", { class: "note", word: "cost.intro" }), body);
  following = follow(ctx, root, {
    body,
    request: () => ({ cost: ["cost", { subject: ctx.subject() }] }),
    draw: (answers) => body.replaceChildren(...drawn(answers.cost, ctx)),
  });
}

function drawn(cost, ctx) {
  const parts = [
    section(
      "cost.cells",
      make("p", { class: "big", text: percent(cost.density) }),
      make("p", {
        class: "says",
        text: ctx.t("cost.allowed", { allowed: number(cost.allowed), cells: number(cost.cells) }),
      }),
      stacked(
        [
          ["seen", cost.allowed, "cost.seen"],
          ["hidden", cost.cells - cost.allowed, "cost.hidden"],
        ],
        ctx,
      ),
    ),
  ];
  if (cost.tiles) parts.push(tiles(cost.tiles, ctx));
  parts.push(memory(cost, ctx));
  parts.push(attention(cost, ctx));
  return parts;
}

function tiles({ block, empty, partial, full }, ctx) {
  const says = ctx.t("cost.tiles.says", { block });
  return section(
    "cost.tiles",
    make("p", { class: "says", text: says }),
    stacked(
      [
        ["hidden", empty, "cost.empty"],
        ["some", partial, "cost.partial"],
        ["seen", full, "cost.full"],
      ],
      ctx,
    ),
  );
}

/** One bar cut into its parts, each with a pattern of its own, and a legend with the numbers. */
function stacked(parts, ctx) {
  const all = parts.reduce((sum, [, count]) => sum + count, 0) || 1;
  const bar = make("div", { class: "stacked", "aria-hidden": "true" });
  const legend = make("ul", { class: "legend" });
  for (const [kind, count, word] of parts) {
    const piece = make("span", { class: `piece ${kind}` });
    piece.style.setProperty("--share", (count / all).toFixed(5));
    if (count) bar.append(piece);
    legend.append(
      make(
        "li",
        { class: "legend-entry" },
        make("span", { class: `swatch ${kind}`, "aria-hidden": "true" }),
        make("span", { word }),
        make("span", { class: "value", text: `${number(count)} (${percent(count / all)})` }),
      ),
    );
  }
  return make("div", {}, bar, legend);
}

/** What holding the mask takes, on a scale on which every step is a factor. */
function memory(cost, ctx) {
  const rows = [
    ["cost.dense", cost.dense_bytes, "second"],
    ["cost.bias", cost.bias_bytes, "first"],
    ["cost.spans", cost.span_bytes, "seen"],
  ].filter(([, size]) => size !== null && size !== undefined);
  const most = Math.log2(Math.max(...rows.map(([, size]) => size), 2));
  const list = make("ul", { class: "bars long" });
  for (const [word, size, kind] of rows) {
    const bar = make("span", { class: `bar ${kind}`, "aria-hidden": "true" });
    bar.style.setProperty("--share", (Math.log2(Math.max(size, 1)) / most).toFixed(4));
    list.append(
      make(
        "li",
        {},
        make("span", { word }),
        make("span", { class: "track" }, bar),
        make("span", { class: "value", text: bytes(size) }),
      ),
    );
  }
  const ratio = cost.span_bytes ? cost.dense_bytes / cost.span_bytes : 0;
  const intervals = ctx.t("cost.intervals", { intervals: number(cost.intervals ?? 0) });
  const saved = ratio >= 2 ? ctx.t("cost.ratio", { ratio: number(Math.floor(ratio)) }) : "";
  return section(
    "cost.memory",
    make("p", { class: "says", text: `${intervals} ${saved}` }),
    list,
    make("p", { class: "note", word: "cost.log" }),
  );
}

/** The backend of attention under this mask, and an estimate of its work. */
function attention({ backend, reason, instruction_set: isa, work, head_dim: dim }, ctx) {
  if (!work) return section("cost.attention", make("p", { class: "says", word: "cost.skipped" }));
  const rows = [
    ["cost.backend", isa ? `${backend} (${isa})` : backend, "en"],
    ["cost.reason", reason, "en"],
    [
      "cost.visited",
      ctx.t("cost.visited.says", {
        visited: number(work.tiles_visited),
        tiles: number(work.tiles),
        share: percent(work.tiles ? work.tiles_visited / work.tiles : 0),
        rows: work.block_q,
        keys: work.block_kv,
      }),
    ],
    [
      "cost.computed",
      ctx.t("cost.computed.says", {
        computed: number(work.cells_computed),
        visible: number(work.cells_visible),
        share: percent(work.useful_share),
      }),
    ],
    ["cost.time", ctx.t("cost.time.says", { time: duration(work.milliseconds), dim })],
  ];
  const list = make("dl", { class: "pairs" });
  for (const [word, text, lang] of rows) {
    const value = make("dd", { text });
    if (lang) value.lang = lang;
    list.append(make("dt", { word }), value);
  }
  return section("cost.attention", list);
}

/** Milliseconds with a unit: 0.123 ms, 36.4 s. */
function duration(milliseconds) {
  const [value, unit] = milliseconds < 1000 ? [milliseconds, "ms"] : [milliseconds / 1000, "s"];
  const digits = value < 1000 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 0 };
  return `${number(value, digits)} ${unit}`;
}

function section(word, ...parts) {
  return make("section", { class: "block" }, make("h3", { word }), ...parts);
}

export const panel = {
  id: "cost",
  title: "cost.title",
  mount,
  show: () => following?.show(),
  hide: () => following?.hide(),
};

// Added when the module loads, since the tab needs its title before the panel is shown.
add({
  en: {
    "cost.title": "Cost",
    "cost.intro": "What this mask costs to hold and to run, at the size that is set.",
    "cost.cells": "Cells",
    "cost.allowed": "{allowed} of {cells} cells may be seen.",
    "cost.seen": "seen",
    "cost.hidden": "hidden",
    "cost.tiles": "Tiles",
    "cost.tiles.says":
      "In tiles of {block} × {block}: an empty one is skipped, a full one needs no mask, a partial one needs both.",
    "cost.empty": "empty",
    "cost.partial": "partial",
    "cost.full": "full",
    "cost.memory": "Memory of the mask",
    "cost.dense": "as booleans, T × T",
    "cost.bias": "as a float bias, T × T",
    "cost.spans": "as intervals",
    "cost.intervals": "Held as {intervals} intervals of keys.",
    "cost.ratio": "That is {ratio} times less than T × T booleans.",
    "cost.log": "The scale is logarithmic: equal steps are equal factors.",
    "cost.attention": "Attention on this machine",
    "cost.skipped": "No estimate: the mask has too many intervals at this size.",
    "cost.backend": "Backend",
    "cost.reason": "Reason",
    "cost.visited": "Tiles visited",
    "cost.visited.says": "{visited} of {tiles} ({share}), {rows} × {keys} cells each",
    "cost.computed": "Scores computed",
    "cost.computed.says": "{computed}, {visible} of them visible ({share})",
    "cost.time": "Estimated time",
    "cost.time.says": "{time} on one CPU thread (forward, float32, head_dim {dim})",
  },
  zh: {
    "cost.title": "开销",
    "cost.intro": "在当前长度下，存放和运行这个掩码的开销。",
    "cost.cells": "格子",
    "cost.allowed": "共 {cells} 格，可见 {allowed} 格。",
    "cost.seen": "可见",
    "cost.hidden": "被遮住",
    "cost.tiles": "分块",
    "cost.tiles.says": "按 {block} × {block} 分块：空块跳过，满块不用掩码，部分块两样都要算。",
    "cost.empty": "空块",
    "cost.partial": "部分块",
    "cost.full": "满块",
    "cost.memory": "掩码占用的内存",
    "cost.dense": "T × T 布尔值",
    "cost.bias": "T × T 浮点偏置",
    "cost.spans": "区间",
    "cost.intervals": "用 {intervals} 个键区间表示。",
    "cost.ratio": "只有 T × T 布尔值的 {ratio} 分之一。",
    "cost.log": "刻度为对数：每一格代表相同的倍数。",
    "cost.attention": "本机上的注意力计算",
    "cost.skipped": "未作估计：在这个长度下，掩码的区间太多。",
    "cost.backend": "后端",
    "cost.reason": "原因",
    "cost.visited": "访问的分块",
    "cost.visited.says": "共 {tiles} 块，访问 {visited} 块（{share}），每块 {rows} × {keys} 格",
    "cost.computed": "计算的分数",
    "cost.computed.says": "{computed} 个，其中可见 {visible} 个（{share}）",
    "cost.time": "估计时间",
    "cost.time.says": "单个 CPU 线程 {time}（前向，float32，head_dim {dim}）",
  },
});
