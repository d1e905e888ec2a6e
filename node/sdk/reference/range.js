// Ranges: the entries of an index, or of a table by id, between bounds. An entry is
// `{ sort: [values…], row }`; `source()` answers all of them in order, anew at each call, so
// that a range sees what was written since.

import { compare, compareLists } from "./order.js";

const OPS = {
  gt: (value, bound) => compare(value, bound) > 0,
  gte: (value, bound) => compare(value, bound) >= 0,
  lt: (value, bound) => compare(value, bound) < 0,
  lte: (value, bound) => compare(value, bound) <= 0,
};

function isOps(wanted) {
  return typeof wanted === "object" && wanted !== null;
}

/** Checks `{ field: value or bounds }` against the fields in order; answers a test of `sort`. */
function matcher(fields, where, name) {
  const tests = [];
  let open = true;
  for (const field of fields) {
    if (!(field in where)) open = false;
    else if (!open) throw new TypeError(`${name}: fields are given in order, at most one range, the last`);
    else {
      const wanted = where[field];
      const at = tests.length;
      if (isOps(wanted)) {
        open = false;
        for (const op of Object.keys(wanted)) {
          if (OPS[op] === undefined) throw new TypeError(`${name}: '${field}' does not know '${op}'`);
          tests.push((sort) => OPS[op](sort[at], wanted[op]));
        }
      } else {
        tests.push((sort) => compare(sort[at], wanted) === 0);
      }
    }
  }
  for (const field of Object.keys(where)) {
    if (!fields.includes(field)) throw new TypeError(`${name}: '${field}' is not a field here`);
  }
  return (sort) => tests.every((test) => test(sort));
}

function whole(n, what) {
  if (!Number.isInteger(n) || n < 0) throw new TypeError(`${what} must be a whole number`);
  return n;
}

export class Range {
  #at;
  constructor(at) {
    this.#at = at;
    Object.freeze(this);
  }
  #with(change) {
    return new Range({ ...this.#at, ...change });
  }
  // All entries within the bounds, in the order asked for, without the limit.
  #entries() {
    const { source, test, descending } = this.#at;
    const found = source().filter(({ sort }) => test(sort));
    return descending ? found.reverse() : found;
  }
  #limited() {
    return this.#entries().slice(0, this.#at.limit);
  }
  #note(visited) {
    this.#at.note?.(visited);
  }
  desc() {
    return this.#with({ descending: !this.#at.descending });
  }
  take(n) {
    return this.#with({ limit: Math.min(this.#at.limit, whole(n, "take(n)")) });
  }
  first() {
    const [entry] = this.#limited();
    this.#note(entry === undefined ? [] : [entry]);
    return entry === undefined ? null : entry.row;
  }
  all() {
    const found = this.#limited();
    this.#note(found);
    return found.map(({ row }) => row);
  }
  count() {
    const found = this.#limited();
    this.#note(found.map(({ sort }) => ({ sort })));
    return found.length;
  }
  sum(what) {
    if (typeof what === "string" && this.#at.numeric?.(what) !== true) {
      throw new TypeError(`${this.#at.name}: '${what}' is not a field of numbers`);
    }
    const of = typeof what === "string" ? (row) => row[what] ?? 0 : what;
    return this.all().reduce((total, row) => total + of(row), 0);
  }
  // The cursor is the place after which to go on; the node's own texts differ.
  page({ cursor, size = 50 } = {}) {
    const most = Math.min(this.#at.limit, whole(size, "page({ size })"));
    let rest = this.#entries();
    if (cursor !== undefined && cursor !== null) {
      const last = JSON.parse(cursor);
      const sign = this.#at.descending ? -1 : 1;
      rest = rest.filter(({ sort }) => sign * compareLists(sort, last) > 0);
    }
    const page = rest.slice(0, most);
    this.#note(rest.slice(0, most + 1));
    const more = page.length > 0 && rest.length > page.length;
    const next = more ? JSON.stringify(page[page.length - 1].sort) : null;
    return Object.freeze({ rows: Object.freeze(page.map(({ row }) => row)), cursor: next });
  }
  *[Symbol.iterator]() {
    const sign = this.#at.descending ? -1 : 1;
    const visited = [];
    let last;
    try {
      while (visited.length < this.#at.limit) {
        const ahead = this.#entries().find(
          ({ sort }) => last === undefined || sign * compareLists(sort, last) > 0,
        );
        if (ahead === undefined) return;
        last = ahead.sort;
        visited.push(ahead);
        yield ahead.row;
      }
    } finally {
      this.#note(visited);
    }
  }
}

/**
 * A range over `source`. `fields` name the parts of `sort`, the last being the id or the key;
 * `note` gets the entries that were visited, for what tracks its reads.
 */
export function range({ name, source, fields, where = {}, numeric, note }) {
  const test = matcher(fields, where, name);
  const spanning = !(fields[0] in where) || isOps(where[fields[0]]);
  return new Range({
    name,
    source,
    test,
    numeric,
    note: note && ((visited) => note(visited, spanning)),
    descending: false,
    limit: Infinity,
  });
}
