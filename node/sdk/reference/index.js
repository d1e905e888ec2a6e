// The reference: a second, naive evaluator of Flower applications, to compare the node with.
// State is plain maps of rows. After each mutation every derived value is recomputed from the
// rows; nothing is kept but the roots of `always`. No limits, no clock, no random numbers;
// `Date` and `Math.random` inside a derived value are not refused here. For tests only.

import { Fault, declarations, derived, fault, forget, mutation, query, table } from "./declare.js";
import { Recomputation, Refusal, errorOf, jsonOf, rejection } from "./recompute.js";
import { Rows } from "./rows.js";
import { Session } from "./session.js";
import { changes } from "./shapes.js";
import { faults, t, wrong } from "./types.js";

export { derived, fault, forget, mutation, query, t, table };

// Every read that was tracked found nothing.
function isGone(cell) {
  return cell.reads.every(({ empty }) => empty);
}

function reachable(cells) {
  const found = new Map();
  const waiting = [...cells];
  while (waiting.length > 0) {
    const cell = waiting.pop();
    if (found.has(cell.id)) continue;
    found.set(cell.id, cell);
    waiting.push(...cell.deps.values());
  }
  return found;
}

export class Reference {
  /** An application, given the namespace of its module, over no rows. */
  constructor(namespace) {
    this.app = declarations();
    this.functions = new Map(Object.entries(namespace).filter(([, { what }]) => what === "query" || what === "mutation"));
    this.rows = new Rows(this.app.tables);
    this.roots = new Map();
    this.stored = new Map();
    /** Refusals that the last mutation could have ended with: more than one may apply. */
    this.refusals = [];
    /** What the last mutation did to the stored cells; see shapes.js. */
    this.seen = {};
  }

  // Every root with its cell; refusals of single roots are collected.
  #rootCells(rows, roots, refusals) {
    const made = new Recomputation(this.app, rows);
    const wanted = [...roots.values()];
    for (const of of this.app.values.values()) {
      if (of.kind !== "each") continue;
      const [field] = of.key[0];
      for (const { row } of rows.entries(of.each)) wanted.push({ of, text: JSON.stringify({ [field]: row.id }) });
    }
    const found = [];
    for (const { of, text } of wanted) {
      try {
        found.push(made.cell(of, text));
      } catch (thrown) {
        if (!(thrown instanceof Refusal)) throw thrown;
        made.refusal = undefined;
        refusals.push(thrown);
      }
    }
    return found;
  }

  #settle(rows, roots) {
    const refusals = [];
    const found = this.#rootCells(rows, roots, refusals);
    if (refusals.length > 0) throw Object.assign(refusals[0], { others: refusals });
    return found;
  }

  // A root of `always` ends with a mutation after which nothing that it reads is there, when
  // before it something was.
  #hasEnded(cell) {
    const before = this.roots.has(cell.id) ? this.stored.get(cell.id) : undefined;
    return before !== undefined && !isGone(before) && isGone(cell);
  }

  // After a mutation: all stored cells. Errors that refuse count only where they are stored.
  #settleAndDrop(rows, roots) {
    const refusals = [];
    const found = this.#rootCells(rows, roots, refusals);
    const kept = found.filter((cell) => !(roots.has(cell.id) && this.#hasEnded(cell) && roots.delete(cell.id)));
    const stored = reachable(kept);
    refusals.push(...[...stored.values()].map(rejection).filter((refusal) => refusal !== undefined));
    if (refusals.length > 0) throw Object.assign(refusals[0], { others: refusals });
    return stored;
  }

  /**
   * Calls a function. Answers `{ result }`, `{ fault: { code, status, data, message } }`,
   * `{ refused: { code, detail } }` or `{ internal }`, the text that the node would log.
   */
  call(kind, name, given, { now, revision }) {
    const args = JSON.parse(JSON.stringify(given));
    const declared = this.functions.get(name);
    if (declared?.what !== kind) return { refused: { code: "unknown-function", detail: name } };
    if (declared.args) {
      const found = wrong(faults(declared.args, args));
      if (found !== "") return { refused: { code: "invalid-args", detail: found } };
    }
    const writable = kind === "mutation";
    const session = new Session({
      app: this.app,
      rows: writable ? this.rows.copy() : this.rows,
      roots: writable ? new Map(this.roots) : this.roots,
      writable,
      stamp: { now, revision },
      settle: (rows, roots) => (writable ? reachable(this.#settle(rows, roots)) : this.stored),
    });
    this.refusals = [];
    this.seen = {};
    try {
      const value = declared.handler(session.database(), args);
      if (session.refusal) throw session.refusal;
      const result = JSON.parse(jsonOf(value));
      const found = declared.returns ? wrong(faults(declared.returns, result)) : "";
      if (found !== "") return { internal: `it returned what it does not declare: ${found}` };
      if (writable) this.#commit(session);
      return { result };
    } catch (thrown) {
      return this.#failed(declared, session.refusal ?? thrown);
    }
  }

  #commit({ rows, roots }) {
    const after = this.#settleAndDrop(rows, roots);
    this.seen = changes(this.stored, after, rows);
    this.rows = rows;
    this.roots = roots;
    this.stored = after;
  }

  #failed(declared, thrown) {
    if (thrown instanceof Refusal) {
      this.refusals = (thrown.others ?? [thrown]).map(({ code }) => code);
      return { refused: { code: thrown.code, detail: thrown.message } };
    }
    const { name, message, code, data } = errorOf(thrown);
    if (thrown instanceof Fault && declared.errors[code] !== undefined) {
      return { fault: { code, status: declared.errors[code], data, message } };
    }
    if (thrown instanceof Fault) {
      return { internal: `it threw the fault '${code}', which its errors do not declare` };
    }
    return { internal: `${name}: ${message}` };
  }

  #isRoot({ id, of, key }) {
    if (of.kind !== "each") return this.roots.has(id);
    return this.rows.get(of.each, Object.values(key)[0]) !== null;
  }

  /** Rows, entries of indexes, cells and entries of value indexes, in order. */
  dump() {
    const rows = {};
    const indexes = {};
    for (const [name, { indexes: declared }] of this.app.tables) {
      rows[name] = this.rows.entries(name).map(({ row }) => row);
      for (const index of declared.keys()) {
        indexes[`${name}.${index}`] = this.rows.entries(name, index).map(({ sort }) => sort);
      }
    }
    const cells = [...this.stored.values()].map((cell) => {
      const { of: { name }, key, outcome, height, deps } = cell;
      const [root, hollow] = [this.#isRoot(cell), isGone(cell)];
      return { name, key, root, hollow, height, outcome, deps: [...deps.keys()].sort() };
    });
    cells.sort((a, b) => {
      const [left, right] = [a, b].map(({ name, key }) => `${name}${JSON.stringify(key)}`);
      return left < right ? -1 : left > right ? 1 : 0;
    });
    const values = {};
    for (const of of this.app.values.values()) {
      if (of.index === undefined) continue;
      values[`${of.name}.${of.index}`] = Recomputation.valueEntries(of, this.stored).map(({ sort }) => sort);
    }
    return { rows, indexes, cells, values };
  }
}
