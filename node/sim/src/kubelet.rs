//! What Kubernetes does about the objects: pods follow the StatefulSet, processes follow pods,
//! volumes follow claims. Level-based, like the real one; called every few milliseconds.

use std::time::Duration;

use flower_operator::names::Ordinal;

use crate::{
    kube::{Claim, Kube, Objects, Pod},
    node::Exit,
    operator::host,
    plan::NODES_MAX,
    world::World,
};

/// A process that is asked to stop is killed after this.
const GRACE: Duration = Duration::from_secs(30);
/// A process that ended is started again after this.
const BACKOFF: Duration = Duration::from_secs(1);

/// One turn. Tells of the processes that ended by themselves, and how.
pub fn turn(world: &mut World, kube: &Kube) -> Vec<(String, Exit)> {
    let mut objects = kube.objects();
    let mut exits = Vec::new();
    for ordinal in 0..NODES_MAX {
        let name = host(ordinal);
        if let Some(exit) = world.registry.take_exit(&name) {
            world.crash(&name, false);
            if let Some(pod) = objects.pods.get_mut(&ordinal) {
                pod.due = Some(world.elapsed() + BACKOFF);
            }
            exits.push((name, exit));
        }
        let wanted = objects.set_replicas.unwrap_or(0) > ordinal;
        if objects.pods.contains_key(&ordinal) {
            follow(world, &mut objects, ordinal, wanted);
        } else {
            make(world, &mut objects, ordinal, wanted);
        }
    }
    exits
}

/// A pod that exists: its process runs, or is on its way out.
fn follow(world: &mut World, objects: &mut Objects, ordinal: Ordinal, wanted: bool) {
    let name = host(ordinal);
    let now = world.elapsed();
    let up = world.places[&name].up;
    let Some(pod) = objects.pods.get_mut(&ordinal) else {
        return;
    };
    pod.terminating |= !wanted;
    if !pod.terminating {
        if !up && pod.due.is_none_or(|due| due <= now) {
            pod.due = None;
            world.start(&name);
        }
        return;
    }
    if !up {
        objects.pods.remove(&ordinal);
        return;
    }
    match (pod.due, world.registry.live(&name)) {
        (Some(due), _) if due <= now => {
            world.crash(&name, false);
            objects.pods.remove(&ordinal);
        }
        (None, Some(live)) => {
            live.stop();
            pod.due = Some(now + GRACE);
        }
        (None, None) => pod.due = Some(now + GRACE),
        _ => {}
    }
}

/// An ordinal without a pod: its claim goes if it was deleted; claim and pod are made when
/// they are wanted.
fn make(world: &mut World, objects: &mut Objects, ordinal: Ordinal, wanted: bool) {
    let name = host(ordinal);
    if objects
        .claims
        .get(&ordinal)
        .is_some_and(|claim| claim.terminating)
    {
        objects.claims.remove(&ordinal);
        world.wipe(&name);
        return;
    }
    if !wanted {
        return;
    }
    if !objects.claims.contains_key(&ordinal) {
        let uid = objects.uid();
        let claim = Claim {
            uid,
            terminating: false,
        };
        objects.claims.insert(ordinal, claim);
    }
    let pod = Pod {
        uid: objects.uid(),
        template: objects.template,
        ..Pod::default()
    };
    objects.pods.insert(ordinal, pod);
    world.start(&name);
}

/// The process of a pod starts again at `due`, not earlier: its host is away.
pub fn delay(kube: &Kube, ordinal: Ordinal, due: Duration) {
    if let Some(pod) = kube.objects().pods.get_mut(&ordinal)
        && !pod.terminating
    {
        pod.due = Some(due);
    }
}
