//! The engine's side: plays calls over a view in memory, and reads what was stored from the
//! bytes alone, so that a mistake of the engine's own readers cannot hide one of its writers.

use std::sync::Arc;

use flower_api::{Revision, wire::Problem};
use flower_engine::{
    CallError, Deadline, Deployment, Isolate, Limits, Patch, PatchBuilder, ReadSet, Stamp,
    deploy::Planted, inspect, view::MemoryView,
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
        })
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
        let stamp = Stamp {
            now_ms: 1_000 + step.revision,
            revision: Revision(step.revision),
            seed: step.revision,
        };
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
