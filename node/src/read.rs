//! Queries: brings the view up to the class that was asked for, then evaluates on a worker.
//! Writes nothing, and never asks for more freshness than the class says.

use std::sync::Arc;

use flower_api::{
    Revision,
    wire::{Problem, ReadClass, code},
};
use flower_engine::{CallError, Stamp, View, ViewError, deploy};
use flower_store::StateView;
use rand::RngCore;

use crate::{
    consensus::Consensus,
    env::{Env, Fatal, Mono},
    prepare::no_application,
    workers::{Call, Purpose, Workers},
};

/// Answers queries. Cheap to clone.
#[derive(Clone)]
pub struct Reader {
    env: Env,
    consensus: Consensus,
    workers: Workers,
}

/// An answered query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The result, JSON.
    pub result: String,
    /// The revision that it reflects.
    pub revision: Revision,
    /// Hash of the deployment that ran.
    pub deployment: String,
}

impl Reader {
    /// A reader.
    pub fn new(env: &Env, consensus: &Consensus, workers: &Workers) -> Self {
        Self {
            env: env.clone(),
            consensus: consensus.clone(),
            workers: workers.clone(),
        }
    }

    /// A view as fresh as `class` asks.
    ///
    /// # Errors
    /// `not-ready` before the log is applied again after a start, `timeout` or `no-quorum`
    /// when the class cannot be served before the deadline.
    pub async fn view(
        &self,
        class: ReadClass,
        deadline: Mono,
    ) -> Result<Arc<StateView>, Box<Problem>> {
        let mut recovered = self.consensus.recovered();
        let recovery = recovered.wait_for(|recovered| *recovered);
        if !matches!(self.env.until(deadline, recovery).await, Some(Ok(_))) {
            return Err(Box::new(not_recovered()));
        }
        match class {
            ReadClass::Local => {}
            ReadClass::Session { min } => {
                if !self.consensus.wait_revision(min, deadline).await {
                    return Err(Box::new(behind(min)));
                }
            }
            ReadClass::Fresh => {
                let fence = self.consensus.fence(deadline).await;
                let index = fence.map_err(|why| Box::new(no_fence(&why.to_string())))?;
                if !self.consensus.wait_applied(index, deadline).await {
                    return Err(Box::new(no_fence("this node is too far behind the leader")));
                }
            }
        }
        Ok(self.consensus.view())
    }

    /// Runs a query.
    ///
    /// # Errors
    /// As [`Reader::view`]; `no-application`; as the application refuses.
    pub async fn query(
        &self,
        name: String,
        args: String,
        class: ReadClass,
        deadline: Mono,
    ) -> Result<Answer, Box<Problem>> {
        let view = self.view(class, deadline).await?;
        let revision = view.revision();
        let active = deploy::active(&*view).map_err(|e| self.unreadable(&e))?;
        let (hash, ..) = active.ok_or_else(|| Box::new(no_application()))?;
        let stamp = Stamp {
            now_ms: self.env.clock.wall_ms(),
            revision,
            seed: self
                .env
                .seeds
                .child(&format!("query {revision}"))
                .rng()
                .next_u64(),
        };
        let ran = hash.clone();
        let work = move |isolates: &mut crate::workers::Isolates, deadline: &_| {
            let call = Call {
                hash: &ran,
                purpose: Purpose::Query,
                name: &name,
                args: &args,
                view: view as Arc<dyn View>,
                stamp,
            };
            isolates.evaluate(call, deadline)
        };
        let evaluated = self
            .workers
            .run(Purpose::Query, Some(&hash), deadline, work)
            .await?;
        match evaluated {
            Ok(done) => Ok(Answer {
                result: done.result,
                revision,
                deployment: hash,
            }),
            Err(CallError::Refused(problem) | CallError::Fault(problem)) => {
                let mut problem = Box::<Problem>::from(problem);
                problem.revision = Some(revision);
                Err(problem)
            }
            Err(CallError::Storage(error)) => Err(self.unreadable(&error)),
        }
    }

    /// The state cannot be read: the node stops.
    fn unreadable(&self, error: &ViewError) -> Box<Problem> {
        self.env.tasks.fail(Fatal::new(error.to_string()));
        Box::new(Problem::new(
            500,
            code::INTERNAL,
            "Internal error",
            "this node cannot read its state and stops; ask another one",
        ))
    }
}

fn not_recovered() -> Problem {
    Problem::new(
        503,
        code::NOT_READY,
        "Not ready",
        "this node has not applied its log yet after a start; ask another one, or again soon",
    )
    .retryable()
}

fn behind(min: Revision) -> Problem {
    Problem::new(
        504,
        code::TIMEOUT,
        "Timeout",
        format!(
            "this node has not applied revision {min} before the deadline; ask another one, or \
             check that the revision is of this cluster"
        ),
    )
    .retryable()
}

fn no_fence(why: &str) -> Problem {
    Problem::new(
        503,
        code::NO_QUORUM,
        "No quorum",
        format!("a fresh read needs the leader and a majority: {why}"),
    )
    .retryable()
}
