// The state of the page in one object, and its encoding in the hash of the URL.

export const MAX_SIZE = 1_048_576; // queries or keys

const isBrowserChinese = (navigator.language ?? "en").toLowerCase().startsWith("zh");

/** The first example: three tokens, and scores that are easy to check by hand. */
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
  text: EXAMPLE.text, // null: no sentences, only a length
  side: "right", // padding side
  padding: true, // mask the padding
  size: 16, // number of queries without a text
  keys: null,
  q_start: null,
  batches: null, // batch size and number of heads …
  heads: null,
  batch: 0, // … and the sequence and head that are shown
  head: 0,
  view: null, // {row, rows, key, keys}, or null for the whole mask
  query: null, // the selected cell
  key: null,
  others: [],
  values: null,
  seed: 0,
  width: 3,
  head_size: 2,
  scaled: true,
  fill: "-inf",
  rows_too: false,
  softcap: null,
  bias: null,
  sink: null,
  scores: EXAMPLE.scores, // entered by hand; null: computed from the seed
  steps_view: "steps",
  step: null,
  row: null,
  panel: "steps",
  lesson: null,
  lang: isBrowserChinese ? "zh" : "en",
  theme: "auto",
});

/** The current state. Change it only by `set`. `tokens` is derived from `text`. */
export const state = Object.assign(Object.create(null), structuredClone({ ...DEFAULTS }), {
  tokens: null,
});

const listeners = new Set();

/**
 * Change some keys of the state and notify all subscribers of the keys that differ. `derived`
 * changes follow from others, and are not undone by themselves.
 */
export function set(changes, { derived = false } = {}) {
  const changed = Object.keys(changes).filter((name) => !isEqual(state[name], changes[name]));
  if (changed.length === 0) return;
  for (const name of changed) state[name] = changes[name];
  const keys = new Set(changed);
  for (const listener of [...listeners]) listener(state, keys, { derived });
}

/** Call `listener(state, changedKeys, {derived})` after every change; `changedKeys` is a Set. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Set the tokens of the text; the scores of the example are dropped if they do not fit them. */
export function setTokens(tokens) {
  const isExample = isEqual(state.scores, EXAMPLE.scores);
  const stale = isExample && tokens !== null && tokens[0]?.length !== EXAMPLE.scores.length;
  set(stale ? { tokens, scores: null } : { tokens }, { derived: true });
}

/** The keys of the state that `subject()` depends on. */
export const SUBJECT_KEYS = Object.freeze(
  "expression tokens text padding size keys q_start batches heads".split(" "),
);

/** The mask and its tokens or sizes, as the server expects them in most requests. */
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

/** Number of queries, keys and sequences; `batch` is null if the mask determines it. */
export function sizes() {
  const { tokens, size, keys, batch } = subject();
  if (tokens) return { queries: tokens[0].length, keys: tokens[0].length, batch: tokens.length };
  return { queries: size, keys: keys ?? size, batch };
}

/** The URL that shows the current state. */
export function link() {
  return `${location.origin}${location.pathname}${toHash()}`;
}

/** Set the state from a hash; keys that it does not contain get their defaults. */
export function restore(hash, { keepPreferences = false } = {}) {
  const { lang, theme } = state;
  const values = { ...structuredClone({ ...DEFAULTS }), lang, theme };
  for (const pair of hash.slice(1).split("&")) {
    const at = pair.indexOf("=");
    if (at < 1) continue;
    const name = pair.slice(0, at);
    const value = decode(pair.slice(at + 1));
    if (value !== undefined && isValid(name, value)) values[name] = value;
  }
  set(keepPreferences ? { ...values, lang, theme } : values);
}

/** The state as a hash; only `lang` and the keys that differ from their defaults. */
export function toHash() {
  const names = Object.keys(state).filter(
    (name) => name !== "tokens" && (name === "lang" || !isEqual(state[name], DEFAULTS[name])),
  );
  return `#${names.map((name) => `${name}=${encode(state[name])}`).join("&")}`;
}

// A string is written as it is unless it is valid JSON; all other values are written as JSON.
function encode(value) {
  const plain = typeof value === "string" && parseJson(value) === undefined;
  return encodeURIComponent(plain ? value : JSON.stringify(value))
    .replaceAll("%20", "+")
    .replaceAll("%3D", "=")
    .replaceAll("%2C", ",");
}

function decode(text) {
  try {
    const plain = decodeURIComponent(text.replaceAll("+", "%20"));
    const value = parseJson(plain);
    return value === undefined ? plain : value;
  } catch {
    return undefined; // an invalid escape is ignored
  }
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// Links are untrusted: values of the wrong type or range are ignored.
const integer = (min, max) => (value) =>
  Number.isInteger(value) && value >= min && value <= max;
const text = (maxLength) => (value) => typeof value === "string" && value.length <= maxLength;
const oneOf =
  (...names) =>
  (value) =>
    names.includes(value);
const nullable = (check) => (value) => value === null || check(value);
const boolean = (value) => typeof value === "boolean";
const record = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

const VALIDATORS = {
  expression: text(20_000),
  text: nullable(text(20_000)),
  side: oneOf("left", "right"),
  padding: boolean,
  size: integer(1, MAX_SIZE),
  keys: nullable(integer(1, MAX_SIZE)),
  q_start: nullable(integer(-MAX_SIZE, MAX_SIZE)),
  batches: nullable(integer(1, 64)),
  heads: nullable(integer(1, 64)),
  batch: integer(0, 63),
  head: integer(0, 63),
  view: nullable(
    (value) =>
      record(value) &&
      [value.row, value.key].every(integer(0, MAX_SIZE)) &&
      [value.rows, value.keys].every(integer(1, MAX_SIZE)),
  ),
  query: nullable(integer(0, MAX_SIZE)),
  key: nullable(integer(0, MAX_SIZE)),
  others: (value) => Array.isArray(value) && value.length <= 2 && value.every(text(20_000)),
  values: nullable(record),
  seed: integer(0, 2 ** 31),
  width: integer(1, 64),
  head_size: integer(1, 64),
  scaled: boolean,
  fill: (value) => Number.isFinite(value) || text(24)(value),
  rows_too: boolean,
  softcap: nullable((value) => Number.isFinite(value) && value > 0),
  bias: nullable(text(200)),
  sink: nullable(Number.isFinite),
  scores: nullable(
    (value) =>
      Array.isArray(value) &&
      value.length <= 32 &&
      value.every((row) => Array.isArray(row) && row.length <= 32 && row.every(Number.isFinite)),
  ),
  steps_view: oneOf("steps", "masks", "scaling"),
  step: nullable(integer(0, 32)),
  row: nullable(integer(0, 256)),
  panel: text(24),
  lesson: nullable(text(64)),
  lang: oneOf("en", "zh"),
  theme: oneOf("auto", "light", "dark"),
};

function isValid(name, value) {
  if (Object.hasOwn(VALIDATORS, name)) return VALIDATORS[name](value);
  return name !== "tokens" && /^[a-z][a-z_]{0,23}$/.test(name); // state of a panel
}

function isEqual(a, b) {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}
