//! The two errors of storage: [`Fatal`] (the node stops; the only error of writers) and
//! [`OpenError`] (a file is not taken into use). Their texts are for people.

use std::{fmt::Display, io};

use crate::disk::FileName;

/// A read or write of a file failed; nothing more may be done with it. The node stops: a
/// restart takes up from what is durable, or finds the directory broken.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Fatal(String);

impl Fatal {
    /// A failure with `file` while doing `what` ("applying entry 7").
    pub(crate) fn with(file: FileName, what: impl Display, cause: impl Display) -> Self {
        let cause = cause.to_string();
        let advice = if cause.contains("os error 28") || cause.contains("No space left") {
            "The volume is full: enlarge it or free space on it, then start the node again"
        } else {
            "The node stops; nothing that it acknowledged is lost while a majority of the group lives"
        };
        Self(format!("{file}: {what} failed: {cause}. {advice}"))
    }

    /// For failures that are not of one file.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Why a file was not taken into use. It is left as it was.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// Written by another version of the program.
    #[error(
        "{file} has format {found}; this version knows only format {known}. The file is left \
         untouched: start it with the version that wrote it"
    )]
    UnknownFormat {
        /// The file.
        file: FileName,
        /// Its format.
        found: u64,
        /// The format of this program.
        known: u64,
    },
    /// The bytes are not what this program writes.
    #[error("{file} cannot be read: {why}. Its data must be taken for lost: replace the member")]
    Damaged {
        /// The file.
        file: FileName,
        /// What is wrong with it.
        why: String,
    },
    /// The directory is not for this node.
    #[error("{0}")]
    Refused(String),
    /// The disk failed.
    #[error("{file} cannot be opened: {why}")]
    Io {
        /// The file.
        file: FileName,
        /// The system's error.
        why: String,
    },
}

impl OpenError {
    pub(crate) fn io(file: FileName, error: &io::Error) -> Self {
        Self::Io {
            file,
            why: error.to_string(),
        }
    }

    pub(crate) fn damaged(file: FileName, why: impl Display) -> Self {
        Self::Damaged {
            file,
            why: why.to_string(),
        }
    }

    /// Tells a failing disk from bad bytes.
    pub(crate) fn from_redb(file: FileName, error: redb::Error) -> Self {
        match error {
            redb::Error::Io(e)
                if !matches!(
                    e.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Self::io(file, &e)
            }
            other => Self::damaged(file, other),
        }
    }
}
