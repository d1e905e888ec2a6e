//! A bundle on this side: read from its file, looked into, and what its deployment did.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use flower_api::{
    admin::{Deployed, Fence},
    limits,
    manifest::Manifest,
};
use flower_engine::js;

use crate::config::CallLimits;

/// A person's fence: of no FlowerCluster, against no configuration.
pub(crate) fn by_hand() -> Fence {
    Fence {
        configuration: None,
        uid: String::new(),
        generation: 0,
        adopt: false,
    }
}

/// The text of a bundle.
pub(crate) fn read(app: &Path) -> Result<String, String> {
    let bad = |why: String| format!("{} cannot be deployed: {why}", app.display());
    let size = std::fs::metadata(app)
        .map_err(|e| bad(e.to_string()))?
        .len();
    // The node's own bound may be lower, and it says so; this keeps a wrong file out of memory.
    let most = 2 * limits::BUNDLE_BYTES;
    if size > most {
        return Err(bad(format!(
            "it has {size} bytes, and no bundle has more than {most}"
        )));
    }
    std::fs::read_to_string(app).map_err(|e| bad(e.to_string()))
}

/// What a bundle declares. It was accepted by the node, so it ends by itself.
pub(crate) fn manifest(source: &str, limits: &CallLimits) -> Option<Manifest> {
    let deadline = js::Deadline::new(Arc::new(AtomicBool::new(false)));
    js::inspect(source, &limits.engine(), &deadline).ok()
}

/// What a deployment did, for people.
pub(crate) fn describe(deployed: &Deployed) -> String {
    let hash: String = deployed.hash.chars().take(12).collect();
    if !deployed.changed {
        return format!("{hash} was active already; nothing changed");
    }
    let mut text = format!("{hash} is active");
    for change in &deployed.changes {
        text += &format!("\n  {change}");
    }
    text
}
