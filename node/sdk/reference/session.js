// One call of a query or a mutation over rows: the database that its handler sees. A refusal
// stays, whatever the handler catches.

import { Recomputation, Refusal, keyText, rejection } from "./recompute.js";
import { mintId } from "./rows.js";
import { range } from "./range.js";

export class Session {
  /** `settle()` answers all stored cells as the rows and roots now are. */
  constructor({ app, rows, roots, writable, stamp, settle }) {
    this.app = app;
    this.rows = rows;
    this.roots = roots;
    this.writable = writable;
    this.stamp = stamp;
    this.settle = settle;
    this.minted = 0;
    this.refusal = undefined;
  }

  // Does something that may be refused, and remembers that.
  #guarded(act) {
    if (this.refusal) throw this.refusal;
    try {
      return act();
    } catch (thrown) {
      if (thrown instanceof Refusal) this.refusal = thrown;
      throw thrown;
    }
  }

  // What was evaluated holds until a row is written.
  #recomputation() {
    if (this.made?.version !== this.rows.version) {
      const made = new Recomputation(this.app, this.rows);
      this.made = { made, version: this.rows.version };
    }
    return this.made.made;
  }

  #get(of, key) {
    if (of?.what !== "derived") throw new TypeError("get(derived, key): the first is no derived value");
    const text = keyText(of, key);
    if (this.writable && of.kind === "always") this.roots.set(of.name + text, { of, text });
    const made = this.#recomputation();
    const cell = made.cell(of, text);
    const refusal = this.writable ? rejection(cell) : undefined;
    if (refusal) throw refusal;
    return made.valueOf(cell);
  }

  #valueRange(of, where) {
    return range({
      name: `${of.name}.${of.index}`,
      source: () => this.#guarded(() => Recomputation.valueEntries(of, this.settle(this.rows, this.roots))),
      fields: ["value", ...of.key.map(([field]) => field)],
      where,
      numeric: (field) => field === "value",
    });
  }

  #insert(name, row) {
    if ("id" in row) throw new TypeError(`${name}.insert: ids are generated; leave 'id' out`);
    const id = mintId(this.stamp.revision, this.minted);
    this.minted += 1;
    this.rows.insert(name, row, id);
    return id;
  }

  #table(name, { indexes }) {
    const read = (index) => (where) => this.#recomputation().range(name, index, where);
    const all = read(undefined);
    const api = {
      get: (id) => this.rows.get(name, id),
      range: all,
      all: () => all().all(),
      count: () => all().count(),
      insert: (row) => this.#insert(name, row),
      patch: (id, changes) => this.rows.patch(name, id, changes),
      replace: (id, row) => this.rows.replace(name, id, row),
      delete: (id) => this.rows.delete(name, id),
    };
    for (const index of indexes.keys()) api[index] = { range: read(index) };
    for (const method of ["insert", "patch", "replace", "delete", "get"]) {
      const act = api[method];
      api[method] = (...given) => this.#guarded(() => {
        if (method === "get" || this.writable) return act(...given);
        throw new TypeError(`${name}.${method}: a query cannot write; declare a mutation`);
      });
    }
    return api;
  }

  /** What the handler gets. */
  database() {
    const db = { now: this.stamp.now, get: (of, key) => this.#guarded(() => this.#get(of, key)) };
    for (const [name, table] of this.app.tables) db[name] = this.#table(name, table);
    for (const [name, of] of this.app.values) {
      db[name] = { get: (key) => db.get(of, key) };
      if (of.index !== undefined) db[name][of.index] = { range: (where) => this.#valueRange(of, where) };
    }
    return db;
  }
}
