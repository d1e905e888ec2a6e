// What a handler sees: the database, its ranges, and how a call is made. Evaluated once in
// each context, after the prelude. `host` holds functions of the node that take and return
// texts and numbers only; `stamp` is the prelude's clock and random numbers.
(function (host, stamp) {
  "use strict";
  const KIND = Symbol.for("flower.kind");
  const { parse, stringify } = JSON;
  const { freeze, keys: keysOf, isFrozen } = Object;
  const isArray = Array.isArray;
  const CHUNK = 64;
  let writes = 0;

  function deepFreeze(value) {
    if (typeof value === "object" && value !== null && !isFrozen(value)) {
      freeze(value);
      for (const key of keysOf(value)) deepFreeze(value[key]);
    }
    return value;
  }

  const fromText = (text) => deepFreeze(parse(text));

  // JSON has neither undefined nor NaN: it would drop the one and turn the other into null.
  function bound(value, where) {
    if (value === undefined) {
      throw new TypeError(`${where} is undefined; null stands for rows without the field`);
    }
    if (typeof value === "number" && !(value - value === 0)) {
      throw new TypeError(`${where} is ${value}; only finite numbers have a place in an index`);
    }
    return value;
  }

  function whereText(where, name) {
    if (where === undefined) return "{}";
    if (typeof where !== "object" || where === null || isArray(where)) {
      throw new TypeError(`${name}.range({ field: value or { gt, gte, lt, lte } })`);
    }
    for (const field of keysOf(where)) {
      const value = bound(where[field], `${name}.range: '${field}'`);
      if (typeof value === "object" && value !== null) {
        for (const op of keysOf(value)) bound(value[op], `${name}.range: '${field}.${op}'`);
      }
    }
    return stringify(where);
  }

  function wholeNumber(n, what) {
    if (typeof n !== "number" || !(n >= 0) || n % 1 !== 0) {
      throw new TypeError(`${what} must be a whole number, at least 0`);
    }
    return n;
  }

  class Range {
    #table;
    #index;
    #where;
    #desc;
    #limit;
    constructor(table, index, where, desc, limit) {
      this.#table = table;
      this.#index = index;
      this.#where = where;
      this.#desc = desc;
      this.#limit = limit;
      freeze(this);
    }
    #open(limit) {
      return host.open(this.#table, this.#index, this.#where, this.#desc, limit);
    }
    #least(n) {
      return this.#limit < 0 || n < this.#limit ? n : this.#limit;
    }
    desc() {
      return new Range(this.#table, this.#index, this.#where, !this.#desc, this.#limit);
    }
    take(n) {
      const least = this.#least(wholeNumber(n, "take(n)"));
      return new Range(this.#table, this.#index, this.#where, this.#desc, least);
    }
    first() {
      const rows = parse(host.next(this.#open(this.#least(1)), 1));
      return rows.length > 0 ? deepFreeze(rows[0]) : null;
    }
    all() {
      const rows = [];
      for (const row of this) rows.push(row);
      return rows;
    }
    count() {
      return host.count(this.#table, this.#index, this.#where, this.#limit);
    }
    sum(what) {
      if (typeof what === "string") {
        return host.sum(this.#table, this.#index, this.#where, this.#desc, this.#limit, what);
      }
      if (typeof what !== "function") throw new TypeError("sum(field or function)");
      let total = 0;
      for (const row of this) total += what(row);
      return total;
    }
    page({ cursor, size } = {}) {
      if (cursor !== undefined && cursor !== null && typeof cursor !== "string") {
        throw new TypeError("page({ cursor }): the cursor is the text of the page before");
      }
      const n = this.#least(wholeNumber(size ?? 50, "page({ size })"));
      const text = host.page(this.#table, this.#index, this.#where, this.#desc, cursor ?? "", n);
      return fromText(text);
    }
    // Sees the transaction's own writes that lie ahead: after a write, what was fetched
    // but not yet handed out is read again.
    *[Symbol.iterator]() {
      const cursor = this.#open(this.#limit);
      for (let size = 8; ; size = CHUNK) {
        const rows = parse(host.next(cursor, size));
        if (rows.length === 0) return;
        const seen = writes;
        for (let i = 0; i < rows.length; i++) {
          if (seen !== writes) {
            host.rewind(cursor, i);
            break;
          }
          yield deepFreeze(rows[i]);
        }
      }
    }
  }
  freeze(Range.prototype);
  freeze(Range);

  function idText(id, name) {
    if (typeof id !== "string") throw new TypeError(`${name}: an id is a text, not ${typeof id}`);
    return id;
  }

  function rowText(row, name) {
    if (typeof row !== "object" || row === null || isArray(row)) {
      throw new TypeError(`${name}: a row is an object of fields`);
    }
    for (const field of keysOf(row)) {
      const value = row[field];
      if (typeof value === "number" && !(value - value === 0)) {
        throw new TypeError(`${name}: '${field}' is ${value}; only finite numbers can be stored`);
      }
    }
    return stringify(row);
  }

  function readers(name, indexes) {
    const api = {
      get(id) {
        const text = host.get(name, idText(id, `${name}.get`));
        return text === "" ? null : fromText(text);
      },
      range: (where) => new Range(name, "", whereText(where, name), false, -1),
      all: () => new Range(name, "", "{}", false, -1).all(),
      count: () => new Range(name, "", "{}", false, -1).count(),
    };
    for (const index of indexes) {
      api[index] = freeze({
        range: (where) =>
          new Range(name, index, whereText(where, `${name}.${index}`), false, -1),
      });
    }
    return api;
  }

  function writers(name) {
    return {
      insert(row) {
        writes += 1;
        return host.insert(name, rowText(row, `${name}.insert`));
      },
      patch(id, changes) {
        writes += 1;
        const text = rowText(changes, `${name}.patch`);
        const removed = keysOf(changes).filter((key) => changes[key] === undefined);
        host.patch(name, idText(id, `${name}.patch`), text, stringify(removed));
      },
      replace(id, row) {
        writes += 1;
        host.replace(name, idText(id, `${name}.replace`), rowText(row, `${name}.replace`));
      },
      delete(id) {
        writes += 1;
        return host.delete(name, idText(id, `${name}.delete`));
      },
    };
  }

  function noWriters(name) {
    const api = {};
    for (const method of ["insert", "patch", "replace", "delete"]) {
      api[method] = () => {
        throw new TypeError(`${name}.${method}: a query cannot write; declare a mutation`);
      };
    }
    return api;
  }

  const handlers = new Map();
  let databases;

  const now = { get: () => stamp.now(), enumerable: true };
  function database(tables, write) {
    const db = Object.create(null, { now });
    for (const name of keysOf(tables)) {
      const methods = write ? writers(name) : noWriters(name);
      db[name] = freeze({ ...readers(name, tables[name]), ...methods });
    }
    if (write) {
      db.random = () => stamp.random();
      db.uuid = () => stamp.uuid();
    }
    return freeze(db);
  }

  function problem(letter, value) {
    try {
      return letter + stringify(value);
    } catch {
      return `${letter}{"name":"Error","message":"it threw something that cannot be shown"}`;
    }
  }

  function thrown(error) {
    try {
      if (typeof error === "object" && error !== null) {
        const { name, message, stack, code, data } = error;
        if (error[KIND] === "fault") return problem("f", { name: code, message, data });
        return problem("e", {
          name: String(name),
          message: String(message),
          stack: String(stack ?? ""),
        });
      }
      return problem("e", { name: "Error", message: `it threw ${String(error)}`, stack: "" });
    } catch {
      return problem("e", { name: "Error", message: "it threw something odd", stack: "" });
    }
  }

  function functions(namespace) {
    const found = [];
    for (const name of keysOf(namespace)) {
      const value = namespace[name];
      const kind = typeof value === "object" && value !== null ? value[KIND] : undefined;
      if (kind === "query" || kind === "mutation") found.push([name, value]);
    }
    return found;
  }

  const AsyncFunction = Object.getPrototypeOf(async function () {});
  const GeneratorFunction = Object.getPrototypeOf(function* () {});
  const AsyncGeneratorFunction = Object.getPrototypeOf(async function* () {});

  function unfit(handler) {
    const made = Object.getPrototypeOf(handler);
    if (made === AsyncFunction || made === AsyncGeneratorFunction) return "async";
    return made === GeneratorFunction ? "a generator" : "";
  }

  return freeze({
    // What the bundle declares, as the JSON of a manifest, and what is wrong with it.
    describe(namespace, sdk) {
      const tables = [];
      for (const { name, fields, indexes } of sdk.declared()) {
        tables.push([name, { fields, indexes }]);
      }
      const problems = [];
      const found = functions(namespace).map(([name, { spec, handler }]) => {
        const why = unfit(handler);
        if (why !== "") {
          problems.push(
            `the handler of '${name}' is ${why}: handlers are plain functions, since all data is local`,
          );
        }
        return [name, spec];
      });
      return stringify({ tables, functions: found, problems });
    },
    // Keeps the handlers and builds the database for these tables (names to index names).
    load(namespace, sdk, tablesText) {
      sdk.declared();
      for (const [name, { handler }] of functions(namespace)) handlers.set(name, handler);
      const tables = parse(tablesText);
      databases = { query: database(tables, false), mutation: database(tables, true) };
      freeze(globalThis);
    },
    // Answers with a letter and JSON: r result, f fault, e error.
    invoke(kind, name, argsText) {
      try {
        writes = 0;
        const result = handlers.get(name)(databases[kind], parse(argsText));
        if (typeof result === "object" && result !== null && typeof result.then === "function") {
          throw new TypeError("it returned a promise; handlers are synchronous");
        }
        const text = stringify(result === undefined ? null : result);
        if (text === undefined) throw new TypeError(`it returned a ${typeof result}`);
        return `r${text}`;
      } catch (error) {
        return thrown(error);
      }
    },
  });
});
