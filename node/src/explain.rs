//! Explanations: a stored cell, and a query evaluated past the cache. Both on a worker, since
//! they read the disk. What is said of them is the engine's.

use std::sync::Arc;

use flower_api::{
    Revision,
    explain::{AskCell, AskQuery, Budget, CellExplained, QueryExplained, class},
    wire::{Problem, code},
};
use flower_engine::{
    CallError, Cost, Deployment, Limits, ReadSet, View, deploy, explain, limits::setting,
};
use flower_store::StateView;

use crate::{
    env::Mono,
    prepare::no_application,
    read::{read_stamp, unreadable},
    service::Service,
    workers::{Call, Isolates, Purpose},
};

fn malformed(detail: String) -> Box<Problem> {
    let title = "Malformed request";
    Box::new(Problem::new(400, code::MALFORMED, title, detail))
}

impl Service {
    /// Says where a cell's value comes from.
    ///
    /// # Errors
    /// As a read of its class; `no-application`; `malformed` for an unknown derived value and
    /// a key that does not fit.
    pub async fn explain_cell(
        &self,
        ask: AskCell,
        deadline: Mono,
    ) -> Result<CellExplained, Box<Problem>> {
        let view = self.explained_view(ask.read.as_deref(), deadline).await?;
        let work = move |_: &mut Isolates, _: &_| {
            let revision = view.revision();
            let found = deploy::current(&*view)?;
            let explained = found.map(|d| explain::cell(&*view, &d, revision, &ask.name, &ask.key));
            explained.transpose()
        };
        let explained = self
            .workers
            .run(Purpose::Query, None, deadline, work)
            .await?;
        match explained.map_err(|e| unreadable(&self.env.tasks, &e))? {
            None => Err(Box::new(no_application())),
            Some(Err(why)) => Err(malformed(why)),
            Some(Ok(explained)) => Ok(explained),
        }
    }

    /// Evaluates a query and says what it read and used.
    ///
    /// # Errors
    /// As a read of its class; `no-application`. What the query itself ends with is in the
    /// answer.
    pub async fn explain_query(
        &self,
        ask: AskQuery,
        deadline: Mono,
    ) -> Result<QueryExplained, Box<Problem>> {
        let view = self.explained_view(ask.read.as_deref(), deadline).await?;
        let found = deploy::current(&*view).map_err(|e| unreadable(&self.env.tasks, &e))?;
        let deployment = found.ok_or_else(|| Box::new(no_application()))?;
        let revision = view.revision();
        let stamp = read_stamp(&self.env, "explain", revision);
        let (hash, clock) = (deployment.hash.clone(), self.env.clock.clone());
        let work = move |isolates: &mut Isolates, deadline: &_| {
            // The application is loaded before the clock is looked at.
            isolates.warm(&*view, &hash)?;
            let begun = clock.mono();
            let args = ask.args.to_string();
            let call = Call {
                hash: &hash,
                purpose: Purpose::Query,
                name: &ask.name,
                args: &args,
                view: view.clone() as Arc<dyn View>,
                stamp,
            };
            let ended = isolates.evaluate(call, deadline);
            let micros = (clock.mono() - begun).as_micros() as u64;
            let ended = match ended {
                Ok(done) => Ok((done.result.len() as u64, done.cost, done.reads)),
                Err(CallError::Storage(error)) => return Err(CallError::Storage(error)),
                Err(CallError::Refused(problem) | CallError::Fault(problem)) => {
                    Err((problem, isolates.take_failed_reads()))
                }
            };
            Ok((micros, ended))
        };
        let bundle = deployment.hash.clone();
        let ran = self
            .workers
            .run(Purpose::Query, Some(&bundle), deadline, work)
            .await?;
        let (micros, ended) = match ran {
            Ok(ran) => ran,
            Err(CallError::Storage(error)) => return Err(unreadable(&self.env.tasks, &error)),
            Err(CallError::Refused(problem) | CallError::Fault(problem)) => {
                return Err(Box::new(problem));
            }
        };
        Ok(told(
            &deployment,
            revision,
            micros,
            ended,
            self.workers.limits(),
        ))
    }

    async fn explained_view(
        &self,
        read: Option<&str>,
        deadline: Mono,
    ) -> Result<Arc<StateView>, Box<Problem>> {
        let class = class(read).map_err(malformed)?;
        self.reader.view(class, deadline).await
    }
}

type Ended = Result<(u64, Cost, ReadSet), (Problem, Option<ReadSet>)>;

fn told(
    deployment: &Deployment,
    revision: Revision,
    micros: u64,
    ended: Ended,
    limits: &Limits,
) -> QueryExplained {
    let (result_bytes, problem, budgets, reads) = match ended {
        Ok((bytes, cost, reads)) => {
            let budgets = budgets(&cost, micros, bytes, limits);
            (Some(bytes), None, budgets, reads)
        }
        Err((problem, reads)) => (None, Some(problem), Vec::new(), reads.unwrap_or_default()),
    };
    let (listed, more_reads) = explain::reads(deployment, &reads);
    QueryExplained {
        revision,
        result_bytes,
        problem,
        micros,
        budgets,
        volatile: reads.clock,
        reads: listed,
        more_reads,
    }
}

fn budgets(cost: &Cost, micros: u64, result: u64, limits: &Limits) -> Vec<Budget> {
    let all = [
        (
            "rows and index entries read",
            cost.rows_read,
            limits.rows_read,
            setting::ROWS_READ,
        ),
        (
            "bytes read",
            cost.bytes_read,
            limits.bytes_read,
            setting::BYTES_READ,
        ),
        ("ranges opened", cost.ranges, limits.ranges, setting::RANGES),
        (
            "derived values evaluated",
            cost.cells,
            limits.cells,
            setting::CELLS,
        ),
        ("gas", cost.gas, limits.gas, setting::GAS),
        (
            "bytes of the result",
            result,
            limits.result_bytes,
            setting::RESULT,
        ),
        (
            "milliseconds",
            micros.div_ceil(1_000),
            limits.wall_ms,
            setting::WALL_MS,
        ),
    ];
    let budget = |(what, used, limit, setting): (&str, u64, u64, &str)| Budget {
        what: what.to_owned(),
        used,
        limit,
        setting: setting.to_owned(),
    };
    all.map(budget).into()
}
