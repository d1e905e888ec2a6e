//! A build: what a deployment has made over the rows that exist so far, and what is left. A
//! record like any other, so that it survives whoever leads. Formats only; no decisions.

use std::collections::VecDeque;

use bytes::Bytes;
use flower_api::Revision;
use serde::{Deserialize, Serialize};

use super::{record::damaged, walk::Stretch};
use crate::{
    derived::Generation,
    error::ViewError,
    key::{Space, meta},
    view::View,
};

/// An index that the deployment adds to a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewIndex {
    pub table: String,
    /// Its stored name.
    pub physical: String,
    pub on: Vec<String>,
}

/// What is walked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Step {
    /// The rows of a table, for its new indexes.
    Indexes { table: String },
    /// The rows of a table, for the derived values that are stored for each of them.
    Each { table: String },
    /// The cells of an `always` derived value of the application that runs.
    Always { name: String },
}

/// See the module's comment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// Of the bundle that is to become active.
    pub hash: String,
    /// Revision that began it.
    pub since: Revision,
    /// Who manages the application once it is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// What the deployment changes, a line each, for people.
    pub changes: Vec<String>,
    /// Rows and cells walked.
    pub done: u64,
    /// How many there are to walk, estimated when it began.
    pub total: u64,
    /// The new cells.
    pub(crate) generation: Generation,
    /// Kept up to date by the mutations of the application that runs.
    pub(crate) indexes: Vec<NewIndex>,
    /// What is left, in order.
    pub(crate) steps: VecDeque<Step>,
    /// The last key of the first step that is done, hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<String>,
    /// Cells are built: mutations note what they write, so that a later page follows.
    #[serde(default)]
    pub(crate) logging: bool,
    /// Tables that must still be empty when it becomes active, and what needs that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) empty: Vec<(String, String)>,
    /// Why it cannot succeed any more, when a mutation found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
}

impl Build {
    /// Whether everything has been walked.
    pub(crate) fn is_walked(&self) -> bool {
        self.steps.is_empty()
    }

    /// The key after which the first step goes on; empty at its beginning.
    pub(crate) fn after(&self) -> Vec<u8> {
        let hex = self.after.as_deref().unwrap_or_default();
        hex::decode(hex).unwrap_or_default()
    }

    /// The first step has walked a stretch. Answers how many of it were wanted.
    pub(crate) fn walked(&mut self, stretch: &Stretch) -> u64 {
        let more = stretch.found.len() as u64;
        if let Some(last) = &stretch.last {
            self.after = Some(hex::encode(last));
            self.done += more;
        }
        if stretch.end {
            self.steps.pop_front();
            self.after = None;
        }
        more
    }

    pub(crate) fn encode(&self) -> Bytes {
        // These types always have a JSON form.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// A build that failed: shown until another deployment is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedBuild {
    /// Of the bundle.
    pub hash: String,
    /// Revision that had begun the build.
    pub since: Revision,
    /// Revision at which it failed.
    pub revision: Revision,
    /// Why, for people.
    pub why: String,
}

/// The build that is under way.
///
/// # Errors
/// When the state cannot be read.
pub fn pending(view: &dyn View) -> Result<Option<Build>, ViewError> {
    read(view, meta::BUILD, "the record of a build")
}

/// The last build, when it failed.
///
/// # Errors
/// When the state cannot be read.
pub fn failed(view: &dyn View) -> Result<Option<FailedBuild>, ViewError> {
    read(view, meta::BUILD_FAILED, "the record of a failed build")
}

fn read<T: for<'a> Deserialize<'a>>(
    view: &dyn View,
    key: &[u8],
    what: &str,
) -> Result<Option<T>, ViewError> {
    let Some(value) = view.get(Space::Meta, key)? else {
        return Ok(None);
    };
    let found = serde_json::from_slice(&value).map_err(|e| damaged(what, e))?;
    Ok(Some(found))
}
