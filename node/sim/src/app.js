// The application of simulated worlds. Every write carries a serial that nobody else uses and
// leaves a trace of it; every read tells serials and versions.
import { fault, mutation, query, t, table } from "@flower/sdk";

table("registers", { key: t.text(40), serial: t.int(), version: t.int() }, {
  indexes: { byKey: ["key"] },
});
table("accounts", { name: t.text(40), balance: t.int() }, { indexes: { byName: ["name"] } });
table("traces", { serial: t.int() }, { indexes: { bySerial: ["serial"] } });

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
