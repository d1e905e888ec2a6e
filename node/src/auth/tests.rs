//! Rotation as a mounted Secret does it, and the refusals.

use super::*;

const OLD: &str = "old-token-0123456789";
const NEW: &str = "new-token-0123456789";

fn bearer_of(token: &str) -> Vec<u8> {
    format!("Bearer {token}").into_bytes()
}

/// A directory as kubelet mounts a Secret: `client` → `..data/client`, `..data` → `..v1`.
struct Mounted {
    dir: tempfile::TempDir,
    versions: u32,
}

impl Mounted {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in ["client", "admin", "peer"] {
            let target = format!("..data/{file}");
            std::os::unix::fs::symlink(target, dir.path().join(file)).unwrap();
        }
        Self { dir, versions: 0 }
    }
    fn swap(&mut self, client: &str) {
        self.versions += 1;
        let version = format!("..v{}", self.versions);
        let path = self.dir.path().join(&version);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("client"), client).unwrap();
        std::fs::write(path.join("admin"), "admin-token-0123456789\n").unwrap();
        std::fs::write(
            path.join("peer"),
            "peer-secret-0123456789\npeer-secret-before-that\n",
        )
        .unwrap();
        let next = self.dir.path().join("..next");
        std::os::unix::fs::symlink(version, &next).unwrap();
        std::fs::rename(next, self.dir.path().join("..data")).unwrap();
    }
}

#[test]
fn tokens_are_rotated_without_a_restart() {
    let mut mounted = Mounted::new();
    mounted.swap(&format!("{OLD}\n"));
    let tokens = Tokens::open(Host::default(), mounted.dir.path()).unwrap();
    let ask = |token: &str| tokens.authenticate(Api::Client, Some(&bearer_of(token)));
    assert_eq!(ask(OLD), Ok(Subject("client")));
    assert_eq!(ask(NEW), Err(Unauthenticated::Wrong));
    assert_eq!(tokens.reload(), Ok(false), "nothing changed");

    mounted.swap(&format!("\n{NEW}\n{OLD}\n\n"));
    assert_eq!(tokens.reload(), Ok(true));
    assert_eq!(
        (ask(OLD), ask(NEW)),
        (Ok(Subject("client")), Ok(Subject("client")))
    );

    mounted.swap(NEW);
    assert_eq!(tokens.reload(), Ok(true));
    assert_eq!(
        (ask(OLD), ask(NEW)),
        (Err(Unauthenticated::Wrong), Ok(Subject("client")))
    );
    assert_eq!(&*tokens.peer_secrets()[0], "peer-secret-0123456789");
    assert_eq!(tokens.peer_secrets().len(), 2);
}

#[test]
fn a_broken_file_keeps_the_tokens_in_force() {
    let mut mounted = Mounted::new();
    mounted.swap(OLD);
    let tokens = Tokens::open(Host::default(), mounted.dir.path()).unwrap();
    for broken in ["", "short", "has a space in it, so it is no token"] {
        mounted.swap(broken);
        let error = tokens.reload().unwrap_err().to_string();
        assert!(
            error.contains("file 'client'") && error.contains("FLOWER_AUTH_DIR"),
            "{error}"
        );
        assert!(
            broken.is_empty() || !error.contains(broken),
            "a token is not told: {error}"
        );
        let header = bearer_of(OLD);
        assert!(tokens.authenticate(Api::Client, Some(&header)).is_ok());
    }
}

#[test]
fn each_api_has_its_own_tokens_and_headers_are_read_strictly() {
    let mut mounted = Mounted::new();
    mounted.swap(OLD);
    let tokens = Tokens::open(Host::default(), mounted.dir.path()).unwrap();
    let ask = |api, header: &str| tokens.authenticate(api, Some(header.as_bytes()));
    assert_eq!(
        ask(Api::Admin, &format!("Bearer {OLD}")),
        Err(Unauthenticated::Wrong)
    );
    assert_eq!(
        ask(Api::Admin, "bearer admin-token-0123456789"),
        Ok(Subject("admin"))
    );
    assert_eq!(
        ask(Api::Client, "Bearer admin-token-0123456789"),
        Err(Unauthenticated::Wrong)
    );
    for bad in ["", "Bearer", OLD, "Basic b2xk"] {
        assert_eq!(
            ask(Api::Client, bad),
            Err(Unauthenticated::Missing),
            "{bad}"
        );
    }
    assert_eq!(ask(Api::Client, "Bearer "), Err(Unauthenticated::Wrong));
    assert_eq!(
        tokens.authenticate(Api::Client, None),
        Err(Unauthenticated::Missing)
    );
}

#[test]
fn a_missing_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Tokens::open(Host::default(), dir.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("file 'client' cannot be read"), "{error}");
}

#[test]
fn without_tokens_everyone_is_let_in_and_peers_still_prove_something() {
    let tokens = Tokens::off();
    assert!(tokens.authenticate(Api::Admin, None).is_ok());
    assert_eq!(tokens.peer_secrets().len(), 1);
    assert_eq!(tokens.reload(), Ok(false));
}
