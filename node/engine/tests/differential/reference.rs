//! Runs the reference in a plain QuickJS context: no prelude, no host functions, no limits
//! but a stack. Texts in, texts out.

use rquickjs::{CatchResultExt, Context, Ctx, Function, Module, Object, Persistent, Runtime};
use serde::Deserialize;
use serde_json::Value;

/// The modules of the reference, each after those that it imports.
const MODULES: [(&str, &str); 9] = [
    (
        "@flower/order.js",
        include_str!("../../../sdk/reference/order.js"),
    ),
    (
        "@flower/types.js",
        include_str!("../../../sdk/reference/types.js"),
    ),
    (
        "@flower/range.js",
        include_str!("../../../sdk/reference/range.js"),
    ),
    (
        "@flower/rows.js",
        include_str!("../../../sdk/reference/rows.js"),
    ),
    (
        "@flower/declare.js",
        include_str!("../../../sdk/reference/declare.js"),
    ),
    (
        "@flower/recompute.js",
        include_str!("../../../sdk/reference/recompute.js"),
    ),
    (
        "@flower/session.js",
        include_str!("../../../sdk/reference/session.js"),
    ),
    (
        "@flower/shapes.js",
        include_str!("../../../sdk/reference/shapes.js"),
    ),
    (
        "@flower/sdk",
        include_str!("../../../sdk/reference/index.js"),
    ),
];
const EXPECTATIONS: &str = include_str!("../../../sdk/reference/expectations.js");
/// Serves one application to this test.
const DRIVER: &str = r#"
import { Reference } from "@flower/sdk";
import * as app from "app.js";
import { freezeAll } from "@flower/rows.js";
import { keyText } from "@flower/recompute.js";
const reference = new Reference(app);
export const call = (kind, name, args, now, revision) => JSON.stringify({
  answer: reference.call(kind, name, JSON.parse(args), { now, revision }),
  refusals: reference.refusals,
  seen: reference.seen,
});
export const load = (state) => {
  const { rows, roots } = JSON.parse(state);
  for (const [table, list] of Object.entries(rows)) {
    for (const row of list) reference.rows.byTable.get(table).set(row.id, freezeAll(row));
  }
  reference.rows.version += 1;
  for (const { name, key } of roots) {
    const of = reference.app.values.get(name);
    const text = keyText(of, key);
    reference.roots.set(name + text, { of, text });
  }
  return call("mutation", "step", '{"ops":[]}', 1, 1);
};
export const dump = () => JSON.stringify(reference.dump());
"#;
const STACK: usize = 8 << 20;

/// What a call ended with.
#[derive(Debug, Clone, Deserialize)]
pub struct Called {
    /// `result`, `fault`, `refused` or `internal`.
    pub answer: Value,
    /// Codes of all refusals that apply.
    pub refusals: Vec<String>,
    /// What a mutation did to the graph.
    pub seen: Seen,
}

/// Counts of what a mutation did to the stored cells.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Seen {
    pub changed: u64,
    pub diamond: u64,
    pub collected: u64,
    pub halfway: u64,
    pub spanning: u64,
}

/// An application in the reference.
pub struct Reference {
    // Dropped in this order: handles before the context, the context before its runtime.
    call: Persistent<Function<'static>>,
    load: Persistent<Function<'static>>,
    dump: Persistent<Function<'static>>,
    context: Context,
    _runtime: Runtime,
}

fn context() -> (Context, Runtime) {
    let runtime = Runtime::new().expect("QuickJS starts");
    runtime.set_max_stack_size(STACK);
    runtime.set_gc_threshold(64 << 20);
    let context = Context::full(&runtime).expect("a context");
    (context, runtime)
}

fn module<'js>(ctx: &Ctx<'js>, name: &str, source: &str) -> Object<'js> {
    let evaluated = (|| {
        let (module, promise) = Module::declare(ctx.clone(), name, source)?.eval()?;
        promise.finish::<()>()?;
        module.namespace()
    })();
    let evaluated = evaluated.catch(ctx).map_err(|e| e.to_string());
    evaluated.unwrap_or_else(|why| panic!("{name}: {why}"))
}

impl Reference {
    /// Loads a bundle.
    pub fn new(bundle: &str) -> Self {
        let (context, runtime) = context();
        let (call, load, dump) = context.with(|ctx| {
            for (name, source) in MODULES {
                module(&ctx, name, source);
            }
            module(&ctx, "app.js", bundle);
            let driver = module(&ctx, "driver.js", DRIVER);
            let get = |name| Persistent::save(&ctx, driver.get::<_, Function>(name).unwrap());
            (get("call"), get("load"), get("dump"))
        });
        Self {
            call,
            load,
            dump,
            context,
            _runtime: runtime,
        }
    }

    /// Calls a function of the bundle.
    pub fn call(&self, kind: &str, name: &str, args: &str, now: u64, revision: u64) -> Called {
        let text: String = self.context.with(|ctx| {
            let call = self.call.clone().restore(&ctx).unwrap();
            let (now, revision) = (now as f64, revision as f64);
            let answered = call.call((kind, name, args, now, revision)).catch(&ctx);
            let answered = answered.map_err(|e| e.to_string());
            answered.unwrap_or_else(|why| panic!("the reference failed: {why}"))
        });
        serde_json::from_str(&text).expect("the reference answers JSON")
    }

    /// Takes over rows and roots, into a reference that has none yet, and computes all cells.
    pub fn load(&self, rows: &Value, roots: &[Value]) -> Called {
        let state = serde_json::json!({ "rows": rows, "roots": roots }).to_string();
        let text: String = self.context.with(|ctx| {
            let load = self.load.clone().restore(&ctx).unwrap();
            let loaded = load.call((state,)).catch(&ctx).map_err(|e| e.to_string());
            loaded.unwrap_or_else(|why| panic!("the reference failed: {why}"))
        });
        serde_json::from_str(&text).expect("the reference answers JSON")
    }

    /// Everything that it holds.
    pub fn dump(&self) -> Value {
        let text: String = self.context.with(|ctx| {
            let dump = self.dump.clone().restore(&ctx).unwrap();
            dump.call(()).unwrap()
        });
        serde_json::from_str(&text).expect("the reference answers JSON")
    }
}

/// Runs the expectations written by hand: how many were met, and what was not.
pub fn expectations() -> (u32, Vec<String>) {
    let (context, _runtime) = context();
    context.with(|ctx| {
        for (name, source) in MODULES {
            module(
                &ctx,
                if name == "@flower/sdk" {
                    "@flower/index.js"
                } else {
                    name
                },
                source,
            );
        }
        let run: Function = module(&ctx, "@flower/expectations.js", EXPECTATIONS)
            .get("run")
            .unwrap();
        let outcome: Object = run.call(()).catch(&ctx).map_err(|e| e.to_string()).unwrap();
        (outcome.get("met").unwrap(), outcome.get("failed").unwrap())
    })
}
