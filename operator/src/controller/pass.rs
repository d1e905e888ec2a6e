//! One pass, phase by phase. The only place that calls the phases; each is elsewhere.

use kube::{Api, ResourceExt};

use super::{
    act::{self, Acted, Stage},
    apply, build, observe,
    observed::Observed,
    plan::{self, Facts, Hold, Plan, Requeue, Step},
    raft_view::RaftView,
    status::{self, Inputs},
    validate::{self, Refusal, ValidatedCluster},
};
use crate::{
    conditions::Reason,
    context::Ctx,
    crd::{FlowerCluster, FlowerClusterStatus},
    error::Error,
};

/// How a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The object is gone or going; owner references clean up.
    Gone,
    /// The spec was refused: only a change of it helps.
    Refused,
    /// A step was made; look again at once.
    Stepped,
    /// Something is waited for.
    Waiting,
    /// As desired.
    Settled,
}

impl End {
    /// A word for metrics.
    pub fn outcome(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Stepped => "stepped",
            Self::Waiting => "waiting",
            Self::Settled => "settled",
        }
    }
}

/// Runs one pass over the object, which is read anew.
///
/// # Errors
/// When the API server refuses or does not answer, or a node answers nonsense.
pub async fn run(ctx: &Ctx, cached: &FlowerCluster) -> Result<End, Error> {
    let Some(object) = read(ctx, cached).await? else {
        return Ok(End::Gone);
    };
    let old = object.status.clone().unwrap_or_default();
    let cluster = match validate::validate(&object, &ctx.settings.default_image) {
        Ok(cluster) => cluster,
        Err(refusal) => return refuse(ctx, object, &old, refusal).await,
    };
    let mut observed = observe::observe(ctx, &cluster, old.clone()).await?;
    let cluster = keep_image(&object, cluster, &observed);
    if let Err(refusal) = validate::validate_against(&cluster, observed.statefulset.as_ref()) {
        return refuse(ctx, object, &old, refusal).await;
    }
    let template_hash = build::statefulset::template_hash(&cluster);
    let facts = Facts {
        cluster: &cluster,
        observed: &observed,
        template_hash: &template_hash,
    };
    let mut plan = plan::plan(facts);
    let view = RaftView::of(&cluster.name, cluster.group, &observed).ok();
    let refused = match plan.apply {
        true => write_objects(ctx, &cluster, &observed, view.as_ref(), &plan).await?,
        false => None,
    };
    if refused.is_some() {
        // No step rests on objects that are not there.
        plan.step = Step::None;
    }
    let stage = Stage {
        ctx,
        object: &object,
        cluster: &cluster,
        observed: &observed,
        view: view.as_ref(),
    };
    let acted = match &refused {
        Some((_, hold)) => Acted::Held(hold.clone()),
        None => {
            ctx.metrics
                .step(&plan.step, act::act(&stage, &plan))
                .await?
        }
    };
    let object = match &acted {
        Acted::Saved(saved) => {
            observed.status = saved.status.clone().unwrap_or_default();
            saved.as_ref().clone()
        }
        _ => object,
    };
    let inputs = Inputs {
        cluster: &cluster,
        observed: &observed,
        view: view.as_ref(),
        plan: &plan,
        acted: &acted,
        template_hash: &template_hash,
        now: (ctx.now)(),
    };
    let status = status::compute(&observed.status, &inputs);
    ctx.metrics.cluster(&cluster, &inputs);
    tell_hold(ctx, &object, &old, &status).await;
    save(ctx, object, status).await?;
    match refused {
        // Told; tried again after a backoff.
        Some((error, _)) => Err(error),
        None => Ok(end(&plan, &acted)),
    }
}

/// The object as it is now; nothing, and nothing kept of it, when it is gone or going.
async fn read(ctx: &Ctx, cached: &FlowerCluster) -> Result<Option<FlowerCluster>, Error> {
    let namespace = cached.namespace().ok_or(Error::Incomplete("a namespace"))?;
    let api: Api<FlowerCluster> = Api::namespaced(ctx.client.clone(), &namespace);
    let name = cached.name_any();
    let object = api.get_opt(&name).await.map_err(Error::kube(
        "reading",
        format!("FlowerCluster {namespace}/{name}"),
    ))?;
    let object = object.filter(|one| one.metadata.deletion_timestamp.is_none());
    if object.is_none() {
        ctx.forget(&cached.uid().unwrap_or_default());
        ctx.metrics.forget(&namespace, &name);
    }
    Ok(object)
}

/// With neither an image in the spec nor one in the status, what runs already decides: the
/// status may have been lost, and an upgrade of the operator must not restart a cluster.
fn keep_image(
    object: &FlowerCluster,
    mut cluster: ValidatedCluster,
    observed: &Observed,
) -> ValidatedCluster {
    let recorded = object
        .status
        .as_ref()
        .is_some_and(|status| status.image.is_some());
    if object.spec.image.is_none() && !recorded {
        let running = observed
            .statefulset
            .as_ref()
            .and_then(|set| set.spec.as_ref()?.template.spec.as_ref())
            .and_then(|pod| {
                pod.containers
                    .iter()
                    .find(|one| one.name == build::CONTAINER)
            })
            .and_then(|container| container.image.clone());
        if let Some(image) = running {
            cluster.image = image;
        }
    }
    cluster
}

/// Writes what differs. An object that the API server refuses is not an end: it is to be told,
/// and the rest of the cluster looked after.
async fn write_objects(
    ctx: &Ctx,
    cluster: &ValidatedCluster,
    observed: &Observed,
    view: Option<&RaftView>,
    plan: &Plan,
) -> Result<Option<(Error, Hold)>, Error> {
    // First what clients depend on: it must not wait for an object that is refused.
    if let Some(view) = view {
        apply::roles(ctx, cluster, observed, view).await?;
    }
    let manifests = build::build(cluster, plan.statefulset_replicas, observed.pod_monitors);
    if let Err(error) = apply::apply(ctx, cluster, observed, &manifests).await {
        return match error.refusal() {
            Some(why) => Ok(Some((error, Hold::new(Reason::ApplyRefused, why)))),
            None => Err(error),
        };
    }
    apply::prune(ctx, cluster, observed, &manifests).await?;
    apply::claim_owners(ctx, cluster, observed).await?;
    Ok(None)
}

async fn refuse(
    ctx: &Ctx,
    object: FlowerCluster,
    old: &FlowerClusterStatus,
    refusal: Refusal,
) -> Result<End, Error> {
    let generation = object.metadata.generation.unwrap_or_default();
    let status = status::refused(old, generation, &refusal, (ctx.now)());
    tell_hold(ctx, &object, old, &status).await;
    save(ctx, object, status).await?;
    Ok(End::Refused)
}

/// An event when the reason to wait is another than before.
async fn tell_hold(
    ctx: &Ctx,
    object: &FlowerCluster,
    old: &FlowerClusterStatus,
    new: &FlowerClusterStatus,
) {
    let plan = |status: &FlowerClusterStatus| status.plan.clone().unwrap_or_default();
    let (before, after) = (plan(old), plan(new));
    let message = after.message.unwrap_or_default();
    match (&before.hold, &after.hold) {
        (before, Some(after)) if before.as_ref() != Some(after) => {
            // Of the application, its condition is told below.
            let reason = Reason::parse(after).filter(|one| *one != Reason::BundleRefused);
            if let Some(reason) = reason {
                if reason.is_expected() {
                    ctx.events.normal(object, reason, &message).await;
                } else {
                    ctx.events.warning(object, reason, &message).await;
                }
            }
        }
        _ => {}
    }
    let app = |status: &FlowerClusterStatus| {
        let found = status
            .conditions
            .iter()
            .find(|one| one.type_ == "AppDeployed");
        found.map(|one| (one.status.clone(), one.reason.clone(), one.message.clone()))
    };
    if let Some((status, reason, message)) = app(new)
        && status == "False"
        && app(old).is_none_or(|(_, before, _)| before != reason)
        && let Some(reason) = Reason::parse(&reason)
        && ![Reason::Deploying, Reason::Building].contains(&reason)
    {
        ctx.events.warning(object, reason, &message).await;
    }
}

/// Writes the status when it differs from what was read.
async fn save(
    ctx: &Ctx,
    mut object: FlowerCluster,
    status: FlowerClusterStatus,
) -> Result<(), Error> {
    if object.status.as_ref() == Some(&status) {
        return Ok(());
    }
    object.status = Some(status);
    status::write(ctx, &object).await?;
    Ok(())
}

fn end(plan: &Plan, acted: &Acted) -> End {
    match (acted, plan.requeue) {
        (Acted::Held(_) | Acted::Stale(_), _) => End::Waiting,
        (Acted::Nothing, Requeue::Now) if plan.step != Step::None => End::Stepped,
        (Acted::Done | Acted::Saved(_), _) | (_, Requeue::Now) => End::Stepped,
        (_, Requeue::Soon) => End::Waiting,
        (_, Requeue::Later) => End::Settled,
    }
}
