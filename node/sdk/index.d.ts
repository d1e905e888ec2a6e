// Types of `@flower/sdk`, for editors and for `tsc --noEmit`. The node provides the module.

declare const table_: unique symbol;
declare const optional_: unique symbol;
declare const derived_: unique symbol;

/** The id of a row of a table: a text that sorts in the order of commits. */
export type Id<Name extends string = string> = string & { readonly [table_]?: Name };

/** A type of a field, an argument or a result. */
export interface Type<Value> {
  /** May be absent. Null counts as absent. */
  optional(): OptionalType<Value>;
  readonly spec: object;
}
/** A type whose value may be absent. */
export interface OptionalType<Value> extends Type<Value | undefined> {
  readonly [optional_]: true;
}
/** Types by name. */
export type Fields = Record<string, Type<any>>;

type OptionalKeys<F extends Fields> = {
  [K in keyof F]: F[K] extends OptionalType<any> ? K : never;
}[keyof F];
type ValueOf<T> = T extends OptionalType<infer V>
  ? Exclude<V, undefined>
  : T extends Type<infer V>
    ? V
    : never;
/** The object that fields describe. */
export type ObjectOf<F extends Fields> = {
  [K in Exclude<keyof F, OptionalKeys<F>>]: ValueOf<F[K]>;
} & {
  [K in OptionalKeys<F>]?: ValueOf<F[K]> | undefined;
};

export const t: {
  /** Id of a row of a table, given by name or as declared. */
  id<Name extends string>(table: Name | Table<Name, any, any>): Type<Id<Name>>;
  /** Text of at most so many UTF-16 units. */
  text(max?: number): Type<string>;
  /** A whole number within ±(2^53 - 1). */
  int(min?: number, max?: number): Type<number>;
  /** A finite number. */
  number(): Type<number>;
  bool(): Type<boolean>;
  /** Milliseconds since 1970. */
  time(): Type<number>;
  /** Any JSON. */
  json(): Type<any>;
  /** One of some texts. */
  oneOf<const Values extends readonly string[]>(...values: Values): Type<Values[number]>;
  /** A list of at most so many items. */
  list<Item>(item: Type<Item>, max?: number): Type<Item[]>;
  /** An object with exactly these fields. */
  record<F extends Fields>(fields: F): Type<ObjectOf<F>>;
  optional<Value>(type: Type<Value>): OptionalType<Value>;
};

/** An ordered index: names of fields; the id is the implicit last. */
export type Index<F extends Fields> =
  | readonly (keyof F & string)[]
  | { readonly on: readonly (keyof F & string)[] };

/** A declared table. */
export interface Table<
  Name extends string,
  F extends Fields,
  Indexes extends Record<string, Index<F>>,
> {
  readonly name: Name;
  readonly [table_]: [F, Indexes];
}

/** Declares a table. Every row has an `id` besides its fields. */
export function table<
  const Name extends string,
  F extends Fields,
  const Indexes extends Record<string, Index<F>> = {},
>(name: Name, fields: F, options?: { indexes?: Indexes }): Table<Name, F, Indexes>;

/** A row as handlers read it: frozen. */
export type Row<F extends Fields = any> = Readonly<ObjectOf<F>> & { readonly id: Id };

/** A bound of the last field that a range names. `null` stands for absent. */
export interface Between<Value> {
  gt?: Value | null;
  gte?: Value | null;
  lt?: Value | null;
  lte?: Value | null;
}

/** Values for the first fields of an index, in order, and at most one range, the last. */
export type Where = Record<string, string | number | boolean | null | Between<any>>;

/** Rows in order. Nothing is read before one of the methods that answer rows or numbers. */
export interface Range<R = any> extends Iterable<R> {
  /** The other order. */
  desc(): Range<R>;
  /** At most `n` rows. */
  take(n: number): Range<R>;
  first(): R | null;
  all(): R[];
  /** Walks the range, and is charged for it. */
  count(): number;
  /** Sum of a field or of a function; walks the range, and is charged for it. */
  sum(what: string | ((row: R) => number)): number;
  /** A page, 50 rows unless told otherwise; pass its cursor to get the next one. */
  page(options?: { cursor?: string | null; size?: number }): { rows: R[]; cursor: string | null };
}

/** A table in a query. */
export interface Reader<R = any> {
  get(id: string): R | null;
  /** In the order of ids, which is the order of insertion. */
  range(where?: { id?: string | Between<string> }): Range<R>;
  all(): R[];
  count(): number;
}
/** An index in a query or mutation. */
export interface IndexReader<R = any> {
  range(where?: Where): Range<R>;
}
/** A table in a mutation. */
export interface Writer<R = any> extends Reader<R> {
  /** Answers the new row's id. */
  insert(row: Omit<R, "id">): Id;
  /** Changes some fields; `undefined` makes an optional one absent. Throws without the row. */
  patch(id: string, changes: Partial<Omit<R, "id">>): void;
  /** Replaces all fields. Throws without the row. */
  replace(id: string, row: Omit<R, "id">): void;
  /** Answers whether there was such a row. */
  delete(id: string): boolean;
}

/** Names your tables for the editor: `interface Database extends Tables<[typeof orders]> {}`. */
export type Tables<T extends readonly Table<any, any, any>[]> = {
  readonly [K in T[number] as K["name"]]: K extends Table<any, infer F, infer I>
    ? Reader<Row<F>> & { readonly [X in keyof I]: IndexReader<Row<F>> }
    : never;
};

/** A declared derived value. */
export interface Derived<Name extends string, K extends Fields, V> {
  readonly name: Name;
  readonly [derived_]: [K, V];
}

/**
 * Reads a derived value. Throws what its function threw: a fault as it was, anything else as
 * an error named `DerivedError`.
 */
export type Get = <K extends Fields, V>(
  derived: Derived<any, K, V>,
  key: ObjectOf<K>,
) => Readonly<V>;

/** A derived value by its name, and its index under the name that it was given. */
export interface ValueReader<Key = any, V = any> {
  get(key: Key): V;
}

/** What a derived value's function reads from. It has no clock and cannot write. */
export type Source = {
  get: Get;
} & { readonly [table: string]: any };

/** How cells of a derived value are kept. */
export interface DerivedOptions {
  /**
   * Which cells are stored: those that a stored cell reads (`"demand"`, unless told
   * otherwise), one for each row of a table, or each from its first `tx.get` until nothing
   * that it reads is there.
   */
  materialize?: "demand" | "always" | { each: string | Table<any, any, any> };
  /** Name of an index over the values: `db.NAME.INDEX.range({ value: { gte: 10 } })`. */
  index?: string;
  /** `"reject"`: an error refuses the mutation. Unless told otherwise it is stored. */
  onError?: "store" | "reject";
}

/**
 * Declares a value derived from rows and from other derived values, one for each key. The
 * function is called again when something that it read has changed, and must answer the same
 * for the same rows.
 */
export function derived<const Name extends string, K extends Fields, T extends Type<any>>(
  name: Name,
  key: K,
  value: T,
  handler: (
    db: Source,
    key: Readonly<ObjectOf<K>>,
    get: Get,
  ) => T extends OptionalType<infer V> ? V | undefined | null : ValueOf<T>,
  options?: DerivedOptions,
): Derived<Name, K, T extends OptionalType<infer V> ? V | null : ValueOf<T>>;

/** What a query reads from: tables and derived values by name, and the time of the call. */
export type Db = {
  get: Get;
  /** Milliseconds since 1970; the same throughout the call. */
  readonly now: number;
} & { readonly [table: string]: any };

/** What a mutation reads and writes. Derived values are those after its own writes. */
export type Tx = {
  get: Get;
  /** Milliseconds since 1970: the time of the mutation. */
  readonly now: number;
  /** A number from 0 to 1, drawn from the mutation's seed. */
  random(): number;
  /** A UUID drawn from the mutation's seed. */
  uuid(): string;
} & { readonly [table: string]: any };

/** What a function takes and answers. */
export interface Definition<A extends Fields, R> {
  /** Arguments; without it any JSON object. */
  args?: A;
  /** Result; without it anything that JSON can hold. */
  returns?: Type<R>;
  /** Faults that clients see, with their HTTP status (400 to 599). */
  errors?: Record<string, number>;
}

declare const function_: unique symbol;
/** A declared function; export it under its name. */
export interface Declared<Kind extends "query" | "mutation"> {
  readonly [function_]: Kind;
}

/** Declares a query. It cannot write. The handler is an ordinary function: no promises. */
export function query<A extends Fields = {}, R = unknown>(
  definition: Definition<A, R>,
  handler: (db: Db, args: ObjectOf<A>) => R,
): Declared<"query">;
export function query<R>(handler: (db: Db, args: any) => R): Declared<"query">;

/** Declares a mutation. It commits as a whole, or leaves nothing. */
export function mutation<A extends Fields = {}, R = unknown>(
  definition: Definition<A, R>,
  handler: (tx: Tx, args: ObjectOf<A>) => R,
): Declared<"mutation">;
export function mutation<R>(handler: (tx: Tx, args: any) => R): Declared<"mutation">;

/** A refusal that the function declares in `errors`; clients see code `fault:<code>`. */
export interface Fault extends Error {
  readonly code: string;
  readonly data?: unknown;
}
export const fault: {
  (code: string, options?: { data?: unknown; message?: string }): Fault;
  /** Throws it; for use in expressions. */
  throw(code: string, options?: { data?: unknown; message?: string }): never;
};
