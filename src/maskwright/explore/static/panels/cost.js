// Cost: visible cells, tiles, memory of the mask, and the backend and work of attention under it.

import { addMessages, formatNumber, formatPercent } from "../i18n.js";
import { definePanel, fetchWhileShown, el } from "./panel.js";
import { formatBytes } from "./format.js";

function build(root, ctx) {
  const body = el("div", { class: "panel-body" });
  root.append(el("p", { class: "note", msg: "cost.intro" }), body);
  return fetchWhileShown(ctx, root, {
    body,
    request: () => ({ cost: ["cost", { subject: ctx.subject() }] }),
    draw: (answers) => body.replaceChildren(...drawn(answers.cost, ctx)),
  });
}

function drawn(cost, ctx) {
  const parts = [
    section(
      "cost.cells",
      el("p", { class: "big", text: formatPercent(cost.density) }),
      el("p", {
        class: "prose",
        text: ctx.t("cost.allowed", { allowed: formatNumber(cost.allowed), cells: formatNumber(cost.cells) }),
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
    el("p", { class: "prose", text: says }),
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

/** A stacked bar with a legend. */
function stacked(parts, ctx) {
  const all = parts.reduce((sum, [, count]) => sum + count, 0) || 1;
  const bar = el("div", { class: "stacked", "aria-hidden": "true" });
  const legend = el("ul", { class: "legend" });
  for (const [kind, count, word] of parts) {
    const piece = el("span", { class: `piece ${kind}` });
    piece.style.setProperty("--share", (count / all).toFixed(5));
    if (count) bar.append(piece);
    legend.append(
      el(
        "li",
        { class: "legend-entry" },
        el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }),
        el("span", { msg: word }),
        el("span", { class: "value", text: `${formatNumber(count)} (${formatPercent(count / all)})` }),
      ),
    );
  }
  return el("div", {}, bar, legend);
}

/** Memory of the mask by representation, on a logarithmic scale. */
function memory(cost, ctx) {
  const rows = [
    ["cost.dense", cost.dense_bytes, "second"],
    ["cost.bias", cost.bias_bytes, "first"],
    ["cost.spans", cost.span_bytes, "seen"],
  ].filter(([, size]) => size !== null && size !== undefined);
  const max = Math.log2(Math.max(...rows.map(([, size]) => size), 2));
  const list = el("ul", { class: "bars long" });
  for (const [word, size, kind] of rows) {
    const bar = el("span", { class: `bar ${kind}`, "aria-hidden": "true" });
    bar.style.setProperty("--share", (Math.log2(Math.max(size, 1)) / max).toFixed(4));
    list.append(
      el(
        "li",
        {},
        el("span", { msg: word }),
        el("span", { class: "track" }, bar),
        el("span", { class: "value", text: formatBytes(size) }),
      ),
    );
  }
  const ratio = cost.span_bytes ? cost.dense_bytes / cost.span_bytes : 0;
  const intervals = ctx.t("cost.intervals", { intervals: formatNumber(cost.intervals ?? 0) });
  const saved = ratio >= 2 ? ctx.t("cost.ratio", { ratio: formatNumber(Math.floor(ratio)) }) : "";
  return section(
    "cost.memory",
    el("p", { class: "prose", text: `${intervals} ${saved}` }),
    list,
    el("p", { class: "note", msg: "cost.log" }),
  );
}

/** The backend of attention under this mask, and an estimate of its work. */
function attention({ backend, reason, instruction_set: isa, work, head_dim: dim }, ctx) {
  if (!work) return section("cost.attention", el("p", { class: "prose", msg: "cost.skipped" }));
  const rows = [
    ["cost.backend", isa ? `${backend} (${isa})` : backend, "en"],
    ["cost.reason", reason, "en"],
    [
      "cost.visited",
      ctx.t("cost.visited.says", {
        visited: formatNumber(work.tiles_visited),
        tiles: formatNumber(work.tiles),
        share: formatPercent(work.tiles ? work.tiles_visited / work.tiles : 0),
        rows: work.block_q,
        keys: work.block_kv,
      }),
    ],
    [
      "cost.computed",
      ctx.t("cost.computed.says", {
        computed: formatNumber(work.cells_computed),
        visible: formatNumber(work.cells_visible),
        share: formatPercent(work.useful_share),
      }),
    ],
    ["cost.time", ctx.t("cost.time.says", { time: duration(work.milliseconds), dim })],
  ];
  const list = el("dl", { class: "pairs" });
  for (const [word, text, lang] of rows) {
    const value = el("dd", { text });
    if (lang) value.lang = lang;
    list.append(el("dt", { msg: word }), value);
  }
  return section("cost.attention", list);
}

/** Milliseconds with a unit: 0.123 ms, 36.4 s. */
function duration(milliseconds) {
  const [value, unit] = milliseconds < 1000 ? [milliseconds, "ms"] : [milliseconds / 1000, "s"];
  const digits = value < 1000 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 0 };
  return `${formatNumber(value, digits)} ${unit}`;
}

function section(word, ...parts) {
  return el("section", { class: "block" }, el("h3", { msg: word }), ...parts);
}

export const panel = definePanel("cost", build);

addMessages({
  en: {
    "cost.title": "Cost",
    "cost.intro": "Memory and computation of this mask at the current length.",
    "cost.cells": "Cells",
    "cost.allowed": "{allowed} of {cells} cells are visible.",
    "cost.seen": "visible",
    "cost.hidden": "masked",
    "cost.tiles": "Tiles",
    "cost.tiles.says":
      "Tiles of {block} × {block}: empty tiles are skipped, full tiles need no mask, partial tiles need the mask.",
    "cost.empty": "empty",
    "cost.partial": "partial",
    "cost.full": "full",
    "cost.memory": "Memory of the mask",
    "cost.dense": "as booleans, T × T",
    "cost.bias": "as a float bias, T × T",
    "cost.spans": "as intervals",
    "cost.intervals": "Stored as {intervals} intervals of keys.",
    "cost.ratio": "{ratio} times less memory than T × T booleans.",
    "cost.log": "Logarithmic scale.",
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
    "cost.intro": "当前长度下这个掩码的内存和计算开销。",
    "cost.cells": "格子",
    "cost.allowed": "共 {cells} 格，可见 {allowed} 格。",
    "cost.seen": "可见",
    "cost.hidden": "被屏蔽",
    "cost.tiles": "分块",
    "cost.tiles.says": "按 {block} × {block} 分块：空块跳过，满块不用掩码，部分块需要掩码。",
    "cost.empty": "空块",
    "cost.partial": "部分块",
    "cost.full": "满块",
    "cost.memory": "掩码占用的内存",
    "cost.dense": "T × T 布尔值",
    "cost.bias": "T × T 浮点偏置",
    "cost.spans": "区间",
    "cost.intervals": "用 {intervals} 个键区间表示。",
    "cost.ratio": "只有 T × T 布尔值的 {ratio} 分之一。",
    "cost.log": "对数刻度。",
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
