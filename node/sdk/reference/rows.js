// Rows: a map of maps. Every write makes its row anew; rows are frozen and hold their id first.

import { compareLists } from "./order.js";
import { fieldFaults, isOptional, wrong } from "./types.js";

const DIGITS = "0123456789abcdefghijklmnopqrstuv";

function digits(number, count) {
  let text = "";
  for (let n = BigInt(number); text.length < count; n /= 32n) text = DIGITS[Number(n % 32n)] + text;
  return text;
}

/** The id of the `counter`th row that the mutation at `revision` inserts. */
export function mintId(revision, counter) {
  return digits(revision, 12) + digits(counter, 4);
}

export function freezeAll(value) {
  if (typeof value === "object" && value !== null) {
    for (const part of Object.values(value)) freezeAll(part);
    Object.freeze(value);
  }
  return value;
}

export class Rows {
  constructor(tables, byTable) {
    this.tables = tables;
    this.byTable = byTable ?? new Map([...tables.keys()].map((name) => [name, new Map()]));
    /** Counts writes. */
    this.version = 0;
    this.sorted = new Map();
  }
  copy() {
    const byTable = new Map([...this.byTable].map(([name, rows]) => [name, new Map(rows)]));
    return new Rows(this.tables, byTable);
  }
  get(name, id) {
    return this.byTable.get(name).get(id) ?? null;
  }
  /** Entries `{ sort, row }` of a table by id, or of one of its indexes. */
  entries(name, index) {
    const at = `${name}.${index ?? ""}`;
    const known = this.sorted.get(at);
    if (known?.version === this.version) return known.entries;
    const entries = this.#sort(name, index);
    this.sorted.set(at, { version: this.version, entries });
    return entries;
  }
  #sort(name, index) {
    const on = index === undefined ? [] : this.tables.get(name).indexes.get(index);
    const found = [...this.byTable.get(name).values()].map((row) => ({
      sort: [...on.map((field) => row[field] ?? null), row.id],
      row,
    }));
    return found.sort((a, b) => compareLists(a.sort, b.sort));
  }
  insert(name, given, id) {
    if ("id" in given) throw new TypeError(`${name}.insert: ids are generated; leave 'id' out`);
    this.#put(name, id, given);
  }
  patch(name, id, changes) {
    const row = this.get(name, id);
    if (row === null) throw new TypeError(`${name} has no row '${id}'`);
    const next = { ...row, ...changes };
    if (next.id !== id) throw new TypeError(`${name}: the id of a row cannot change (row '${id}')`);
    delete next.id;
    this.#put(name, id, next);
  }
  replace(name, id, given) {
    if (this.get(name, id) === null) throw new TypeError(`${name} has no row '${id}'`);
    const { id: same = id, ...fields } = given;
    if (same !== id) throw new TypeError(`${name}: the id of a row cannot change (row '${id}')`);
    this.#put(name, id, fields);
  }
  delete(name, id) {
    const found = this.byTable.get(name).delete(id);
    if (found) this.version += 1;
    return found;
  }
  #put(name, id, given) {
    for (const [field, value] of Object.entries(given)) {
      if (typeof value === "number" && !Number.isFinite(value)) {
        throw new TypeError(`${name}: '${field}' is ${value}; only finite numbers can be stored`);
      }
    }
    const { fields } = this.tables.get(name);
    const plain = JSON.parse(JSON.stringify(given));
    const found = wrong(fieldFaults(fields, plain));
    if (found !== "") throw new TypeError(`a row of ${name} does not fit: ${found}`);
    const row = { id };
    for (const [field, type] of fields) {
      const value = plain[field];
      if (value !== undefined && !(isOptional(type) && value === null)) row[field] = value;
    }
    this.byTable.get(name).set(id, freezeAll(row));
    this.version += 1;
  }
}
