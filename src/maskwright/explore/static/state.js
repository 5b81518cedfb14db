// What the page shows, in one object. It lives in the URL's hash, so that a link shows the same.

export const LARGEST = 1_048_576;

const browserSpeaksChinese = (navigator.language ?? "en").toLowerCase().startsWith("zh");

/** Where everybody begins: three tokens, and scores that can be followed with a pencil. */
export const EXAMPLE = Object.freeze({
  text: "I like tea",
  scores: [
    [0.8, 0.2, 0.9],
    [0.4, 0.7, 0.5],
    [0.3, 1.1, 0.6],
  ],
});

export const DEFAULTS = Object.freeze({
  expression: "causal()",
  text: EXAMPLE.text, // null: no tokens, only a size
  side: "right", // of the padding that makes sentences equally long
  padding: true, // hide it
  size: 16, // queries, where there is no text
  keys: null,
  q_start: null,
  batches: null, // how many batch rows and heads there are …
  heads: null,
  batch: 0, // … and which of them is shown
  head: 0,
  view: null, // {row, rows, key, keys}, or null for all
  query: null, // the chosen cell
  key: null,
  others: [],
  values: null,
  seed: 0,
  width: 3,
  head_size: 2,
  scaled: true,
  fill: "-inf",
  rows_too: false,
  scores: EXAMPLE.scores, // typed by hand; null: computed from the seed
  steps_view: "steps",
  step: null,
  row: null,
  panel: "steps",
  lesson: null,
  lang: browserSpeaksChinese ? "zh" : "en",
  theme: "auto",
});

/** The state as it is now. Read it freely, change it only by `set`. `tokens` follows `text`. */
export const state = Object.assign(Object.create(null), structuredClone({ ...DEFAULTS }), {
  tokens: null,
});

const listeners = new Set();
let hashTimer = 0;

/** Change some of the state and tell all subscribers which keys are new. */
export function set(changes) {
  const changed = Object.keys(changes).filter((name) => !same(state[name], changes[name]));
  if (changed.length === 0) return;
  for (const name of changed) state[name] = changes[name];
  clearTimeout(hashTimer);
  hashTimer = setTimeout(writeHash, 250);
  const keys = new Set(changed);
  for (const listener of [...listeners]) listener(state, keys);
}

/** Call `listener(state, changedKeys)` after every change; `changedKeys` is a Set. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The tokens that the server made of the text; the example's scores go when they no longer fit. */
export function setTokens(tokens) {
  const kept = state.scores === EXAMPLE.scores || same(state.scores, EXAMPLE.scores);
  const stale = kept && tokens !== null && tokens[0]?.length !== EXAMPLE.scores.length;
  set(stale ? { tokens, scores: null } : { tokens });
}

/** The keys of the state that `subject()` is made of. */
export const SUBJECT_KEYS = Object.freeze(
  "expression tokens text padding size keys q_start batches heads".split(" "),
);

/** What most requests are about: the mask and its tokens or sizes. */
export function subject() {
  const tokens = state.text !== null && state.tokens?.[0]?.length ? state.tokens : null;
  const sized = tokens === null;
  return {
    expression: state.expression,
    tokens,
    padding: state.padding,
    size: state.size,
    keys: sized ? state.keys : null,
    q_start: sized ? state.q_start : null,
    batch: sized ? state.batches : null,
    heads: sized ? state.heads : null,
  };
}

/** How many queries, keys and batch rows the subject has, as far as the page itself knows. */
export function sizes() {
  const { tokens, size, keys, batch } = subject();
  if (tokens) return { queries: tokens[0].length, keys: tokens[0].length, batch: tokens.length };
  return { queries: size, keys: keys ?? size, batch };
}

/** The address that shows what is shown now. */
export function link() {
  return `${location.origin}${location.pathname}${hash()}`;
}

/** Take the state from the URL's hash; what it does not name gets its default. */
export function restore() {
  const wanted = { ...structuredClone({ ...DEFAULTS }), lang: state.lang, theme: state.theme };
  for (const pair of location.hash.slice(1).split("&")) {
    const at = pair.indexOf("=");
    if (at < 1) continue;
    const name = pair.slice(0, at);
    const value = decode(pair.slice(at + 1));
    if (value !== undefined && fits(name, value)) wanted[name] = value;
  }
  set(wanted);
}

function hash() {
  const named = Object.keys(state).filter(
    (name) => name !== "tokens" && (name === "lang" || !same(state[name], DEFAULTS[name])),
  );
  return `#${named.map((name) => `${name}=${encode(state[name])}`).join("&")}`;
}

function writeHash() {
  if (location.hash !== hash()) history.replaceState(null, "", hash());
}

// A text stands as it is, unless it could be read as JSON; all else is JSON.
function encode(value) {
  const plain = typeof value === "string" && parsed(value) === undefined;
  return encodeURIComponent(plain ? value : JSON.stringify(value))
    .replaceAll("%20", "+")
    .replaceAll("%3D", "=")
    .replaceAll("%2C", ",");
}

function decode(text) {
  try {
    const plain = decodeURIComponent(text.replaceAll("+", "%20"));
    const value = parsed(plain);
    return value === undefined ? plain : value;
  } catch {
    return undefined; // a broken escape: as if it were not there
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// A link may come from anybody: what does not look like a value of its key is left out.
const whole = (least, most) => (value) =>
  Number.isInteger(value) && value >= least && value <= most;
const text = (most) => (value) => typeof value === "string" && value.length <= most;
const one =
  (...names) =>
  (value) =>
    names.includes(value);
const maybe = (check) => (value) => value === null || check(value);
const flag = (value) => typeof value === "boolean";
const record = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const CHECKS = {
  expression: text(20_000),
  text: maybe(text(20_000)),
  side: one("left", "right"),
  padding: flag,
  size: whole(1, LARGEST),
  keys: maybe(whole(1, LARGEST)),
  q_start: maybe(whole(-LARGEST, LARGEST)),
  batches: maybe(whole(1, 64)),
  heads: maybe(whole(1, 64)),
  batch: whole(0, 63),
  head: whole(0, 63),
  view: maybe(
    (value) =>
      record(value) &&
      [value.row, value.key].every(whole(0, LARGEST)) &&
      [value.rows, value.keys].every(whole(1, LARGEST)),
  ),
  query: maybe(whole(0, LARGEST)),
  key: maybe(whole(0, LARGEST)),
  others: (value) => Array.isArray(value) && value.length <= 2 && value.every(text(20_000)),
  values: maybe(record),
  seed: whole(0, 2 ** 31),
  width: whole(1, 64),
  head_size: whole(1, 64),
  scaled: flag,
  fill: (value) => Number.isFinite(value) || text(24)(value),
  rows_too: flag,
  scores: maybe(
    (value) =>
      Array.isArray(value) &&
      value.length <= 32 &&
      value.every((row) => Array.isArray(row) && row.length <= 32 && row.every(Number.isFinite)),
  ),
  steps_view: one("steps", "masks", "scaling"),
  step: maybe(whole(0, 32)),
  row: maybe(whole(0, 256)),
  panel: text(24),
  lesson: maybe(text(64)),
  lang: one("en", "zh"),
  theme: one("auto", "light", "dark"),
};

function fits(name, value) {
  if (Object.hasOwn(CHECKS, name)) return CHECKS[name](value);
  return name !== "tokens" && /^[a-z][a-z_]{0,23}$/.test(name); // a panel's own
}

function same(one, other) {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}
