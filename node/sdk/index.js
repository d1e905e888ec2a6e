// The module `@flower/sdk`: declarations only. The node reads them when it loads a bundle;
// nothing here touches data.

const KIND = Symbol.for("flower.kind");
const declaredTables = [];
const declaredValues = [];
let sealed = false;

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// `wrong` is what is wrong with the type: it is told where the type is used, by name.
class Type {
  constructor(spec, wrong) {
    this.spec = Object.freeze(spec);
    this.wrong = wrong;
    Object.freeze(this);
  }
  optional() {
    if (this.spec.type === "optional") return this;
    return new Type({ type: "optional", inner: this.spec }, this.wrong);
  }
}

function typeOf(type, where) {
  if (type instanceof Type) return type;
  throw new TypeError(`${where} is not a type: use t.text(), t.int() and so on`);
}

function specOf(type, where) {
  const { spec, wrong } = typeOf(type, where);
  if (wrong !== undefined) throw new TypeError(`${where}: ${wrong}`);
  return spec;
}

function fieldsOf(fields, where) {
  if (!isObject(fields)) throw new TypeError(`${where} must be an object of types`);
  return Object.keys(fields).map((name) => [name, specOf(fields[name], `${where}.${name}`)]);
}

function given(spec, wrong) {
  for (const key of Object.keys(spec)) if (spec[key] === undefined) delete spec[key];
  return new Type(spec, wrong);
}

function shown(...values) {
  const text = (value) => (typeof value === "number" ? String(value) : JSON.stringify(value));
  const given = values.filter((value) => value !== undefined);
  return given.map(text).join(", ").substring(0, 80);
}

function wrongBounds(call, what, least, ...bounds) {
  const fits = (n) => n === undefined || n === null || (Number.isSafeInteger(n) && n >= least);
  return bounds.every(fits) ? undefined : `${call} is not allowed: ${what}`;
}

function textOf(max) {
  const what = "the greatest number of characters is a whole number, at least 0";
  return given({ type: "text", max }, wrongBounds(`t.text(${shown(max)})`, what, 0, max));
}

function intOf(min, max) {
  const what = "least and greatest value are whole numbers within ±(2^53 - 1)";
  return given({ type: "int", min, max }, wrongBounds(`t.int(${shown(min, max)})`, what, -Infinity, min, max));
}

function oneOf(...values) {
  const fits = values.length > 0 && values.every((value) => typeof value === "string");
  const wrong = `t.oneOf(${shown(...values)}) is not allowed: it takes at least one text, as t.oneOf("a", "b")`;
  return given({ type: "oneOf", values }, fits ? undefined : wrong);
}

function listOf(item, max) {
  const { spec, wrong } = typeOf(item, "the item of t.list");
  const what = "the greatest number of items is a whole number, at least 0";
  const call = `t.list(…, ${shown(max)})`;
  return given({ type: "list", item: spec, max }, wrong ?? wrongBounds(call, what, 0, max));
}

function recordOf(fields) {
  if (!isObject(fields)) throw new TypeError("the fields of t.record must be an object of types");
  const types = Object.keys(fields).map((name) => [name, typeOf(fields[name], `the fields of t.record.${name}`)]);
  const bad = types.find(([, type]) => type.wrong !== undefined);
  const spec = { type: "record", fields: types.map(([name, type]) => [name, type.spec]) };
  return given(spec, bad && `${bad[0]}: ${bad[1].wrong}`);
}

/** Types of fields, arguments and results. */
export const t = Object.freeze({
  id: (table) => given({ type: "id", table: String(table?.name ?? table) }),
  text: textOf,
  int: intOf,
  number: () => given({ type: "number" }),
  bool: () => given({ type: "bool" }),
  time: () => given({ type: "time" }),
  json: () => given({ type: "json" }),
  oneOf,
  list: listOf,
  record: recordOf,
  optional: (type) => typeOf(type, "the argument of t.optional").optional(),
});

function indexesOf(name, indexes) {
  const out = {};
  for (const index of Object.keys(indexes ?? {})) {
    const on = indexes[index]?.on ?? indexes[index];
    if (!Array.isArray(on)) {
      throw new TypeError(`index ${index} of table ${name} must be a list of field names`);
    }
    out[index] = { on: [...on] };
  }
  return out;
}

function refuseUnknown(object, known, where) {
  for (const key of Object.keys(object)) {
    if (!known.includes(key)) {
      throw new TypeError(`${where} does not know '${key}'; it knows ${known.join(", ")}`);
    }
  }
}

/** Declares a table. */
export function table(name, fields, options = {}) {
  if (typeof name !== "string") throw new TypeError("table(name, fields): the name comes first");
  if (sealed) throw new TypeError(`table ${name}: tables are declared while the module loads`);
  refuseUnknown(options, ["indexes"], `table ${name}`);
  const declared = Object.freeze({
    [KIND]: "table",
    name,
    fields: fieldsOf(fields, `the fields of table ${name}`),
    indexes: indexesOf(name, options.indexes),
  });
  declaredTables.push(declared);
  return declared;
}

function materializeOf(given, where) {
  if (given === undefined || given === "demand" || given === "always") return given ?? "demand";
  if (isObject(given) && given.each !== undefined) {
    refuseUnknown(given, ["each"], `${where}: materialize`);
    return { each: String(given.each?.name ?? given.each) };
  }
  throw new TypeError(`${where}: materialize is "demand", "always" or { each: table }`);
}

/**
 * Declares a value derived from rows and from other derived values, one for each key. The
 * handler `(db, key, get) => value` is a plain function of what it reads.
 */
export function derived(name, key, value, handler, options = {}) {
  if (typeof name !== "string") throw new TypeError("derived(name, …): the name comes first");
  const where = `derived ${name}`;
  if (sealed) throw new TypeError(`${where}: derived values are declared while the module loads`);
  if (typeof handler !== "function") {
    throw new TypeError(`${where}: derived(name, key, type, handler, options)`);
  }
  if (!isObject(options)) throw new TypeError(`${where}: the options are an object`);
  refuseUnknown(options, ["materialize", "index", "onError"], where);
  const { materialize, index, onError } = options;
  if (index !== undefined && typeof index !== "string") {
    throw new TypeError(`${where}: the index is a name`);
  }
  if (onError !== undefined && onError !== "store" && onError !== "reject") {
    throw new TypeError(`${where}: onError is "store" or "reject"`);
  }
  const spec = {
    key: fieldsOf(key, `the key of ${where}`),
    value: specOf(value, `the type of ${where}`),
    materialize: materializeOf(materialize, where),
    index,
    onError: onError ?? "store",
  };
  const made = Object.freeze({ [KIND]: "derived", name, spec: Object.freeze(spec), handler });
  declaredValues.push(made);
  return made;
}

function declareFunction(kind, definition, handler) {
  if (typeof definition === "function" && handler === undefined) {
    handler = definition;
    definition = {};
  }
  if (!isObject(definition) || typeof handler !== "function") {
    throw new TypeError(`${kind}({ args, returns, errors }, handler): a handler is missing`);
  }
  refuseUnknown(definition, ["args", "returns", "errors"], kind);
  const { args, returns, errors } = definition;
  const spec = { kind, errors: { ...errors } };
  if (args !== undefined) {
    spec.args =
      args instanceof Type ? args.spec : { type: "record", fields: fieldsOf(args, "args") };
  }
  if (returns !== undefined) spec.returns = specOf(returns, "returns");
  return Object.freeze({ [KIND]: kind, spec: Object.freeze(spec), handler });
}

/** Declares a query: `(db, args) => value`. It cannot write. */
export function query(definition, handler) {
  return declareFunction("query", definition, handler);
}

/** Declares a mutation: `(tx, args) => value`. */
export function mutation(definition, handler) {
  return declareFunction("mutation", definition, handler);
}

class Fault extends Error {
  constructor(code, { data, message } = {}) {
    super(message ?? code);
    this.name = "Fault";
    this.code = code;
    this.data = data;
  }
  get [KIND]() {
    return "fault";
  }
}

/** A fault for the caller: `throw fault("sold-out", { data })`. Declare it in `errors`. */
export function fault(code, options) {
  if (typeof code !== "string") throw new TypeError("fault(code): the code is a text");
  return new Fault(code, options);
}
fault.throw = (code, options) => {
  throw fault(code, options);
};
Object.freeze(fault);

/** What has been declared; for the node. Nothing can be declared afterwards. */
export function declared() {
  sealed = true;
  return { tables: declaredTables, values: declaredValues };
}
