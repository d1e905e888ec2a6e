//! QuickJS itself: runtime, hardened context, the bundle's module. The one file that knows
//! how scripts are compiled and called; it knows nothing of data.

use std::{cell::RefCell, collections::BTreeMap, mem::ManuallyDrop, rc::Rc};

use flower_api::manifest::{FunctionKind, Manifest};
use rquickjs::{
    Context, Ctx, Error, Exception, Function, Module, Object, Persistent, Runtime, Value,
    context::{EvalOptions, intrinsic},
    promise::PromiseState,
    qjs,
};

use super::{
    BundleError, Limits, Stamp,
    heap::{Blocks, Heap},
    host::{self, Slot},
    meter::{Meter, Stop},
};

const PRELUDE: &str = include_str!("prelude.js");
const RUNTIME: &str = include_str!("runtime.js");
const SDK: &str = include_str!("../../../sdk/index.js");
/// The module that an application imports.
const SDK_NAME: &str = "@flower/sdk";
/// What an application's module is called in stacks.
pub(super) const BUNDLE_NAME: &str = "app.js";
/// What QuickJS says of an import that it cannot resolve.
const NO_MODULE: &str = "could not load module '";

/// Left out: Proxy, typed arrays, weak references, performance. Proxies can answer
/// differently each time a builtin asks; typed arrays come with builtins of their own that
/// are not interrupted; the others look at the machine.
type Intrinsics = (
    intrinsic::Date,
    intrinsic::Eval,
    intrinsic::RegExpCompiler,
    intrinsic::RegExp,
    intrinsic::Json,
    intrinsic::MapSet,
    intrinsic::Promise,
);

/// What an evaluation ended with; the texts are JSON.
pub(super) enum Outcome {
    Result(String),
    Fault(String),
    Error(String),
    /// The engine stopped it, or could not answer at all.
    Broken(String),
}

/// Handles into the context.
struct Handles {
    /// What `runtime.js` answered: describe, load, invoke.
    runtime: Persistent<Object<'static>>,
    /// Of the prelude: sets clock and seed.
    begin: Persistent<Function<'static>>,
    invoke: Persistent<Function<'static>>,
    sdk: Persistent<Object<'static>>,
}

/// A runtime with one hardened context.
pub(super) struct Engine {
    // Dropped by hand, in this order: handles before the context, it before its runtime.
    namespace: RefCell<Option<Persistent<Object<'static>>>>,
    handles: ManuallyDrop<Handles>,
    context: ManuallyDrop<Context>,
    runtime: ManuallyDrop<Runtime>,
    blocks: Rc<Blocks>,
}

impl Drop for Engine {
    /// QuickJS can lose count of an object's references when an allocation fails, and ends
    /// the process when its runtime is freed with objects left. A runtime that ran out of
    /// memory is therefore not freed, its blocks are; what stays behind is a few hundred bytes
    /// of the host's own.
    fn drop(&mut self) {
        self.namespace.borrow_mut().take();
        // SAFETY: neither is used after this, and each is dropped once.
        unsafe {
            ManuallyDrop::drop(&mut self.handles);
            ManuallyDrop::drop(&mut self.context);
        }
        if !self.blocks.exhausted() {
            // SAFETY: it is not used after this, and dropped once.
            unsafe { ManuallyDrop::drop(&mut self.runtime) }
        } else {
            // SAFETY: the runtime is never used again, not even to drop it.
            unsafe { self.blocks.release() }
        }
    }
}

impl Engine {
    /// A fresh context that knows the SDK and no application.
    pub fn new(limits: &Limits, meter: &Rc<Meter>, slot: &Slot) -> Result<Self, BundleError> {
        let fail =
            |error: Error| BundleError::one(format!("the JavaScript engine failed: {error}"));
        let blocks = Blocks::new(Rc::clone(meter));
        let runtime = Runtime::new_with_alloc(Heap::new(&blocks)).map_err(fail)?;
        runtime.set_max_stack_size(usize::try_from(limits.stack_bytes).unwrap_or(256 << 10));
        let watched = Rc::clone(meter);
        runtime.set_interrupt_handler(Some(Box::new(move || watched.interrupt())));
        let context = Context::custom::<Intrinsics>(&runtime).map_err(fail)?;
        let handles = context.with(|ctx| {
            let prepared = prepare(&ctx, meter, slot);
            prepared.map_err(|e| BundleError::one(format!("the engine failed: {}", why(&ctx, &e))))
        })?;
        if !meter.arm() {
            let (needed, refusal) = (2 * meter.heap(), meter.refusal(Stop::Heap));
            return Err(BundleError::one(format!(
                "the engine itself needs a limit of {needed} bytes: {refusal}"
            )));
        }
        Ok(Self {
            namespace: RefCell::new(None),
            handles: ManuallyDrop::new(handles),
            context: ManuallyDrop::new(context),
            runtime: ManuallyDrop::new(runtime),
            blocks,
        })
    }

    /// The C stack is measured from here: the isolate may be called from another depth than
    /// it was made at.
    fn measure_stack(&self) {
        // SAFETY: the pointer is that of the runtime that `self.context` keeps alive, and no
        // script of it runs now: an isolate is used by one thread, and scripts cannot call it.
        unsafe { qjs::JS_UpdateStackTop(self.context.get_runtime_ptr()) }
    }

    /// Evaluates the application's module.
    pub fn load(&self, source: &str, meter: &Meter) -> Result<(), BundleError> {
        self.measure_stack();
        let loaded = self.context.with(|ctx| {
            let found = evaluate(&ctx, BUNDLE_NAME, source);
            found.map(|namespace| Persistent::save(&ctx, namespace))
        });
        if let Some(stop) = meter.stopped() {
            let refusal = meter.refusal(stop);
            return Err(BundleError::one(format!("loading it: {refusal}")));
        }
        *self.namespace.borrow_mut() = Some(loaded.map_err(BundleError::one)?);
        Ok(())
    }

    /// What the application declares, as JSON.
    pub fn describe(&self) -> Result<String, BundleError> {
        self.ask("describe", |function, namespace, sdk| {
            function.call((namespace, sdk))
        })
    }

    /// Makes the application's functions callable.
    pub fn serve(&self, manifest: &Manifest) -> Result<(), BundleError> {
        let tables: BTreeMap<&String, Vec<&String>> = manifest
            .tables
            .iter()
            .map(|(name, table)| (name, table.indexes.keys().collect()))
            .collect();
        let derived: BTreeMap<&String, &str> = manifest
            .derived
            .iter()
            .map(|(name, derived)| (name, derived.index.as_deref().unwrap_or_default()))
            .collect();
        let text =
            |json: serde_json::Result<String>| json.map_err(|e| BundleError::one(e.to_string()));
        let tables = text(serde_json::to_string(&tables))?;
        let derived = text(serde_json::to_string(&derived))?;
        self.ask("load", |function, namespace, sdk| {
            function.call::<_, ()>((namespace, sdk, tables, derived))
        })
    }

    fn ask<T>(
        &self,
        what: &str,
        ask: impl for<'js> FnOnce(Function<'js>, Object<'js>, Object<'js>) -> Result<T, Error>,
    ) -> Result<T, BundleError> {
        self.measure_stack();
        self.context.with(|ctx| {
            let asked = (|| {
                let runtime = self.handles.runtime.clone().restore(&ctx)?;
                let saved = self.namespace.borrow().clone().ok_or(Error::Unknown)?;
                let namespace = saved.restore(&ctx)?;
                let sdk = self.handles.sdk.clone().restore(&ctx)?;
                ask(runtime.get(what)?, namespace, sdk)
            })();
            asked.map_err(|e| BundleError::one(why(&ctx, &e)))
        })
    }

    /// Calls a function of the application.
    pub fn invoke(&self, kind: FunctionKind, name: &str, args: &str, stamp: Stamp) -> Outcome {
        let kind = match kind {
            FunctionKind::Query => "query",
            FunctionKind::Mutation => "mutation",
        };
        self.run(stamp, |ctx| {
            let invoke = self.handles.invoke.clone().restore(ctx)?;
            invoke.call((kind, name, args))
        })
    }

    /// Brings all stored cells up to date, without calling a handler.
    pub fn maintain(&self, stamp: Stamp) -> Outcome {
        self.runs(stamp, "maintain")
    }

    /// Evaluates the derived values of a page of a build.
    pub fn build(&self, stamp: Stamp) -> Outcome {
        self.runs(stamp, "build")
    }

    fn runs(&self, stamp: Stamp, name: &str) -> Outcome {
        self.run(stamp, |ctx| {
            let runtime = self.handles.runtime.clone().restore(ctx)?;
            runtime.get::<_, Function>(name)?.call(())
        })
    }

    fn run(
        &self,
        stamp: Stamp,
        call: impl for<'js> FnOnce(&Ctx<'js>) -> Result<String, Error>,
    ) -> Outcome {
        self.measure_stack();
        self.context.with(|ctx| {
            let answer = (|| {
                let begin = self.handles.begin.clone().restore(&ctx)?;
                let (low, high) = (stamp.seed as u32, (stamp.seed >> 32) as u32);
                begin.call::<_, ()>((stamp.now_ms as f64, f64::from(low), f64::from(high)))?;
                call(&ctx)
            })();
            match answer {
                Ok(answer) => outcome(answer),
                Err(error) => Outcome::Broken(why(&ctx, &error)),
            }
        })
    }

    /// Whether promises wait for their reactions, which never run.
    pub fn has_jobs(&self) -> bool {
        self.runtime.is_job_pending()
    }
}

fn outcome(answer: String) -> Outcome {
    let (Some(letter), json) = (answer.chars().next(), answer.get(1..).unwrap_or_default()) else {
        return Outcome::Broken("it gave no answer".into());
    };
    match letter {
        'r' => Outcome::Result(json.to_owned()),
        'f' => Outcome::Fault(json.to_owned()),
        _ => Outcome::Error(json.to_owned()),
    }
}

/// Hardens the context and loads SDK and runtime into it.
fn prepare(ctx: &Ctx<'_>, meter: &Rc<Meter>, slot: &Slot) -> Result<Handles, Error> {
    let prelude: Function = script(ctx, "prelude.js", PRELUDE)?;
    let stamp: Object = prelude.call((
        host::charge(ctx, meter)?,
        host::log(ctx, slot)?,
        host::ambient(ctx, slot)?,
    ))?;
    let runtime: Function = script(ctx, "runtime.js", RUNTIME)?;
    let begin: Function = stamp.get("begin")?;
    let runtime: Object = runtime.call((host::functions(ctx, slot, meter)?, stamp))?;
    let invoke: Function = runtime.get("invoke")?;
    let sdk = evaluate(ctx, SDK_NAME, SDK).map_err(|why| Exception::throw_message(ctx, &why))?;
    Ok(Handles {
        runtime: Persistent::save(ctx, runtime),
        begin: Persistent::save(ctx, begin),
        invoke: Persistent::save(ctx, invoke),
        sdk: Persistent::save(ctx, sdk),
    })
}

fn script<'js>(ctx: &Ctx<'js>, name: &str, source: &str) -> Result<Function<'js>, Error> {
    let mut options = EvalOptions::default();
    options.filename = Some(name.to_owned());
    ctx.eval_with_options(source, options)
}

/// Compiles and evaluates a module; answers its namespace, or why not, for people.
fn evaluate<'js>(ctx: &Ctx<'js>, name: &str, source: &str) -> Result<Object<'js>, String> {
    let explain = |error: Error| explained(why(ctx, &error));
    let module = Module::declare(ctx.clone(), name, source).map_err(explain)?;
    let (module, promise) = module.eval().map_err(explain)?;
    match promise.state() {
        PromiseState::Resolved => {}
        PromiseState::Pending => {
            return Err("it awaits at its top level, which is not supported".into());
        }
        PromiseState::Rejected => {
            let reason = promise.result::<Value>();
            let error = reason.and_then(Result::err).unwrap_or(Error::Unknown);
            return Err(explain(error));
        }
    }
    module.namespace().map_err(explain)
}

/// Names the bundler where an import was not found.
fn explained(why: String) -> String {
    let Some((_, rest)) = why.split_once(NO_MODULE) else {
        return why;
    };
    let module = rest.split('\'').next().unwrap_or_default();
    format!(
        "it imports '{module}'; a bundle is one module that imports only '{SDK_NAME}': \
         npx esbuild app.js --bundle --format=esm --external:{SDK_NAME} --outfile=bundle.js"
    )
}

/// What an error says, for people.
fn why(ctx: &Ctx<'_>, error: &Error) -> String {
    if !matches!(error, Error::Exception) {
        return error.to_string();
    }
    let thrown = ctx.catch();
    let Some(exception) = thrown.as_exception() else {
        return format!("it threw {}", thrown.type_name());
    };
    let message = exception.message().unwrap_or_default();
    let kind: String = exception.as_object().get("name").unwrap_or_default();
    let stack = exception.stack().unwrap_or_default();
    let place = stack
        .lines()
        .map(str::trim)
        .find(|l| l.contains(BUNDLE_NAME));
    let place = place.map_or(String::new(), |p| format!(" ({p})"));
    format!("{kind}: {message}{place}")
}
