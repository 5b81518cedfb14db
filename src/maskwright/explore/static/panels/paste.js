// A pasted array as nested lists: JSON, Python and numpy prints, rows of 0 and 1, or drawn signs.

const WORDS = new Map([
  ["true", true],
  ["false", false],
  ["■", true],
  ["█", true],
  ["·", false],
  ["inf", "inf"],
  ["+inf", "inf"],
  ["-inf", "-inf"],
  ["infinity", "inf"],
  ["-infinity", "-inf"],
  ["−∞", "-inf"],
  ["-∞", "-inf"],
  ["nan", "nan"],
]);

/** Nested lists of numbers, truth values, and "-inf", "inf", "nan". Throws PasteError. */
export function lists(text) {
  const bare = unwrapped(text);
  if (!bare) throw new PasteError("paste.empty");
  const found = /[[(]/.test(bare) ? bracketed(bare) : lined(bare);
  check(found);
  return found;
}

export class PasteError extends Error {
  /** `word` is the key of what to say, `values` fill it in. */
  constructor(word, values = {}) {
    super(word);
    this.word = word;
    this.values = values;
  }
}

// array([[…]], dtype=bool), tensor([[…]], device='cpu'): only the lists count.
function unwrapped(text) {
  return text
    .replace(/\b(?:np|numpy|torch|jnp)\./g, "")
    .replace(/\b(?:array|tensor)\s*\(/gi, "") // its closing bracket is passed over below
    .replace(
      /,?\s*\b(?:dtype|device|shape|requires_grad|grad_fn)\s*=\s*(?:'[^']*'|<[^>]*>|\([^)]*\)|[\w.]+)/g,
      "",
    )
    .replace(/\bdtype:\s*\w+/g, "")
    .trim();
}

/** Brackets of any kind; commas and blanks separate. */
function bracketed(text) {
  const top = [];
  const open = [top];
  for (const [part] of text.matchAll(/[[\]()]|[^\s,[\]()]+/g)) {
    if (part === "[" || part === "(") {
      const list = [];
      open.at(-1).push(list);
      open.push(list);
    } else if (part === "]" || part === ")") {
      if (open.length > 1) open.pop();
      else if (part === "]") throw new PasteError("paste.brackets");
    } else {
      open.at(-1).push(cell(part));
    }
  }
  if (open.length > 1) throw new PasteError("paste.brackets");
  return top.length === 1 && Array.isArray(top[0]) ? top[0] : top;
}

/** A line is a row; an empty line begins the next batch row. */
function lined(text) {
  const blocks = text.split(/\n\s*\n/).map((block) =>
    block
      .split("\n")
      .map(row)
      .filter((line) => line.length),
  );
  return blocks.length === 1 ? blocks[0] : blocks;
}

function row(line) {
  const parts = line
    .trim()
    .split(/[\s,;]+/)
    .filter(Boolean);
  const packed = parts.length === 1 && /^(?:[01]{2,}|[■█·]{2,})$/.test(parts[0]);
  return (packed ? [...parts[0]] : parts).map(cell);
}

function cell(part) {
  if (part === "..." || part === "…") throw new PasteError("paste.short");
  const known = WORDS.get(part.toLowerCase());
  if (known !== undefined) return known;
  const value = Number(part.replace(/^−/, "-"));
  if (part === "" || Number.isNaN(value)) throw new PasteError("paste.cell", { part: part.slice(0, 24) });
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

function check(found) {
  const sizes = [];
  for (let level = found; Array.isArray(level); level = level[0]) sizes.push(level.length);
  if (sizes.includes(0)) throw new PasteError("paste.empty");
  const fits = (level, axis) =>
    Array.isArray(level)
      ? axis < sizes.length && level.length === sizes[axis] && level.every((inner) => fits(inner, axis + 1))
      : axis === sizes.length;
  if (!fits(found, 0)) throw new PasteError("paste.ragged");
}
