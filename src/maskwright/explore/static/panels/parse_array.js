// Parses a pasted array: JSON, Python and numpy output, rows of 0 and 1, or block characters.

const LITERALS = new Map([
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

/** Nested lists of numbers, booleans, "-inf", "inf" and "nan". Throws ParseError. */
export function parseArray(text) {
  const bare = stripCalls(text);
  if (!bare) throw new ParseError("paste.empty");
  const rows = /[[(]/.test(bare) ? parseBrackets(bare) : parseLines(bare);
  checkShape(rows);
  return rows;
}

export class ParseError extends Error {
  /** `key` is the key of the message, `values` its parameters. */
  constructor(key, values = {}) {
    super(key);
    this.key = key;
    this.values = values;
  }
}

// Removes array(…), tensor(…) and their keyword arguments.
function stripCalls(text) {
  return text
    .replace(/\b(?:np|numpy|torch|jnp)\./g, "")
    .replace(/\b(?:array|tensor)\s*\(/gi, "") // the closing bracket is ignored below
    .replace(
      /,?\s*\b(?:dtype|device|shape|requires_grad|grad_fn)\s*=\s*(?:'[^']*'|<[^>]*>|\([^)]*\)|[\w.]+)/g,
      "",
    )
    .replace(/\bdtype:\s*\w+/g, "")
    .trim();
}

/** Brackets of any kind; commas and blanks separate. */
function parseBrackets(text) {
  const top = [];
  const open = [top];
  for (const [part] of text.matchAll(/[[\]()]|[^\s,[\]()]+/g)) {
    if (part === "[" || part === "(") {
      const list = [];
      open.at(-1).push(list);
      open.push(list);
    } else if (part === "]" || part === ")") {
      if (open.length > 1) open.pop();
      else if (part === "]") throw new ParseError("paste.brackets");
    } else {
      open.at(-1).push(parseCell(part));
    }
  }
  if (open.length > 1) throw new ParseError("paste.brackets");
  return top.length === 1 && Array.isArray(top[0]) ? top[0] : top;
}

/** One row per line; an empty line begins the next sequence. */
function parseLines(text) {
  const blocks = text.split(/\n\s*\n/).map((block) =>
    block
      .split("\n")
      .map(parseRow)
      .filter((line) => line.length),
  );
  return blocks.length === 1 ? blocks[0] : blocks;
}

function parseRow(line) {
  const parts = line
    .trim()
    .split(/[\s,;]+/)
    .filter(Boolean);
  const packed = parts.length === 1 && /^(?:[01]{2,}|[■█·]{2,})$/.test(parts[0]);
  return (packed ? [...parts[0]] : parts).map(parseCell);
}

function parseCell(part) {
  if (part === "..." || part === "…") throw new ParseError("paste.short");
  const known = LITERALS.get(part.toLowerCase());
  if (known !== undefined) return known;
  const value = Number(part.replace(/^−/, "-"));
  if (part === "" || Number.isNaN(value)) throw new ParseError("paste.cell", { part: part.slice(0, 24) });
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

function checkShape(array) {
  const sizes = [];
  for (let level = array; Array.isArray(level); level = level[0]) sizes.push(level.length);
  if (sizes.includes(0)) throw new ParseError("paste.empty");
  const fits = (level, axis) =>
    Array.isArray(level)
      ? axis < sizes.length && level.length === sizes[axis] && level.every((inner) => fits(inner, axis + 1))
      : axis === sizes.length;
  if (!fits(array, 0)) throw new ParseError("paste.ragged");
}
