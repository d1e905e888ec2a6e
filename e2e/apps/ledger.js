// The application of the cluster tests: rows that say who wrote them, so that each can be found again.
import { table, t, query, mutation, fault } from "@flower/sdk";

export const entries = table(
  "entries",
  { client: t.int(), seq: t.int(), note: t.text() },
  { indexes: { byClient: ["client", "seq"] } },
);

export const add = mutation(
  { args: { client: t.int(), seq: t.int(), note: t.text() } },
  (tx, args) => tx.entries.insert(args),
);

export const page = query(
  { args: { client: t.int(), after: t.int(), limit: t.optional(t.int()) } },
  (db, { client, after, limit }) =>
    db.entries.byClient.range({ client, seq: { gt: after } }).take(limit ?? 500),
);

export const ping = query({ args: {} }, () => "pong");
