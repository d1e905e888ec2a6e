//! The host's own files (`/proc`, `/sys/fs/cgroup`, mounted Secrets), read below a root that
//! tests replace with a recorded tree. The one place besides the disk that reads files; it
//! never writes.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::{
    io,
    path::{Path, PathBuf},
};

/// Reads small files of the host.
#[derive(Debug, Clone)]
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl Host {
    /// A host whose `/` is `root`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A path that does not begin with `/` is one of the working directory.
    fn at(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/") {
            Ok(within) => self.root.join(within),
            Err(_) => path.to_owned(),
        }
    }

    /// The text of a small file.
    ///
    /// # Errors
    /// As the file system says.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        std::fs::read_to_string(self.at(path.as_ref()))
    }

    /// A file with one number; `None` when it is missing or holds something else.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path).ok()?.trim().parse().ok()
    }

    /// Whether there is a directory.
    pub fn is_dir(&self, path: &Path) -> bool {
        self.at(path).is_dir()
    }

    /// The value behind `field` in a file of `field value` lines.
    pub fn field(&self, path: impl AsRef<Path>, field: &str) -> Option<u64> {
        let text = self.read(path).ok()?;
        text.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            (words.next()? == field).then(|| words.next()?.parse().ok())?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_one_of_the_working_directory() {
        assert!(
            Host::default().read("Cargo.toml").is_ok(),
            "tests run in the crate's folder"
        );
        assert!(Host::default().read("/Cargo.toml").is_err());
    }
}
