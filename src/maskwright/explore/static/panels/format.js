// Formats of numbers, bytes and shapes.

const MINUS = "−";

/** A number of a table: two digits, −∞ and NaN as symbols, large numbers with an exponent. */
export function formatValue(value, digits = 2) {
  if (value === "-inf") return `${MINUS}∞`;
  if (value === "inf") return "∞";
  if (value === null || value === "nan") return "NaN";
  if (Math.abs(value) >= 100000) return signed(exponential(value));
  const text = value.toFixed(digits);
  return signed(Number(text) === 0 ? text.replace("-", "") : text);
}

/** A number from 0 to 1 in a short form: .25. */
export function formatShare(share) {
  return typeof share === "number"
    ? share.toFixed(2).replace(/^0\./, ".").replace("1.00", "1")
    : formatValue(share);
}

/** A number with all digits, for a tooltip. */
export function formatExact(value) {
  return typeof value === "number" ? signed(String(value)) : formatValue(value);
}

/** Bytes in binary units: 1,536 is 1.5 KiB. */
export function formatBytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  let left = number;
  while (left >= 1024 && unit < units.length - 1) {
    left /= 1024;
    unit += 1;
  }
  const text = left >= 100 || unit === 0 ? left.toFixed(0) : left.toFixed(1);
  return `${text.replace(/\.0$/, "")} ${units[unit]}`;
}

/** (4, 3) or (T, C): a shape in brackets. */
export function formatShape(sizes) {
  return `(${sizes.join(", ")})`;
}

function exponential(value) {
  return value
    .toExponential(2)
    .replace(/\.?0+e/, "e")
    .replace("e+", "e");
}

function signed(text) {
  return text.replaceAll("-", MINUS);
}
