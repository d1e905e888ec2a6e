// A client against real nodes. What it asks of the test around it goes to standard output, one
// word a line; each is answered by a line on standard input when it is done.

import assert from "node:assert/strict";
import net from "node:net";
import readline from "node:readline";
import { FlowerError, connect, uuidv7 } from "../../sdk/client/client.js";

const [url] = process.argv.slice(2);
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function please(what) {
  console.log(what);
  assert.equal((await input.next()).value, what);
}

/** Waits until `check` holds. */
async function until(what, check) {
  for (let i = 0; i < 3_000; i++) {
    if (check()) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail(`never: ${what}`);
}

/** A busy machine may not load the application in its time: nothing happens then. */
async function patient(call) {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (error.code !== "budget") throw error;
    }
  }
}

/** Passes connections on to the node; cuts the answers to mutations off when told to. */
async function proxy() {
  const { hostname, port } = new URL(url);
  const state = { cut: 0, open: new Set() };
  const server = net.createServer((near) => {
    const far = net.connect(Number(port), hostname);
    const end = () => {
      near.destroy();
      far.destroy();
      state.open.delete(end);
    };
    state.open.add(end);
    let mutation = false;
    near.on("data", (data) => {
      mutation ||= data.includes("POST /v1/p/_/m/");
      far.write(data);
    });
    far.on("data", (data) => {
      if (mutation && state.cut > 0) {
        state.cut--;
        return end();
      }
      mutation = false;
      near.write(data);
    });
    for (const side of [near, far]) side.on("error", end).on("close", end);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { state, server, url: `http://127.0.0.1:${server.address().port}` };
}

// Queries and mutations; the own writes are read.
const db = connect(url);
assert.equal(await patient(() => db.mutate("bump", { key: "a" })), 1);
assert.equal(await patient(() => db.query("read", { key: "a" })), 1);
assert.ok(db.revision > 0);
for (const read of ["fresh", "local", { bounded: 60_000 }]) {
  assert.equal(await db.query("read", { key: "a" }, { read }), 1);
}

// One key, one effect; faults and refusals are final and carry what the node said.
const key = uuidv7();
assert.match(key, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
assert.equal(await db.mutate("bump", { key: "a", by: 4 }, { key }), 5);
assert.equal(await db.mutate("bump", { key: "a", by: 4 }, { key }), 5);
await assert.rejects(db.mutate("spend", { key: "a", by: 9 }), (error) => {
  assert.ok(error instanceof FlowerError);
  assert.deepEqual([error.code, error.outcome], ["fault:too-little", "not-applied"]);
  assert.deepEqual(error.problem.data, { value: 5 });
  return true;
});
await assert.rejects(db.query("nope"), { code: "unknown-function" });
await assert.rejects(db.mutate("bump", { key: 1 }), { code: "invalid-args" });

// A lost answer is asked for again under the same key: it happens once.
const between = await proxy();
const far = connect(between.url);
between.state.cut = 2;
assert.equal(await far.mutate("bump", { key: "lost" }), 1);
assert.equal(between.state.cut, 0);
assert.equal(await far.query("read", { key: "lost" }), 1);
// A node that is not there: another one is asked.
const two = connect(["http://127.0.0.1:1", url]);
assert.equal(await two.query("read", { key: "lost" }, { read: "fresh" }), 1);
await assert.rejects(connect("http://127.0.0.1:1").query("read", { key: "a" }, { timeoutMs: 300 }), {
  code: "unreachable",
});

// Two watches over one stream move together, and go on after every kind of end.
const seen = { a: [], b: [] };
const states = [];
let errors = 0;
const show = (name) => (value, { revision }) => {
  seen[name].push([revision, value]);
};
const stopA = far.watch("read", { key: "a" }, show("a"));
const stopB = far.watch("read", { key: "b" }, show("b"));
const last = (name) => seen[name].at(-1)?.[1];
await until("both are there", () => last("a") === 5 && last("b") === 0);
for (let i = 1; i <= 10; i++) {
  await db.mutate("bump", { key: "b" });
  if (i % 3 === 0) for (const end of [...between.state.open]) end();
  if (i === 5) await until("b is seen", () => last("b") === 5);
}
await until("everything is seen", () => last("b") === 10);
assert.equal(seen.a.length, 1, "what has not changed is not told again");
await please("restart");
assert.equal(await patient(() => db.mutate("bump", { key: "a" })), 6);
await until("the node is back and a is seen", () => last("a") === 6);
for (const name of ["a", "b"]) {
  const revisions = seen[name].map(([revision]) => revision);
  assert.deepEqual(revisions, [...revisions].sort((x, y) => x - y), "never back");
  const values = seen[name].map(([, value]) => value);
  assert.equal(new Set(values).size, values.length, "no result twice");
}
// One ends, another begins, on the stream that is open.
stopB();
const third = far.watch("read", { key: "c" }, (value) => states.push(value));
const failing = far.watch("nope", {}, () => assert.fail("no result"), {
  onError: (error) => {
    assert.equal(error.code, "unknown-function");
    errors++;
  },
});
await until("the third is there", () => states.at(-1) === 0 && errors > 0);
const before = seen.b.length;
await db.mutate("bump", { key: "b" });
await db.mutate("bump", { key: "c" });
await until("c is seen", () => states.at(-1) === 1);
assert.equal(seen.b.length, before);
stopA();
third();
failing();

// A closed client ends its calls, and does not say that nothing happened.
between.server.close();
for (const end of [...between.state.open]) end();
const given = far.mutate("bump", { key: "a" });
setTimeout(() => far.close(), 50);
await assert.rejects(given, { code: "closed", outcome: "unknown" });
db.close();
two.close();
console.log("done");
process.exit(0);
