// Checks an export against the reference: `node check.mjs FILE`, FILE from `flower export
// --cells`. Recomputes every stored cell from the rows, and says which disagree, are missing, or
// should not be there. Exits with 0 when all agree, 1 when not, 2 for a file that cannot be
// checked.
//
// Errors that the engines of JavaScript word in their own way (TypeError and the like) are
// compared by name; what only the node's limits explain cannot be recomputed, and is counted:
// a function that does not end is left alone after a while.

import { createReadStream } from "node:fs";
import { register } from "node:module";
import { createInterface } from "node:readline";
import { isDeepStrictEqual } from "node:util";
import { Script } from "node:vm";

import { Reference } from "./index.js";
import { Recomputation, Refusal, keyText } from "./recompute.js";
import { freezeAll } from "./rows.js";

/** Disagreements that are shown. */
const SHOWN = 20;

/** How long to compute before looking whether a function ends, and how long one may take, ms. */
const LOOK_AFTER = 3000;
const ENDLESS = 1500;

class Unfit extends Error {}

// Where an application finds the reference instead of the node's module.
function useReference() {
  const target = new URL("./index.js", import.meta.url).href;
  const hook = `export const resolve = (name, context, next) =>
    name === "@flower/sdk" ? { url: ${JSON.stringify(target)}, shortCircuit: true } : next(name, context);`;
  register(`data:text/javascript,${encodeURIComponent(hook)}`);
}

async function read(file) {
  const found = { rows: [], roots: [], cells: [] };
  const lines = createInterface({ input: createReadStream(file), crlfDelay: Infinity });
  for await (const line of lines) {
    const [[kind, body]] = Object.entries(JSON.parse(line));
    if (kind === "header" && body.format !== 1) throw new Unfit(`format ${body.format} is not known here`);
    if (kind === "row") found.rows.push(body);
    else if (kind === "root") found.roots.push(body);
    else if (kind === "cell") found.cells.push(body);
    else found[kind] = body;
  }
  if (!found.header) throw new Unfit("it is no export");
  if (!found.end) throw new Unfit("it is cut short: its end is missing");
  if (!found.header.cells) throw new Unfit("it holds no cells; export it with --cells");
  return found;
}

async function load(source) {
  useReference();
  const bytes = Buffer.from(source).toString("base64");
  return import(`data:text/javascript;base64,${bytes}`);
}

function fill(reference, rows) {
  for (const { table, id, value } of rows) {
    const known = reference.rows.byTable.get(table);
    if (known === undefined) throw new Unfit(`the application declares no table '${table}'`);
    known.set(id, freezeAll({ id, ...value }));
  }
  reference.rows.version += 1;
}

// Runs `work` again and again until it has come to its end; `cutOff` is called in between.
const WORK = Symbol.for("flower.reference.work");
const script = new Script(`globalThis[Symbol.for("flower.reference.work")]()`);

function whole(work, cutOff) {
  globalThis[WORK] = work;
  for (;;) {
    try {
      return script.runInThisContext({ timeout: LOOK_AFTER });
    } catch (error) {
      if (error.code !== "ERR_SCRIPT_EXECUTION_TIMEOUT") throw error;
      cutOff();
    }
  }
}

// Every cell that must be stored, by its name and key.
function recompute(reference, roots) {
  const made = new Recomputation(reference.app, reference.rows);
  made.clock = () => performance.now();
  const { values } = reference.app;
  const wanted = roots.map(({ derived, key }) => [values.get(derived), key]);
  for (const of of values.values()) {
    if (of.kind !== "each") continue;
    const [field] = of.key[0];
    for (const { row } of reference.rows.entries(of.each)) wanted.push([of, { [field]: row.id }]);
  }
  const rooted = new Set();
  const stored = new Map();
  const waiting = [];
  const evaluateAll = () => {
    for (; wanted.length > 0; wanted.pop()) {
      const [of, key] = wanted.at(-1);
      const cell = made.cell(of, keyText(of, key));
      rooted.add(cell.id);
      waiting.push(cell);
    }
  };
  try {
    whole(evaluateAll, () => made.cutOff(ENDLESS));
  } catch (thrown) {
    if (!(thrown instanceof Refusal)) throw thrown;
    throw new Unfit(`no state of the node can hold these rows: ${thrown.code}, ${thrown.message}`);
  }
  while (waiting.length > 0) {
    const cell = waiting.pop();
    if (stored.has(cell.id)) continue;
    stored.set(cell.id, cell);
    waiting.push(...cell.deps.values());
  }
  return { stored, rooted };
}

// What the words of an error are good for: "Error" and "Fault" were written by the application.
function sameError(theirs, ours) {
  if (theirs.name !== ours.name || theirs.code !== ours.code) return false;
  if (!isDeepStrictEqual(theirs.data, ours.data)) return false;
  const worded = theirs.name === "Error" || theirs.name === "Fault";
  return !worded || theirs.message === ours.message;
}

function difference(stored, { outcome, height }, root) {
  if ((stored.error === undefined) !== (outcome.error === undefined)) return "one is an error";
  if (stored.error !== undefined && !sameError(stored.error, outcome.error)) return "the errors differ";
  if (stored.error === undefined && !isDeepStrictEqual(stored.value, outcome.value)) return "the values differ";
  if (stored.height !== height) return `its height is ${stored.height}, and must be ${height}`;
  if (stored.root !== root) return stored.root ? "it is no root" : "it is a root";
  return undefined;
}

const shown = ({ value, error }) => JSON.stringify(error ?? value ?? null);

function compare(reference, cells, { stored, rooted }) {
  const wrong = [];
  let unchecked = 0;
  const seen = new Set();
  for (const cell of cells) {
    const of = reference.app.values.get(cell.derived);
    const name = `${cell.derived}${of ? keyText(of, cell.key) : JSON.stringify(cell.key)}`;
    seen.add(name);
    const ours = stored.get(name);
    if (ours === undefined) {
      wrong.push(`${name} is stored, and nothing needs it`);
    } else if (/FLOWER_LIMIT_/.test(cell.error?.message ?? "")) {
      unchecked += 1;
    } else {
      const why = difference(cell, ours, rooted.has(name));
      if (why) wrong.push(`${name}: ${why}; stored ${shown(cell)}, recomputed ${shown(ours.outcome)}`);
    }
  }
  for (const name of stored.keys()) {
    if (!seen.has(name)) wrong.push(`${name} is not stored, and must be`);
  }
  return { wrong, unchecked };
}

async function check(file) {
  const found = await read(file);
  if (!found.bundle) return { cells: 0, wrong: [], unchecked: 0 };
  const reference = new Reference(await load(found.bundle.source));
  fill(reference, found.rows);
  const needed = recompute(reference, found.roots);
  return { cells: found.cells.length, ...compare(reference, found.cells, needed) };
}

const [file] = process.argv.slice(2);
try {
  if (file === undefined) throw new Unfit("usage: node check.mjs FILE");
  const { cells, wrong, unchecked } = await check(file);
  for (const line of wrong.slice(0, SHOWN)) console.log(line);
  if (wrong.length > SHOWN) console.log(`… and ${wrong.length - SHOWN} more`);
  const left = unchecked > 0 ? `; ${unchecked} ended at a limit of the node and were not recomputed` : "";
  console.log(`${cells} cells, ${wrong.length} disagreements${left}`);
  process.exitCode = wrong.length > 0 ? 1 : 0;
} catch (error) {
  if (!(error instanceof Unfit) && !(error instanceof SyntaxError) && error.code !== "ENOENT") throw error;
  console.error(`${file ?? "check.mjs"}: ${error.message}`);
  process.exitCode = 2;
}
