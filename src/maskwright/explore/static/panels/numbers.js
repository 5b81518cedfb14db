// Numbers as people read them.

const MINUS = "−";

/** A number of a table: two places, −∞ and NaN as signs, very large ones by their power of ten. */
export function shown(value, places = 2) {
  if (value === "-inf") return `${MINUS}∞`;
  if (value === "inf") return "∞";
  if (value === null || value === "nan") return "NaN";
  if (Math.abs(value) >= 100000) return signed(power(value));
  const text = value.toFixed(places);
  return signed(Number(text) === 0 ? text.replace("-", "") : text);
}

/** A share from 0 to 1 in little room: .25. */
export function brief(share) {
  return typeof share === "number"
    ? share.toFixed(2).replace(/^0\./, ".").replace("1.00", "1")
    : shown(share);
}

/** A number with all digits that matter, for a tooltip. */
export function exact(value) {
  return typeof value === "number" ? signed(String(value)) : shown(value);
}

/** Bytes in binary units: 1,536 is 1.5 KiB. */
export function bytes(number) {
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
export function shape(sizes) {
  return `(${sizes.join(", ")})`;
}

function power(value) {
  return value
    .toExponential(2)
    .replace(/\.?0+e/, "e")
    .replace("e+", "e");
}

function signed(text) {
  return text.replaceAll("-", MINUS);
}
