// Customers, their orders and the lines of each: the example that the guides use.
import { derived, fault, mutation, query, t, table } from "@flower/sdk";

const customers = table("customers", { name: t.text(80), since: t.time() });

const orders = table(
  "orders",
  { customer: t.id(customers), placedAt: t.time(), note: t.text(200).optional() },
  { indexes: { byCustomer: ["customer", "placedAt"], byTime: ["placedAt"] } },
);

table(
  "lines",
  { order: t.id(orders), sku: t.text(64), qty: t.int(1, 999), cents: t.int(0) },
  { indexes: { byOrder: ["order"] } },
);

// What the lines of an order come to. Kept because totals read it.
const subtotal = derived("subtotal", { order: t.id(orders) }, t.int(0), (db, { order }) =>
  db.lines.byOrder.range({ order }).sum((line) => line.qty * line.cents),
);

// What an order costs: 5 % less from 500.00 on. Kept for every order, and in order.
const total = derived(
  "total",
  { order: t.id(orders) },
  t.int(0),
  (db, key, get) => {
    const cents = get(subtotal, key);
    return cents < 50_000 ? cents : cents - Math.floor(cents / 20);
  },
  { materialize: { each: orders }, index: "byValue" },
);

const item = t.record({ sku: t.text(64), qty: t.int(1, 999), cents: t.int(0) });

export const addCustomer = mutation(
  { args: { name: t.text(80) }, returns: t.id(customers) },
  (tx, { name }) => tx.customers.insert({ name, since: tx.now }),
);

export const placeOrder = mutation(
  {
    args: { customer: t.id(customers), items: t.list(item, 100), note: t.text(200).optional() },
    returns: t.id(orders),
    errors: { "no-customer": 404, "empty-order": 409 },
  },
  (tx, { customer, items, note }) => {
    if (!tx.customers.get(customer)) throw fault("no-customer", { data: { customer } });
    if (items.length === 0) throw fault("empty-order");
    const order = tx.orders.insert({ customer, placedAt: tx.now, note });
    for (const line of items) tx.lines.insert({ ...line, order });
    return order;
  },
);

// Sets the quantity of a line; 0 removes it. Answers the order's new total in cents.
export const setQty = mutation(
  {
    args: { line: t.id("lines"), qty: t.int(0, 999) },
    returns: t.int(),
    errors: { "no-line": 404 },
  },
  (tx, { line, qty }) => {
    const { order } = tx.lines.get(line) ?? fault.throw("no-line", { data: { line } });
    if (qty === 0) tx.lines.delete(line);
    else tx.lines.patch(line, { qty });
    return tx.get(total, { order });
  },
);

// An order with its lines and total, or null.
export const order = query({ args: { id: t.id(orders) } }, (db, { id }) => {
  const found = db.orders.get(id);
  if (!found) return null;
  const lines = db.lines.byOrder.range({ order: id }).all();
  return { ...found, lines, total: db.get(total, { order: id }) };
});

// A customer's orders, newest first, a page at a time.
export const ordersOf = query(
  {
    args: {
      customer: t.id(customers),
      since: t.time().optional(),
      cursor: t.text().optional(),
      size: t.int(1, 100).optional(),
    },
  },
  (db, { customer, since, cursor, size }) =>
    db.orders.byCustomer
      .range({ customer, placedAt: { gte: since ?? 0 } })
      .desc()
      .page({ cursor, size: size ?? 20 }),
);

// All customers, in the order in which they were added.
export const listCustomers = query({ args: {} }, (db) => db.customers.range().take(1000).all());

// The newest orders of all customers.
export const recent = query({ args: { n: t.int(1, 100).optional() } }, (db, { n }) =>
  db.orders.byTime.range().desc().take(n ?? 10).all(),
);

// How many orders there are, of one customer or of all.
export const count = query(
  { args: { customer: t.id(customers).optional() }, returns: t.int(0) },
  (db, { customer }) =>
    customer ? db.orders.byCustomer.range({ customer }).count() : db.orders.count(),
);

// The largest orders: a range read of the index over totals, however many orders there are.
export const ranking = query({ args: { n: t.int(1, 100).optional() } }, (db, { n }) =>
  db.total.byValue
    .range()
    .desc()
    .take(n ?? 10)
    .all()
    .map(({ order, value }) => ({ ...db.orders.get(order), total: value })),
);
