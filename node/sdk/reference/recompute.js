// One recomputation of derived values from rows: recursive, memoised, nothing kept from
// before. A cell is `{ id, of, key, text, outcome, height, reads, deps }`.

import { Fault } from "./declare.js";
import { compareLists } from "./order.js";
import { range } from "./range.js";
import { freezeAll } from "./rows.js";
import { describe, faults, fieldFaults, isNumeric, isOptional, wrong } from "./types.js";

const HIGHEST = 128;

/** A refusal that no handler can catch: whoever catches it meets it again. */
export class Refusal extends Error {
  constructor(code, detail) {
    super(detail);
    this.code = code;
  }
}

/** What a reader of a failed cell gets, unless it failed with a fault. */
class DerivedError extends Error {
  constructor(message) {
    super(message);
    this.name = "DerivedError";
  }
}

/** JSON of a value as results have it; throws what is wrong with it. */
export function jsonOf(value) {
  const text = JSON.stringify(value === undefined ? null : value);
  if (text === undefined) throw new TypeError(`it returned a ${typeof value}`);
  return text;
}

/** `{ name, message, … }` of whatever was thrown. */
export function errorOf(thrown) {
  if (thrown instanceof Fault) {
    const { code, message, data } = thrown;
    const error = { name: "Fault", message, code };
    return data === undefined ? error : { ...error, data: JSON.parse(JSON.stringify(data)) };
  }
  if (typeof thrown === "object" && thrown !== null) {
    return { name: String(thrown.name), message: String(thrown.message) };
  }
  return { name: "Error", message: `it threw ${String(thrown)}` };
}

/** The key in declared order, as JSON; a TypeError when it does not fit. */
export function keyText(of, key) {
  if (typeof key !== "object" || key === null || Array.isArray(key)) {
    throw new TypeError(`${of.name}: a key is an object of its fields`);
  }
  const found = wrong(fieldFaults(of.key, key));
  if (found !== "") throw new TypeError(`${of.name}: the key does not fit: ${found}`);
  return JSON.stringify(Object.fromEntries(of.key.map(([name]) => [name, key[name]])));
}

function shown(cell) {
  return `${cell.of.name}(${cell.text})`;
}

// What is said of a cell's error: the innermost cell's text goes up unchanged.
function told(cell) {
  const { name, message } = cell.outcome.error;
  return name === "DerivedError" ? message : `${shown(cell)}: ${message}`;
}

/** The refusal that a cell's error is, when its derived value refuses errors. */
export function rejection(cell) {
  if (!cell.of.rejects || cell.outcome.error === undefined) return undefined;
  return new Refusal("derived-rejected", told(cell));
}

function pathText(cells) {
  const names = cells.map(shown);
  const left = names.length - 12;
  return (left <= 0 ? names : [...names.slice(0, 10), `… ${left} more …`, ...names.slice(-2)]).join(" → ");
}

export class Recomputation {
  /** `app` is what was declared. */
  constructor(app, rows) {
    this.app = app;
    this.rows = rows;
    this.cells = new Map();
    this.path = [];
    this.db = this.#makeDatabase();
    this.refusal = undefined;
    /** What time it is in milliseconds, for whoever cuts evaluations off. */
    this.clock = () => 0;
    this.since = 0;
  }

  /**
   * An evaluation was cut off from outside. The cell under way is taken for one that never ends
   * if it has computed for `most` milliseconds while no other was evaluated; of the others that
   * were under way nothing is kept, so that they can be asked for again.
   */
  cutOff(most) {
    const under = this.path.splice(0);
    for (const { id } of under) this.cells.delete(id);
    const last = under.at(-1);
    if (last === undefined || this.clock() - this.since < most) return;
    last.outcome = { error: { name: "Error", message: "it does not end (FLOWER_LIMIT_GAS)" } };
    for (const read of last.deps.values()) last.height = Math.max(last.height, read.height + 1);
    this.cells.set(last.id, last);
  }

  /** The cell, evaluated. Throws a Refusal. */
  cell(of, text) {
    if (this.refusal) throw this.refusal;
    const id = `${of.name}${text}`;
    const known = this.cells.get(id);
    if (known?.refusal) this.#refuse(known.refusal);
    if (known?.outcome) return known;
    if (known) {
      const cycle = this.path.slice(this.path.indexOf(known));
      this.#refuse(new Refusal("derived-cycle", pathText([...cycle, known])));
    }
    const cell = { id, of, text, key: JSON.parse(text), height: 1, reads: [], deps: new Map() };
    if (this.path.length >= HIGHEST) {
      this.#refuse(new Refusal("derived-depth", pathText([...this.path, cell])));
    }
    this.cells.set(id, cell);
    this.path.push(cell);
    this.since = this.clock();
    try {
      this.#evaluate(cell);
    } catch (refusal) {
      cell.refusal = refusal;
      throw refusal;
    } finally {
      this.path.pop();
      this.since = this.clock();
    }
    return cell;
  }

  #refuse(refusal) {
    this.refusal = refusal;
    throw refusal;
  }

  #evaluate(cell) {
    const { of } = cell;
    let outcome;
    try {
      const value = of.handler(this.db, freezeAll(JSON.parse(cell.text)), this.db.get);
      outcome = { value: this.#value(of, value) };
    } catch (thrown) {
      outcome = { error: errorOf(thrown) };
    }
    if (this.refusal) throw this.refusal;
    for (const read of cell.deps.values()) cell.height = Math.max(cell.height, read.height + 1);
    if (cell.height > HIGHEST) {
      this.#refuse(new Refusal("derived-depth", pathText([...this.path])));
    }
    cell.outcome = outcome;
  }

  #value(of, value) {
    const unfit = (why) => new Error(`${of.name}: it returned what it does not declare: ${why}`);
    if (value === undefined && !isOptional(of.type)) throw unfit(`must be ${describe(of.type)}, not undefined`);
    const json = JSON.parse(jsonOf(value));
    const found = wrong(faults(of.type, json));
    if (found !== "") throw unfit(found);
    return freezeAll(json);
  }

  /** The value of a cell, or its error thrown. */
  valueOf(cell) {
    const { value, error } = cell.outcome;
    if (error === undefined) return value;
    if (error.code !== undefined) throw new Fault(error.code, { data: freezeAll(error.data), message: error.message });
    throw new DerivedError(told(cell));
  }

  // The third argument of a derived function: reads another cell, and notes it.
  #get(of, key) {
    if (of?.what !== "derived") throw new TypeError("get(derived, key): the first is no derived value");
    const reader = this.path.at(-1);
    const cell = this.cell(of, keyText(of, key));
    reader.deps.set(cell.id, cell);
    reader.reads.push({ cell: cell.id, empty: cell.outcome.value === null, answer: cell.outcome });
    return this.valueOf(cell);
  }

  #row(name, id) {
    const row = this.rows.get(name, id);
    this.path.at(-1).reads.push({ row: [name, id], empty: row === null, answer: row });
    return row;
  }

  // What a derived function reads: rows by id, ranges of indexes, other cells. The reader is
  // the cell that is being evaluated.
  #makeDatabase() {
    const db = { get: (of, key) => this.#get(of, key) };
    const refuse = (why) => () => {
      throw new TypeError(why);
    };
    Object.defineProperty(db, "now", { get: refuse("a derived value has no clock") });
    for (const [name, { indexes }] of this.app.tables) {
      const unindexed = refuse(`${name}: inside a derived value: name an index`);
      const api = { get: (id) => this.#row(name, id), range: unindexed, all: unindexed, count: unindexed };
      for (const write of ["insert", "patch", "replace", "delete"]) {
        api[write] = refuse(`${name}.${write}: a derived value cannot write`);
      }
      for (const index of indexes.keys()) {
        const noted = `${name}.${index}`;
        api[index] = { range: (where) => this.range(name, index, where, note(this.path.at(-1), noted)) };
      }
      db[name] = api;
    }
    for (const [name, of] of this.app.values) db[name] = { get: (key) => this.#get(of, key) };
    return db;
  }

  /** A range over an index, or over the table itself. */
  range(name, index, where, noted) {
    const { fields, indexes } = this.app.tables.get(name);
    return range({
      name: index === undefined ? name : `${name}.${index}`,
      source: () => this.rows.entries(name, index),
      fields: [...(index === undefined ? [] : indexes.get(index)), "id"],
      where,
      numeric: (field) => fields.some(([at, type]) => at === field && isNumeric(type)),
      note: noted,
    });
  }

  /** Entries `{ sort, row }` of the index over a derived value, among `cells`. */
  static valueEntries(of, cells) {
    const found = [...cells.values()]
      .filter((cell) => cell.of === of && cell.outcome.error === undefined)
      .map((cell) => ({
        sort: [cell.outcome.value, ...of.key.map(([field]) => cell.key[field])],
        row: freezeAll({ ...cell.key, value: cell.outcome.value }),
      }));
    return found.sort((a, b) => compareLists(a.sort, b.sort));
  }
}

function note(reader, index) {
  return (visited, spanning) => {
    const answer = visited.map(({ sort, row }) => row ?? sort);
    reader.reads.push({ range: index, spanning, empty: visited.length === 0, answer });
  };
}
