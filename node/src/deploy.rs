//! Runs a deployment: the bundle is inspected on a worker, away from the lane, and becomes
//! active through it, in order with the mutations. What a deployment may change is decided in
//! the engine.

use std::{sync::Arc, time::Duration};

use flower_api::{
    admin::{self, ActiveDeployment, Deploy, Deployed},
    report::{BuildInfo, FailedBuildInfo},
    wire::{Problem, code},
};
use flower_engine::{
    View, ViewError, deploy,
    lane::{Reply, Work},
};

use crate::{
    env::Mono, prepare::bad_bundle, read::unreadable, route::another_answer, service::Service,
    workers::Isolates,
};

/// How long a call waits for a build before it answers with the progress.
const BUILD_WAIT: Duration = Duration::from_secs(5);
/// Between two looks at a build.
const LOOK_EVERY: Duration = Duration::from_millis(20);

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
            let (build, failed_build) = builds(&*view)?;
            Ok(loaded.map(|loaded| ActiveDeployment {
                hash,
                revision,
                managed_by,
                manifest: loaded.manifest.clone(),
                build,
                failed_build,
            }))
        };
        read().map_err(|error: ViewError| unreadable(&self.env.tasks, &error))
    }

    /// Makes a bundle the active application: at once, or when its indexes and derived values
    /// are built over the rows that exist, for which this waits a while.
    ///
    /// # Errors
    /// `too-large`, `bad-bundle`, `app-managed`, `stale-spec`, `not-leader`, `timeout`;
    /// `building` when it is not active yet.
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
                building,
            } => {
                let deployed = Deployed {
                    hash,
                    changed,
                    changes,
                };
                if building {
                    self.builder.wake();
                    self.built(&deployed, deadline).await?;
                }
                tracing::info!(hash = deployed.hash, changed, "deployed");
                Ok(deployed)
            }
            other => Err(another_answer("a deployment's", &other)),
        }
    }

    /// Waits until the bundle is active.
    async fn built(&self, deployed: &Deployed, deadline: Mono) -> Result<(), Box<Problem>> {
        let hash = &deployed.hash[..];
        let deadline = deadline.min(self.env.clock.mono() + BUILD_WAIT);
        loop {
            let stand = stand(&*self.consensus.view(), hash);
            let build = match stand.map_err(|error| unreadable(&self.env.tasks, &error))? {
                Stand::Active => return Ok(()),
                Stand::Failed(why) => return Err(Box::new(bad_bundle(&why))),
                Stand::Gone => return Err(Box::new(replaced(hash))),
                Stand::Building(build) => build,
            };
            let next = self.env.clock.mono() + LOOK_EVERY;
            if next >= deadline {
                return Err(Box::new(still_built(&build, deployed)));
            }
            self.env.clock.sleep_until(next).await;
        }
    }
}

/// What became of a deployment that had to be built.
enum Stand {
    Active,
    Building(BuildInfo),
    Failed(String),
    /// Another deployment took its place.
    Gone,
}

fn stand(view: &dyn View, hash: &str) -> Result<Stand, ViewError> {
    if deploy::active(view)?.is_some_and(|(active, ..)| active == hash) {
        return Ok(Stand::Active);
    }
    Ok(match builds(view)? {
        (Some(build), _) if build.hash == hash => Stand::Building(build),
        (_, Some(failed)) if failed.hash == hash => Stand::Failed(failed.why),
        _ => Stand::Gone,
    })
}

/// The build that is under way, and the last one if it failed.
pub(crate) fn builds(
    view: &dyn View,
) -> Result<(Option<BuildInfo>, Option<FailedBuildInfo>), ViewError> {
    let build = deploy::pending(view)?.map(|build| BuildInfo {
        hash: build.hash,
        since: build.since,
        done: build.done,
        total: build.total,
    });
    let failed = deploy::failed(view)?.map(|failed| FailedBuildInfo {
        hash: failed.hash,
        revision: failed.revision,
        why: failed.why,
    });
    Ok((build, failed))
}

/// Carries the answer that whoever waits will want in the end.
fn still_built(build: &BuildInfo, deployed: &Deployed) -> Problem {
    let detail = format!(
        "{build}; it becomes active when that is done, and what runs serves meanwhile. Deploy \
         the same again to wait for it, or look with `flower status`"
    );
    let title = "The deployment is being built";
    let mut problem = Problem::new(503, admin::code::BUILDING, title, detail).retryable();
    problem.data = serde_json::to_value(deployed).ok();
    problem
}

fn replaced(hash: &str) -> Problem {
    let hash = hash.get(..12).unwrap_or(hash);
    let detail = format!("another deployment took the place of {hash} while that was built");
    Problem::new(409, admin::code::BAD_BUNDLE, "Replaced", detail)
}
