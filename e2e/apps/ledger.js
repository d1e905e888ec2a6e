// The application of the cluster tests: rows that say who wrote them, so that each can be found again.
import { mutation, query, t, table } from "@flower/sdk";

const entries = table(
  "entries",
  { client: t.int(), seq: t.int(), note: t.text(100_000) },
  { indexes: { byClient: ["client", "seq"] } },
);

export const add = mutation(
  { args: { client: t.int(), seq: t.int(), note: t.text(100_000) } },
  (tx, entry) => tx.entries.insert(entry),
);

export const page = query(
  { args: { client: t.int(), after: t.int(), limit: t.int().optional() } },
  (db, { client, after, limit }) =>
    db.entries.byClient.range({ client, seq: { gt: after } }).take(limit ?? 500).all(),
);

export const ping = query({ args: {} }, () => "pong");
