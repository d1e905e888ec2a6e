//! Runs a deployment: the bundle is inspected on a worker, away from the lane, and becomes
//! active through it, in order with the mutations. What a deployment may change is decided in
//! the engine.

use std::sync::Arc;

use flower_api::{
    admin::{Deploy, Deployed},
    wire::{Problem, code},
};
use flower_engine::lane::{Reply, Work};

use crate::{
    env::Mono,
    prepare::bad_bundle,
    service::Service,
    workers::{Isolates, Purpose},
};

impl Service {
    /// Makes a bundle the active application.
    ///
    /// # Errors
    /// `too-large`, `bad-bundle`, `app-managed`, `stale-spec`, `not-leader`, `timeout`.
    pub async fn deploy(&self, call: Deploy, deadline: Mono) -> Result<Deployed, Box<Problem>> {
        let limit = self.settings.bundle_bytes;
        if call.source.len() as u64 > limit {
            return Err(Box::new(
                Problem::new(
                    413,
                    code::TOO_LARGE,
                    "Too large",
                    format!(
                        "the bundle has {} bytes; at most {limit} are taken",
                        call.source.len()
                    ),
                )
                .setting("FLOWER_LIMIT_BUNDLE"),
            ));
        }
        self.act_for(&call.fence, deadline).await?;
        let source: Arc<str> = call.source.into();
        let inspected = source.clone();
        let inspect =
            move |isolates: &mut Isolates, deadline: &_| isolates.inspect(&inspected, deadline);
        let manifest = self
            .workers
            .run(Purpose::Query, None, deadline, inspect)
            .await?
            .map_err(|why| Box::new(bad_bundle(&why.problems.join("; "))))?;
        let work = Work::Deploy {
            source,
            manifest: Arc::new(manifest),
            managed_by: call.managed_by,
        };
        match self.router.lead(work, deadline).await? {
            Reply::Deployed {
                hash,
                changed,
                changes,
            } => {
                tracing::info!(hash, changed, "deployed");
                Ok(Deployed {
                    hash,
                    changed,
                    changes,
                })
            }
            other => Err(Box::new(Problem::new(
                500,
                code::INTERNAL,
                "Internal error",
                format!("the lane gave another answer than a deployment's: {other:?}"),
            ))),
        }
    }
}
