//! One QuickJS runtime that serves one deployment on one thread: loads the bundle once,
//! evaluates calls under limits, and says when it must be replaced.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use flower_api::{
    limits,
    manifest::{FunctionKind, Manifest},
};

use super::{
    BundleError, CallError, Cost, Deadline, Evaluated, Limits, Stamp, bundle,
    calls::{self, Failure},
    engine::{Engine, Outcome},
    host::{Running, Slot},
    meter::Meter,
};
use crate::{
    deploy::{self, Deployment, PageTask},
    derived::Building,
    import::Roots,
    limits::setting,
    problem,
    reads::ReadSet,
    transaction::{DbError, Transaction},
    view::{PatchBuilder, View},
};

/// No bundle is larger; the setting, which may allow less, is the caller's to check.
const LARGEST_BUNDLE: u64 = 2 * limits::BUNDLE_BYTES;
/// Calls after which an isolate is replaced.
const MOST_CALLS: u32 = 10_000;

/// One QuickJS runtime for one deployment. Not `Send`: it lives and dies on one thread, whose
/// stack is at least four times `Limits::stack_bytes`. Module-level variables of a bundle
/// live as long as the isolate that a call happens to meet: nothing may rest on them.
pub struct Isolate {
    // Dropped in this order: the engine's closures hold the slot and the meter.
    engine: Engine,
    slot: Slot,
    meter: Rc<Meter>,
    deployment: Arc<Deployment>,
    limits: Limits,
    calls: u32,
    spent: bool,
    thrown: Option<String>,
    failed_reads: Option<ReadSet>,
}

impl Isolate {
    /// Loads a deployment.
    ///
    /// # Errors
    /// When the bundle does not load under these limits.
    pub fn new(deployment: Arc<Deployment>, limits: &Limits) -> Result<Self, BundleError> {
        let meter = Rc::new(Meter::new(limits));
        let slot: Slot = Rc::new(RefCell::new(None));
        meter.begin(limits, &Deadline::never());
        let engine = Engine::new(limits, &meter, &slot)?;
        engine.load(&deployment.source, &meter)?;
        engine.serve(&deployment.manifest)?;
        Ok(Self {
            engine,
            slot,
            meter,
            deployment,
            limits: *limits,
            calls: 0,
            spent: false,
            thrown: None,
            failed_reads: None,
        })
    }

    /// Evaluates a query. An empty text stands for no arguments.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn query(
        &mut self,
        name: &str,
        args: &str,
        view: Arc<dyn View>,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<Evaluated, CallError> {
        self.call(FunctionKind::Query, name, args, view, stamp, deadline)
    }

    /// Evaluates a mutation. An empty text stands for no arguments.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn mutate(
        &mut self,
        name: &str,
        args: &str,
        view: Arc<dyn View>,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<Evaluated, CallError> {
        self.call(FunctionKind::Mutation, name, args, view, stamp, deadline)
    }

    fn call(
        &mut self,
        kind: FunctionKind,
        name: &str,
        args: &str,
        view: Arc<dyn View>,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<Evaluated, CallError> {
        self.thrown = None;
        self.failed_reads = None;
        let deployment = Arc::clone(&self.deployment);
        let function = calls::find(&deployment.manifest, kind, name)?;
        let args = if args.is_empty() { "{}" } else { args };
        calls::check_args(name, function, args, &self.limits)?;
        let writable = kind == FunctionKind::Mutation;
        let transaction = self.begin(view, stamp, deadline, writable);
        let (outcome, running) = self.run(transaction, deadline, |engine| {
            engine.invoke(kind, name, args, stamp)
        });
        let judged = match running {
            Some(mut running) => {
                let reads = std::mem::take(&mut running.transaction.reads).finish();
                match self.judge(name, function, outcome, running) {
                    Ok((result, cost, patch)) => Ok(Evaluated {
                        result,
                        patch: writable.then_some(patch),
                        cost,
                        reads,
                    }),
                    Err(failure) => {
                        self.failed_reads = Some(reads);
                        Err(failure)
                    }
                }
            }
            None => Err(calls::broken(name, "the call lost its transaction")),
        };
        judged.map_err(|failure| {
            if let Some(why) = &failure.log {
                tracing::warn!(target: "app", function = name, "{why}");
            }
            self.thrown = failure.log;
            failure.error
        })
    }

    fn begin(
        &self,
        view: Arc<dyn View>,
        stamp: Stamp,
        deadline: &Deadline,
        writable: bool,
    ) -> Transaction {
        let deployment = Arc::clone(&self.deployment);
        let deadline = deadline.clone();
        Transaction::new(view, deployment, self.limits, stamp, deadline, writable)
    }

    /// What makes values for the first time has budgets of its own.
    fn begin_build(&self, view: Arc<dyn View>, stamp: Stamp, deadline: &Deadline) -> Transaction {
        let mut transaction = self.begin(view, stamp, deadline, true);
        transaction.limits = self.limits.for_build();
        transaction
    }

    /// Evaluates the derived values of a page of a build, whose bundle this isolate has.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn build(
        &mut self,
        task: &PageTask,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<deploy::Evaluated, CallError> {
        let mut transaction = self.begin_build(Arc::clone(&task.view), stamp, deadline);
        transaction.building = Some(Building::new(task, &self.limits));
        let (outcome, running) = self.run(transaction, deadline, |engine| engine.build(stamp));
        let lost = || calls::broken("the build", "the page lost its transaction").error;
        let running = running.ok_or_else(lost)?;
        self.ended(&running)?;
        match outcome {
            Outcome::Result(_) => running.transaction.finish_page().ok_or_else(lost),
            Outcome::Fault(why) | Outcome::Error(why) | Outcome::Broken(why) => {
                Err(CallError::Refused(problem::internal(format!(
                    "evaluating derived values failed: {why}"
                ))))
            }
        }
    }

    /// Lets the script act on a transaction; answers what is left of that.
    fn run(
        &mut self,
        transaction: Transaction,
        deadline: &Deadline,
        act: impl FnOnce(&Engine) -> Outcome,
    ) -> (Outcome, Option<Running>) {
        let limits = transaction.limits;
        *self.slot.borrow_mut() = Some(Running {
            transaction,
            failure: None,
            bad_cursor: None,
            lines: 0,
        });
        self.meter.begin(&limits, deadline);
        self.calls += 1;
        let outcome = act(&self.engine);
        let running = self.slot.borrow_mut().take();
        self.spent |= self.meter.stopped().is_some()
            || matches!(outcome, Outcome::Broken(_))
            || self.engine.has_jobs();
        (outcome, running)
    }

    /// Stores cells for their own sake: evaluates them and what they read. Answers the patch.
    ///
    /// # Errors
    /// See [`CallError`]; `budget` when it is too much for one page of a build.
    pub fn store(
        &mut self,
        roots: &Roots,
        view: Arc<dyn View>,
        stamp: Stamp,
        deadline: &Deadline,
    ) -> Result<PatchBuilder, CallError> {
        self.thrown = None;
        self.failed_reads = None;
        let mut transaction = self.begin_build(view, stamp, deadline);
        for id in &roots.0 {
            transaction.set_root(id, true).map_err(unbuilt)?;
        }
        let (outcome, running) = self.run(transaction, deadline, |engine| engine.maintain(stamp));
        match running {
            None => Err(calls::broken("derived values", "the call lost its transaction").error),
            Some(running) => self.ended(&running).and_then(|()| match outcome {
                Outcome::Result(_) => Ok(running.transaction.finish().1),
                Outcome::Fault(why) | Outcome::Error(why) | Outcome::Broken(why) => {
                    Err(calls::broken("derived values", why).error)
                }
            }),
        }
    }

    /// What ended the call, whatever the script made of it.
    fn ended(&self, running: &Running) -> Result<(), CallError> {
        match (&running.failure, self.meter.stopped()) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some(stop)) => Err(self.meter.refusal(stop)),
            (None, None) => Ok(()),
        }
    }

    /// What ended the call goes before what the handler made of it.
    fn judge(
        &self,
        name: &str,
        function: &flower_api::manifest::Function,
        outcome: Outcome,
        running: Running,
    ) -> Result<(String, Cost, PatchBuilder), Failure> {
        self.ended(&running)?;
        let result = calls::result(name, function, outcome, running.bad_cursor, &self.limits)?;
        let (mut cost, patch) = running.transaction.finish();
        cost.gas = self.meter.gas();
        Ok((result, cost, patch))
    }

    /// What the last call read of the view, when it failed; taken. A fault that becomes a
    /// receipt, or that a watch shows, holds as long as none of it is touched.
    pub fn take_failed_reads(&mut self) -> Option<ReadSet> {
        self.failed_reads.take()
    }

    /// Whether this isolate must be dropped and a new one made: it has served 10,000 calls,
    /// ran out of memory, was interrupted, left work behind, or holds too much.
    pub fn must_recycle(&self) -> bool {
        self.spent || self.calls >= MOST_CALLS || self.heap_bytes() > self.limits.heap_bytes / 2
    }

    /// What the last call threw, when it failed as `internal`: for the log (where it is
    /// already, under target `app`, in the span of the caller) and for tests. Never for clients.
    pub fn thrown(&self) -> Option<&str> {
        self.thrown.as_deref()
    }

    /// Bytes of its JavaScript heap now.
    pub fn heap_bytes(&self) -> u64 {
        self.meter.heap()
    }

    #[cfg(test)]
    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    #[cfg(test)]
    pub(super) fn meter_handle(&self) -> Rc<Meter> {
        Rc::clone(&self.meter)
    }
}

fn unbuilt(error: DbError) -> CallError {
    match error {
        DbError::Stop(error) => *error,
        DbError::Wrong(why) | DbError::BadCursor(why) => {
            CallError::Refused(problem::internal(format!("derived values: {why}")))
        }
    }
}

pub(super) fn inspect(
    source: &str,
    limits: &Limits,
    deadline: &Deadline,
) -> Result<Manifest, BundleError> {
    let (bytes, most) = (source.len() as u64, LARGEST_BUNDLE);
    if bytes > most {
        let setting = setting::BUNDLE;
        return Err(BundleError::one(format!(
            "it has {bytes} bytes; at most {most}, whatever {setting} allows"
        )));
    }
    let meter = Rc::new(Meter::new(limits));
    let slot: Slot = Rc::new(RefCell::new(None));
    meter.begin(limits, deadline);
    let engine = Engine::new(limits, &meter, &slot)?;
    engine.load(source, &meter)?;
    let manifest = bundle::manifest(&engine.describe()?)?;
    // What an isolate will do, so that a bundle which loads here also serves.
    engine.serve(&manifest)?;
    tracing::debug!(heap = meter.heap(), gas = meter.gas(), "inspected a bundle");
    Ok(manifest)
}
