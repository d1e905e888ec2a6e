//! How two members prove to each other that they know the peer secret, and that they mean
//! each other. The secret is never sent: both sides prove it by HMAC-SHA256 over both nonces
//! and everything that the greeting names (cluster, group, sender, addressed member, purpose).
//! The accepting side reveals nothing before the dialling side has proved itself.

use std::{io, sync::Arc};

use bytes::Bytes;
use flower_api::{ClusterId, GroupId, MemberId, report::Recovery};
use hmac::{Hmac, Mac};
use rand::RngCore;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    types::{bad_data, decode, decode_first, encode},
    wire::{Purpose, read_frame, write_frame},
};

/// The peer secret's source. Several tokens are valid at once while a new one is rolled out:
/// both sides accept any that they share.
pub trait PeerSecrets: Send + Sync {
    /// The tokens that are valid now, newest first. None: nobody is let in.
    fn tokens(&self) -> Vec<Arc<str>>;
}

/// Tokens that never change; for tests and simulated worlds.
#[derive(Clone)]
pub struct FixedSecrets(pub Vec<Arc<str>>);

impl PeerSecrets for FixedSecrets {
    fn tokens(&self) -> Vec<Arc<str>> {
        self.0.clone()
    }
}

/// What members say to each other, beyond this handshake, in this build. Counted up by every
/// change of it: all members of a group must speak the same one.
pub(crate) const PROTOCOL: u16 = 3;
/// Number of a greeting's frame when the greeting names a protocol. Builds before that sent 0;
/// what they spoke is counted as the first protocol.
const NAMES_PROTOCOL: u64 = 1;
const FIRST_PROTOCOL: u16 = 1;

/// Tokens that a proof may name: more are not looked at.
const MAX_TOKENS: usize = 16;
const MAX_FRAME: u64 = 4 << 10;

type Code = [u8; 32];

/// What the dialling side says of itself and of whom it means. The first two fields stay where
/// they are in every protocol: they are read before anything else is understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u16,
    pub(crate) sender: MemberId,
    pub(crate) cluster: ClusterId,
    pub(crate) group: GroupId,
    pub(crate) addressed: MemberId,
    pub(crate) purpose: Purpose,
    /// `host:port` of the sender's client API.
    pub(crate) client_address: String,
    /// The last recovery of the group that the sender knows.
    pub(crate) recovery: Option<Recovery>,
}

#[derive(Serialize, Deserialize)]
struct Greeting {
    hello: Hello,
    nonce: Code,
}

#[derive(Serialize, Deserialize)]
struct Challenge {
    nonce: Code,
}

#[derive(Serialize, Deserialize)]
struct Proof {
    codes: Vec<Code>,
}

#[derive(Serialize, Deserialize)]
struct Verdict {
    code: Code,
    answer: Result<Welcome, Refusal>,
}

/// What the accepting side says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// `host:port` of its client API.
    pub(crate) client_address: String,
}

/// Why a peer was not let in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the peer does not share a token with this node (key 'peer' of the auth secret)")]
    Secret,
    #[error("the data directory there is member {0} now; the one that was meant is gone")]
    Member(MemberId),
    #[error("the member there belongs to cluster {0}")]
    Cluster(ClusterId),
    #[error("the member there belongs to group {0}")]
    Group(GroupId),
    #[error("the member there cannot take part: {0}")]
    State(String),
    #[error(
        "{} speaks peer protocol {dialler}, the node that it addressed speaks {acceptor}: all \
         nodes of a group must run the same protocol; give them all the same version",
        named(*sender)
    )]
    Protocol {
        /// Who dialled; unknown when its greeting cannot be read at all.
        sender: Option<MemberId>,
        dialler: u16,
        acceptor: u16,
    },
    #[error("{}", another_life(*.0))]
    OtherLife(Option<Recovery>),
    #[error("the data there is of the group's life before {0}, and takes no part any more")]
    Outlived(Recovery),
}

fn another_life(recovery: Option<Recovery>) -> String {
    match recovery {
        Some(recovery) => {
            format!("the member there is of the group's life since {recovery}, and not of this one")
        }
        None => "the member there knows no recovery of the group".to_owned(),
    }
}

fn named(member: Option<MemberId>) -> String {
    member.map_or_else(|| "the peer".to_owned(), |id| format!("member {id}"))
}

/// The greeting of a peer: read as a whole only when it speaks this build's protocol.
fn read_greeting(number: u64, greeting: &[u8]) -> io::Result<Result<Hello, Refusal>> {
    let other = |sender, dialler| {
        Ok(Err(Refusal::Protocol {
            sender,
            dialler,
            acceptor: PROTOCOL,
        }))
    };
    if number != NAMES_PROTOCOL {
        return other(None, FIRST_PROTOCOL);
    }
    match decode_first::<(u16, MemberId)>(greeting)? {
        (PROTOCOL, _) => Ok(Ok(decode::<Greeting>(greeting)?.hello)),
        (protocol, sender) => other(Some(sender), protocol),
    }
}

/// Bytes that one side sends, read and judged by the other.
struct Transcript {
    greeting: Bytes,
    nonce: Code,
}

impl Transcript {
    fn code(&self, token: &str, role: &[u8], more: &[u8]) -> Code {
        let mut mac = self.mac(token, role);
        mac.update(more);
        mac.finalize().into_bytes().into()
    }

    fn is_code(&self, token: &str, role: &[u8], more: &[u8], code: &Code) -> bool {
        let mut mac = self.mac(token, role);
        mac.update(more);
        mac.verify_slice(code).is_ok()
    }

    fn mac(&self, token: &str, role: &[u8]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(token.as_bytes())
            .expect("HMAC takes a key of any length");
        mac.update(role);
        mac.update(&(self.greeting.len() as u64).to_be_bytes());
        mac.update(&self.greeting);
        mac.update(&self.nonce);
        mac
    }
}

const DIALLER: &[u8] = b"flower-peer-1 dialler";
const ACCEPTOR: &[u8] = b"flower-peer-1 acceptor";

/// Why a connection did not come about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// Refused, by somebody who proved the secret (or because the secret was not shared).
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The other side could not prove the secret.
    #[error("the other side does not know the peer secret")]
    Impostor,
    /// The connection failed or the other side speaks another protocol.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The dialling side. Has no time limit of its own.
pub(crate) async fn dial(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    hello: Hello,
    tokens: &[Arc<str>],
    rng: &mut (impl RngCore + Send),
) -> Result<Welcome, HandshakeError> {
    let mut nonce = Code::default();
    rng.fill_bytes(&mut nonce);
    let greeting = encode(&Greeting { hello, nonce });
    write_frame(stream, NAMES_PROTOCOL, &greeting).await?;
    let challenge: Challenge = match next(stream).await {
        // Builds that know no protocol numbers end the connection when they read a greeting.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let why = format!(
                "{error} instead of answering the greeting of peer protocol {PROTOCOL}; it may \
                 run another version, and all nodes of a group must run the same protocol"
            );
            return Err(bad_data(why).into());
        }
        challenge => challenge?,
    };
    let transcript = Transcript {
        greeting,
        nonce: challenge.nonce,
    };
    let codes = tokens
        .iter()
        .take(MAX_TOKENS)
        .map(|token| transcript.code(token, DIALLER, b""))
        .collect();
    write_frame(stream, 0, &encode(&Proof { codes })).await?;
    let verdict: Verdict = next(stream).await?;
    let answer = encode(&verdict.answer);
    let proved = tokens
        .iter()
        .any(|token| transcript.is_code(token, ACCEPTOR, &answer, &verdict.code));
    match verdict.answer {
        Err(Refusal::Secret) => Err(HandshakeError::Refused(Refusal::Secret)),
        _ if !proved => Err(HandshakeError::Impostor),
        Ok(welcome) => Ok(welcome),
        Err(refusal) => Err(HandshakeError::Refused(refusal)),
    }
}

/// The accepting side. `judge` is asked once the peer has proved the secret; what it refuses
/// is told to the peer. Has no time limit of its own.
pub(crate) async fn accept<F>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    tokens: &[Arc<str>],
    mut nonce_from: impl FnMut(&mut [u8]),
    judge: impl FnOnce(Hello) -> F,
) -> Result<Hello, HandshakeError>
where
    F: Future<Output = Result<Welcome, Refusal>>,
{
    let (number, greeting) = read_frame(stream, MAX_FRAME)
        .await?
        .ok_or(io::ErrorKind::UnexpectedEof)
        .map_err(io::Error::from)?;
    let hello = read_greeting(number, &greeting)?;
    let mut nonce = Code::default();
    nonce_from(&mut nonce);
    write_frame(stream, 0, &encode(&Challenge { nonce })).await?;
    let transcript = Transcript { greeting, nonce };
    let proof: Proof = next(stream).await?;
    let shared = tokens.iter().find(|token| {
        let offered = proof.codes.iter().take(MAX_TOKENS);
        // No early end: how many codes were compared must not show.
        offered.fold(false, |found, code| {
            found | transcript.is_code(token, DIALLER, b"", code)
        })
    });
    let Some(token) = shared else {
        let verdict = Verdict {
            code: Code::default(),
            answer: Err(Refusal::Secret),
        };
        write_frame(stream, 0, &encode(&verdict)).await?;
        return Err(HandshakeError::Refused(Refusal::Secret));
    };
    let answer = match &hello {
        Ok(hello) => judge(hello.clone()).await,
        Err(refusal) => Err(refusal.clone()),
    };
    let code = transcript.code(token, ACCEPTOR, &encode(&answer));
    let refusal = answer.as_ref().err().cloned();
    write_frame(stream, 0, &encode(&Verdict { code, answer })).await?;
    match refusal {
        None => hello.map_err(HandshakeError::Refused),
        Some(refusal) => Err(HandshakeError::Refused(refusal)),
    }
}

async fn next<T: serde::de::DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    match read_frame(stream, MAX_FRAME).await? {
        Some((_, body)) => decode(&body),
        None => Err(bad_data("the other side closed the connection")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::SeedTree;

    fn hello() -> Hello {
        Hello {
            protocol: PROTOCOL,
            sender: MemberId(1),
            cluster: ClusterId("c".into()),
            group: GroupId(0),
            addressed: MemberId(2),
            purpose: Purpose::Control,
            client_address: "one:7700".into(),
            recovery: None,
        }
    }

    fn tokens(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|&n| n.into()).collect()
    }

    /// Members of two builds meet: whoever dials greets with `greeting`.
    async fn meet_another(number: u64, greeting: Bytes) -> (Result<Welcome, String>, String) {
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        let ours = tokens(&["a"]);
        let theirs = ours.clone();
        let dialler = async move {
            write_frame(&mut near, number, &greeting).await.unwrap();
            let challenge: Challenge = next(&mut near).await.unwrap();
            let transcript = Transcript {
                greeting,
                nonce: challenge.nonce,
            };
            let codes = vec![transcript.code("a", DIALLER, b"")];
            write_frame(&mut near, 0, &encode(&Proof { codes }))
                .await
                .unwrap();
            let verdict: Verdict = next(&mut near).await.unwrap();
            verdict.answer.map_err(|e| e.to_string())
        };
        let (dialled, accepted) = tokio::join!(
            dialler,
            accept(&mut far, &theirs, |_| {}, |_| async { welcome() }),
        );
        (dialled, accepted.unwrap_err().to_string())
    }

    #[tokio::test]
    async fn another_protocol_is_refused_and_both_numbers_are_told() {
        // What follows the first two fields may be anything.
        let newer = encode(&((9_u16, MemberId(1)), "another greeting"));
        let older = encode(&("a cluster", 0_u32, MemberId(1)));
        for (number, greeting, who, speaks) in [
            (NAMES_PROTOCOL, newer, "member 0000000000000001", 9),
            (0, older, "the peer", FIRST_PROTOCOL),
        ] {
            let (dialled, accepted) = meet_another(number, greeting).await;
            for why in [dialled.unwrap_err(), accepted] {
                assert!(
                    why.contains(&format!("{who} speaks peer protocol {speaks},")),
                    "{why}"
                );
                assert!(why.contains(&format!("speaks {PROTOCOL}:")), "{why}");
                assert!(
                    why.contains("all nodes of a group must run the same protocol"),
                    "{why}"
                );
            }
        }
    }

    async fn meet(
        dialler: &[&str],
        acceptor: &[&str],
        answer: Result<Welcome, Refusal>,
    ) -> (Result<Welcome, String>, Result<Hello, String>) {
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        let (ours, theirs) = (tokens(dialler), tokens(acceptor));
        let mut rng = SeedTree::from_number(1).rng();
        let mut other = SeedTree::from_number(2).rng();
        let (dialled, accepted) = tokio::join!(
            dial(&mut near, hello(), &ours, &mut rng),
            accept(
                &mut far,
                &theirs,
                |nonce| other.fill_bytes(nonce),
                |_| async move { answer }
            ),
        );
        (
            dialled.map_err(|e| e.to_string()),
            accepted.map_err(|e| e.to_string()),
        )
    }

    fn welcome() -> Result<Welcome, Refusal> {
        Ok(Welcome {
            client_address: "two:7700".into(),
        })
    }

    #[tokio::test]
    async fn any_shared_token_lets_in_and_none_does_not() {
        for (ours, theirs, good) in [
            (&["a"][..], &["a"][..], true),
            (&["new", "old"], &["old"], true),
            (&["old"], &["new", "old"], true),
            (&["a"], &["b"], false),
            (&["a"], &[], false),
            (&[], &["a"], false),
        ] {
            let (dialled, accepted) = meet(ours, theirs, welcome()).await;
            assert_eq!(dialled.is_ok(), good, "{ours:?} {theirs:?}");
            assert_eq!(accepted.is_ok(), good, "{ours:?} {theirs:?}");
        }
    }

    #[tokio::test]
    async fn a_refusal_is_told_to_both() {
        let (dialled, accepted) = meet(&["a"], &["a"], Err(Refusal::Member(MemberId(9)))).await;
        for why in [dialled.unwrap_err(), accepted.unwrap_err()] {
            assert!(why.contains("0000000000000009"), "{why}");
        }
    }

    #[tokio::test]
    async fn an_acceptor_that_cannot_prove_the_secret_is_an_impostor() {
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        let mut rng = SeedTree::from_number(1).rng();
        let impostor = async {
            read_frame(&mut far, MAX_FRAME).await.unwrap();
            let nonce = Code::default();
            write_frame(&mut far, 0, &encode(&Challenge { nonce }))
                .await
                .unwrap();
            read_frame(&mut far, MAX_FRAME).await.unwrap();
            let verdict = Verdict {
                code: Code::default(),
                answer: welcome(),
            };
            write_frame(&mut far, 0, &encode(&verdict)).await.unwrap();
        };
        let ours = tokens(&["a"]);
        let (dialled, ()) = tokio::join!(dial(&mut near, hello(), &ours, &mut rng), impostor);
        assert!(
            matches!(dialled, Err(HandshakeError::Impostor)),
            "{dialled:?}"
        );
    }

    #[tokio::test]
    async fn a_proof_taken_from_another_greeting_is_worthless() {
        let transcript = |hello: Hello| Transcript {
            greeting: encode(&Greeting {
                hello,
                nonce: Code::default(),
            }),
            nonce: Code::default(),
        };
        let code = transcript(hello()).code("a", DIALLER, b"");
        let mut other = hello();
        other.addressed = MemberId(3);
        assert!(!transcript(other).is_code("a", DIALLER, b"", &code));
        assert!(!transcript(hello()).is_code("a", ACCEPTOR, b"", &code));
        assert!(transcript(hello()).is_code("a", DIALLER, b"", &code));
    }
}
