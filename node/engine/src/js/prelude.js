// Hardens a fresh context before any code of an application runs: nothing ambient (clock,
// random numbers, code from text), intrinsics frozen, and the builtins that QuickJS does not
// interrupt bounded or charged, so that each runs for milliseconds and their sum is counted.
// `charge(n)` counts n elementary operations and throws once the call has used up its gas or
// its time. Operators and conversions (comparing long texts, multiplying or writing large
// BigInts) cannot be wrapped: the largest numbers take seconds for one, and the allocation
// after it ends the call; the node waits that long before it gives a worker up.
// `ambient()` notes that the call read its clock or a random number.
(function (charge, log, ambient) {
  "use strict";
  const { apply, construct, ownKeys } = Reflect;
  const { defineProperty, freeze, getOwnPropertyDescriptor, getPrototypeOf } = Object;
  const { isArray } = Array;
  const { floor, max, min, imul } = Math;
  const LONGEST_ARRAY = 1_000_000;
  const LONGEST_NORMALIZED = 20_000;
  const LONGEST_PATTERN = 10_000;
  const SMALL = 1_000;
  const WORK = 4_000_000;

  let debt = 0;
  function cost(n) {
    debt += n;
    if (debt >= 50_000) {
      const due = debt;
      debt = 0;
      charge(due);
    }
  }

  function hide(object, key, value) {
    defineProperty(object, key, { value, writable: true, enumerable: false, configurable: true });
  }

  function replace(object, key, make) {
    const original = getOwnPropertyDescriptor(object, key)?.value;
    if (typeof original !== "function") return;
    const wrapped = make(original);
    defineProperty(wrapped, "name", { value: original.name, configurable: true });
    defineProperty(wrapped, "length", { value: original.length, configurable: true });
    hide(object, key, wrapped);
  }

  // --- nothing ambient -------------------------------------------------------------------

  const gone = [
    "eval", "Proxy", "WeakRef", "FinalizationRegistry", "SharedArrayBuffer", "Atomics",
    "ArrayBuffer", "DataView", "performance", "Performance", "queueMicrotask", "gc",
    "DOMException", "navigator", "setTimeout", "setInterval",
  ];
  for (const name of gone) delete globalThis[name];
  delete Array.fromAsync;
  delete Math.sumPrecise;

  function noCode() {
    throw new EvalError("code from text is not run; bundle it instead");
  }
  const kinds = [
    function () {}, async function () {}, function* () {}, async function* () {},
  ].map(getPrototypeOf);
  for (const prototype of kinds) {
    hide(prototype, "constructor", noCode);
  }
  hide(globalThis, "Function", noCode);
  defineProperty(noCode, "name", { value: "Function" });
  defineProperty(noCode, "prototype", { value: kinds[0], writable: false });

  // --- random numbers and clock: from the stamp of the call --------------------------------

  let noted = false;
  // Set while a derived value's function runs.
  let pure = false;
  function note(what) {
    if (pure) throw new TypeError(`a derived value has no ${what}`);
    if (noted) return;
    noted = true;
    ambient();
  }

  let a = 0, b = 0, c = 0, counter = 1;
  function next() {
    const sum = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = ((c << 21) | (c >>> 11)) + sum | 0;
    return sum >>> 0;
  }
  function random() {
    note("random numbers");
    const high = next() >>> 5, low = next() >>> 6;
    return (high * 67_108_864 + low) / 9_007_199_254_740_992;
  }
  function uuid() {
    note("random numbers");
    const words = [next(), next(), next(), next()];
    words[1] = ((words[1] & 0xffff0fff) | 0x4000) >>> 0;
    words[2] = ((words[2] & 0x3fffffff) | 0x80000000) >>> 0;
    const hex = words.map((word) => word.toString(16).padStart(8, "0")).join("");
    const cut = (from, to) => hex.substring(from, to);
    return `${cut(0, 8)}-${cut(8, 12)}-${cut(12, 16)}-${cut(16, 20)}-${cut(20)}`;
  }
  hide(Math, "random", random);

  let clock = 0;
  function now() {
    note("clock");
    return clock;
  }
  const Real = Date;
  const realParse = Date.parse;
  const realUTC = Date.UTC;
  const prototype = Date.prototype;
  // A text without a zone is local time; here the local zone is UTC everywhere.
  function parseDate(value) {
    const text = String(value);
    const zoned = realParse(`${text}Z`);
    return zoned === zoned ? zoned : realParse(text);
  }
  function FlowerDate(...args) {
    if (new.target === undefined) return new FlowerDate().toString();
    if (args.length === 0) return construct(Real, [now()], new.target);
    if (args.length > 1) return construct(Real, [apply(realUTC, Real, args)], new.target);
    let value = args[0];
    if (typeof value === "object" && value !== null) {
      value = value instanceof Real ? value.getTime() : value[Symbol.toPrimitive]?.("default") ?? `${value}`;
    }
    return construct(Real, [typeof value === "string" ? parseDate(value) : value], new.target);
  }
  defineProperty(FlowerDate, "name", { value: "Date" });
  defineProperty(FlowerDate, "length", { value: 7 });
  defineProperty(FlowerDate, "prototype", { value: prototype, writable: false });
  hide(FlowerDate, "now", now);
  hide(FlowerDate, "parse", function parse(text) { return parseDate(text); });
  hide(FlowerDate, "UTC", realUTC);
  hide(prototype, "constructor", FlowerDate);
  hide(globalThis, "Date", FlowerDate);
  for (const part of ["FullYear", "Month", "Date", "Hours", "Minutes", "Seconds", "Milliseconds"]) {
    hide(prototype, `get${part}`, prototype[`getUTC${part}`]);
    hide(prototype, `set${part}`, prototype[`setUTC${part}`]);
  }
  hide(prototype, "getDay", prototype.getUTCDay);
  delete prototype.getYear;
  delete prototype.setYear;
  const utcText = prototype.toUTCString;
  function parts(date) {
    const text = apply(utcText, date, []);
    const [day, number, month, year, time] = text.replace(",", "").split(" ");
    if (time === undefined) return { day: text, time: text };
    return { day: `${day} ${month} ${number} ${year}`, time: `${time} GMT+0000 (UTC)` };
  }
  const texts = {
    getTimezoneOffset() { return 0; },
    toString() {
      const { day, time } = parts(this);
      return day === time ? day : `${day} ${time}`;
    },
    toDateString() { return parts(this).day; },
    toTimeString() { return parts(this).time; },
    toLocaleString() { return apply(utcText, this, []); },
    toLocaleDateString() { return parts(this).day; },
    toLocaleTimeString() { return parts(this).time; },
  };
  for (const name of ownKeys(texts)) hide(prototype, name, texts[name]);

  // --- arrays: builtins whose loops are not interrupted -----------------------------------

  function tooLong(n) {
    throw new RangeError(`an array of ${n} elements is too long; at most ${LONGEST_ARRAY} here`);
  }
  function lengthOf(list) {
    let n;
    if (isArray(list)) n = list.length;
    else if (typeof list === "string") n = list.length;
    else {
      // A getter could answer differently the next time it is asked.
      const own = list === null || list === undefined
        ? undefined
        : getOwnPropertyDescriptor(Object(list), "length");
      if (own === undefined || typeof own.value !== "number") {
        throw new TypeError("this method of arrays needs an array here");
      }
      n = own.value;
    }
    if (n > LONGEST_ARRAY) tooLong(n);
    return n > 0 ? n : 0;
  }

  const List = Array.prototype;
  for (const name of [
    "fill", "reverse", "toReversed", "slice", "splice", "toSpliced", "copyWithin",
    "shift", "unshift", "with", "indexOf", "lastIndexOf", "includes",
  ]) {
    replace(List, name, (original) => function (...args) {
      const n = lengthOf(this);
      if (n > SMALL) cost(n);
      return apply(original, this, args);
    });
  }
  for (const name of ["join", "toString", "toLocaleString"]) {
    replace(List, name, (original) => function (...args) {
      if (isArray(this)) cost(lengthOf(this) * 4 + 1);
      else if (name !== "toString") cost(lengthOf(this) * 4 + 1);
      return apply(original, this, args);
    });
  }
  replace(List, "concat", (original) => function (...args) {
    for (const list of [this, ...args]) {
      if (isArray(list)) cost(lengthOf(list));
      else if (typeof list === "object" && list?.[Symbol.isConcatSpreadable]) {
        throw new TypeError("concat spreads arrays only");
      }
    }
    return apply(original, this, args);
  });
  function textOrder(x, y) {
    const left = String(x), right = String(y);
    const n = min(left.length, right.length);
    if (n > SMALL) cost(n / 8);
    return left < right ? -1 : left > right ? 1 : 0;
  }
  for (const name of ["sort", "toSorted"]) {
    replace(List, name, (original) => function (compare) {
      const n = lengthOf(this);
      if (n > SMALL) cost(n * 8);
      return apply(original, this, [compare === undefined ? textOrder : compare]);
    });
  }
  function flatten(into, list, depth) {
    const n = lengthOf(list);
    for (let i = 0; i < n; i++) {
      if (!(i in list)) continue;
      const item = list[i];
      if (depth > 0 && isArray(item)) flatten(into, item, depth - 1);
      else into.push(item);
    }
    return into;
  }
  replace(List, "flat", () => function (depth = 1) {
    return flatten([], this, +depth);
  });
  replace(List, "flatMap", () => function (callback, self) {
    const out = [];
    const n = lengthOf(this);
    for (let i = 0; i < n; i++) {
      if (!(i in this)) continue;
      const item = apply(callback, self, [this[i], i, this]);
      if (isArray(item)) flatten(out, item, 0);
      else out.push(item);
    }
    return out;
  });
  const RealArray = Array;
  function FlowerArray(...args) {
    if (args.length === 1 && typeof args[0] === "number" && args[0] > LONGEST_ARRAY) tooLong(args[0]);
    return construct(RealArray, args, new.target ?? FlowerArray);
  }
  for (const key of ownKeys(RealArray)) {
    if (key !== "name" && key !== "length" && key !== "prototype") {
      defineProperty(FlowerArray, key, getOwnPropertyDescriptor(RealArray, key));
    }
  }
  defineProperty(FlowerArray, "name", { value: "Array" });
  defineProperty(FlowerArray, "length", { value: 1 });
  defineProperty(FlowerArray, "prototype", { value: List, writable: false });
  hide(List, "constructor", FlowerArray);
  hide(globalThis, "Array", FlowerArray);

  // --- sets and iterators: an iterator over a long empty array costs no memory --------------

  const RealSet = Set;
  const { add } = Set.prototype;
  function fill(set, values) {
    for (const value of values) apply(add, set, [value]);
    return set;
  }
  function FlowerSet(values) {
    const set = construct(RealSet, [], new.target);
    if (values !== undefined && values !== null) for (const value of values) set.add(value);
    return set;
  }
  for (const key of ownKeys(RealSet)) {
    if (key !== "name" && key !== "length" && key !== "prototype") {
      defineProperty(FlowerSet, key, getOwnPropertyDescriptor(RealSet, key));
    }
  }
  defineProperty(FlowerSet, "name", { value: "Set" });
  defineProperty(FlowerSet, "length", { value: 0 });
  defineProperty(FlowerSet, "prototype", { value: Set.prototype, writable: false });
  hide(Set.prototype, "constructor", FlowerSet);
  hide(globalThis, "Set", FlowerSet);
  for (const name of [
    "union", "intersection", "difference", "symmetricDifference",
    "isSubsetOf", "isSupersetOf", "isDisjointFrom",
  ]) {
    replace(RealSet.prototype, name, (original) => function (other) {
      const copy = construct(RealSet, []);
      fill(copy, { [Symbol.iterator]: () => other.keys() });
      cost(copy.size + 1);
      return apply(original, this, [copy]);
    });
  }
  const Iterators = globalThis.Iterator?.prototype;
  if (Iterators !== undefined) {
    replace(Iterators, "drop", () => function drop(limit) {
      const count = Number(limit);
      if (!(count >= 0)) throw new RangeError("drop needs a number, at least 0");
      const source = this;
      return (function* () {
        let left = floor(count);
        for (const value of { [Symbol.iterator]: () => source }) {
          if (left > 0) left -= 1;
          else yield value;
        }
      })();
    });
  }

  // --- texts: searches cost haystack times needle ------------------------------------------

  const Text = String.prototype;
  const nativeIndexOf = Text.indexOf;
  const nativeLastIndexOf = Text.lastIndexOf;
  const nativeSubstring = Text.substring;
  const cut = (text, from, to) => apply(nativeSubstring, text, [from, to]);

  function textOf(value) {
    if (typeof value === "string") return value;
    if (value === null || value === undefined) throw new TypeError(`${value} is not a text`);
    return String(value);
  }

  function find(text, part, from) {
    const work = (text.length - from) * part.length;
    cost(1 + (text.length - from) / 8);
    if (!(work > WORK)) return apply(nativeIndexOf, text, [part, from]);
    const step = max(1, floor(WORK / part.length));
    for (let at = from; at + part.length <= text.length; at += step) {
      cost(WORK / 4 + part.length / 4);
      const window = cut(text, at, at + step + part.length - 1);
      const found = apply(nativeIndexOf, window, [part]);
      if (found >= 0) return at + found;
    }
    return -1;
  }
  function findLast(text, part, from) {
    const work = text.length * part.length;
    cost(1 + text.length / 8);
    if (!(work > WORK)) return apply(nativeLastIndexOf, text, [part, from]);
    const step = max(1, floor(WORK / part.length));
    for (let end = min(from, text.length - part.length); end >= 0; end -= step) {
      cost(WORK / 4 + part.length / 4);
      const start = max(0, end - step + 1);
      const found = apply(nativeLastIndexOf, cut(text, start, end + part.length), [part]);
      if (found >= 0) return start + found;
    }
    return -1;
  }
  function position(value, otherwise) {
    const n = +value;
    return n === n ? floor(n) : otherwise;
  }

  replace(Text, "indexOf", () => function (part, from = 0) {
    const text = textOf(this), wanted = String(part);
    return find(text, wanted, min(max(position(from, 0), 0), text.length));
  });
  replace(Text, "lastIndexOf", () => function (part, from) {
    const text = textOf(this), wanted = String(part);
    return findLast(text, wanted, min(max(position(from, Infinity), 0), text.length));
  });
  replace(Text, "includes", (original) => function (part, from = 0) {
    const text = textOf(this);
    if (typeof part !== "string") {
      apply(original, "", [part]); // refuses a regular expression
    }
    return find(text, String(part), min(max(position(from, 0), 0), text.length)) >= 0;
  });
  for (const name of ["startsWith", "endsWith", "isWellFormed", "toWellFormed", "trim",
    "trimStart", "trimEnd", "toLowerCase", "toUpperCase", "toLocaleLowerCase",
    "toLocaleUpperCase", "at", "codePointAt"]) {
    replace(Text, name, (original) => function (...args) {
      const text = textOf(this);
      if (text.length > SMALL) cost(text.length / 8);
      return apply(original, text, args);
    });
  }
  replace(Text, "repeat", (original) => function (count) {
    const text = textOf(this), times = +count;
    if (times > 0) cost(min(times * text.length, 1e9) / 4);
    return apply(original, text, [times]);
  });
  for (const name of ["padStart", "padEnd"]) {
    replace(Text, name, (original) => function (length, ...rest) {
      const text = textOf(this), n = +length;
      if (n > SMALL) cost(min(n, 1e9));
      return apply(original, text, [n, ...rest]);
    });
  }
  for (const name of ["normalize", "localeCompare"]) {
    replace(Text, name, (original) => function (...args) {
      const text = textOf(this);
      const other = name === "localeCompare" ? [String(args[0])] : args;
      const n = max(text.length, name === "localeCompare" ? other[0].length : 0);
      // Sorting a run of combining marks takes quadratic time.
      if (n > LONGEST_NORMALIZED) {
        throw new RangeError(`${name}: at most ${LONGEST_NORMALIZED} characters, not ${n}`);
      }
      cost(n * 4);
      return apply(original, text, other);
    });
  }
  // Regular expressions and the like, which QuickJS interrupts; anything else is a text.
  function isPattern(value, symbol) {
    return typeof value === "object" && value !== null && value[symbol] !== undefined;
  }
  replace(Text, "split", (original) => function (given, limit) {
    if (given === undefined || isPattern(given, Symbol.split)) {
      return apply(original, this, [given, limit]);
    }
    const text = textOf(this), separator = String(given);
    if (text.length * separator.length <= WORK) {
      if (text.length > SMALL) cost(text.length);
      return apply(original, text, [separator, limit]);
    }
    const most = limit === undefined ? 4_294_967_295 : limit >>> 0;
    const out = [];
    for (let from = 0; out.length < most;) {
      const at = find(text, separator, from);
      out.push(cut(text, from, at < 0 ? text.length : at));
      if (at < 0) break;
      from = at + separator.length;
    }
    return out;
  });
  function replaceTexts(text, part, by, all) {
    const out = [];
    let from = 0;
    do {
      const at = find(text, part, from);
      if (at < 0) break;
      const dollar = apply(nativeIndexOf, typeof by === "string" ? by : "", ["$"]);
      let put;
      if (typeof by === "function") put = String(by(part, at, text));
      else if (dollar < 0) put = by;
      else throw new RangeError("replacing in a text this long knows no $ patterns");
      out.push(cut(text, from, at), put);
      from = at + part.length;
    } while (all);
    out.push(cut(text, from, text.length));
    return out.join("");
  }
  for (const name of ["replace", "replaceAll"]) {
    replace(Text, name, (original) => function (given, by) {
      if (isPattern(given, Symbol.replace)) return apply(original, this, [given, by]);
      const text = textOf(this), part = String(given);
      const to = typeof by === "function" ? by : String(by);
      if (text.length * part.length <= WORK) {
        if (text.length > SMALL) cost(text.length);
        return apply(original, text, [part, to]);
      }
      return replaceTexts(text, part, to, name === "replaceAll");
    });
  }
  // Compiling a pattern takes quadratic time and is not interrupted.
  const RealRegExp = RegExp;
  function checkPattern(pattern) {
    const text = isPattern(pattern, Symbol.match) ? pattern.source : pattern;
    const n = text === undefined ? 0 : String(text).length;
    if (n > LONGEST_PATTERN) {
      throw new RangeError(`a regular expression of ${n} characters; at most ${LONGEST_PATTERN}`);
    }
    cost(n * 8);
  }
  function FlowerRegExp(pattern, flags) {
    if (new.target === undefined) {
      if (flags === undefined && pattern instanceof RealRegExp) return pattern;
      return new FlowerRegExp(pattern, flags);
    }
    if (typeof pattern === "object" && pattern !== null && !(pattern instanceof RealRegExp)) {
      pattern = String(pattern);
    }
    checkPattern(pattern);
    return construct(RealRegExp, [pattern, flags], new.target);
  }
  for (const key of ownKeys(RealRegExp)) {
    if (key !== "name" && key !== "length" && key !== "prototype") {
      defineProperty(FlowerRegExp, key, getOwnPropertyDescriptor(RealRegExp, key));
    }
  }
  defineProperty(FlowerRegExp, "name", { value: "RegExp" });
  defineProperty(FlowerRegExp, "length", { value: 2 });
  defineProperty(FlowerRegExp, "prototype", { value: RealRegExp.prototype, writable: false });
  hide(RealRegExp.prototype, "constructor", FlowerRegExp);
  delete RealRegExp.prototype.compile;
  hide(globalThis, "RegExp", FlowerRegExp);
  for (const name of ["match", "matchAll", "search"]) {
    replace(Text, name, (original) => function (pattern) {
      const text = textOf(this);
      if (isPattern(pattern, Symbol[name])) return apply(original, text, [pattern]);
      const given = pattern === undefined ? undefined : String(pattern);
      checkPattern(given);
      return apply(original, text, [given]);
    });
  }
  replace(String, "raw", () => function (strings, ...values) {
    const pieces = strings.raw;
    const n = lengthOf(pieces);
    const out = [];
    for (let i = 0; i < n; i++) {
      out.push(String(pieces[i]));
      if (i < values.length && i + 1 < n) out.push(String(values[i]));
    }
    return out.join("");
  });
  replace(JSON, "stringify", (original) => function (value, replacer, space) {
    if (isArray(replacer) && replacer.length > SMALL) {
      throw new RangeError(`JSON.stringify: a list of at most ${SMALL} names`);
    }
    return apply(original, JSON, [value, replacer, space]);
  });
  replace(JSON, "parse", (original) => function (text, reviver) {
    const source = String(text);
    if (source.length > SMALL) cost(source.length);
    return apply(original, JSON, [source, reviver]);
  });

  // --- a console, for the node's log --------------------------------------------------------

  function shown(value) {
    if (typeof value === "string") return value;
    try {
      if (value instanceof Error) return `${value.name}: ${value.message}`;
      return JSON.stringify(value) ?? String(value);
    } catch {
      return "(cannot be shown)";
    }
  }
  const console = {};
  for (const level of ["debug", "log", "info", "warn", "error"]) {
    console[level] = (...values) => log(level, values.map(shown).join(" "));
  }
  hide(globalThis, "console", console);

  // --- freeze ---------------------------------------------------------------------------------

  // A frozen prototype would forbid `error.name = …` on its heirs too: such properties become
  // accessors that define an own property on the heir.
  function heritable(object, key) {
    const own = getOwnPropertyDescriptor(object, key);
    if (own === undefined || !("value" in own) || !own.configurable) return;
    const { value, enumerable } = own;
    defineProperty(object, key, {
      get() { return value; },
      set(given) {
        if (this === object) throw new TypeError(`${String(key)} is built in and cannot change`);
        defineProperty(this, key, {
          value: given, writable: true, enumerable: true, configurable: true,
        });
      },
      enumerable,
      configurable: false,
    });
  }
  const errors = [Error, TypeError, RangeError, SyntaxError, ReferenceError, EvalError, URIError];
  if (globalThis.AggregateError) errors.push(AggregateError);
  for (const kind of errors) {
    for (const key of ["name", "message", "toString"]) heritable(kind.prototype, key);
  }
  for (const key of ["toString", "toLocaleString", "valueOf", "hasOwnProperty", "constructor"]) {
    heritable(Object.prototype, key);
  }
  for (const key of ["toString", "constructor"]) heritable(List, key);
  for (const key of ["toString", "bind", "call", "apply"]) heritable(kinds[0], key);

  const seen = new RealSet();
  const waiting = [...kinds];
  function visit(value) {
    const known = (typeof value !== "object" && typeof value !== "function") || value === null;
    if (known || value === globalThis || seen.has(value)) return;
    seen.add(value);
    waiting.push(value);
  }
  for (const made of [
    [][Symbol.iterator](), ""[Symbol.iterator](), new Map().entries(), new RealSet().values(),
    "".matchAll(/x/g), (function* () {})(), [].values().map?.((x) => x), Iterators,
    Object.getOwnPropertyDescriptor(Map, Symbol.species)?.get, Real, RealArray, RealSet, RealRegExp,
  ]) visit(made);
  if (Iterators !== undefined && globalThis.Iterator.from) {
    visit(globalThis.Iterator.from({ next() { return { done: true }; } }));
  }
  for (const key of ownKeys(globalThis)) {
    const own = getOwnPropertyDescriptor(globalThis, key);
    visit(own.value);
    visit(own.get);
  }
  while (waiting.length > 0) {
    const object = waiting.pop();
    freeze(object);
    visit(getPrototypeOf(object));
    for (const key of ownKeys(object)) {
      const own = getOwnPropertyDescriptor(object, key);
      visit(own.value);
      visit(own.get);
      visit(own.set);
    }
  }

  return {
    now,
    random,
    uuid,
    // Whether clock and random numbers are refused from now on; answers what held before.
    pure(from) {
      const before = pure;
      pure = from;
      return before;
    },
    // A new call: its clock in milliseconds and the two halves of its seed.
    begin(at, low, high) {
      clock = at;
      debt = 0;
      noted = false;
      pure = false;
      a = low | 0;
      b = high | 0;
      c = imul(low ^ high, 0x9e3779b1) | 0;
      counter = 1;
      for (let i = 0; i < 12; i++) next();
    },
  };
});
