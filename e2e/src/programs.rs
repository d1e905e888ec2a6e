//! The Kubernetes programs, built once from pinned Go modules into a cache.
//! `FLOWER_KUBE_BIN` may name a folder that already has them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::paths::{program_cache, root, target};
use crate::progress::{note, step};
use crate::run::run_in;

/// A Go module under `e2e/kube/` and the programs that come from it.
struct Module {
    folder: &'static str,
    /// The module whose version names the build; our own ones have none.
    pinned: Option<&'static str>,
    /// Program names and the packages that they are built from.
    programs: &'static [(&'static str, &'static str)],
}

const MODULES: &[Module] = &[
    Module {
        folder: "pause",
        pinned: None,
        programs: &[("pause", ".")],
    },
    Module {
        folder: "etcd",
        pinned: Some("go.etcd.io/etcd/server/v3"),
        programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
    },
    Module {
        folder: "kubernetes",
        pinned: Some("k8s.io/kubernetes"),
        programs: &[
            ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            (
                "kube-controller-manager",
                "k8s.io/kubernetes/cmd/kube-controller-manager",
            ),
            ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ],
    },
    Module {
        folder: "coredns",
        pinned: Some("github.com/coredns/coredns"),
        programs: &[("coredns", ".")],
    },
    Module {
        folder: "helm",
        pinned: Some("helm.sh/helm/v3"),
        programs: &[("helm", "helm.sh/helm/v3/cmd/helm")],
    },
];

/// Where a program is, or will be once it is built.
pub fn path(program: &str) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("FLOWER_KUBE_BIN") {
        let path = Path::new(&given).join(program);
        if path.exists() {
            return Ok(path);
        }
    }
    let module = MODULES
        .iter()
        .find(|module| module.programs.iter().any(|(name, _)| *name == program))
        .with_context(|| format!("no module builds {program}"))?;
    Ok(program_cache()
        .join(build_name(module)?)
        .join("bin")
        .join(program))
}

/// Builds every program that is missing.
pub async fn build_missing() -> Result<()> {
    let mut missing = Vec::new();
    for module in MODULES {
        for (program, package) in module.programs {
            let path = path(program)?;
            if !path.exists() {
                missing.push((module, *program, *package, path));
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    note(&format!(
        "{} Kubernetes programs are missing and will be built from source, once: about 10 minutes for all on two cores",
        missing.len()
    ));
    for (module, program, package, path) in missing {
        step(
            &format!("building {program}"),
            build(module, package, &path),
        )
        .await?;
    }
    Ok(())
}

/// A folder for a program's own caches and settings.
pub fn home(program: &str) -> Result<PathBuf> {
    let folder = program_cache().join("home").join(program);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Names the programs that people use in `~/.cache/flower/bin`, for their PATH.
pub fn link_for_people() -> Result<PathBuf> {
    let folder = program_cache().with_file_name("bin");
    std::fs::create_dir_all(&folder)?;
    let flower = target().join("debug/flower");
    for (name, program) in [
        ("kubectl", path("kubectl")?),
        ("helm", path("helm")?),
        ("flower", flower),
    ] {
        let part = folder.join(format!("{name}.part"));
        let _ = std::fs::remove_file(&part);
        std::os::unix::fs::symlink(program, &part)?;
        std::fs::rename(part, folder.join(name))?;
    }
    Ok(folder)
}

/// Builds one program under another name first, so that an interrupted build leaves nothing half done.
async fn build(module: &Module, package: &str, path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let part = path.with_extension("part");
    let part_name = part.display().to_string();
    let flags = link_flags(module)?;
    let args = [
        "-n",
        "5",
        "go",
        "build",
        "-trimpath",
        "-ldflags",
        &flags,
        "-o",
        &part_name,
        package,
    ];
    run_in(
        &root().join("e2e/kube").join(module.folder),
        &[("CGO_ENABLED", "0")],
        "nice",
        &args,
    )
    .await?;
    std::fs::rename(&part, path)?;
    Ok(())
}

/// Names a build by the pinned version and everything else that goes into it.
fn build_name(module: &Module) -> Result<String> {
    let folder = root().join("e2e/kube").join(module.folder);
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum", "main.go"] {
        hash.update(std::fs::read(folder.join(file)).unwrap_or_default());
    }
    hash.update(link_flags(module)?);
    let hash = crate::hex(&hash.finalize());
    let version = pinned_version(module)?.unwrap_or_else(|| "own".to_owned());
    Ok(format!("{}-{version}-{}", module.folder, &hash[..8]))
}

/// The version that a module's go.mod requires.
fn pinned_version(module: &Module) -> Result<Option<String>> {
    let Some(pinned) = module.pinned else {
        return Ok(None);
    };
    let file = root().join("e2e/kube").join(module.folder).join("go.mod");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let version = text.lines().find_map(|line| {
        let mut words = line
            .trim()
            .trim_start_matches("require ")
            .split_whitespace();
        (words.next() == Some(pinned))
            .then(|| words.next().map(str::to_owned))
            .flatten()
    });
    Ok(Some(version.with_context(|| {
        format!("{} does not require {pinned}", file.display())
    })?))
}

/// The linker's flags; Kubernetes calls itself v0.0.0 without its version among them, and Helm
/// takes the cluster that it renders for without one for a very old one.
fn link_flags(module: &Module) -> Result<String> {
    let kubernetes = MODULES.iter().find(|module| module.folder == "kubernetes");
    let version = kubernetes
        .map(pinned_version)
        .transpose()?
        .flatten()
        .unwrap_or_default();
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("0"));
    let values: Vec<(&str, &str, &str)> = match module.folder {
        "kubernetes" => [
            "k8s.io/component-base/version",
            "k8s.io/client-go/pkg/version",
        ]
        .into_iter()
        .flat_map(|package| {
            [
                ("gitVersion", version.as_str()),
                ("gitMajor", major),
                ("gitMinor", minor),
            ]
            .map(|(name, value)| (package, name, value))
        })
        .collect(),
        "helm" => [
            "helm.sh/helm/v3/pkg/chartutil",
            "helm.sh/helm/v3/pkg/lint/rules",
        ]
        .into_iter()
        .flat_map(|package| {
            [("k8sVersionMajor", major), ("k8sVersionMinor", minor)]
                .map(|(name, value)| (package, name, value))
        })
        .collect(),
        _ => Vec::new(),
    };
    let variables = values
        .iter()
        .map(|(package, name, value)| format!(" -X {package}.{name}={value}"));
    Ok(format!("-s -w{}", variables.collect::<String>()))
}
