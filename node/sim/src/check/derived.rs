//! The stored graph of derived values: reader records are exactly the reverse of what cells
//! read, and no cell is missing or left over. (What cells hold is compared by `lists`.)

use flower_engine::{View, deploy, derived};

/// The first thing that does not hold of the cells in `view`.
pub fn judge(view: &dyn View) -> Option<String> {
    let wrong = match deploy::active(view) {
        Ok(None) => return None,
        Ok(Some((hash, ..))) => match deploy::load(view, &hash) {
            Ok(Some(deployment)) => derived::check(view, &deployment),
            Ok(None) => vec![format!("deployment {hash} is active and not there")],
            Err(error) => vec![error.to_string()],
        },
        Err(error) => vec![error.to_string()],
    };
    wrong.into_iter().next()
}
