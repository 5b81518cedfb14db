// The messages of the page in English and Chinese. Panels add their own.

import { state } from "./state.js";

export const MESSAGES = {
  en: {
    tagline: "See which tokens each token attends to",
    skip: "Skip to the mask",
    language: "Language",
    theme: "Theme",
    theme_auto: "Auto",
    theme_light: "Light",
    theme_dark: "Dark",
    lessons_link: "Lessons",
    views: "Views of this mask",
    loading: "Loading …",
    panel_failed: "This panel did not load: {message}",
    offline: "The server does not respond. Run `maskwright explore` again.",
    copy_link: "Copy link",
    copied: "Link copied.",
    copy_failed: "The clipboard is not available. Copy the address from the address bar.",
    undo: "Undo",
    redo: "Redo",
    dismiss: "Dismiss",

    tokens: "Tokens",
    tokens_kind: "Input of the mask",
    sentences: "Sentences",
    size_only: "Length only",
    sentences_label: "One sentence per line",
    sentences_placeholder: "Write a sentence",
    no_sentence: "No tokens yet. Write a sentence above.",
    sentence_n: "Sentence {n}",
    pad_left: "Add <PAD> to the left of sentence {n}",
    pad_right: "Add <PAD> to the right of sentence {n}",
    pad_remove: "Remove this <PAD> from sentence {n}",
    pad_auto: "Padding to the length of the longest sentence",
    hide_padding: "Mask padding",
    pad_side: "Pad on the",
    left: "left",
    right: "right",
    queries: "Queries",
    more: "More sizes",
    keys: "Keys",
    keys_same: "as queries",
    q_start: "First query's position",
    q_start_auto: "auto",
    batches: "Batch size",
    heads: "Heads",
    by_mask: "from the mask",
    count_range: "Enter an integer from {min} to {max}.",

    mask: "Mask",
    expression: "Mask expression",
    expression_help:
      "Combine masks with & (and), | (or), ~ (not). Suggestions open while you type: arrow keys select, Enter or Tab accepts, Escape closes.",
    expression_hint: "Combine with & (and), | (or), ~ (not). Ctrl+Space for suggestions.",
    suggestions: "Suggestions",
    suggestions_n: "{n} suggestions",
    combine: "Combine with another mask",
    combine_and: "+ and…",
    combine_or: "+ or…",
    combine_hint: "Choose a mask below to combine with {operator}.",
    atoms: "Atoms",
    recipes: "Recipes",
    more_atoms: "More atoms",
    recipes_more: "More atoms, and recipes from papers",
    preset_replaced: "{old} was replaced by {name}.",
    preset_added: "{name} was added with {operator}.",
    preset_resized: "{old} was replaced by {name}. The length is now {size}, which it needs.",
    preset_without_sentences:
      "{old} and the sentences were replaced by {name} on {size} tokens, which it needs.",
    negate: "Negate",
    negate_label: "Negate the whole mask",
    sliders: "Numbers in the expression",
    number: "number",
    simplified: "Simpler",
    simplified_use: "Use this simpler form: {text}",

    grid: "Picture",
    grid_label:
      "Mask, {rows} rows by {columns} columns. Arrow keys select a cell, Escape deselects it, plus and minus zoom, Shift and arrow keys pan, 0 fits the whole mask.",
    sizes: "{q} queries × {k} keys",
    sizes_batch: "batch {n}",
    sizes_heads: "{n} heads",
    comma: ", ",
    density: "density",
    cells_visible: "{count} of {cells} cells visible",
    not_counted: "{cells} cells, too many intervals to count the visible ones",
    empty_rows: "{n} queries attend to nothing",
    empty_row: "1 query attends to nothing",
    unseen_keys: "no query attends to {n} keys",
    unseen_key: "no query attends to 1 key",
    batch_rows: "Sequence",
    batch_n: "batch {n}",
    head_rows: "Head",
    head_n: "head {n}",
    zoom_in: "Zoom in",
    zoom_out: "Zoom out",
    zoom_all: "Fit the whole mask",
    fit: "Fit",
    where: "Queries {row} to {last_row}, keys {key} to {last_key}",
    square_size: "1 square = {q} × {k} cells",
    square_text: "Queries {row}–{last_row} × keys {key}–{last_key}: {share} visible. First cell: ",
    point: "Point at a cell, or select one with the arrow keys, to see why it is visible or masked.",
    seen: "visible",
    hidden: "masked",
    some: "partly visible",
    first: "only in the first",
    second: "only in the second",
    mixed: "some only in the first, some only in the second",
    in_words: "Text description",
    save_svg: "SVG",
    save_png: "PNG",
    save_svg_label: "Download as SVG",
    save_png_label: "Download as PNG",
    axis_queries: "queries",
    axis_keys: "keys",
    overview: "Position of the visible part in the whole mask",
  },
  zh: {
    tagline: "看清每个词元关注哪些词元",
    skip: "跳到掩码",
    language: "语言",
    theme: "主题",
    theme_auto: "自动",
    theme_light: "浅色",
    theme_dark: "深色",
    lessons_link: "课程",
    views: "这个掩码的各种视图",
    loading: "加载中……",
    panel_failed: "面板加载失败：{message}",
    offline: "服务器没有响应。请重新运行 `maskwright explore`。",
    copy_link: "复制链接",
    copied: "链接已复制。",
    copy_failed: "无法使用剪贴板，请从地址栏复制。",
    undo: "撤销",
    redo: "重做",
    dismiss: "关闭",

    tokens: "词元",
    tokens_kind: "掩码的输入",
    sentences: "句子",
    size_only: "仅长度",
    sentences_label: "每行一句",
    sentences_placeholder: "写一句话",
    no_sentence: "还没有词元，请在上面写一句话。",
    sentence_n: "第 {n} 句",
    pad_left: "在第 {n} 句左侧加一个 <PAD>",
    pad_right: "在第 {n} 句右侧加一个 <PAD>",
    pad_remove: "从第 {n} 句移除这个 <PAD>",
    pad_auto: "补齐到最长句子的填充",
    hide_padding: "屏蔽填充",
    pad_side: "填充方向",
    left: "左",
    right: "右",
    queries: "查询数",
    more: "更多尺寸",
    keys: "键数",
    keys_same: "同查询数",
    q_start: "首个查询的位置",
    q_start_auto: "自动",
    batches: "批次大小",
    heads: "头数",
    by_mask: "由掩码决定",
    count_range: "请输入 {min} 到 {max} 之间的整数。",

    mask: "掩码",
    expression: "掩码表达式",
    expression_help:
      "用 &（与）、|（或）、~（非）组合掩码。输入时会出现建议列表：方向键选择，回车或 Tab 采用，Esc 关闭。",
    expression_hint: "用 &（与）、|（或）、~（非）组合。按 Ctrl+空格 查看建议。",
    suggestions: "建议",
    suggestions_n: "{n} 条建议",
    combine: "与另一个掩码组合",
    combine_and: "+ 与……",
    combine_or: "+ 或……",
    combine_hint: "请在下面选择一个掩码，用 {operator} 组合。",
    atoms: "基本掩码",
    recipes: "配方",
    more_atoms: "更多基本掩码",
    recipes_more: "更多基本掩码与论文配方",
    preset_replaced: "{old} 已替换为 {name}。",
    preset_added: "已用 {operator} 加上 {name}。",
    preset_resized: "{old} 已替换为 {name}，长度改为它需要的 {size}。",
    preset_without_sentences: "{old} 和句子已替换为 {size} 个词元上的 {name}，它需要这个长度。",
    negate: "取反",
    negate_label: "对整个掩码取反",
    sliders: "表达式中的数值",
    number: "数值",
    simplified: "化简",
    simplified_use: "改用化简后的写法：{text}",

    grid: "图示",
    grid_label:
      "掩码，{rows} 行 {columns} 列。方向键选择格子，Esc 取消选择，加减键缩放，Shift 加方向键平移，0 显示全部。",
    sizes: "{q} 个查询 × {k} 个键",
    sizes_batch: "批次大小 {n}",
    sizes_heads: "{n} 个头",
    comma: "，",
    density: "密度",
    cells_visible: "共 {cells} 格，可见 {count} 格",
    not_counted: "共 {cells} 格，区间过多，未统计可见格数",
    empty_rows: "{n} 个查询不关注任何键",
    empty_row: "1 个查询不关注任何键",
    unseen_keys: "{n} 个键不被任何查询关注",
    unseen_key: "1 个键不被任何查询关注",
    batch_rows: "序列",
    batch_n: "批次行 {n}",
    head_rows: "头",
    head_n: "头 {n}",
    zoom_in: "放大",
    zoom_out: "缩小",
    zoom_all: "显示全部",
    fit: "适应",
    where: "查询 {row} 至 {last_row}，键 {key} 至 {last_key}",
    square_size: "1 个方块 = {q} × {k} 格",
    square_text: "查询 {row}–{last_row} × 键 {key}–{last_key}：可见 {share}。第一格：",
    point: "指向或用方向键选择一个格子，查看它为什么可见或被屏蔽。",
    seen: "可见",
    hidden: "被屏蔽",
    some: "部分可见",
    first: "仅第一个可见",
    second: "仅第二个可见",
    mixed: "部分仅第一个可见，部分仅第二个可见",
    in_words: "文字描述",
    save_svg: "SVG",
    save_png: "PNG",
    save_svg_label: "下载 SVG",
    save_png_label: "下载 PNG",
    axis_queries: "查询",
    axis_keys: "键",
    overview: "当前显示的部分在整个掩码中的位置",
  },
};

/** The message of a key in the current language; `{name}` is replaced from `values`. */
export function t(key, values = {}) {
  const message = MESSAGES[state.lang]?.[key] ?? MESSAGES.en[key] ?? key;
  return message.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/** Add messages: {en: {key: text}, zh: {key: text}}. */
export function addMessages(messages) {
  for (const [language, entries] of Object.entries(messages))
    Object.assign(MESSAGES[language], entries);
}

/** Translate all elements under `root` with data-t, data-t-label, data-t-title, data-t-placeholder. */
export function translate(root) {
  each(root, "t", (element, text) => (element.textContent = text));
  each(root, "tLabel", (element, text) => element.setAttribute("aria-label", text));
  each(root, "tTitle", (element, text) => (element.title = text));
  each(root, "tPlaceholder", (element, text) => (element.placeholder = text));
}

/** A number in the format of the current language. */
export function formatNumber(value, options) {
  return new Intl.NumberFormat(state.lang === "zh" ? "zh-CN" : "en-GB", options).format(value);
}

export function formatPercent(share) {
  const digits = share > 0 && share < 0.01 ? 3 : 1;
  return formatNumber(share, { style: "percent", maximumFractionDigits: digits });
}

function each(root, name, write) {
  const attribute = `data-${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
  for (const element of root.querySelectorAll(`[${attribute}]`)) {
    write(element, t(element.dataset[name]));
  }
}
