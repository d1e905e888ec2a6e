//! Tests of the host with whole bundles over a view in memory.

mod api;
mod derived;
mod determinism;
mod examples;
mod hostile;
mod memory;
mod refused;

use std::sync::Arc;

use flower_api::{Revision, wire::Problem};
use serde_json::Value;

use crate::{
    deploy::Deployment,
    js::{CallError, Deadline, Evaluated, Isolate, Limits, Stamp, inspect},
    view::MemoryView,
};

/// An application with its data.
pub(super) struct World {
    pub view: MemoryView,
    pub isolate: Isolate,
    pub deployment: Arc<Deployment>,
    pub revision: u64,
    pub now_ms: u64,
    pub deadline: Deadline,
}

pub(super) fn world(source: &str) -> World {
    world_with(source, Limits::default())
}

pub(super) fn world_with(source: &str, limits: Limits) -> World {
    let manifest = inspect(source, &limits, &Deadline::never()).unwrap();
    let deployment = Arc::new(Deployment::fresh(source, manifest));
    World {
        view: MemoryView::default(),
        isolate: Isolate::new(Arc::clone(&deployment), &limits).unwrap(),
        deployment,
        revision: 0,
        now_ms: 1_700_000_000_000,
        deadline: Deadline::never(),
    }
}

/// One handler without tables, called `f`, as a mutation.
pub(super) fn function(body: &str) -> World {
    function_with(body, Limits::default())
}

pub(super) fn function_with(body: &str, limits: Limits) -> World {
    let source = format!(
        "import {{ mutation }} from '@flower/sdk';\n\
         export const f = mutation({{}}, (tx, args) => {{ {body} }});"
    );
    world_with(&source, limits)
}

impl World {
    fn stamp(&self) -> Stamp {
        Stamp {
            now_ms: self.now_ms,
            revision: Revision(self.revision),
            seed: 7 * self.revision + 1,
        }
    }

    pub fn mutate_raw(&mut self, name: &str, args: &str) -> Result<Evaluated, CallError> {
        self.revision += 1;
        self.now_ms += 1;
        let (view, stamp) = (Arc::new(self.view.clone()), self.stamp());
        let done = self
            .isolate
            .mutate(name, args, view, stamp, &self.deadline)?;
        self.view.apply(&done.patch.clone().unwrap().seal());
        let wrong = crate::derived::check(&self.view, &self.deployment);
        assert_eq!(wrong, Vec::<String>::new(), "after {name}({args})");
        Ok(done)
    }

    pub fn query_raw(&mut self, name: &str, args: &str) -> Result<Evaluated, CallError> {
        let (view, stamp) = (Arc::new(self.view.clone()), self.stamp());
        self.isolate.query(name, args, view, stamp, &self.deadline)
    }

    pub fn mutate(&mut self, name: &str, args: Value) -> Value {
        let done = self.mutate_raw(name, &args.to_string()).unwrap();
        serde_json::from_str(&done.result).unwrap()
    }

    pub fn query(&mut self, name: &str, args: Value) -> Value {
        let done = self.query_raw(name, &args.to_string()).unwrap();
        serde_json::from_str(&done.result).unwrap()
    }

    /// The result of `f()`.
    pub fn f(&mut self) -> Value {
        self.mutate("f", Value::Object(Default::default()))
    }

    /// The problem of a mutation that fails, with what it threw in the detail.
    pub fn fails(&mut self, name: &str, args: Value) -> Problem {
        let result = self.mutate_raw(name, &args.to_string());
        self.with_thrown(problem(result))
    }

    /// The problem of a query that fails, with what it threw in the detail.
    pub fn query_fails(&mut self, name: &str, args: Value) -> Problem {
        let result = self.query_raw(name, &args.to_string());
        self.with_thrown(problem(result))
    }

    fn with_thrown(&self, mut problem: Problem) -> Problem {
        if let Some(thrown) = self.isolate.thrown() {
            assert_eq!(problem.code, "internal");
            assert!(
                problem.detail.contains("the node's log says why"),
                "hidden from clients"
            );
            problem.detail = thrown.to_owned();
        }
        problem
    }
}

pub(super) fn problem(result: Result<Evaluated, CallError>) -> Problem {
    match result.expect_err("must fail") {
        CallError::Refused(problem) | CallError::Fault(problem) => problem,
        CallError::Storage(error) => panic!("{error}"),
    }
}
