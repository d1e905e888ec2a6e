//! Container images without a daemon: the archive that `docker save` would write, which docker,
//! kind and ctr load. Same content, same bytes, same digest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::paths::{root, target, write_whole};
use crate::progress::step;
use crate::run::{run, run_in};

/// Who the programs run as: nobody that any host knows.
const USER: &str = "65532:65532";

/// An image of the workspace: its name, the package and the binary in it.
struct Wanted {
    name: &'static str,
    binary: &'static str,
    title: &'static str,
    about: &'static str,
}

const WANTED: &[Wanted] = &[
    Wanted {
        name: "flower",
        binary: "flower",
        title: "Flower",
        about: "A replicated application database",
    },
    Wanted {
        name: "flower-operator",
        binary: "flower-operator",
        title: "Flower operator",
        about: "Runs Flower clusters on Kubernetes",
    },
];

/// The tag of an image of this workspace.
pub fn tag(name: &str) -> String {
    format!("flowerdb.dev/{name}:{}", env!("CARGO_PKG_VERSION"))
}

/// Builds the workspace's images; returns their archives.
pub async fn build_all() -> Result<Vec<PathBuf>> {
    let args = [
        "build",
        "--quiet",
        // The whole workspace: with another selection, features and so all builds would differ.
        "--workspace",
        "--bins",
    ];
    step(
        "building flower and flower-operator",
        run_in(&root(), &[], "cargo", &args),
    )
    .await?;
    let mut archives = Vec::new();
    for wanted in WANTED {
        let archive = target().join("images").join(format!("{}.tar", wanted.name));
        step(
            &format!("image {}", tag(wanted.name)),
            build(wanted, &archive),
        )
        .await?;
        archives.push(archive);
    }
    Ok(archives)
}

/// The archives that are there already, if all are.
pub fn built() -> Option<Vec<PathBuf>> {
    let archives: Vec<_> = WANTED
        .iter()
        .map(|w| target().join("images").join(format!("{}.tar", w.name)))
        .collect();
    archives
        .iter()
        .all(|path| path.exists())
        .then_some(archives)
}

async fn build(wanted: &Wanted, archive: &Path) -> Result<()> {
    let work = tempfile::tempdir()?;
    let stripped = work.path().join(wanted.binary);
    let binary = target().join("debug").join(wanted.binary);
    run(
        "strip",
        &[
            "-s",
            "-o",
            &stripped.display().to_string(),
            &binary.display().to_string(),
        ],
    )
    .await?;

    let mut base = Layer::default();
    base.text(
        "etc/passwd",
        &format!(
            "root:x:0:0::/:/none\nflower:x:{}:{}::/:/none\n",
            65532, 65532
        ),
    );
    base.text("etc/group", "root:x:0:\nflower:x:65532:\n");
    base.text("etc/nsswitch.conf", "hosts: files dns\n");
    base.folder("tmp", 0o1777);
    for library in libraries(&binary).await? {
        let content =
            std::fs::read(&library).with_context(|| format!("reading {}", library.display()))?;
        base.file(&library.to_string_lossy(), content, 0o755);
    }
    let mut own = Layer::default();
    let entry = format!("/usr/bin/{}", wanted.binary);
    own.file(&entry, std::fs::read(&stripped)?, 0o755);

    let labels = json!({
        "org.opencontainers.image.title": wanted.title,
        "org.opencontainers.image.description": wanted.about,
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
        "org.opencontainers.image.url": env!("CARGO_PKG_REPOSITORY"),
        "org.opencontainers.image.vendor": "Flower",
    });
    let config = json!({
        "User": USER,
        "Entrypoint": [entry],
        "WorkingDir": "/",
        "Env": ["PATH=/usr/bin"],
        "Labels": labels,
    });
    write_archive(archive, &tag(wanted.name), &config, &[base, own])
}

/// The image of the pods' sandbox: one static program.
pub fn pause(program: &Path, tag: &str, archive: &Path) -> Result<()> {
    let mut layer = Layer::default();
    layer.file("/pause", std::fs::read(program)?, 0o755);
    write_archive(
        archive,
        tag,
        &json!({"Entrypoint": ["/pause"], "User": USER}),
        &[layer],
    )
}

/// The shared libraries of a program, with its loader.
async fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let listed = run("ldd", &[binary]).await?;
    let library = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        words
            .iter()
            .find(|word| word.starts_with('/'))
            .map(PathBuf::from)
    };
    Ok(listed.lines().filter_map(library).collect())
}

/// The files of one layer, in order of their names.
#[derive(Default)]
struct Layer {
    entries: BTreeMap<String, (tar::EntryType, u32, Vec<u8>)>,
}

impl Layer {
    fn file(&mut self, path: &str, content: Vec<u8>, mode: u32) {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            self.entries.entry(path[..end].to_owned()).or_insert((
                tar::EntryType::Directory,
                0o755,
                Vec::new(),
            ));
        }
        self.entries
            .insert(path.to_owned(), (tar::EntryType::Regular, mode, content));
    }

    fn text(&mut self, path: &str, content: &str) {
        self.file(path, content.as_bytes().to_vec(), 0o644);
    }

    fn folder(&mut self, path: &str, mode: u32) {
        self.entries.insert(
            path.to_owned(),
            (tar::EntryType::Directory, mode, Vec::new()),
        );
    }

    /// The layer as a tar archive.
    fn pack(&self) -> Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, (kind, mode, content)) in &self.entries {
            append(&mut archive, path, *kind, *mode, content)?;
        }
        Ok(archive.into_inner()?)
    }
}

/// Adds an entry that owes nothing to the time or the machine.
fn append(
    to: &mut tar::Builder<Vec<u8>>,
    path: &str,
    kind: tar::EntryType,
    mode: u32,
    content: &[u8],
) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(content.len() as u64);
    Ok(to.append_data(&mut header, path, content)?)
}

/// Writes a docker archive: layers, configuration, manifest.
fn write_archive(
    archive: &Path,
    tag: &str,
    config: &serde_json::Value,
    layers: &[Layer],
) -> Result<()> {
    let mut out = tar::Builder::new(Vec::new());
    let mut names = Vec::new();
    let mut digests = Vec::new();
    for layer in layers {
        let packed = layer.pack()?;
        let digest = crate::hex(&Sha256::digest(&packed));
        let name = format!("{digest}.tar");
        append(&mut out, &name, tar::EntryType::Regular, 0o644, &packed)?;
        names.push(name);
        digests.push(format!("sha256:{digest}"));
    }
    let image = json!({
        "architecture": "amd64",
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": digests},
        "history": layers.iter().map(|_| json!({"created": "1970-01-01T00:00:00Z"})).collect::<Vec<_>>(),
    })
    .to_string();
    let config_name = format!("{}.json", crate::hex(&Sha256::digest(&image)));
    append(
        &mut out,
        &config_name,
        tar::EntryType::Regular,
        0o644,
        image.as_bytes(),
    )?;
    let manifest = json!([{"Config": config_name, "RepoTags": [tag], "Layers": names}]).to_string();
    append(
        &mut out,
        "manifest.json",
        tar::EntryType::Regular,
        0o644,
        manifest.as_bytes(),
    )?;
    let bytes = out.into_inner()?;
    if std::fs::read(archive).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    if let Some(parent) = archive.parent() {
        std::fs::create_dir_all(parent)?;
    }
    write_whole(archive, &bytes)
}
