//! Where the harness keeps what it makes: one state folder for everything that runs,
//! one cache folder for the Kubernetes programs, and the workspace's own folders.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The state folder and what is in it.
#[derive(Debug, Clone)]
pub struct Paths {
    state: PathBuf,
}

impl Paths {
    /// The folder that `FLOWER_E2E_STATE` names, else `/var/lib/flower-e2e`.
    pub fn from_env() -> Self {
        let state =
            std::env::var_os("FLOWER_E2E_STATE").unwrap_or_else(|| "/var/lib/flower-e2e".into());
        Self {
            state: state.into(),
        }
    }

    /// The state folder itself.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// A path inside the state folder, its parent made.
    pub fn at(&self, relative: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.state.join(relative);
        let parent = path.parent().unwrap_or(&self.state);
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        Ok(path)
    }

    /// A folder inside the state folder, made.
    pub fn dir(&self, relative: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.state.join(relative);
        std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }

    /// The log of one program.
    pub fn log(&self, program: &str) -> PathBuf {
        self.state.join("logs").join(format!("{program}.log"))
    }

    /// A file of the PKI.
    pub fn pki(&self, file: &str) -> PathBuf {
        self.state.join("pki").join(file)
    }

    /// The kubeconfig of one user.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.state.join(format!("{user}.kubeconfig"))
    }

    /// Writes a file inside the state folder, whole or not at all.
    pub fn write(&self, relative: impl AsRef<Path>, content: &str) -> Result<PathBuf> {
        let path = self.at(relative)?;
        write_whole(&path, content.as_bytes())?;
        Ok(path)
    }
}

/// Writes a file under another name and renames it, so that nobody sees half of it.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    std::fs::write(&part, content).with_context(|| format!("writing {}", part.display()))?;
    std::fs::rename(&part, path).with_context(|| format!("writing {}", path.display()))
}

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| ".".into(), Path::to_path_buf)
}

/// Cargo's target folder, which is also where images and failure reports go.
pub fn target() -> PathBuf {
    let dir =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    if dir.is_absolute() {
        dir
    } else {
        root().join(dir)
    }
}

/// The folder of the Kubernetes programs' builds.
pub fn program_cache() -> PathBuf {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    home.join(".cache/flower/kube")
}
