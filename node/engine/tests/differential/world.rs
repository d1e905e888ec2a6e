//! The engine's side: plays calls over a view in memory, and reads what was stored from the
//! bytes alone, so that a mistake of the engine's own readers cannot hide one of its writers.

use std::sync::Arc;

use flower_api::{Revision, wire::Problem};
use flower_engine::{
    CallError, Deadline, Deployment, Isolate, Limits, Patch, PatchBuilder, ReadSet, Stamp, View,
    ViewError,
    deploy::{self, PageEnd, PageTask, Planted},
    inspect,
    view::MemoryView,
};
use serde_json::{Value, json};

use crate::steps::Step;

/// An application in the engine.
pub struct World {
    deployment: Arc<Deployment>,
    isolate: Isolate,
    /// Calls after which the isolate is replaced by a fresh one.
    fresh_after: u32,
    calls: u32,
    pub view: Arc<MemoryView>,
    /// Whether its application was deployed, and not only loaded.
    pub deployed: bool,
}

/// What a call did.
pub struct Played {
    /// In the form of the reference; a refusal without its detail.
    pub answer: Value,
    pub patch: Option<Patch>,
    /// What it read; absent for one that failed.
    pub reads: Option<ReadSet>,
}

impl World {
    /// With a fault in the engine, if one is `planted`.
    pub fn new(bundle: &str, planted: Option<Planted>, fresh_after: u32) -> Result<Self, String> {
        let limits = Limits::default();
        let manifest = inspect(bundle, &limits, &Deadline::never()).map_err(|e| e.to_string())?;
        let mut deployment = Deployment::fresh(bundle, manifest);
        deployment.planted = planted;
        let deployment = Arc::new(deployment);
        let isolate = isolate(&deployment)?;
        Ok(Self {
            deployment,
            isolate,
            fresh_after,
            calls: 0,
            view: Arc::default(),
            deployed: false,
        })
    }

    /// With an application that was deployed.
    pub fn deployed(bundle: &str, revision: u64) -> Result<Self, String> {
        let mut world = Self::new(bundle, None, u32::MAX)?;
        world.deployed = true;
        world.begin(bundle, revision)?;
        world.take_over()?;
        Ok(world)
    }

    /// Begins a deployment; answers whether it needs a build.
    pub fn begin(&mut self, bundle: &str, revision: u64) -> Result<bool, String> {
        let manifest = inspect(bundle, &Limits::default(), &Deadline::never());
        let manifest = manifest.map_err(|e| e.to_string())?;
        let revision = Revision(revision);
        let planned = deploy::plan_deployment(&*self.view, bundle, manifest, None, revision);
        let planned = planned.map_err(|e| e.to_string())?;
        Arc::make_mut(&mut self.view).apply(&planned.patch);
        Ok(planned.building)
    }

    /// The next page of the build, made by an isolate that knows nothing of the last.
    pub fn page(&mut self, rows: u64, revision: u64) -> Result<PageEnd, String> {
        let view: Arc<dyn View> = Arc::clone(&self.view) as _;
        let stamp = stamp(revision);
        let mut evaluate = |task: PageTask| {
            let loaded = Isolate::new(Arc::clone(&task.deployment), &Limits::default());
            let mut isolate = loaded.map_err(|e| ViewError(e.to_string()))?;
            isolate.build(&task, stamp, &Deadline::never())
        };
        let page = deploy::page(&view, rows, None, stamp.revision, &mut evaluate);
        let page = page.map_err(|e| e.to_string())?.ok_or("no build")?;
        drop(view);
        Arc::make_mut(&mut self.view).apply(&page.patch);
        Ok(page.end)
    }

    /// What is active takes the calls, and nothing is left of what was before.
    pub fn take_over(&mut self) -> Result<(), String> {
        while let Some(patch) = deploy::sweep(&*self.view, 10).map_err(|e| e.to_string())? {
            Arc::make_mut(&mut self.view).apply(&patch);
        }
        let current = deploy::current(&*self.view).map_err(|e| e.to_string())?;
        self.deployment = current.ok_or("nothing is deployed")?;
        self.isolate = isolate(&self.deployment)?;
        Ok(())
    }

    /// Plays a call; a mutation's writes are applied.
    pub fn play(&mut self, step: &Step) -> Result<Played, String> {
        let played = self.evaluate(step, Arc::clone(&self.view))?;
        if let Some(patch) = &played.patch {
            Arc::make_mut(&mut self.view).apply(patch);
        }
        Ok(played)
    }

    /// Evaluates a call over any view.
    pub fn evaluate(&mut self, step: &Step, view: Arc<MemoryView>) -> Result<Played, String> {
        if self.calls >= self.fresh_after || self.isolate.must_recycle() {
            self.isolate = isolate(&self.deployment)?;
            self.calls = 0;
        }
        self.calls += 1;
        let stamp = stamp(step.revision);
        let (args, deadline) = (step.args(), Deadline::never());
        let done = match step.query {
            true => self.isolate.query("ask", &args, view, stamp, &deadline),
            false => self.isolate.mutate("step", &args, view, stamp, &deadline),
        };
        match done {
            Ok(done) => {
                let result: Value = serde_json::from_str(&done.result)
                    .map_err(|e| format!("the result is not JSON: {e}"))?;
                Ok(Played {
                    answer: json!({ "result": result }),
                    patch: done.patch.map(PatchBuilder::seal),
                    reads: Some(done.reads),
                })
            }
            Err(CallError::Storage(error)) => Err(error.to_string()),
            Err(CallError::Fault(problem) | CallError::Refused(problem)) => Ok(Played {
                answer: answer(&problem, self.isolate.thrown()),
                patch: None,
                reads: None,
            }),
        }
    }

    /// What the engine itself finds wrong with what it stored.
    pub fn check(&self) -> Vec<String> {
        flower_engine::derived::check(&*self.view, &self.deployment)
    }
}

fn stamp(revision: u64) -> Stamp {
    Stamp {
        now_ms: 1_000 + revision,
        revision: Revision(revision),
        seed: revision,
    }
}

fn isolate(deployment: &Arc<Deployment>) -> Result<Isolate, String> {
    Isolate::new(Arc::clone(deployment), &Limits::default()).map_err(|e| e.to_string())
}

fn answer(problem: &Problem, thrown: Option<&str>) -> Value {
    if let Some(code) = problem.code.strip_prefix("fault:") {
        let mut fault =
            json!({ "code": code, "status": problem.status, "message": problem.detail });
        if let Some(data) = &problem.data {
            fault["data"] = data.clone();
        }
        return json!({ "fault": fault });
    }
    match thrown.and_then(|text| text.lines().next()) {
        Some(line) if problem.code == "internal" => json!({ "internal": line }),
        _ => json!({ "refused": problem.code }),
    }
}
