// The ledger with derived values: per entry, per window of a hundred entries, per client, and an
// index over the clients' sums. `FACTOR` is changed to have all of them built anew, and `STEPS` to
// have that take its time.
import { derived, mutation, query, t, table } from "@flower/sdk";

const FACTOR = 1;
const STEPS = 0;
const WINDOW = 100;

const entries = table(
  "entries",
  { client: t.int(), seq: t.int(), note: t.text(100_000) },
  { indexes: { byClient: ["client", "seq"] } },
);
const clients = table("clients", { client: t.int(), windows: t.int(0) }, { indexes: { byClient: ["client"] } });

// What one entry is worth.
const worth = derived("worth", { entry: t.id(entries) }, t.int(),
  (db, { entry }) => {
    let idle = 0;
    for (let step = 0; step < STEPS; step++) idle = (idle * 31 + step) % 1_000_003;
    return FACTOR * db.entries.get(entry).seq + 0 * idle;
  },
  { materialize: { each: entries } });

// Entries and their worth, of one client, in one window.
const part = derived("part", { client: t.int(), window: t.int(0) }, t.record({ count: t.int(0), sum: t.int() }),
  (db, { client, window }, get) => {
    const from = window * WINDOW;
    const found = db.entries.byClient.range({ client, seq: { gte: from, lt: from + WINDOW } }).all();
    return { count: found.length, sum: found.reduce((sum, row) => sum + get(worth, { entry: row.id }), 0) };
  });

const whole = derived("whole", { row: t.id(clients) }, t.record({ count: t.int(0), sum: t.int() }),
  (db, { row }, get) => {
    const { client, windows } = db.clients.get(row);
    const all = { count: 0, sum: 0 };
    for (let window = 0; window < windows; window++) {
      const { count, sum } = get(part, { client, window });
      all.count += count;
      all.sum += sum;
    }
    return all;
  },
  { materialize: { each: clients } });

const score = derived("score", { row: t.id(clients) }, t.int(),
  (db, key, get) => get(whole, key).sum,
  { materialize: { each: clients }, index: "byValue" });

function enter(tx, entry) {
  const windows = Math.floor(entry.seq / WINDOW) + 1;
  const known = tx.clients.byClient.range({ client: entry.client }).first();
  if (!known) tx.clients.insert({ client: entry.client, windows });
  else if (known.windows < windows) tx.clients.patch(known.id, { windows });
  return tx.entries.insert(entry);
}

const entry = { client: t.int(), seq: t.int(), note: t.text(100_000) };

export const add = mutation({ args: entry }, enter);

// Many entries at once, to have something to build over.
export const fill = mutation(
  { args: { client: t.int(), from: t.int(0), count: t.int(1, 1000) } },
  (tx, { client, from, count }) => {
    for (let seq = from; seq < from + count; seq++) enter(tx, { client, seq, note: "filled" });
  },
);

export const page = query(
  { args: { client: t.int(), after: t.int(), limit: t.int().optional() } },
  (db, { client, after, limit }) =>
    db.entries.byClient.range({ client, seq: { gt: after } }).take(limit ?? 500).all(),
);

// Who has entered what, the most first.
export const board = query({ args: {} }, (db) =>
  db.score.byValue.range().desc().all().map(({ row, value }) => {
    const { count, sum } = db.get(whole, { row });
    return { client: db.clients.get(row).client, count, sum, value };
  }),
);
