// Steps: the computation of attention with its numbers, from X to the output.

import { addMessages } from "../i18n.js";
import { selectField, numberField, toggleGroup, switchField } from "./controls.js";
import { definePanel, el, fetchWhileShown } from "./panel.js";
import { player } from "./player.js";
import { MAX_TOKENS, resizeScores, scoreEditor } from "./score_editor.js";
import { allStages, oneStage, stageStrip } from "./stages.js";
import { scalingTable, threeMasks, threeRequests } from "./step_views.js";

const SIZES = [1, 4, 16, 64, 256];
const BIASES = ["alibi([0.5])", "alibi([1.0])", "relative([[-1.0, 0.0, 1.0]])"];

/** The parameters of the random numbers, as the server expects them. */
export function valuesOf(state) {
  return { seed: state.seed ?? 0, width: state.width ?? 3, head_size: state.head_size ?? 2 };
}

function build(root, ctx) {
  let steps = [];
  const body = el("div", { class: "panel-body" });
  const scorePlace = el("div", { class: "score-place" });
  const playback = player(ctx, {
    key: "step",
    label: "steps.player",
    count: () => steps.length,
    describe: (index) => steps[index]?.name ?? "",
    all: true,
    pause: 2400,
  });
  const settings = controls(ctx, () => steps);
  root.append(
    el("p", { class: "note", msg: "steps.intro" }),
    toggleGroup(
      ctx,
      "steps_view",
      "steps.view",
      [
        ["steps", "steps.view.steps"],
        ["masks", "steps.view.masks"],
        ["scaling", "steps.view.scaling"],
      ],
      "steps",
    ),
    settings.element,
    scorePlace,
    playback.element,
    body,
  );
  root.addEventListener("keydown", (event) => view(ctx) === "steps" && playback.onKey(event));

  return fetchWhileShown(ctx, root, {
    body,
    player: playback,
    request: () => requests(ctx),
    viewState: () => [ctx.state.step, view(ctx)],
    draw(answers) {
      const now = view(ctx);
      settings.show(now);
      playback.element.hidden = now !== "steps";
      steps = now === "steps" ? answers.steps.steps : [];
      drawScoreEditor(scorePlace, steps, ctx, now);
      playback.show();
      body.replaceChildren(...drawn(now, answers, steps, ctx, playback));
    },
  });
}

function view(ctx) {
  const { steps_view: chosen } = ctx.state;
  return chosen === "masks" || chosen === "scaling" ? chosen : "steps";
}

function requests(ctx) {
  const { state } = ctx;
  const subject = ctx.subject();
  const rest = {
    batch: state.batch ?? 0,
    head: state.head ?? 0,
    values: valuesOf(state),
    scaled: state.scaled ?? true,
    fill: state.fill ?? "-inf",
    rows_too: state.rows_too ?? false,
    softcap: state.softcap ?? null,
    bias: state.bias ?? null,
    sink: state.sink ?? null,
  };
  if (view(ctx) === "scaling") return { scaling: ["scaling", { sizes: SIZES, seed: state.seed ?? 0 }] };
  if (view(ctx) === "masks") return threeRequests(subject, rest);
  const size = subject.tokens?.[0]?.length ?? subject.size;
  if (state.scores && size <= MAX_TOKENS) rest.values = { scores: resizeScores(state.scores, size) };
  return { steps: ["steps", { ...rest, subject }] };
}

function drawn(now, answers, steps, ctx, playback) {
  if (now === "scaling") return [scalingTable(answers.scaling.rows, ctx)];
  if (now === "masks") return [threeMasks(answers, ctx.subject(), ctx)];
  const index = playback.at();
  const choose = (chosen) => {
    playback.stop();
    ctx.set({ step: chosen });
  };
  return [stageStrip(steps, index, ctx, choose), index < 0 ? allStages(steps, ctx) : oneStage(steps, index, ctx)];
}

function drawScoreEditor(place, steps, ctx, now) {
  const scores = steps.find((step) => step.name === "scores");
  const editable = Boolean(ctx.state.scores) && now === "steps" && scores !== undefined;
  if (!editable || scores.values.length > MAX_TOKENS) {
    place.replaceChildren(...(editable ? [el("p", { class: "note", msg: "steps.toomany" })] : []));
    delete place.dataset.of;
    return;
  }
  const values = resizeScores(ctx.state.scores, scores.values.length);
  const tokens = scores.rows ?? values.map((_, index) => String(index));
  // The fields are kept while they show the state, so that they keep the focus.
  const key = JSON.stringify([tokens, ctx.state.lang]);
  const typedNow = [...place.querySelectorAll("input")].map((box) => Number(box.value));
  if (place.dataset.of === key && JSON.stringify(typedNow) === JSON.stringify(values.flat())) return;
  place.dataset.of = key;
  place.replaceChildren(...scoreEditor(values, tokens, ctx, (next) => ctx.set({ scores: next })));
  ctx.translate(place);
}

function controls(ctx, steps) {
  const seed = numberField(ctx, "seed", "steps.seed", { min: 0, max: 9999, fallback: 0 });
  const size = numberField(ctx, "head_size", "steps.size", { min: 1, max: 8, fallback: 2 });
  const width = numberField(ctx, "width", "steps.width", { min: 1, max: 8, fallback: 3 });
  const scaled = switchField(ctx, "scaled", "steps.scaled", true);
  const hidden = selectField(
    ctx,
    "fill",
    "steps.fill",
    [
      ["-inf", "−∞"],
      [-1e9, "−1e9"],
      [0, "0"],
    ],
    "-inf",
  );
  const rows = switchField(ctx, "rows_too", "steps.rows", false);
  const changes = [
    selectField(ctx, "softcap", "steps.softcap", choices([1, 2, 5]), null),
    selectField(ctx, "bias", "steps.bias", choices(BIASES), null),
    selectField(ctx, "sink", "steps.sink", choices([0, 1, 2]), null),
  ];
  const toggle = ownScores(ctx, steps);
  const element = el("div", { class: "controls" }, seed, width, size, hidden, scaled, rows, ...changes, toggle);
  const show = (now) => {
    for (const control of [size, width, hidden, scaled, rows, ...changes]) {
      control.hidden = now === "scaling";
    }
    toggle.hidden = now !== "steps";
    const disabled = now === "steps" && Boolean(ctx.state.scores);
    for (const control of [seed, size, width, scaled]) control.querySelector("input").disabled = disabled;
  };
  return { element, show };
}

/** The choices of a field that may be empty. */
function choices(values) {
  return [[null, "–"], ...values.map((value) => [value, String(value)])];
}

/** A switch that copies the current scores, rounded, into fields that can be edited. */
function ownScores(ctx, steps) {
  const input = el("input", { type: "checkbox", role: "switch" });
  input.addEventListener("change", () => {
    const source = steps().find((step) => step.name === (ctx.state.scaled === false ? "scores" : "scaled"));
    const rounded = source?.values.map((line) => line.map((value) => Math.round(value * 10) / 10));
    ctx.set({ scores: input.checked ? (rounded ?? [[0]]) : null, step: null });
  });
  const show = () => (input.checked = Boolean(ctx.state.scores));
  ctx.subscribe(show);
  show();
  return el("label", { class: "switch" }, input, " ", el("span", { msg: "steps.own" }));
}

export const panel = definePanel("steps", build);

addMessages({
  en: {
    "steps.title": "Steps",
    "steps.intro":
      "One attention head with real numbers: (T, C) → (T, hs) → (T, T) → (T, hs). T tokens, width C, head size hs.",
    "steps.view": "View",
    "steps.view.steps": "Computation",
    "steps.view.masks": "Three masks side by side",
    "steps.view.scaling": "Why scale",
    "steps.player": "Stages",
    "steps.seed": "Seed",
    "steps.width": "Width C",
    "steps.size": "Head size hs",
    "steps.fill": "Masked scores become",
    "steps.scaled": "Divide by √hs",
    "steps.rows": "Mask padded queries too",
    "steps.softcap": "Soft cap",
    "steps.bias": "Bias",
    "steps.sink": "Sink",
    "steps.own": "Enter scores",
    "steps.toomany": "Scores can be entered for up to 10 tokens. With more tokens they are computed.",
  },
  zh: {
    "steps.title": "计算步骤",
    "steps.intro":
      "用具体数值计算一个注意力头：(T, C) → (T, hs) → (T, T) → (T, hs)。T 是词元数，C 是嵌入维度，hs 是头维度。",
    "steps.view": "视图",
    "steps.view.steps": "完整计算",
    "steps.view.masks": "三种掩码并排",
    "steps.view.scaling": "为什么要缩放",
    "steps.player": "逐步查看各阶段",
    "steps.seed": "随机种子",
    "steps.width": "嵌入维度 C",
    "steps.size": "头维度 hs",
    "steps.fill": "被屏蔽的注意力分数改为",
    "steps.scaled": "除以 √hs",
    "steps.rows": "同时屏蔽填充查询",
    "steps.softcap": "软上限",
    "steps.bias": "偏置",
    "steps.sink": "注意力汇",
    "steps.own": "手动输入注意力分数",
    "steps.toomany": "最多可为 10 个词元输入注意力分数；词元更多时使用算出的分数。",
  },
});
