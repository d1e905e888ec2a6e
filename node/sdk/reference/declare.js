// What a bundle imports, as the reference takes it: declarations are kept in a list.

let tables = new Map();
let values = new Map();

/** Forgets what has been declared; answers nothing. Before another bundle loads. */
export function forget() {
  tables = new Map();
  values = new Map();
}

/** What has been declared since: tables and derived values by name. */
export function declarations() {
  return { tables, values };
}

function taken(name) {
  if (tables.has(name) || values.has(name)) throw new TypeError(`'${name}' is declared twice`);
}

export function table(name, fields, { indexes = {} } = {}) {
  taken(name);
  const on = Object.entries(indexes).map(([index, spec]) => [index, spec.on ?? spec]);
  const declared = Object.freeze({ what: "table", name, fields: Object.entries(fields), indexes: new Map(on) });
  tables.set(name, declared);
  return declared;
}

const OPTIONS = ["materialize", "index", "onError"];

export function derived(name, key, type, handler, options = {}) {
  taken(name);
  for (const option of Object.keys(options)) {
    if (!OPTIONS.includes(option)) throw new TypeError(`derived ${name} does not know '${option}'`);
  }
  const { materialize = "demand", index, onError = "store" } = options;
  const each = typeof materialize === "object" ? (materialize.each.name ?? materialize.each) : undefined;
  const declared = Object.freeze({
    what: "derived", name, key: Object.entries(key), type, handler,
    kind: each === undefined ? materialize : "each",
    each, index, rejects: onError === "reject",
  });
  values.set(name, declared);
  return declared;
}

function declare(kind, definition, handler) {
  if (typeof definition === "function") return declare(kind, {}, definition);
  const { args, returns, errors = {} } = definition;
  const fields = args === undefined || args.kind !== undefined ? args : { kind: "record", fields: Object.entries(args) };
  return Object.freeze({ what: kind, args: fields, returns, errors, handler });
}

export const query = (definition, handler) => declare("query", definition, handler);
export const mutation = (definition, handler) => declare("mutation", definition, handler);

/** What `throw fault(…)` throws. */
export class Fault extends Error {
  constructor(code, { data, message } = {}) {
    super(message ?? code);
    this.name = "Fault";
    this.code = code;
    this.data = data;
  }
}

export function fault(code, options) {
  return new Fault(code, options);
}
fault.throw = (code, options) => {
  throw fault(code, options);
};
