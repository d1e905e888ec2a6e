// What the reference must answer, written by hand from the documentation: `node
// expectations.js`, and a test of the node's engine runs it in QuickJS. `run()` answers a
// line for each expectation that is not met.

import { Reference, derived, fault, forget, mutation, query, t, table } from "./index.js";

class World {
  constructor(declare) {
    forget();
    this.reference = new Reference(declare());
    this.revision = 0;
  }
  call(kind, name, args = {}) {
    if (kind === "mutation") this.revision += 1;
    return this.reference.call(kind, name, args, { now: 1_000 + this.revision, revision: this.revision });
  }
  mutate(name, args) {
    return this.call("mutation", name, args);
  }
  query(name, args) {
    return this.call("query", name, args);
  }
  /** Stored cells as `name key: value or error @height`. */
  cells() {
    const shown = ({ value, error }) => (error ? `!${error.message}` : JSON.stringify(value));
    return this.reference.dump().cells.map(
      ({ name, key, outcome, height }) => `${name}${JSON.stringify(Object.values(key))}: ${shown(outcome)} @${height}`,
    );
  }
}

const cases = {};

function orders() {
  const orders = table("orders", { customer: t.text() });
  table("lines", { order: t.id(orders), qty: t.int(), cents: t.int() }, { indexes: { byOrder: ["order"] } });
  const subtotal = derived("subtotal", { order: t.id(orders) }, t.int(), (db, key) =>
    db.lines.byOrder.range(key).sum((line) => line.qty * line.cents));
  const total = derived("total", { order: t.id(orders) }, t.int(),
    (db, key, get) => { const s = get(subtotal, key); return s < 5000 ? s + 490 : s; },
    { materialize: { each: orders }, index: "byValue" });
  return {
    place: mutation({ args: { customer: t.text(), cents: t.list(t.int()) } }, (tx, { customer, cents }) => {
      const order = tx.orders.insert({ customer });
      for (const c of cents) tx.lines.insert({ order, qty: 1, cents: c });
      return [order, tx.get(total, { order })];
    }),
    remove: mutation({ args: { order: t.id(orders) } }, (tx, { order }) => {
      for (const { id } of tx.lines.byOrder.range({ order })) tx.lines.delete(id);
      return tx.orders.delete(order);
    }),
    totals: query((db) => db.total.byValue.range({ value: { gte: 600 } }).desc().all()),
    totalOf: query((db, { order }) => db.total.get({ order })),
  };
}

cases["totals follow their lines, and go with their order"] = (is) => {
  const world = new World(orders);
  is(world.mutate("place", { customer: "a", cents: [100, 200] }), { result: ["0000000000010000", 790] });
  is(world.mutate("place", { customer: "b", cents: [6000] }), { result: ["0000000000020000", 6000] });
  is(world.mutate("place", { customer: "c", cents: [] }).result[1], 490);
  is(world.cells(), [
    'subtotal["0000000000010000"]: 300 @1',
    'subtotal["0000000000020000"]: 6000 @1',
    'subtotal["0000000000030000"]: 0 @1',
    'total["0000000000010000"]: 790 @2',
    'total["0000000000020000"]: 6000 @2',
    'total["0000000000030000"]: 490 @2',
  ]);
  is(world.query("totals").result, [
    { order: "0000000000020000", value: 6000 },
    { order: "0000000000010000", value: 790 },
  ]);
  is(world.mutate("remove", { order: "0000000000020000" }), { result: true });
  is(world.query("totals").result, [{ order: "0000000000010000", value: 790 }]);
  is(world.query("totalOf", { order: "0000000000020000" }), { result: 490 });
  is(world.cells().length, 4);
};

function failing() {
  const items = table("items", { n: t.int(), via: t.id("items").optional() }, { indexes: { byN: ["n"] } });
  const inner = derived("inner", { id: t.id(items) }, t.int(0, 9), (db, { id }) => {
    const { n } = db.items.get(id);
    if (n === 13) throw new Error("unlucky");
    if (n === 14) throw fault("fourteen", { data: { n } });
    if (n === 15) return "text";
    if (n === 16) return undefined;
    return n;
  });
  const middle = derived("middle", { id: t.id(items) }, t.int(), (db, key, get) => get(inner, key) + 1);
  derived("outer", { id: t.id(items) }, t.text(), (db, key, get) => {
    try { return `fine ${get(middle, key)}`; } catch (error) { return `${error.name} ${error.code}: ${error.message}`; }
  }, { materialize: { each: items } });
  return {
    add: mutation((tx, { n }) => tx.items.insert({ n })),
    set: mutation((tx, { n }) => { for (const { id } of tx.items.range()) tx.items.patch(id, { n }); }),
    read: mutation({ errors: { fourteen: 414 } }, (tx, { id }) => tx.get(middle, { id })),
    wrongKey: query((db) => {
      try { return db.get(inner, { id: "x" }); } catch (error) { return error.name; }
    }),
  };
}

cases["an error is an outcome, is rethrown once wrapped, and is caught"] = (is) => {
  const world = new World(failing);
  const id = world.mutate("add", { n: 4 }).result;
  is(world.cells(), [`inner["${id}"]: 4 @1`, `middle["${id}"]: 5 @2`, `outer["${id}"]: "fine 5" @3`]);
  world.mutate("set", { n: 13 });
  const text = `inner({"id":"${id}"}): unlucky`;
  is(world.cells(), [
    `inner["${id}"]: !unlucky @1`, `middle["${id}"]: !${text} @2`,
    `outer["${id}"]: ${JSON.stringify(`DerivedError undefined: ${text}`)} @3`,
  ]);
  is(world.mutate("read", { id }), { internal: `DerivedError: ${text}` });
  world.mutate("set", { n: 14 });
  is(world.cells()[2], `outer["${id}"]: "Fault fourteen: fourteen" @3`);
  is(world.mutate("read", { id }).fault, { code: "fourteen", status: 414, data: { n: 14 }, message: "fourteen" });
  world.mutate("set", { n: 15 });
  is(world.cells()[0], `inner["${id}"]: !inner: it returned what it does not declare: must be a whole number, not a text @1`);
  world.mutate("set", { n: 16 });
  is(world.cells()[0], `inner["${id}"]: !inner: it returned what it does not declare: must be a whole number, not undefined @1`);
  world.mutate("set", { n: 17 });
  is(world.cells()[0], `inner["${id}"]: !inner: it returned what it does not declare: must be at most 9, not 17 @1`);
  is(world.query("wrongKey"), { result: "TypeError" });
};

function sheet() {
  const cells = table("cells", { n: t.int(), to: t.id("cells").optional() });
  const value = derived("value", { id: t.id(cells) }, t.int(), (db, { id }, get) => {
    const cell = db.cells.get(id);
    if (!cell) return 0;
    return cell.n + (cell.to ? get(value, { id: cell.to }) : 0);
  }, { materialize: { each: cells } });
  return {
    add: mutation((tx, row) => tx.cells.insert(row)),
    point: mutation((tx, { id, to }) => tx.cells.patch(id, { to })),
    pointCaught: mutation((tx, { id, to }) => {
      tx.cells.patch(id, { to });
      try { tx.get(value, { id }); } catch { /* a cycle is not caught */ }
      tx.cells.patch(id, { to: undefined });
    }),
    chain: mutation((tx, { n }) => { let to; for (let i = 0; i < n; i++) to = tx.cells.insert({ n: 1, to }); return to; }),
    drop: mutation((tx, { id }) => tx.cells.delete(id)),
  };
}

cases["a cycle and too great a height refuse the mutation"] = (is) => {
  const world = new World(sheet);
  const a = world.mutate("add", { n: 1 }).result;
  const b = world.mutate("add", { n: 2, to: a }).result;
  is(world.cells(), [`value["${a}"]: 1 @1`, `value["${b}"]: 3 @2`]);
  const refused = world.mutate("point", { id: a, to: b }).refused;
  is(refused.code, "derived-cycle");
  is(refused.detail, [a, b, a].map((id) => `value({"id":"${id}"})`).join(" → "));
  is(world.mutate("pointCaught", { id: a, to: b }).refused.code, "derived-cycle");
  is(world.mutate("point", { id: a, to: a }).refused.code, "derived-cycle");
  is(world.cells(), [`value["${a}"]: 1 @1`, `value["${b}"]: 3 @2`]);
  const top = world.mutate("chain", { n: 127 }).result;
  is(world.mutate("chain", { n: 129 }).refused.code, "derived-depth");
  is(world.mutate("add", { n: 0, to: top }).result !== undefined, true);
  const last = world.reference.dump().cells.at(-1);
  is(last.height, 128);
  is(world.mutate("add", { n: 0, to: last.key.id }).refused.code, "derived-depth");
};

cases["a deleted row's cell stays while it is read"] = (is) => {
  const world = new World(sheet);
  const a = world.mutate("add", { n: 1 }).result;
  const b = world.mutate("add", { n: 2, to: a }).result;
  world.mutate("drop", { id: a });
  is(world.cells(), [`value["${a}"]: 0 @1`, `value["${b}"]: 2 @2`]);
  world.mutate("drop", { id: b });
  is(world.cells(), []);
};

function kept() {
  table("notes", { room: t.int(), read: t.bool() }, { indexes: { byRoom: ["room", "read"] } });
  const unread = derived("unread", { room: t.int() }, t.int(), (db, { room }) =>
    db.notes.byRoom.range({ room, read: false }).count(), { materialize: "always", index: "byCount" });
  const size = derived("size", { room: t.int() }, t.int(), (db, key) => db.notes.byRoom.range(key).count());
  return {
    add: mutation((tx, row) => tx.notes.insert(row)),
    clear: mutation((tx, { room }) => { for (const { id } of tx.notes.byRoom.range({ room })) tx.notes.delete(id); }),
    ask: mutation((tx, { room }) => [tx.get(unread, { room }), tx.get(size, { room })]),
    look: query((db, { room }) => [db.get(unread, { room }), db.get(size, { room })]),
    top: query((db) => db.unread.byCount.range().desc().first()),
  };
}

cases["a root of `always` begins with a mutation's read and ends with its inputs"] = (is) => {
  const world = new World(kept);
  world.mutate("add", { room: 1, read: false });
  is(world.query("look", { room: 1 }), { result: [1, 1] });
  is(world.cells(), []);
  is(world.mutate("ask", { room: 1 }), { result: [1, 1] });
  is(world.cells(), ["unread[1]: 1 @1"]);
  world.mutate("add", { room: 1, read: false });
  world.mutate("add", { room: 2, read: false });
  is(world.cells(), ["unread[1]: 2 @1"]);
  is(world.query("top"), { result: { room: 1, value: 2 } });
  is(world.mutate("ask", { room: 7 }), { result: [0, 0] });
  is(world.cells(), ["unread[1]: 2 @1", "unread[7]: 0 @1"]);
  world.mutate("clear", { room: 1 });
  is(world.cells(), ["unread[7]: 0 @1"]);
};

function invariant() {
  table("accounts", { owner: t.int(), cents: t.int() }, { indexes: { byOwner: ["owner"] } });
  const balance = derived("balance", { owner: t.int() }, t.int(), (db, key) => {
    const sum = db.accounts.byOwner.range(key).sum("cents");
    if (sum < 0) throw fault("overdrawn", { message: `${sum} cents` });
    return sum;
  }, { materialize: "always", onError: "reject" });
  return {
    book: mutation((tx, { owner, cents }) => {
      const id = tx.accounts.insert({ owner, cents });
      return [id, tx.get(balance, { owner })];
    }),
    shift: mutation((tx, { id, cents }) => tx.accounts.patch(id, { cents })),
    caught: mutation((tx, { id, cents }) => {
      tx.accounts.patch(id, { cents });
      try { tx.get(balance, { owner: 1 }); } catch { /* refused all the same */ }
    }),
  };
}

cases["onError reject makes a derived value an invariant"] = (is) => {
  const world = new World(invariant);
  const [id] = world.mutate("book", { owner: 1, cents: 50 }).result;
  const refused = { code: "derived-rejected", detail: 'balance({"owner":1}): -10 cents' };
  is(world.mutate("shift", { id, cents: -10 }), { refused });
  is(world.mutate("caught", { id, cents: -10 }), { refused });
  is(world.cells(), ["balance[1]: 50 @1"]);
};

function ranges() {
  const marks = table("marks", { n: t.int().optional(), s: t.text() }, { indexes: { byN: ["n", "s"], byS: ["s"] } });
  return {
    add: mutation((tx, row) => tx.marks.insert(row)),
    names: query((db, { where, desc }) => {
      const range = db.marks.byN.range(where);
      return (desc ? range.desc() : range).all().map(({ s }) => s).join("");
    }),
    texts: query((db) => [...db.marks.byS.range()].map(({ s }) => s)),
    pages: query((db) => {
      const first = db.marks.byN.range().page({ size: 2 });
      const second = db.marks.byN.range().page({ size: 2, cursor: first.cursor });
      return [first.rows.length, second.rows.map(({ s }) => s), second.cursor];
    }),
    partly: query((db) => [
      db.marks.byN.range().take(2).count(), db.marks.byN.range().desc().take(3).sum("n"),
      db.marks.byN.range({ n: 1 }).first(), db.marks.byN.range({ n: 77 }).first(),
    ]),
    grow: mutation((tx) => {
      let steps = 0;
      for (const { n } of tx.marks.byN.range({ n: { gte: 2 } })) {
        steps += 1;
        if (n < 6) tx.marks.insert({ n: n + 2, s: "x" });
      }
      return steps;
    }),
    kind: query(() => String(marks.name)),
  };
}

cases["ranges have bounds, order and pages"] = (is) => {
  const world = new World(ranges);
  for (const [n, s] of [[2, "c"], [1, "b"], [1, "a"], [undefined, "z"]]) world.mutate("add", { n, s });
  const names = (where, desc = false) => world.query("names", { where, desc }).result;
  is(names({}), "zabc");
  is(names({}, true), "cbaz");
  is(names({ n: 1 }), "ab");
  is(names({ n: null }), "z");
  is(names({ n: { lt: 2 } }), "zab");
  is(names({ n: { gt: 1 } }), "c");
  is(names({ n: 1, s: { gt: "a" } }), "b");
  is(world.query("names", { where: { s: "a" } }).internal !== undefined, true);
  is(world.query("pages"), { result: [2, ["b", "c"], null] });
  is(world.query("partly").result.slice(0, 2), [2, 4]);
  is(world.query("partly").result[2].s, "a");
  is(world.query("partly").result[3], null);
  is(world.mutate("grow"), { result: 3 });
  for (const s of ["\uE000", "\u{10000}", "a\u0000", ""]) world.mutate("add", { s });
  is(world.query("texts").result, ["", "a", "a\u0000", "b", "c", "x", "x", "z", "\uE000", "\u{10000}"]);
};

function guarded() {
  const rows = table("rows", { n: t.int() }, { indexes: { byN: ["n"] } });
  const tries = [(db) => db.rows.range(), (db) => db.rows.all(), (db) => db.rows.count(), (db) => db.now,
    (db) => db.rows.insert({ n: 1 }), (db) => db.rows.get("none").n];
  derived("tried", { id: t.id(rows) }, t.list(t.text()), (db) => tries.map((attempt) => {
    try { return String(attempt(db)); } catch (error) { return error.name; }
  }), { materialize: { each: rows } });
  const picked = derived("picked", { id: t.id(rows) }, t.int(), (db, { id }, get) => {
    const { n } = db.rows.get(id);
    return n > 5 ? get(extra, { n }) : n;
  }, { materialize: { each: rows } });
  const extra = derived("extra", { n: t.int() }, t.int(), (db, { n }) => db.rows.byN.range({ n }).count() * 100);
  return {
    add: mutation((tx, row) => tx.rows.insert(row)),
    set: mutation((tx, { id, n }) => {
      const before = tx.get(picked, { id });
      tx.rows.patch(id, { n });
      return [before, tx.get(picked, { id })];
    }),
    abandon: mutation({ errors: { enough: 409 } }, (tx) => { tx.rows.insert({ n: 9 }); throw fault("enough"); }),
  };
}

cases["what a derived value may not do is an ordinary error; cells come and go"] = (is) => {
  const world = new World(guarded);
  const id = world.mutate("add", { n: 1 }).result;
  is(world.cells(), [`picked["${id}"]: 1 @1`, `tried["${id}"]: ${JSON.stringify(Array(6).fill("TypeError"))} @1`]);
  is(world.mutate("set", { id, n: 6 }), { result: [1, 100] });
  is(world.cells().slice(0, 2), ["extra[6]: 100 @1", `picked["${id}"]: 100 @2`]);
  is(world.reference.seen.collected, 0);
  is(world.mutate("set", { id, n: 7 }), { result: [100, 100] });
  is(world.cells()[0], "extra[7]: 100 @1");
  is(world.reference.seen.collected, 1);
  is(world.mutate("abandon").fault.code, "enough");
  is(world.reference.dump().rows.rows.length, 1);
};

/** Runs all; answers what is not as expected, a line each. */
export function run() {
  const failed = [];
  let met = 0;
  for (const [name, test] of Object.entries(cases)) {
    const is = (found, expected) => {
      const [left, right] = [found, expected].map((value) => JSON.stringify(value));
      if (left === right) met += 1;
      else failed.push(`${name}: expected ${right}, found ${left}`);
    };
    try {
      test(is);
    } catch (error) {
      failed.push(`${name}: ${error.name}: ${error.message}\n${error.stack}`);
    }
  }
  return { met, failed };
}

if (globalThis.process?.argv?.[1]?.endsWith("expectations.js")) {
  const { met, failed } = run();
  for (const line of failed) globalThis.console.error(line);
  globalThis.console.log(`${met} expectations met, ${failed.length} not`);
  globalThis.process.exitCode = failed.length === 0 ? 0 : 1;
}
