// Cost: how much of the mask there is to compute, what it takes to hold it, and how it would run.

import { add, number, percent } from "../words.js";
import { follow, make } from "./parts.js";
import { scrollable } from "./matrix.js";
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
  if (cost.computed) {
    const says = ctx.t("cost.work.says", {
      computed: number(cost.computed),
      useful: number(cost.useful),
      share: percent(cost.useful / cost.computed),
    });
    parts.push(section("cost.work", make("p", { class: "says", text: says })));
  }
  if (cost.route) parts.push(section("cost.route", text(cost.route, ctx.t("cost.route"))));
  if (cost.plan) parts.push(section("cost.plan", text(cost.plan, ctx.t("cost.plan"))));
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

function section(word, ...parts) {
  return make("section", { class: "block" }, make("h3", { word }), ...parts);
}

function text(said, name) {
  return scrollable(make("pre", { class: "code", lang: "en" }, make("code", { text: said })), name);
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
    "cost.work": "Work",
    "cost.work.says": "{computed} cells would be computed, {useful} of them useful ({share}).",
    "cost.route": "Route",
    "cost.plan": "Plan",
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
    "cost.work": "计算量",
    "cost.work.says": "要计算 {computed} 格，其中有用的 {useful} 格（{share}）。",
    "cost.route": "执行路线",
    "cost.plan": "执行计划",
  },
});
