//! Runs a deployment: the bundle is inspected on a worker, away from the lane, and becomes
//! active through it, in order with the mutations. What a deployment may change is decided in
//! the engine.

use std::sync::Arc;

use flower_api::{
    admin::{ActiveDeployment, Deploy, Deployed},
    wire::{Problem, code},
};
use flower_engine::{
    ViewError, deploy,
    lane::{Reply, Work},
};

use crate::{
    env::Mono, prepare::bad_bundle, read::unreadable, service::Service, workers::Isolates,
};

impl Service {
    /// The active deployment, as this node has applied it.
    ///
    /// # Errors
    /// `internal` when the state cannot be read; the node stops then.
    pub fn active_deployment(&self) -> Result<Option<ActiveDeployment>, Box<Problem>> {
        let view = self.consensus.view();
        let read = || {
            let Some((hash, revision, managed_by)) = deploy::active(&*view)? else {
                return Ok(None);
            };
            let loaded = deploy::load(&*view, &hash)?;
            Ok(loaded.map(|loaded| ActiveDeployment {
                hash,
                revision,
                managed_by,
                manifest: loaded.manifest.clone(),
            }))
        };
        read().map_err(|error: ViewError| unreadable(&self.env.tasks, &error))
    }

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
            .load(deadline, inspect)
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
