// All that the page itself says, in English and Chinese. Panels add their own words.

import { state } from "./state.js";

export const WORDS = {
  en: {
    tagline: "See what every token may see",
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
    offline: "The server does not answer. Start `maskwright explore` again.",
    copy_link: "Copy link",
    copied: "The link is in the clipboard.",
    copy_failed: "The clipboard is closed to this page. Copy the address from the address bar.",

    tokens: "Tokens",
    tokens_kind: "What the mask is for",
    sentences: "Sentences",
    size_only: "Only a size",
    sentences_label: "One sentence a line",
    sentences_placeholder: "Write a sentence",
    no_sentence: "There is no token yet. Write a sentence above.",
    sentence_n: "Sentence {n}",
    pad_left: "Add <PAD> to the left of sentence {n}",
    pad_right: "Add <PAD> to the right of sentence {n}",
    pad_remove: "Remove this <PAD> from sentence {n}",
    pad_auto: "Padding that makes the sentences equally long",
    hide_padding: "Hide padding",
    pad_side: "Fill up at the",
    left: "left",
    right: "right",
    queries: "Queries",
    more: "More sizes",
    keys: "Keys",
    keys_same: "as queries",
    q_start: "First query's position",
    q_start_auto: "by itself",
    batches: "Batch rows",
    heads: "Heads",
    by_mask: "from the mask",
    count_range: "Give a whole number from {least} to {most}.",

    mask: "Mask",
    expression: "Mask expression",
    expression_help:
      "Write atoms and join them by & | ~. A list of suggestions opens as you write: arrow keys choose, Enter or Tab takes, Escape closes.",
    expression_hint: "Join atoms by & and, | or, ~ not. Ctrl and Space lists them.",
    suggestions: "Suggestions",
    suggestions_n: "{n} suggestions",
    joined_by: "A click joins by",
    join_and: "& and",
    join_or: "| or",
    join_replace: "replace",
    atoms: "Atoms",
    recipes: "Recipes",
    more_atoms: "More atoms",
    recipes_more: "More atoms, and recipes that papers name",
    recipe_sized: "The mask is now {name}, on its own {size} tokens.",
    negate: "~ not",
    negate_label: "Negate the whole mask",
    sliders: "Numbers in the mask",
    number: "number",
    simplified: "Simpler",
    simplified_use: "Use this simpler form: {text}",

    grid: "Picture",
    grid_label:
      "Mask, {rows} rows by {columns} columns. Arrow keys choose a cell, plus and minus zoom, Shift and arrow keys move, 0 shows all.",
    sizes: "{q} queries × {k} keys",
    sizes_batch: "batch {n}",
    sizes_heads: "{n} heads",
    comma: ", ",
    density: "density",
    cells_seen: "{count} of {cells} cells seen",
    not_counted: "{cells} cells, too many different ones to count them all",
    empty_rows: "{n} queries see nothing",
    empty_row: "1 query sees nothing",
    unseen_keys: "{n} keys are never seen",
    unseen_key: "1 key is never seen",
    batch_rows: "Batch row",
    batch_n: "batch {n}",
    head_rows: "Head",
    head_n: "head {n}",
    zoom_in: "Zoom in",
    zoom_out: "Zoom out",
    zoom_all: "Show all",
    all: "all",
    where: "Queries {row} to {last_row}, keys {key} to {last_key}",
    tile_is: "A sign is {q} × {k} cells.",
    tile_says: "Queries {row}–{last_row} × keys {key}–{last_key}: {share} seen. One of them: ",
    point: "Point at a cell, or choose one by arrow keys, to hear why it is seen or hidden.",
    seen: "seen",
    hidden: "hidden",
    some: "partly seen",
    first: "only the first sees it",
    second: "only the second sees it",
    mixed: "each sees what the other does not",
    in_words: "The picture in words",
    save_svg: "SVG",
    save_png: "PNG",
    save_svg_label: "Download as SVG",
    save_png_label: "Download as PNG",
    axis_queries: "queries",
    axis_keys: "keys",
    overview: "Where the part shown lies in the whole mask",
  },
  zh: {
    tagline: "看清每个词元能看到什么",
    skip: "跳到掩码",
    language: "语言",
    theme: "主题",
    theme_auto: "自动",
    theme_light: "浅色",
    theme_dark: "深色",
    lessons_link: "教程",
    views: "换个角度看这个掩码",
    loading: "加载中……",
    panel_failed: "面板加载失败：{message}",
    offline: "服务器没有响应。请重新运行 `maskwright explore`。",
    copy_link: "复制链接",
    copied: "链接已复制到剪贴板。",
    copy_failed: "此页面无法使用剪贴板，请从地址栏复制。",

    tokens: "词元",
    tokens_kind: "掩码作用的对象",
    sentences: "句子",
    size_only: "只给长度",
    sentences_label: "每行一句",
    sentences_placeholder: "写一句话",
    no_sentence: "还没有词元，请在上面写一句话。",
    sentence_n: "第 {n} 句",
    pad_left: "在第 {n} 句左侧加一个 <PAD>",
    pad_right: "在第 {n} 句右侧加一个 <PAD>",
    pad_remove: "从第 {n} 句移除这个 <PAD>",
    pad_auto: "为使各句等长而补上的填充",
    hide_padding: "遮住填充",
    pad_side: "补齐方向",
    left: "左",
    right: "右",
    queries: "查询数",
    more: "更多尺寸",
    keys: "键数",
    keys_same: "同查询数",
    q_start: "首个查询的位置",
    q_start_auto: "自动",
    batches: "批大小",
    heads: "头数",
    by_mask: "由掩码决定",
    count_range: "请输入 {least} 到 {most} 之间的整数。",

    mask: "掩码",
    expression: "掩码表达式",
    expression_help:
      "写出基本掩码，用 & | ~ 组合。输入时会出现建议列表：方向键选择，回车或 Tab 采用，Esc 关闭。",
    expression_hint: "用 &（且）、|（或）、~（非）组合。按 Ctrl+空格 列出全部。",
    suggestions: "建议",
    suggestions_n: "{n} 条建议",
    joined_by: "点击时的组合方式",
    join_and: "& 且",
    join_or: "| 或",
    join_replace: "替换",
    atoms: "基本掩码",
    recipes: "配方",
    more_atoms: "更多基本掩码",
    recipes_more: "更多基本掩码与论文配方",
    recipe_sized: "已换成 {name}，长度为它自带的 {size}。",
    negate: "~ 取反",
    negate_label: "对整个掩码取反",
    sliders: "掩码里的数",
    number: "数值",
    simplified: "化简",
    simplified_use: "改用化简后的写法：{text}",

    grid: "图示",
    grid_label:
      "掩码，{rows} 行 {columns} 列。方向键选择格子，加减键缩放，Shift 加方向键平移，0 显示全部。",
    sizes: "{q} 个查询 × {k} 个键",
    sizes_batch: "批大小 {n}",
    sizes_heads: "{n} 个头",
    comma: "，",
    density: "密度",
    cells_seen: "共 {cells} 格，可见 {count} 格",
    not_counted: "共 {cells} 格，过于复杂，未逐一计数",
    empty_rows: "{n} 个查询什么都看不到",
    empty_row: "1 个查询什么都看不到",
    unseen_keys: "{n} 个键从未被看到",
    unseen_key: "1 个键从未被看到",
    batch_rows: "批次",
    batch_n: "第 {n} 条",
    head_rows: "头",
    head_n: "头 {n}",
    zoom_in: "放大",
    zoom_out: "缩小",
    zoom_all: "显示全部",
    all: "全部",
    where: "查询 {row} 至 {last_row}，键 {key} 至 {last_key}",
    tile_is: "每个方块代表 {q} × {k} 格。",
    tile_says: "查询 {row}–{last_row} × 键 {key}–{last_key}：可见 {share}。其中一格：",
    point: "指向或用方向键选择一个格子，看看它为什么可见或被遮住。",
    seen: "可见",
    hidden: "被遮住",
    some: "部分可见",
    first: "仅第一个可见",
    second: "仅第二个可见",
    mixed: "两者各有对方没有的格子",
    in_words: "用文字描述这张图",
    save_svg: "SVG",
    save_png: "PNG",
    save_svg_label: "下载 SVG",
    save_png_label: "下载 PNG",
    axis_queries: "查询",
    axis_keys: "键",
    overview: "当前显示的部分在整个掩码中的位置",
  },
};

/** A word in the language of the page; `{name}` in it is filled from `values`. */
export function t(key, values = {}) {
  const words = WORDS[state.lang] ?? WORDS.en;
  const word = words[key] ?? WORDS.en[key] ?? key;
  return word.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/** Add words: {en: {key: word}, zh: {key: word}}. */
export function add(words) {
  for (const [language, entries] of Object.entries(words)) Object.assign(WORDS[language], entries);
}

/** Write the words of all elements under `root` that name one by data-t and its kin. */
export function apply(root) {
  each(root, "t", (element, word) => (element.textContent = word));
  each(root, "tLabel", (element, word) => element.setAttribute("aria-label", word));
  each(root, "tTitle", (element, word) => (element.title = word));
  each(root, "tPlaceholder", (element, word) => (element.placeholder = word));
}

/** A whole number or a share as the reader writes it. */
export function number(value, options) {
  return new Intl.NumberFormat(state.lang === "zh" ? "zh-CN" : "en-GB", options).format(value);
}

export function percent(share) {
  const digits = share > 0 && share < 0.01 ? 3 : 1;
  return number(share, { style: "percent", maximumFractionDigits: digits });
}

function each(root, name, write) {
  const attribute = `data-${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
  for (const element of root.querySelectorAll(`[${attribute}]`)) {
    write(element, t(element.dataset[name]));
  }
}
