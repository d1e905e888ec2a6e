// The order of values in an index: null, false, true, numbers, texts by code points.

function rank(value) {
  if (value === null || value === undefined) return 0;
  if (typeof value === "boolean") return value ? 2 : 1;
  return typeof value === "number" ? 3 : 4;
}

const SURROGATE = /[\ud800-\udfff]/;
const isSurrogate = (unit) => unit >= 0xd800 && unit <= 0xdfff;

// JavaScript compares texts by UTF-16 units, which puts U+10000 before U+E000.
function compareTexts(a, b) {
  if (!SURROGATE.test(a) && !SURROGATE.test(b)) return a < b ? -1 : 1;
  const shared = Math.min(a.length, b.length);
  for (let i = 0; i < shared; i++) {
    const left = a.charCodeAt(i);
    const right = b.charCodeAt(i);
    if (left === right) continue;
    if (isSurrogate(left) !== isSurrogate(right)) return isSurrogate(left) ? 1 : -1;
    return left - right;
  }
  return a.length - b.length;
}

/** Negative, zero or positive, as the first value sorts before, with or after the second. */
export function compare(a, b) {
  if (a === b) return 0;
  if (typeof a === "number" && typeof b === "number") return a < b ? -1 : 1;
  if (typeof a === "string" && typeof b === "string") return compareTexts(a, b);
  return rank(a) - rank(b);
}

/** The same of lists, the first difference deciding. */
export function compareLists(a, b) {
  for (let i = 0; i < a.length && i < b.length; i++) {
    const difference = compare(a[i], b[i]);
    if (difference !== 0) return difference;
  }
  return a.length - b.length;
}
