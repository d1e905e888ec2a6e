/** A value as JSON holds it. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** How fresh a read must be; `session` by default: never older than what this client has seen. */
export type ReadClass = "local" | "session" | "fresh" | { bounded: number };

export interface Options {
  /** Token for the client API; or a function that gives one, asked again for every request. */
  token?: string | (() => string | Promise<string>);
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** Give up after so many milliseconds; a mutation whose outcome is in doubt is not given up. */
  timeoutMs?: number;
  /** Gives up when it aborts. */
  signal?: AbortSignal;
}

export interface QueryOptions extends CallOptions {
  read?: ReadClass;
}

export interface MutateOptions extends CallOptions {
  /** Idempotency key; a new UUIDv7 when not given. Keep it to ask again after a crash. */
  key?: string;
}

/** What the node says of an error (RFC 9457). */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  code: string;
  requestId: string;
  retryable: boolean;
  outcome: "not-applied" | "unknown";
  revision?: number;
  errors?: { pointer: string; detail: string }[];
  setting?: string;
  data?: Json;
}

export class FlowerError extends Error {
  /** Code of the problem: `fault:<name>` for a declared fault; `unreachable` when no node answers. */
  readonly code: string;
  /** `unknown` when a mutation may have happened. */
  readonly outcome: "not-applied" | "unknown";
  /** What the node said, if it said anything. */
  readonly problem?: Problem;
  /** Key of the mutation. */
  readonly key?: string;
}

export interface Seen {
  /** Revision that all values of this step are of. */
  revision: number;
}

export interface WatchOptions {
  /** The query has no result now; it may have one later. */
  onError?: (error: FlowerError, seen: Seen) => void;
}

export interface Client {
  /** Highest revision that this client has seen. */
  readonly revision: number;
  query<T = Json>(name: string, args?: object, options?: QueryOptions): Promise<T>;
  /** Runs a mutation once: tried again under its key until its outcome is known. */
  mutate<T = Json>(name: string, args?: object, options?: MutateOptions): Promise<T>;
  /**
   * Calls `onValue` with the result, and again whenever it changes. All queries watched by one
   * client move from revision to revision together. Returns a function that ends it.
   */
  watch<T = Json>(
    name: string,
    args: object,
    onValue: (value: T, seen: Seen) => void,
    options?: WatchOptions,
  ): () => void;
  /** Ends all watches and calls. */
  close(): void;
}

/** A client of the nodes at these addresses, such as `http://127.0.0.1:7700`. */
export function connect(url: string | string[], options?: Options): Client;

/** A new UUIDv7. */
export function uuidv7(): string;
