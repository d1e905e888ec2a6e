// Orders as shops have them: each with a customer of its own, three lines, a subtotal over the
// lines and a total that is kept for every order.
import { derived, mutation, query, t, table } from "@flower/sdk";

const customers = table("customers", { name: t.text(80), email: t.text(80), street: t.text(80), note: t.text(200) });
const orders = table("orders", { customer: t.id(customers), placedAt: t.time(), express: t.bool() });
const lines = table(
  "lines",
  { order: t.id(orders), sku: t.text(64), qty: t.int(1, 999), cents: t.int(0) },
  { indexes: { byOrder: ["order"] } },
);

const subtotal = derived("subtotal", { order: t.id(orders) }, t.int(0), (db, { order }) =>
  db.lines.byOrder.range({ order }).sum((line) => line.qty * line.cents),
);
const total = derived(
  "total",
  { order: t.id(orders) },
  t.int(0),
  (db, key, get) => get(subtotal, key) + (db.orders.get(key.order).express ? 990 : 490),
  { materialize: { each: orders } },
);

function place(tx, n) {
  const customer = tx.customers.insert({
    name: `Customer number ${n}`,
    email: `customer-${n}@shop.example`,
    street: `${n % 200} Harbour Street, Old Town`,
    // So long that every customer has 215 bytes of JSON.
    note: "Rings twice; leave parcels with the neighbours when nobody is in.".padEnd(
      108 - 2 * `${n}`.length - `${n % 200}`.length,
      ".",
    ),
  });
  const order = tx.orders.insert({ customer, placedAt: tx.now, express: n % 4 === 0 });
  for (let i = 0; i < 3; i++) {
    tx.lines.insert({ order, sku: `sku-${(n * 7 + i) % 1000}`, qty: 1 + (n + i) % 5, cents: 100 + (n * 31 + i) % 9000 });
  }
  return order;
}

export const seed = mutation({ args: { from: t.int(0), count: t.int(1, 500) } }, (tx, { from, count }) => {
  for (let n = from; n < from + count; n++) place(tx, n);
});
export const create = mutation({ args: { n: t.int(0) } }, (tx, { n }) => place(tx, n));
export const update = mutation({ args: { line: t.id(lines), qty: t.int(1, 999) } }, (tx, { line, qty }) =>
  tx.lines.patch(line, { qty }));
export const remove = mutation({ args: { order: t.id(orders) } }, (tx, { order }) => {
  for (const line of tx.lines.byOrder.range({ order }).all()) tx.lines.delete(line.id);
  tx.customers.delete(tx.orders.get(order).customer);
  tx.orders.delete(order);
});
export const totalOf = query({ args: { order: t.id(orders) } }, (db, key) => db.get(total, key));
