// Client of Flower for browsers and Node, without dependencies: queries, mutations that are
// tried again under their key until the outcome is known, and watches that go on where they
// were when a connection ends. Types are in client.d.ts.

/** Between attempts: the first pause, and the longest. */
const PAUSE_MS = 100;
const PAUSE_MAX_MS = 5_000;
/** A call for which nothing happened is given up after this. */
const TIMEOUT_MS = 60_000;
/** A node answers within its own limit, which is shorter. */
const ATTEMPT_MS = 15_000;
/** A node says at least every 15 s that there is nothing new; twice that, and it is gone. */
const SILENCE_MS = 35_000;
/** No problem of Flower can have a longer wait than this between attempts. */
const WAIT_MAX_MS = 60_000;

export class FlowerError extends Error {
  constructor(message, { code, outcome = "not-applied", problem, key, cause } = {}) {
    super(message, { cause });
    this.name = "FlowerError";
    this.code = code;
    this.outcome = outcome;
    this.problem = problem;
    this.key = key;
  }
}

/** A new UUIDv7. */
export function uuidv7() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  let time = Date.now();
  for (let i = 5; i >= 0; i--) {
    bytes[i] = time % 256;
    time = Math.floor(time / 256);
  }
  bytes[6] = (bytes[6] & 0x0f) | 0x70;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [8, 12, 16, 20].reduceRight((text, at) => `${text.slice(0, at)}-${text.slice(at)}`, hex);
}

/** A client of the nodes at these addresses. */
export function connect(url, options = {}) {
  return new Client([url].flat(), options);
}

function fromProblem(problem, key, outcome) {
  return new FlowerError(`${problem.title}: ${problem.detail}`, {
    code: problem.code,
    outcome: outcome ?? problem.outcome,
    problem,
    key,
  });
}

/** Resolves after `ms`, or rejects when `signal` aborts. */
function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** The pause before attempt `n`, a random part of it, so that clients do not come together. */
function pauseOf(n) {
  const most = Math.min(PAUSE_MS * 2 ** n, PAUSE_MAX_MS);
  return most / 2 + (Math.random() * most) / 2;
}

function retryAfter(response) {
  const seconds = Number(response.headers.get("retry-after"));
  return seconds > 0 ? Math.min(seconds * 1000, WAIT_MAX_MS) : 0;
}

async function problemOf(response) {
  try {
    const problem = await response.json();
    return typeof problem?.code === "string" ? problem : undefined;
  } catch {
    return undefined;
  }
}

class Client {
  #urls;
  #at = 0;
  #token;
  #fetch;
  #closing = new AbortController();
  #watcher;
  revision = 0;

  constructor(urls, { token, fetch = globalThis.fetch } = {}) {
    if (urls.length === 0) throw new TypeError("connect needs the address of a node");
    this.#urls = urls.map((url) => String(new URL(url)).replace(/\/+$/, ""));
    this.#token = token;
    this.#fetch = (...request) => fetch(...request);
    this.#watcher = new Watcher({
      send: (...request) => this.#send(...request),
      signal: this.#closing.signal,
      revision: () => this.revision,
      saw: (revision) => this.#saw(revision),
      rotate: () => this.#at++,
    });
  }

  async query(name, args = {}, { read = "session", timeoutMs = TIMEOUT_MS, signal } = {}) {
    const classOf = () => {
      if (read === "session") return `session; min=${this.revision}`;
      return typeof read === "object" ? `bounded; ms=${read.bounded}` : read;
    };
    const request = () => ({
      method: "POST",
      path: `/v1/p/_/q/${encodeURIComponent(name)}`,
      headers: { "flower-read": classOf() },
      body: JSON.stringify(args),
    });
    return this.#persist(request, { timeoutMs, signal });
  }

  async mutate(name, args = {}, { key = uuidv7(), timeoutMs = TIMEOUT_MS, signal } = {}) {
    const body = JSON.stringify(args);
    const request = () => ({
      method: "POST",
      path: `/v1/p/_/m/${encodeURIComponent(name)}`,
      headers: { "idempotency-key": key },
      body,
    });
    return this.#persist(request, { timeoutMs, signal, key });
  }

  watch(name, args, onValue, { onError } = {}) {
    return this.#watcher.add({ name, args: JSON.stringify(args ?? {}), onValue, onError });
  }

  close() {
    const closed = new FlowerError("the client is closed", { code: "closed" });
    this.#closing.abort(closed);
  }

  #saw(revision) {
    if (revision > this.revision) this.revision = revision;
  }

  /** One request to the node that was good last. */
  async #send({ method, path, headers, body, signal }) {
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    const all = { "content-type": "application/json", ...headers };
    if (token) all.authorization = `Bearer ${token}`;
    const url = this.#urls[this.#at % this.#urls.length] + path;
    return this.#fetch(url, { method, headers: all, body, signal });
  }

  /** Sends until there is a final answer, or the time is up with nothing in doubt. */
  async #persist(request, { timeoutMs, signal, key }) {
    const mutates = key !== undefined;
    const until = Date.now() + timeoutMs;
    const stop = AbortSignal.any([this.#closing.signal, ...(signal ? [signal] : [])]);
    let doubt = false;
    let error;
    for (let n = 0; ; n++) {
      let wait = pauseOf(n);
      try {
        const limit = AbortSignal.timeout(ATTEMPT_MS);
        const response = await this.#send({ ...request(), signal: AbortSignal.any([stop, limit]) });
        if (response.ok) {
          const result = await response.json();
          this.#saw(Number(response.headers.get("flower-revision")) || 0);
          return result;
        }
        const problem = await problemOf(response);
        wait = Math.max(wait, retryAfter(response));
        if (problem === undefined) {
          // A proxy's answer says nothing of what happened behind it.
          doubt ||= mutates;
          error = new FlowerError(`HTTP status ${response.status}`, { code: "unreachable", key });
        } else {
          const underWay = problem.code === "in-flight";
          doubt ||= mutates && (underWay || problem.outcome === "unknown");
          const forgotten = doubt && problem.code === "key-expired";
          error = fromProblem(problem, key, forgotten ? "unknown" : undefined);
          if (!problem.retryable && !underWay) {
            this.#saw(problem.revision ?? 0);
            throw error;
          }
          // Somebody has to deploy first.
          if (problem.code === "no-application" && !doubt) throw error;
        }
      } catch (failed) {
        if (failed === error) throw failed;
        if (stop.aborted) {
          const outcome = doubt || mutates ? "unknown" : "not-applied";
          const code = stop.reason?.code ?? "aborted";
          throw new FlowerError("the call was given up", { code, outcome, key, cause: failed });
        }
        // The connection broke: whether the request arrived is not known.
        doubt ||= mutates;
        error = new FlowerError(`no node answers: ${failed.message}`, {
          code: "unreachable",
          key,
          cause: failed,
        });
      }
      this.#at++;
      if (!doubt && Date.now() + wait >= until) throw error;
      try {
        await sleep(wait, stop);
      } catch (cause) {
        const code = cause?.code ?? "aborted";
        const outcome = doubt ? "unknown" : "not-applied";
        throw new FlowerError("the call was given up", { code, outcome, key, cause });
      }
    }
  }
}

/** All watches of a client, over one stream. */
class Watcher {
  #client;
  #queries = new Map();
  #last = 0;
  #running = false;
  /** Cuts the stream that is open. */
  #cut;
  /** Id of the watch, once it is open. */
  #id;
  /** What the open stream has to be told: ids added and removed. */
  #added = new Set();
  #removed = new Set();
  #telling = false;
  #revision = 0;

  constructor(client) {
    this.#client = client;
  }

  add({ name, args, onValue, onError }) {
    const id = String(++this.#last);
    this.#queries.set(id, { name, args, onValue, onError, etag: undefined });
    this.#added.add(id);
    if (!this.#running) this.#run();
    else this.#tell();
    return () => {
      if (!this.#queries.delete(id)) return;
      if (!this.#added.delete(id)) this.#removed.add(id);
      if (this.#queries.size === 0) this.#cut?.abort();
      else this.#tell();
    };
  }

  #wanted(id) {
    const { name, args, etag } = this.#queries.get(id);
    const tag = etag === undefined ? "" : `,"etag":${JSON.stringify(etag)}`;
    return `{"id":"${id}","name":${JSON.stringify(name)},"args":${args}${tag}}`;
  }

  async #run() {
    this.#running = true;
    let n = 0;
    while (this.#queries.size > 0 && !this.#client.signal.aborted) {
      let wait = 0;
      try {
        wait = await this.#stream(() => (n = 0));
      } catch (error) {
        if (error instanceof FlowerError) this.#failed(error);
        wait = pauseOf(n++);
      }
      if (this.#queries.size === 0) break;
      try {
        await sleep(wait, this.#client.signal);
      } catch {
        break;
      }
    }
    this.#running = false;
  }

  /** The whole watch is refused: its queries are told. */
  #failed(error) {
    for (const { onError } of this.#queries.values()) {
      onError?.(error, { revision: this.#revision });
    }
  }

  /** One stream, to its end; gives the pause before the next. */
  async #stream(good) {
    const cut = new AbortController();
    this.#cut = cut;
    this.#id = undefined;
    this.#added.clear();
    this.#removed.clear();
    let silence;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => cut.abort(), SILENCE_MS);
    };
    alive();
    try {
      const last = Math.max(this.#revision, this.#client.revision());
      const queries = [...this.#queries.keys()].map((id) => this.#wanted(id));
      const response = await this.#client.send({
        method: "POST",
        path: "/v1/p/_/watch",
        headers: last > 0 ? { "last-event-id": String(last) } : {},
        body: `{"queries":[${queries.join(",")}]}`,
        signal: AbortSignal.any([this.#client.signal, cut.signal]),
      });
      if (!response.ok) {
        this.#client.rotate();
        const problem = await problemOf(response);
        if (problem && !problem.retryable) this.#failed(fromProblem(problem));
        return Math.max(retryAfter(response), PAUSE_MS * 5);
      }
      good();
      const decoder = new TextDecoder();
      let text = "";
      for await (const chunk of chunks(response.body)) {
        alive();
        text += decoder.decode(chunk, { stream: true });
        const frames = text.split("\n\n");
        text = frames.pop();
        for (const frame of frames) {
          const wait = this.#frame(frame);
          if (wait !== undefined) {
            this.#client.rotate();
            return wait;
          }
        }
      }
      this.#client.rotate();
      return pauseOf(0);
    } catch (error) {
      if (!cut.signal.aborted) this.#client.rotate();
      throw error;
    } finally {
      clearTimeout(silence);
      cut.abort();
      this.#id = undefined;
    }
  }

  /** Takes one frame; gives a pause when the stream is to be left. */
  #frame(text) {
    let name;
    let data = "";
    for (const line of text.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (name === undefined) return undefined;
    const told = JSON.parse(data);
    switch (name) {
      case "open":
        this.#id = told.watch;
        this.#tell();
        return undefined;
      case "step":
        this.#reach(told.to);
        for (const { q, etag, value } of told.changes) {
          const query = this.#queries.get(q);
          if (query === undefined) continue;
          query.etag = etag;
          call(() => query.onValue(value, { revision: told.to }));
        }
        return undefined;
      case "same":
        this.#reach(told.to);
        return undefined;
      case "error": {
        if (told.q === undefined) {
          this.#failed(fromProblem(told.problem));
          return PAUSE_MAX_MS;
        }
        const query = this.#queries.get(told.q);
        if (query === undefined) return undefined;
        query.etag = undefined;
        call(() => query.onError?.(fromProblem(told.problem), { revision: told.to }));
        return undefined;
      }
      case "moved":
        return told.retryMs;
      default:
        return undefined;
    }
  }

  #reach(revision) {
    this.#revision = Math.max(this.#revision, revision);
    this.#client.saw(revision);
  }

  /** Tells the open stream what is watched besides, and no longer. */
  async #tell() {
    if (this.#id === undefined || this.#telling) return;
    this.#telling = true;
    try {
      while (this.#id !== undefined && this.#added.size + this.#removed.size > 0) {
        const id = this.#id;
        const add = [...this.#added].map((query) => this.#wanted(query));
        const remove = [...this.#removed];
        this.#added.clear();
        this.#removed.clear();
        const response = await this.#client.send({
          method: "PATCH",
          path: `/v1/p/_/watch/${id}`,
          headers: {},
          body: `{"remove":${JSON.stringify(remove)},"add":[${add.join(",")}]}`,
          signal: this.#client.signal,
        });
        if (!response.ok && id === this.#id) {
          const problem = await problemOf(response);
          if (problem && problem.status === 413) this.#failed(fromProblem(problem));
          // A new stream is told everything.
          this.#cut?.abort();
          return;
        }
      }
    } catch {
      this.#cut?.abort();
    } finally {
      this.#telling = false;
    }
  }
}

/** What a callback throws is its own affair: reported, and no end of the stream. */
function call(callback) {
  try {
    callback();
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}

async function* chunks(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
