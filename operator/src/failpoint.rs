//! Named points between effects at which tests end the process, to show that the next pass
//! resumes from what it observes. Without the environment variable they do nothing.

use std::sync::OnceLock;

/// Names the point at which the process ends.
pub const VARIABLE: &str = "FLOWER_OPERATOR_FAILPOINT";
/// Exit code of an end at a failpoint.
pub const EXIT_CODE: i32 = 86;

/// Every point. Each is reached directly after the effect it is named after.
pub const NAMES: [&str; 11] = [
    "status-save",
    "bootstrap",
    "add",
    "promote",
    "formed",
    "transfer",
    "remove",
    "scale",
    "claim",
    "restart",
    "deploy",
];

/// Ends the process if this is the chosen point.
pub fn reach(name: &'static str) {
    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    debug_assert!(NAMES.contains(&name));
    let chosen = CHOSEN.get_or_init(|| std::env::var(VARIABLE).ok());
    if chosen.as_deref() == Some(name) {
        tracing::error!(failpoint = name, "ending the process at a failpoint");
        std::process::exit(EXIT_CODE);
    }
}

/// Refuses a name that no point has: a test that waits for it would wait for ever.
///
/// # Errors
/// The name and the ones that exist.
pub fn check() -> Result<(), String> {
    match std::env::var(VARIABLE) {
        Ok(name) if !NAMES.contains(&name.as_str()) => Err(format!(
            "{VARIABLE}='{name}' names no failpoint; there are: {}",
            NAMES.join(", ")
        )),
        _ => Ok(()),
    }
}
