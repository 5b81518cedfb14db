// Recognize: the expression of an array from a file or pasted, and problems of the array.

import { addMessages } from "../i18n.js";
import { base64, dropZone } from "./file_drop.js";
import { formatBytes } from "./format.js";
import { definePanel, el, showError, uniqueId } from "./panel.js";
import { parseArray, ParseError } from "./parse_array.js";

// The server accepts a body of 1 MiB; base64 encodes three bytes as four.
const MAX_FILE_BYTES = 760 * 1024;
const EXAMPLE = "0 1 1 1 1\n0 0 1 1 1\n0 0 0 1 1\n0 0 0 0 1\n0 0 0 0 0";

function build(root, ctx) {
  let controller = null;
  let result = null; // {answer, name}, drawn again when the language changes
  let repeat = null; // sends the last array again
  const id = uniqueId("paste");
  const box = el("textarea", {
    id,
    class: "field mono",
    rows: 5,
    spellcheck: "false",
    autocomplete: "off",
    hint: "recognize.hint",
  });
  const causal = causalSelect();
  const errorPlace = el("div", { class: "panel-error", role: "status" });
  const body = el("div", { class: "panel-body" });
  const gridPlace = el("div", { class: "grid-place" });

  /** Remove the result of the array before, and show an error if there is one. */
  const reset = (error = null) => {
    controller?.abort();
    result = null;
    body.replaceChildren();
    body.removeAttribute("aria-busy");
    errorPlace.replaceChildren();
    if (error) showError(errorPlace, ctx, error);
  };

  const send = async (request, name) => {
    controller?.abort();
    controller = new AbortController();
    const { signal } = controller;
    errorPlace.replaceChildren();
    body.setAttribute("aria-busy", "true");
    const expected = causal.value();
    if (expected !== null) request.causal = expected;
    try {
      const answer = await ctx.post("recognize", request, signal);
      if (signal.aborted) return;
      result = { answer, name };
      draw(result, body, gridPlace, ctx);
      const { expression, says } = answer;
      ctx.announce(expression ? ctx.t("recognize.announce", { expression }) : says);
    } catch (error) {
      if (!signal.aborted && !ctx.isAbort(error)) reset(error);
    } finally {
      if (!signal.aborted) body.removeAttribute("aria-busy");
    }
  };

  const readText = () => {
    repeat = readText;
    try {
      send({ array: parseArray(box.value) }, null);
    } catch (error) {
      if (!(error instanceof ParseError)) throw error;
      reset({ message: ctx.t(error.key, error.values), status: 400 });
    }
  };
  const readFile = async (file) => {
    repeat = () => readFile(file);
    if (file.size > MAX_FILE_BYTES) {
      const sizes = { size: formatBytes(file.size), max: formatBytes(MAX_FILE_BYTES) };
      const message = ctx.t("recognize.large", { name: file.name, ...sizes });
      reset({ message, status: 413 });
      return;
    }
    send({ npy: await base64(file) }, file.name);
  };
  const readExample = () => {
    box.value = EXAMPLE;
    readText();
  };

  causal.element.addEventListener("change", () => repeat?.());
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) readText();
  });
  ctx.subscribe((_, changed) => {
    if (result && changed.has("lang")) draw(result, body, gridPlace, ctx);
  });
  const button = (kind, msg, click) =>
    el("button", { type: "button", class: `button ${kind}`, msg, on: { click } });
  root.append(
    el("p", { class: "note", msg: "recognize.intro" }),
    dropZone({
      msg: "recognize.drop",
      button: "recognize.choose",
      accept: ".npy,.npz",
      onFile: readFile,
      area: root,
    }),
    el("div", { class: "labelled" }, el("label", { for: id, msg: "recognize.paste" }), box),
    el(
      "div",
      { class: "row" },
      button("primary", "recognize.read", readText),
      button("quiet", "recognize.example", readExample),
      causal.element,
    ),
    errorPlace,
    body,
  );
}

function draw({ answer, name }, body, gridPlace, ctx) {
  const use = () => ctx.replaceState(stateOf(answer), ctx.t("recognize.used"));
  const facts = [
    ["recognize.shape", `(${(answer.shape ?? []).join(", ")})`],
    ["recognize.dtype", answer.dtype],
    ["recognize.convention", answer.convention],
  ];
  body.replaceChildren(
    el(
      "section",
      { class: "block" },
      el("h3", {}, el("span", name ? { text: name, dir: "auto" } : { msg: "recognize.result" })),
      answer.expression
        ? el("p", { class: "formula" }, el("code", { text: answer.expression }))
        : el("p", { class: "prose", msg: answer.grid ? "recognize.long" : "recognize.nothing" }),
      el(
        "dl",
        { class: "pairs" },
        ...facts
          .filter(([, value]) => value)
          .flatMap(([msg, value]) => [el("dt", { msg }), el("dd", { text: value })]),
      ),
      answer.expression ? null : el("p", { class: "prose", lang: "en", text: answer.says }),
      answer.expression
        ? el("button", { type: "button", class: "button", msg: "recognize.use", on: { click: use } })
        : null,
    ),
  );
  // If the array is not a mask, an empty list of findings says nothing.
  if (answer.grid || answer.lint.length) body.append(findings(answer.lint, ctx.state.lang));
  if (answer.grid)
    body.append(el("section", { class: "block" }, el("h3", { msg: "recognize.grid" }), gridPlace));
  ctx.translate(body);
  const label = answer.expression ?? ctx.t("recognize.grid");
  if (answer.grid) ctx.drawGrid(gridPlace, answer.grid, { label });
}

function findings(lint, lang) {
  const list = el("ul", { class: "findings" });
  for (const { code, message, message_zh: chinese, severity } of lint) {
    const zh = lang === "zh" && chinese;
    list.append(
      el(
        "li",
        { class: severity ?? "" },
        el("code", { text: code }),
        " ",
        el("span", zh ? { lang: "zh", text: chinese } : { lang: "en", text: message }),
      ),
    );
  }
  const none = el("p", { class: "prose", msg: "recognize.clean" });
  return el(
    "section",
    { class: "block" },
    el("h3", { msg: "recognize.lint" }),
    lint.length ? list : none,
  );
}

/** The state that shows the recognized mask at its own size. */
function stateOf({ expression, frame, grid }) {
  const [queries, keys] = grid.extent;
  const start = frame && frame.q_start !== keys - queries ? frame.q_start : null;
  const batches = frame?.batch > 1 ? frame.batch : null;
  const heads = frame?.heads > 1 ? frame.heads : null;
  const noSelection = { batch: 0, head: 0, view: null, query: null, key: null };
  return {
    expression,
    text: null,
    size: queries,
    keys: keys === queries ? null : keys,
    q_start: start,
    batches,
    heads,
    ...noSelection,
  };
}

function causalSelect() {
  const choices = [
    ["", "recognize.causal.unknown"],
    ["true", "recognize.causal.yes"],
    ["false", "recognize.causal.no"],
  ];
  const select = el(
    "select",
    { class: "select" },
    ...choices.map(([value, msg]) => el("option", { value, msg })),
  );
  const element = el(
    "label",
    { class: "inline" },
    el("span", { class: "note", msg: "recognize.causal" }),
    " ",
    select,
  );
  return { element, value: () => (select.value ? select.value === "true" : null) };
}

export const panel = definePanel("recognize", build);

addMessages({
  en: {
    "recognize.title": "Recognize",
    "recognize.intro":
      "Find the expression of a mask array, its convention, and problems with it. The data stays on this machine.",
    "recognize.drop": "Drop an .npy or .npz file here, or",
    "recognize.choose": "Choose a file",
    "recognize.paste": "Or paste an array",
    "recognize.hint": "[[1, 0], [1, 1]], rows of 0 and 1, or what numpy prints",
    "recognize.read": "Recognize",
    "recognize.example": "Try an example",
    "recognize.causal": "Should it be causal?",
    "recognize.causal.unknown": "don't know",
    "recognize.causal.yes": "yes",
    "recognize.causal.no": "no",
    "recognize.result": "This is",
    "recognize.long": "No short expression describes this mask. See the picture.",
    "recognize.nothing": "This array is not a mask.",
    "recognize.shape": "shape",
    "recognize.dtype": "dtype",
    "recognize.convention": "convention",
    "recognize.use": "Use this expression",
    "recognize.used": "The mask and the tokens were replaced by the recognized mask.",
    "recognize.announce": "Recognized as {expression}",
    "recognize.lint": "Findings",
    "recognize.clean": "No problems found.",
    "recognize.grid": "Visible cells",
    "recognize.large":
      "{name} has {size}, the limit is {max}. Save a part of the array, or run maskwright lint on the file.",
    "paste.empty": "Expected an array, got an empty text.",
    "paste.brackets": "The brackets do not match. Paste the whole array.",
    "paste.short":
      "The array is abbreviated (…). Print all of it, or save it with np.save and drop the file.",
    "paste.ragged": "The rows have different lengths. Paste a rectangular array.",
    "paste.cell": "Expected numbers, True, False or -inf, got “{part}”.",
  },
  zh: {
    "recognize.title": "识别",
    "recognize.intro":
      "识别数组形式的掩码：它的表达式、约定和问题。数据不会离开本机。",
    "recognize.drop": "把 .npy 或 .npz 文件拖到这里，或者",
    "recognize.choose": "选择文件",
    "recognize.paste": "也可以粘贴数组",
    "recognize.hint": "[[1, 0], [1, 1]]、由 0 和 1 组成的行，或 numpy 打印的内容",
    "recognize.read": "识别",
    "recognize.example": "试一个例子",
    "recognize.causal": "本应是因果掩码吗？",
    "recognize.causal.unknown": "不确定",
    "recognize.causal.yes": "是",
    "recognize.causal.no": "不是",
    "recognize.result": "识别结果",
    "recognize.long": "没有简短的表达式能表示这个掩码，见下图。",
    "recognize.nothing": "这个数组不是掩码。",
    "recognize.shape": "形状",
    "recognize.dtype": "数据类型",
    "recognize.convention": "约定",
    "recognize.use": "使用这个表达式",
    "recognize.used": "掩码和词元已替换为识别出的掩码。",
    "recognize.announce": "识别为 {expression}",
    "recognize.lint": "检查结果",
    "recognize.clean": "没有发现问题。",
    "recognize.grid": "可见格子",
    "recognize.large":
      "{name} 有 {size}，上限为 {max}。请只保存数组的一部分，或对该文件运行 maskwright lint。",
    "paste.empty": "文本为空，请粘贴一个数组。",
    "paste.brackets": "括号不配对，请粘贴完整的数组。",
    "paste.short": "打印内容有省略（…）。请打印完整数组，或用 np.save 保存后把文件拖进来。",
    "paste.ragged": "各行长度不一，请粘贴完整的数组。",
    "paste.cell": "“{part}”既不是数字也不是布尔值，请粘贴数字、True、False 或 -inf。",
  },
});
