//! Runs an export: a task makes the lines of one view, page by page on the image lane, as fast
//! as whoever asked takes them. What the lines are is the engine's to say.

use std::{io, sync::Arc};

use bytes::Bytes;
use flower_api::wire::{Problem, ReadClass, code};
use flower_engine::{
    View, ViewError,
    export::{Exporter, Source},
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    env::{Env, Fatal, LaneId, Mono},
    service::Service,
};

/// Bytes of a page, about.
const PAGE_BYTES: usize = 64 << 10;
/// Pages made ahead of what was taken.
const AHEAD: usize = 2;

/// The pages of an export. One that ends without the line `end` is cut short.
pub type Pages = ReceiverStream<io::Result<Bytes>>;

impl Service {
    /// The lines of a view that is as fresh as `class` asks. The view is held until the last
    /// page is taken.
    ///
    /// # Errors
    /// As a read of this class; `overloaded` while another export is under way here.
    pub async fn export(
        &self,
        cells: bool,
        class: ReadClass,
        deadline: Mono,
    ) -> Result<Pages, Box<Problem>> {
        let turn = self.exporting.clone().try_acquire_owned();
        let turn = turn.map_err(|_| Box::new(busy()))?;
        let view = self.reader.view(class, deadline).await?;
        let identity = self.identity();
        let source = Source {
            cluster: identity.cluster,
            group: identity.group,
            program: identity.version,
            revision: view.revision(),
            cells,
        };
        tracing::info!(revision = %source.revision, cells, "an export begins");
        let exporter = Exporter::new(view as Arc<dyn View>, source);
        let (give, pages) = mpsc::channel(AHEAD);
        let making = make(self.env.clone(), exporter, give, turn);
        self.env.tasks.spawn_brief("export", making);
        Ok(ReceiverStream::new(pages))
    }
}

async fn make(
    env: Env,
    mut exporter: Exporter,
    give: mpsc::Sender<io::Result<Bytes>>,
    _turn: OwnedSemaphorePermit,
) {
    loop {
        let work = move || {
            let page = exporter.page(PAGE_BYTES);
            (exporter, page)
        };
        let page: Result<Option<Bytes>, ViewError>;
        match env.run_on(LaneId::Image, work).await {
            Ok((back, made)) => (exporter, page) = (back, made),
            Err(gone) => {
                let _ = give.send(Err(io::Error::other(gone.to_string()))).await;
                return;
            }
        }
        let page = match page {
            Ok(Some(page)) => page,
            Ok(None) => return,
            Err(error) => {
                let _ = give.send(Err(io::Error::other(error.to_string()))).await;
                return env.tasks.fail(Fatal::new(error.to_string()));
            }
        };
        if page.is_empty() {
            continue;
        }
        let given = tokio::select! {
            biased;
            () = env.tasks.stopping() => return,
            given = give.send(Ok(page)) => given,
        };
        if given.is_err() {
            tracing::info!("an export is given up: whoever asked for it has gone");
            return;
        }
    }
}

fn busy() -> Problem {
    Problem::new(
        429,
        code::OVERLOADED,
        "Overloaded",
        "another export of this node is under way; wait for it, or ask another node",
    )
    .retryable()
}
