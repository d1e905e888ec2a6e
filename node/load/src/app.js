// The application of simulated worlds. Every write carries a serial that nobody else uses and
// leaves a trace of it; every read tells serials and versions.
import { derived, fault, mutation, query, t, table } from "@flower/sdk";

table("registers", { key: t.text(40), serial: t.int(), version: t.int() }, {
  indexes: { byKey: ["key"] },
});
table("accounts", { name: t.text(40), balance: t.int() }, { indexes: { byName: ["name"] } });
table("traces", { serial: t.int() }, { indexes: { bySerial: ["serial"] } });

// Lists that only grow, and two values kept of each: how long it is, and what is in it. The
// second reads the first, so that a change goes through both.
const lists = table("lists", { name: t.text(40) }, { indexes: { byName: ["name"] } });
const items = table("items", { list: t.id(lists), position: t.int(), serial: t.int() }, {
  indexes: { byList: ["list", "position"] },
});
const long = derived("long", { list: t.id(lists) }, t.int(0), (db, { list }) =>
  db.items.byList.range({ list }).sum(() => 1));
const holds = derived("holds", { list: t.id(lists) }, t.int(0), (db, key, get) =>
  get(long, key) * 1_000_000 + db.items.byList.range({ list: key.list }).sum((item) => item.serial),
{ materialize: { each: lists } });

// Lists with an odd number have nothing kept of them: that two who put something at the end of one
// side by side are in each other's way, only the range tells that both have read.
table("bare", { list: t.text(40), position: t.int(), serial: t.int() }, {
  indexes: { byList: ["list", "position"] },
});
const isBare = (name) => /[13579]$/.test(name);

const trace = (tx, serial) => tx.traces.insert({ serial });

// Sets a register; answers its new version.
export const put = mutation(
  { args: { key: t.text(40), serial: t.int() }, returns: t.int() },
  (tx, { key, serial }) => {
    trace(tx, serial);
    const row = tx.registers.byKey.range({ key }).first();
    if (!row) {
      tx.registers.insert({ key, serial, version: 1 });
      return 1;
    }
    tx.registers.patch(row.id, { serial, version: row.version + 1 });
    return row.version + 1;
  },
);

// Opens an account with money that comes from nowhere; once.
export const open = mutation(
  { args: { name: t.text(40), balance: t.int(), serial: t.int() } },
  (tx, { name, balance, serial }) => {
    trace(tx, serial);
    if (!tx.accounts.byName.range({ name }).first()) tx.accounts.insert({ name, balance });
    return null;
  },
);

// Moves money between accounts.
export const transfer = mutation(
  {
    args: { from: t.text(40), to: t.text(40), amount: t.int(), serial: t.int() },
    errors: { "too-little": 409 },
  },
  (tx, { from, to, amount, serial }) => {
    const source = tx.accounts.byName.range({ name: from }).first();
    const target = tx.accounts.byName.range({ name: to }).first();
    if (!source || !target || source.balance < amount) throw fault("too-little");
    trace(tx, serial);
    tx.accounts.patch(source.id, { balance: source.balance - amount });
    tx.accounts.patch(target.id, { balance: target.balance + amount });
    return null;
  },
);

// Puts a serial at the end of a list; answers its place.
export const append = mutation(
  { args: { name: t.text(40), serial: t.int() }, returns: t.int() },
  (tx, { name, serial }) => {
    trace(tx, serial);
    if (isBare(name)) {
      const last = tx.bare.byList.range({ list: name }).desc().first();
      const position = last ? last.position + 1 : 1;
      tx.bare.insert({ list: name, position, serial });
      return position;
    }
    const list = tx.lists.byName.range({ name }).first()?.id ?? tx.lists.insert({ name });
    const last = tx.items.byList.range({ list }).desc().first();
    const position = last ? last.position + 1 : 1;
    tx.items.insert({ list, position, serial });
    return position;
  },
);

// All lists: name, places and serials, and what is kept of them.
export const catalogue = query((db) => {
  const lists = db.lists.byName.range().all().map(({ id, name }) => ({
    name,
    items: db.items.byList.range({ list: id }).all().map((item) => [item.position, item.serial]),
    holds: db.get(holds, { list: id }),
  }));
  const bare = new Map();
  for (const { list: name, position, serial } of db.bare.byList.range().all()) {
    const list = bare.get(name) ?? { name, items: [], holds: 0 };
    list.items.push([position, serial]);
    list.holds += 1_000_000 + serial;
    bare.set(name, list);
  }
  return [...lists, ...bare.values()];
});

// A register; serial and version 0 when it was never set.
export const get = query({ args: { key: t.text(40) } }, (db, { key }) => {
  const row = db.registers.byKey.range({ key }).first();
  return row ? { serial: row.serial, version: row.version } : { serial: 0, version: 0 };
});

// Everything but the traces, and how many of those there are.
export const snapshot = query((db) => ({
  registers: db.registers.byKey.range().all().map((r) => [r.key, r.serial, r.version]),
  accounts: db.accounts.byName.range().all().map((a) => [a.name, a.balance]),
}));

// Serials of all traces from one on, in order, a page at a time.
export const traces = query({ args: { after: t.int() } }, (db, { after }) =>
  db.traces.bySerial.range({ serial: { gt: after } }).take(500).all().map((row) => row.serial));
