// A sheet: cells hold numbers or formulas over other cells, such as `=(A1 + B2) * 2` and
// `=sum(A1, A2)`. A cell's value follows the cells that it names; whoever would make a cell
// depend on itself is refused.
import { derived, fault, mutation, query, t, table } from "@flower/sdk";

const cells = table(
  "cells",
  { name: t.text(8), formula: t.text(200) },
  { indexes: { byName: ["name"] } },
);

// The value of a cell. What goes wrong in a formula is the cell's error, and that of the
// cells that name it; once it is mended, all of them have values again.
const value = derived(
  "value",
  { cell: t.id(cells) },
  t.number(),
  (db, { cell }, get) =>
    evaluate(db.cells.get(cell).formula, (name) => {
      // A cell that is not there counts as 0, and is seen when it comes.
      const found = db.cells.byName.range({ name }).first();
      return found ? get(value, { cell: found.id }) : 0;
    }),
  { materialize: { each: cells } },
);

// Sets a cell; an empty formula clears it. Answers its value, or what is wrong with it.
export const set = mutation(
  { args: { name: t.text(8), formula: t.text(200) }, errors: { "bad-name": 400 } },
  (tx, { name, formula }) => {
    if (!/^[A-Z]+[0-9]+$/.test(name)) throw fault("bad-name", { data: { name } });
    const found = tx.cells.byName.range({ name }).first();
    if (formula === "") {
      if (found) tx.cells.delete(found.id);
      return { value: 0 };
    }
    const cell = found?.id ?? tx.cells.insert({ name, formula });
    if (found) tx.cells.patch(cell, { formula });
    return shown(tx, cell);
  },
);

// All cells in the order of their names, with formula and value or error.
export const read = query({ args: {} }, (db) =>
  db.cells.byName
    .range()
    .all()
    .map(({ id, name, formula }) => ({ name, formula, ...shown(db, id) })),
);

function shown(db, cell) {
  try {
    return { value: db.get(value, { cell }) };
  } catch (error) {
    return { error: error.message };
  }
}

// Sums, products, brackets, names and `sum(…)`. `valueOf` answers what a named cell holds.
function evaluate(formula, valueOf) {
  if (!formula.startsWith("=")) return numberOf(formula);
  const tokens = formula.slice(1).match(/[A-Z]+[0-9]+|[0-9]+(\.[0-9]+)?|[a-z]+|[^\s]/g) ?? [];
  let at = 0;
  const take = (wanted) => (tokens[at] === wanted ? tokens[at++] : undefined);
  const need = (wanted) => {
    if (take(wanted) === undefined) throw new Error(`'${wanted}' is missing in ${formula}`);
  };
  const list = () => {
    const found = [sum()];
    while (take(",")) found.push(sum());
    need(")");
    return found;
  };
  const atom = () => {
    const token = tokens[at++];
    if (token === undefined) throw new Error(`${formula} ends too early`);
    if (/^[A-Z]/.test(token)) return valueOf(token);
    if (token === "-") return -atom();
    if (token === "(") {
      const inner = sum();
      need(")");
      return inner;
    }
    if (token !== "sum") return numberOf(token);
    need("(");
    return list().reduce((total, n) => total + n, 0);
  };
  const product = () => {
    let result = atom();
    for (;;) {
      if (take("*")) result *= atom();
      else if (take("/")) result = divided(result, atom());
      else return result;
    }
  };
  const sum = () => {
    let result = product();
    for (;;) {
      if (take("+")) result += product();
      else if (take("-")) result -= product();
      else return result;
    }
  };
  const result = sum();
  if (at < tokens.length) throw new Error(`'${tokens[at]}' is not expected in ${formula}`);
  return result;
}

function divided(a, b) {
  if (b === 0) throw new Error("division by 0");
  return a / b;
}

function numberOf(text) {
  const number = Number(text);
  if (text.trim() === "" || !Number.isFinite(number)) throw new Error(`'${text}' is no number`);
  return number;
}
