// Types of fields, keys, arguments and values, as the reference sees them: constructors and
// checks. Written from the documentation alone; shares nothing with the node.

const LARGEST = 2 ** 53 - 1;
const ID = /^[0-9a-v]{16}$/;

class Type {
  constructor(kind, detail = {}) {
    this.kind = kind;
    Object.assign(this, detail);
    Object.freeze(this);
  }
  optional() {
    return this.kind === "optional" ? this : new Type("optional", { inner: this });
  }
}

function nameOf(table) {
  return typeof table === "string" ? table : table.name;
}

export const t = Object.freeze({
  id: (table) => new Type("id", { table: nameOf(table) }),
  text: (most) => new Type("text", { most }),
  int: (least, most) => new Type("int", { least, most }),
  number: () => new Type("number"),
  bool: () => new Type("bool"),
  time: () => new Type("time"),
  json: () => new Type("json"),
  oneOf: (...texts) => new Type("oneOf", { texts }),
  list: (item, most) => new Type("list", { item, most }),
  record: (fields) => new Type("record", { fields: Object.entries(fields) }),
  optional: (type) => type.optional(),
});

export const isOptional = (type) => type.kind === "optional";

/** Whether values of a type have an order. */
export function isScalar(type) {
  if (isOptional(type)) return isScalar(type.inner);
  return !["json", "list", "record"].includes(type.kind);
}

/** Whether `sum` takes a field of this type. */
export function isNumeric(type) {
  if (isOptional(type)) return isNumeric(type.inner);
  return ["int", "number", "time"].includes(type.kind);
}

/** What a type is called. */
export function describe(type) {
  switch (type.kind) {
    case "optional": return `${describe(type.inner)} or absent`;
    case "id": return `an id of ${type.table}`;
    case "text": return "a text";
    case "int": return "a whole number";
    case "number": return "a number";
    case "bool": return "true or false";
    case "time": return "a time in milliseconds";
    case "oneOf": return `one of ${type.texts.join(", ")}`;
    case "list": return `a list of ${describe(type.item)}`;
    case "record": return "an object";
    default: return "any JSON";
  }
}

function sort(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "a list";
  return { boolean: "a boolean", number: "a number", string: "a text" }[typeof value] ?? "an object";
}

function below(pointer, name) {
  const part = String(name);
  return `${pointer}/${/[~/]/.test(part) ? part.replaceAll("~", "~0").replaceAll("/", "~1") : part}`;
}

function wholeNumber(value, least, most, at, found) {
  if (value % 1 !== 0 || Math.abs(value) > LARGEST) {
    found.push([at, "must be a whole number within ±(2^53 - 1)"]);
    return;
  }
  if (least !== undefined && value < least) found.push([at, `must be at least ${least}, not ${value}`]);
  if (most !== undefined && value > most) found.push([at, `must be at most ${most}, not ${value}`]);
}

function text(value, most, at, found) {
  if (most === undefined || value.length <= most) return;
  found.push([at, `must have at most ${most} characters, not ${value.length}`]);
}

function list({ item, most }, value, at, found) {
  if (most !== undefined && value.length > most) {
    found.push([at, `must have at most ${most} items, not ${value.length}`]);
  }
  value.forEach((part, i) => faults(item, part, below(at, i), found));
}

/** What is wrong with a JSON value, as pairs of pointer and text. */
export function faults(type, value, at = "", found = []) {
  const is = value === null ? "null" : Array.isArray(value) ? "list" : typeof value;
  switch (`${type.kind} ${is}`) {
    case "number number":
    case "bool boolean":
      return found;
    case "int number":
      wholeNumber(value, type.least, type.most, at, found);
      return found;
    case "time number":
      wholeNumber(value, undefined, undefined, at, found);
      return found;
    case "id string":
      if (!ID.test(value)) found.push([at, `is not an id of a row of ${type.table}`]);
      return found;
    case "text string":
      text(value, type.most, at, found);
      return found;
    case "oneOf string":
      if (!type.texts.includes(value)) found.push([at, `must be one of ${type.texts.join(", ")}`]);
      return found;
    case "list list":
      list(type, value, at, found);
      return found;
    case "record object":
      return fieldFaults(type.fields, value, at, found);
  }
  if (type.kind === "json") return found;
  if (isOptional(type)) return value === null ? found : faults(type.inner, value, at, found);
  found.push([at, `must be ${describe(type)}, not ${sort(value)}`]);
  return found;
}

/** The same of an object with these fields. */
export function fieldFaults(fields, object, at = "", found = []) {
  for (const [name, type] of fields) {
    if (Object.hasOwn(object, name)) faults(type, object[name], below(at, name), found);
    else if (!isOptional(type)) found.push([below(at, name), `is missing; it is ${describe(type)}`]);
  }
  for (const name of Object.keys(object)) {
    if (fields.some(([known]) => known === name)) continue;
    const known = fields.map(([field]) => field).join(", ");
    const instead = known === "" ? "nothing is expected here" : `known are ${known}`;
    found.push([below(at, name), `is not known; ${instead}`]);
  }
  return found;
}

/** One line of what is wrong; empty when nothing is. */
export function wrong(found) {
  const texts = found.slice(0, 20);
  return texts.map(([at, what]) => (at === "" ? what : `${at}: ${what}`)).join("; ");
}
