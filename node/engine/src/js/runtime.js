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
    // Whether it goes over the values of a derived value, which then must be up to date.
    #values;
    constructor(table, index, where, desc, limit, values) {
      this.#table = table;
      this.#index = index;
      this.#where = where;
      this.#desc = desc;
      this.#limit = limit;
      this.#values = values;
      freeze(this);
    }
    #fresh() {
      if (this.#values) settle(false);
    }
    #open(limit) {
      this.#fresh();
      return host.open(this.#table, this.#index, this.#where, this.#desc, limit);
    }
    #least(n) {
      return this.#limit < 0 || n < this.#limit ? n : this.#limit;
    }
    desc() {
      return new Range(
        this.#table, this.#index, this.#where, !this.#desc, this.#limit, this.#values,
      );
    }
    take(n) {
      const least = this.#least(wholeNumber(n, "take(n)"));
      return new Range(this.#table, this.#index, this.#where, this.#desc, least, this.#values);
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
      this.#fresh();
      return host.count(this.#table, this.#index, this.#where, this.#limit);
    }
    sum(what) {
      if (typeof what === "string") {
        this.#fresh();
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
      this.#fresh();
      const text = host.page(this.#table, this.#index, this.#where, this.#desc, cursor ?? "", n);
      return fromText(text);
    }
    // Sees the transaction's own writes that lie ahead: after a write, what was fetched
    // but not yet handed out is read again.
    *[Symbol.iterator]() {
      const cursor = this.#open(this.#limit);
      for (let size = 8; ; size = CHUNK) {
        this.#fresh();
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

  // --- derived values ------------------------------------------------------------------------

  const values = new Map();
  let databases;
  let makeFault;

  class DerivedError extends Error {
    constructor(message) {
      super(message);
      this.name = "DerivedError";
    }
  }

  // Thrown through functions that will be run again later; the node ignores what they end with.
  const given = freeze(new Error("this evaluation is given up and made again"));

  function rethrown({ message, code, data }) {
    if (code === undefined) return new DerivedError(message);
    return makeFault(code, { data: deepFreeze(data), message });
  }

  function failure(error) {
    try {
      if (typeof error !== "object" || error === null) {
        return `e${stringify({ name: "Error", message: `it threw ${String(error)}` })}`;
      }
      const { name, message, code, data } = error;
      if (error[KIND] === "fault") {
        return `e${stringify({ name: String(name), message: String(message), code: String(code), data })}`;
      }
      if (error instanceof RangeError && message === "Maximum call stack size exceeded") return "s";
      return `e${stringify({ name: String(name), message: String(message) })}`;
    } catch {
      return 'e{"name":"Error","message":"it threw something that cannot be shown"}';
    }
  }

  // Runs the function of a derived value. Answers with a letter: v and the value's JSON,
  // u undefined, e and an error's JSON, s for a stack too small.
  function derive(name, keyText) {
    try {
      const value = values.get(name).handler(databases.derived, fromText(keyText), get);
      if (value === undefined) return "u";
      if (typeof value === "object" && value !== null && typeof value.then === "function") {
        throw new TypeError("it returned a promise; functions of derived values are synchronous");
      }
      const text = stringify(value);
      if (text === undefined) throw new TypeError(`it returned a ${typeof value}`);
      return `v${text}`;
    } catch (error) {
      return failure(error);
    }
  }

  function run(goal) {
    const [name, keyText] = parse(goal);
    const before = stamp.pure(true);
    const outcome = host.guard(derive, name, keyText);
    stamp.pure(before);
    if (host.leave(outcome)) throw given;
  }

  // The node answers with a letter: v and a value, t and an error to throw, x and what to run
  // first, u for being given up.
  function read(name, keyText) {
    for (;;) {
      const answer = host.cell(name, keyText);
      const text = answer.substring(1);
      switch (answer[0]) {
        case "v": return fromText(text);
        case "t": throw rethrown(parse(text));
        case "x": run(text); break;
        default: throw given;
      }
    }
  }

  // Brings all stored cells up to date.
  function settle(last) {
    for (let goal; (goal = host.dirty(last)) !== "";) run(goal);
  }

  function keyText(name, key) {
    if (typeof key !== "object" || key === null || isArray(key)) {
      throw new TypeError(`${name}: the key is an object of fields`);
    }
    return stringify(key);
  }

  function get(derived, key) {
    const name = derived?.name;
    if (values.get(name) !== derived || derived === undefined) {
      throw new TypeError("get(derived, key): the first argument is what derived(…) answered");
    }
    return read(name, keyText(name, key));
  }

  function valueReaders(name, index) {
    const api = { get: (key) => read(name, keyText(name, key)) };
    if (index !== "") {
      api[index] = freeze({
        range: (where) =>
          new Range(name, index, whereText(where, `${name}.${index}`), false, -1, true),
      });
    }
    return freeze(api);
  }

  // --- tables --------------------------------------------------------------------------------

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
      range: (where) => new Range(name, "", whereText(where, name), false, -1, false),
      all: () => new Range(name, "", "{}", false, -1, false).all(),
      count: () => new Range(name, "", "{}", false, -1, false).count(),
    };
    for (const index of indexes) {
      api[index] = freeze({
        range: (where) =>
          new Range(name, index, whereText(where, `${name}.${index}`), false, -1, false),
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

  function noWriters(name, who) {
    const api = {};
    for (const method of ["insert", "patch", "replace", "delete"]) {
      api[method] = () => {
        throw new TypeError(`${name}.${method}: ${who}`);
      };
    }
    return api;
  }

  const handlers = new Map();
  const READERS = {
    query: "a query cannot write; declare a mutation",
    derived: "a derived value cannot write",
  };

  const now = { get: () => stamp.now(), enumerable: true };
  function database(tables, derived, kind) {
    const write = kind === "mutation";
    const db = Object.create(null, { now });
    for (const name of keysOf(tables)) {
      const methods = write ? writers(name) : noWriters(name, READERS[kind]);
      db[name] = freeze({ ...readers(name, tables[name]), ...methods });
    }
    for (const name of keysOf(derived)) db[name] = valueReaders(name, derived[name]);
    db.get = get;
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
      const { tables, values } = sdk.declared();
      const problems = [];
      for (const { name, handler } of values) {
        const why = unfit(handler);
        if (why !== "") {
          problems.push(`the function of derived value '${name}' is ${why}: it is a plain function`);
        }
      }
      const found = functions(namespace).map(([name, { spec, handler }]) => {
        const why = unfit(handler);
        if (why !== "") {
          problems.push(
            `the handler of '${name}' is ${why}: handlers are plain functions, since all data is local`,
          );
        }
        return [name, spec];
      });
      return stringify({
        tables: tables.map(({ name, fields, indexes }) => [name, { fields, indexes }]),
        derived: values.map(({ name, spec }) => [name, spec]),
        functions: found,
        problems,
      });
    },
    // Keeps the handlers and builds the database for these tables (names to index names) and
    // derived values (names to the name of their index, or an empty text).
    load(namespace, sdk, tablesText, derivedText) {
      makeFault = sdk.fault;
      for (const value of sdk.declared().values) values.set(value.name, value);
      for (const [name, { handler }] of functions(namespace)) handlers.set(name, handler);
      const tables = parse(tablesText);
      const derived = parse(derivedText);
      databases = {
        query: database(tables, derived, "query"),
        mutation: database(tables, derived, "mutation"),
        derived: database(tables, derived, "derived"),
      };
      freeze(globalThis);
    },
    // Makes a page of a build; answers as a call.
    build() {
      try {
        settle(true);
        return "rnull";
      } catch (error) {
        return thrown(error);
      }
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
        settle(true);
        return `r${text}`;
      } catch (error) {
        return thrown(error);
      }
    },
    // Brings all stored cells up to date, without a handler. Answers as `invoke` does.
    maintain() {
      try {
        settle(true);
        return "rnull";
      } catch (error) {
        return thrown(error);
      }
    },
  });
});
