// Counters by name: the smallest application that writes.
import { mutation, query, t, table } from "@flower/sdk";

table(
  "counters",
  { key: t.text(200), value: t.int() },
  { indexes: { byKey: ["key"] } },
);

// Adds to a counter, 1 unless told otherwise; answers its new value.
export const bump = mutation(
  {
    args: { key: t.text(200), by: t.int().optional() },
    returns: t.int(),
  },
  (tx, { key, by }) => {
    const step = by ?? 1;
    const found = tx.counters.byKey.range({ key }).first();
    if (!found) {
      tx.counters.insert({ key, value: step });
      return step;
    }
    tx.counters.patch(found.id, { value: found.value + step });
    return found.value + step;
  },
);

// The value of a counter; 0 for one that was never bumped.
export const read = query(
  { args: { key: t.text(200) }, returns: t.int() },
  (db, { key }) => db.counters.byKey.range({ key }).first()?.value ?? 0,
);

// Counters in the order of their keys.
export const list = query(
  { args: { cursor: t.text().optional(), size: t.int(1, 1000).optional() } },
  (db, { cursor, size }) => db.counters.byKey.range().page({ cursor, size: size ?? 100 }),
);
