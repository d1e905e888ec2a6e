// The module `@flower/sdk`: declarations only. The node reads them when it loads a bundle;
// nothing here touches data.

const KIND = Symbol.for("flower.kind");
const declaredTables = [];
const declaredValues = [];
let sealed = false;

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

class Type {
  constructor(spec) {
    this.spec = Object.freeze(spec);
    Object.freeze(this);
  }
  optional() {
    return this.spec.type === "optional" ? this : new Type({ type: "optional", inner: this.spec });
  }
}

function specOf(type, where) {
  if (type instanceof Type) return type.spec;
  throw new TypeError(`${where} is not a type: use t.text(), t.int() and so on`);
}

function fieldsOf(fields, where) {
  if (!isObject(fields)) throw new TypeError(`${where} must be an object of types`);
  return Object.keys(fields).map((name) => [name, specOf(fields[name], `${where}.${name}`)]);
}

function given(spec) {
  for (const key of Object.keys(spec)) if (spec[key] === undefined) delete spec[key];
  return new Type(spec);
}

/** Types of fields, arguments and results. */
export const t = Object.freeze({
  id: (table) => given({ type: "id", table: String(table?.name ?? table) }),
  text: (max) => given({ type: "text", max }),
  int: (min, max) => given({ type: "int", min, max }),
  number: () => given({ type: "number" }),
  bool: () => given({ type: "bool" }),
  time: () => given({ type: "time" }),
  json: () => given({ type: "json" }),
  oneOf: (...values) => given({ type: "oneOf", values }),
  list: (item, max) => given({ type: "list", item: specOf(item, "the item of t.list"), max }),
  record: (fields) => given({ type: "record", fields: fieldsOf(fields, "the fields of t.record") }),
  optional: (type) => {
    specOf(type, "the argument of t.optional");
    return type.optional();
  },
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
