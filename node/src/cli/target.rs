//! Whom a command calls, and with which token.

use std::path::{Path, PathBuf};

use clap::Args;
use flower_api::admin::Endpoint;

use super::Failure;
use crate::{admin_client::AdminClient, auth, client::Api};

/// The client API.
#[derive(Debug, Args)]
pub(super) struct ClientTarget {
    /// The client API.
    #[arg(
        long,
        env = "FLOWER_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:7700"
    )]
    url: String,
    /// Token for it.
    #[arg(
        long,
        env = "FLOWER_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: Option<String>,
    /// Directory with the file `client`, whose first token is used when --token is not given.
    #[arg(
        long,
        env = "FLOWER_AUTH_DIR",
        hide_env_values = true,
        value_name = "DIR"
    )]
    auth_dir: Option<PathBuf>,
}

/// The admin API.
#[derive(Debug, Args)]
pub(super) struct AdminTarget {
    /// The admin API.
    #[arg(
        long,
        env = "FLOWER_ADMIN_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:7702"
    )]
    admin_url: String,
    /// Token for it.
    #[arg(
        long,
        env = "FLOWER_ADMIN_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    admin_token: Option<String>,
    /// Directory with the file `admin`, whose first token is used when --admin-token is not given.
    #[arg(
        long,
        env = "FLOWER_AUTH_DIR",
        hide_env_values = true,
        value_name = "DIR"
    )]
    auth_dir: Option<PathBuf>,
}

impl ClientTarget {
    pub(super) fn api(&self) -> Result<Api, Failure> {
        let token = token(self.token.as_deref(), self.auth_dir.as_deref(), "client")?;
        Api::new(&self.url, token.as_deref()).map_err(|e| Failure::here(format!("--url: {e}")))
    }
}

impl AdminTarget {
    pub(super) fn client(&self) -> Result<(AdminClient, Endpoint), Failure> {
        let token = token(
            self.admin_token.as_deref(),
            self.auth_dir.as_deref(),
            "admin",
        )?;
        // Refused here with the flag's name rather than as a node that cannot be reached.
        Api::new(&self.admin_url, token.as_deref())
            .map_err(|e| Failure::here(format!("--admin-url: {e}")))?;
        Ok((AdminClient::new(token), Endpoint(self.admin_url.clone())))
    }
}

fn token(given: Option<&str>, dir: Option<&Path>, file: &str) -> Result<Option<String>, Failure> {
    if let (None, Some(dir)) = (given, dir) {
        let path = dir.join(file);
        let bad = |why: String| Failure::here(format!("token file {}: {why}", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|e| bad(e.to_string()))?;
        return Ok(auth::tokens(&text).map_err(bad)?.into_iter().next());
    }
    Ok(given.filter(|token| !token.is_empty()).map(str::to_owned))
}
