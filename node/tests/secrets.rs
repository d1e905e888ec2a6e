//! Secrets are in nothing that nodes and commands write: logs at the lowest level, errors,
//! metrics, reports, exports, files, the output of a node that ends by an error. The secrets of
//! the test are such that a search finds them, which the test shows too.

mod common;

use std::{fs, path::Path};

use base64::Engine as _;
use common::{
    COUNTER, Node, flower,
    group::{form, leads},
    json,
};

const CLIENT: &str = "client-QX7c81f0aaPlanted";
const ADMIN: &str = "admin-QX7d92b4bbPlanted";
const PEER: &str = "peer-QX7ea3c5ccPlanted";
const ROTATED: &str = "peer-QX7fb4d6ddPlanted";
const WRONG: &str = "wrong-QX70c5e7eePlanted";
/// In an argument, which is the user's data: stored, and yet in no log.
const ARGUMENT: &str = "QX71d6f8ffPlanted";

/// What of a secret is found in a text: itself, or what common encodings make of it.
fn found(text: &[u8], secret: &str) -> Option<String> {
    let engine = base64::engine::general_purpose::STANDARD_NO_PAD;
    // The bytes in front may shift the encoding; what lies two places in is the same in each.
    let shifted = (0..3).map(|skip| engine.encode(&secret.as_bytes()[skip..]));
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let bytes = format!("{:?}", secret.as_bytes());
    let forms = shifted
        .map(|form| form[..form.len() - 2].to_owned())
        .chain([
            secret.to_owned(),
            hex,
            bytes.trim_matches(['[', ']']).to_owned(),
        ]);
    forms.into_iter().find(|form| {
        let form = form.as_bytes();
        text.windows(form.len()).any(|at| at == form)
    })
}

/// Everything in a folder and below it.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
    all
}

fn write_tokens(auth: &Path, peer: &str) {
    fs::create_dir_all(auth).unwrap();
    for (file, token) in [("client", CLIENT), ("admin", ADMIN), ("peer", peer)] {
        fs::write(auth.join(file), format!("{token}\n")).unwrap();
    }
}

/// What `flower` says, whatever its exit code.
fn said(args: &[&str]) -> Vec<u8> {
    let output = flower(args).output().unwrap();
    [output.stdout, output.stderr].concat()
}

/// What a port answers, head and body.
fn asked(port: u16, path: &str, token: &str) -> Vec<u8> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// Calls with right, wrong and no tokens; all that was answered.
fn talk(node: &Node) -> Vec<(String, Vec<u8>)> {
    let (url, admin) = (node.client(), node.admin().0);
    let args = format!(r#"{{"key":"{ARGUMENT}"}}"#);
    let call = ["call", "bump", &args, "--url", &url];
    let mut all = Vec::new();
    for token in [CLIENT, WRONG, ADMIN] {
        let with: Vec<&str> = call.iter().copied().chain(["--token", token]).collect();
        all.push((format!("a call with {}", &token[..5]), said(&with)));
        let status = ["status", "--admin-url", &admin, "--admin-token", token];
        all.push((format!("status with {}", &token[..5]), said(&status)));
        let json: Vec<&str> = ["--output", "json"].into_iter().chain(status).collect();
        all.push((format!("status in JSON with {}", &token[..5]), said(&json)));
        for path in [
            "/metrics",
            "/v1/admin/report",
            "/v1/admin/identity",
            "/v1/admin/nothing",
        ] {
            all.push((path.to_owned(), asked(node.base + 2, path, token)));
        }
    }
    let bad = r#"{"key":7}"#;
    let bad = ["call", "bump", bad, "--url", &url, "--token", CLIENT];
    all.push(("a call with bad arguments".to_owned(), said(&bad)));
    all
}

/// All files below a folder, the logs of all nodes at their lowest level among them.
fn lowest_level(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let on_disk = files(dir);
    let logs = on_disk
        .iter()
        .filter(|(name, _)| name.ends_with(".log"))
        .count();
    let told: usize = on_disk.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(logs == 3 && told > 100_000, "{logs} logs, {told} bytes");
    // The lowest level was written, as what follows would be trivial otherwise.
    assert!(
        on_disk
            .iter()
            .any(|(_, bytes)| found(bytes, "TRACE").is_some())
    );
    on_disk
}

fn no_secret_is_in(written: &[(String, Vec<u8>)]) {
    for secret in [CLIENT, ADMIN, PEER, ROTATED, WRONG] {
        for (name, bytes) in written {
            let at = found(bytes, secret);
            assert_eq!(at, None, "{} in {name}", &secret[..5]);
        }
    }
    for (name, bytes) in written.iter().filter(|(name, _)| name.ends_with(".log")) {
        assert_eq!(found(bytes, ARGUMENT), None, "an argument in {name}");
    }
}

/// The search finds what is there: the argument in the data, and each form of a token.
fn the_search_finds(written: &[(String, Vec<u8>)]) {
    assert!(
        written
            .iter()
            .any(|(name, bytes)| { name.ends_with(".redb") && found(bytes, ARGUMENT).is_some() })
    );
    let engine = base64::engine::general_purpose::STANDARD;
    for form in [
        format!("a line with {PEER} in it"),
        engine.encode(format!("{{\"peer\":\"{PEER}\"}}")),
        engine.encode(format!("x{PEER}")),
        format!("{:?}", PEER.as_bytes()),
        PEER.bytes().map(|byte| format!("{byte:02x}")).collect(),
    ] {
        assert!(found(form.as_bytes(), PEER).is_some(), "{form}");
    }
}

#[test]
fn planted_secrets_are_found_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let auth = tempfile::tempdir().unwrap();
    write_tokens(auth.path(), PEER);
    let auth_dir = auth.path().to_str().unwrap();
    let more = [
        "--auth-dir",
        auth_dir,
        "--log",
        "trace",
        "--log-format",
        "json",
    ];
    let start = |name: &str| Node::start_with(dir.path(), name, &more[..4], Some(ADMIN));
    let mut nodes: Vec<Node> = ["a", "b", "c"].iter().map(|name| start(name)).collect();
    form(&nodes, COUNTER);

    let mut written = Vec::new();
    for node in &nodes {
        written.extend(talk(node));
    }
    let args = format!(r#"{{"key":"{ARGUMENT}"}}"#);
    let read = [
        "query",
        "read",
        &args,
        "--url",
        &nodes[1].client(),
        "--token",
        CLIENT,
    ];
    assert_eq!(
        json(&read)["result"],
        3,
        "the calls with the right token were made"
    );

    // A node that the peers do not know, one whose tokens change, and one that ends badly.
    let stranger_auth = tempfile::tempdir().unwrap();
    write_tokens(stranger_auth.path(), WRONG);
    let stranger = [
        "--auth-dir",
        stranger_auth.path().to_str().unwrap(),
        "--log",
        "trace",
    ];
    nodes[2].kill();
    nodes[2].restart(&stranger);
    nodes[2].report("it answers", |_| true);
    write_tokens(auth.path(), &format!("{ROTATED}\n{PEER}"));
    common::eventually("new tokens are taken", || {
        nodes[0]
            .log()
            .contains("the tokens have changed")
            .then_some(())
    });
    nodes[2].kill();
    fs::write(stranger_auth.path().join("admin"), "").unwrap();
    nodes[2].restart(&stranger);
    let code = nodes[2].ended();
    assert!(
        code.is_some_and(|code| code != 0),
        "it started without admin tokens: {code:?}"
    );
    leads(&nodes[0]);

    for node in &mut nodes[..2] {
        assert_eq!(node.stop(), Some(0), "{}", node.log());
    }
    written.extend(lowest_level(dir.path()));
    no_secret_is_in(&written);
    the_search_finds(&written);
}
