//! Runs the steps of an import: the bundle is inspected on a worker, and everything is written
//! through the lane. What a step writes is decided where works are prepared.

use std::sync::Arc;

use flower_api::{
    admin,
    export::{self, Bundle, Header, Import, Imported, Line, Step},
    manifest::Manifest,
    wire::Problem,
};
use flower_engine::{
    import::{Mark, is_empty},
    lane::{self, Reply, Work},
};

use crate::{
    env::Mono,
    prepare::{LAST_REVISION, bad_bundle, not_empty},
    read::unreadable,
    route::another_answer,
    service::Service,
    workers::Isolates,
};

impl Service {
    /// Does a step of an import; `lines` are those of the export that belong to it.
    ///
    /// # Errors
    /// `bad-export`, `not-empty`, `importing`, `import-position`, `bad-bundle`, `app-managed`,
    /// `stale-spec`, `storage-full`, `not-leader`, `timeout`; `budget` when derived values were
    /// too much for one step.
    pub async fn import(
        &self,
        call: Import,
        lines: Arc<str>,
        deadline: Mono,
    ) -> Result<Imported, Box<Problem>> {
        if let Some(problem) = self.storage_full() {
            return Err(Box::new(problem));
        }
        self.act_for(&call.fence, deadline).await?;
        let manifest = match &call.step {
            Step::Begin(header) => self.look_into(header, &lines, deadline).await?,
            _ => None,
        };
        let work = Work::Import(lane::Import {
            import: call.import,
            step: call.step,
            lines,
            manifest: manifest.map(Arc::new),
        });
        match self.router.lead(work, deadline).await? {
            Reply::Imported(imported) => {
                if imported.finished {
                    tracing::info!(rows = imported.written.rows, "an import is done");
                }
                Ok(imported)
            }
            other => Err(another_answer("an import's", &other)),
        }
    }

    /// What the export's application declares. Also sees to it that a refused import leaves
    /// the revisions as they are.
    async fn look_into(
        &self,
        header: &Header,
        lines: &Arc<str>,
        deadline: Mono,
    ) -> Result<Option<Manifest>, Box<Problem>> {
        if header.format != export::FORMAT || header.revision > LAST_REVISION {
            return Err(refused(&format!(
                "it has format {} and revision {}; this version reads format {} and revisions \
                 up to {LAST_REVISION}",
                header.format,
                header.revision,
                export::FORMAT
            )));
        }
        let view = self.consensus.view();
        let room = is_empty(&*view).and_then(|empty| Ok(empty || Mark::read(&*view)?.is_some()));
        if !room.map_err(|error| unreadable(&self.env.tasks, &error))? {
            return Err(Box::new(not_empty()));
        }
        if lines.is_empty() {
            return Ok(None);
        }
        let line: Result<Line, _> = serde_json::from_str(lines);
        let bundle = match line {
            Ok(Line::Bundle(Bundle { source, .. })) => source,
            Ok(_) => return Err(refused("the bundle is missing")),
            Err(why) => return Err(refused(&format!("the bundle: {why}"))),
        };
        let inspect =
            move |isolates: &mut Isolates, deadline: &_| isolates.inspect(&bundle, deadline);
        let inspected = self.workers.load(deadline, inspect).await?;
        inspected
            .map(Some)
            .map_err(|why| Box::new(bad_bundle(&why.problems.join("; "))))
    }
}

fn refused(why: &str) -> Box<Problem> {
    let title = "The export is refused";
    let detail = format!("{why}; nothing is written");
    let problem = Problem::new(422, admin::code::BAD_EXPORT, title, detail);
    Box::new(problem)
}
