//! Decoders of what peers send: whatever the bytes, they are refused or taken, and a connection
//! with nonsense on it ends and takes nothing else along.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use flower_api::{ClusterId, GroupId, MemberId, report::Recovery};
use flower_store::{
    LogPosition, LogRecord, Payload,
    fuzz::{Depth, fuzz},
};
use serde::{Serialize, de::DeserializeOwned};

use super::super::{
    handshake::{self, Hello},
    types::{Membership, Peer, WireMembership, WireVote, decode, encode, entry, stored_membership},
    wire::{
        AppendAnswer, ImageAnswer, ImageStart, Purpose, Request, Response, TransferRefusal,
        read_frame, write_frame,
    },
};

const COUNT: u32 = 4_000;
const FORMAT: u8 = 1;

fn at(index: u64) -> LogPosition {
    LogPosition {
        term: 3,
        leader: u64::MAX,
        index,
    }
}

fn vote() -> WireVote {
    WireVote {
        term: 3,
        candidate: 7,
        committed: true,
    }
}

fn mend(bytes: &mut [u8]) {
    if let Some(first) = bytes.first_mut() {
        *first = FORMAT;
    }
}

fn depth<T>(bytes: &[u8], decoded: std::io::Result<T>) -> Depth {
    match decoded {
        Ok(_) => Depth::Whole,
        Err(_) if bytes.len() > 1 && bytes[0] == FORMAT => Depth::Body,
        Err(_) => Depth::Header,
    }
}

/// What is taken is written as it was read.
fn message<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(seed: u64, valid: &[T]) {
    let valid: Vec<Vec<u8>> = valid.iter().map(|one| encode(one).to_vec()).collect();
    let tally = fuzz(
        seed,
        &valid,
        COUNT,
        |bytes| mend(bytes),
        |bytes| {
            let decoded = decode::<T>(bytes);
            if let Ok(value) = &decoded {
                assert_eq!(&decode::<T>(&encode(value)).unwrap(), value);
            }
            depth(bytes, decoded)
        },
    );
    tally.must_be_deep();
}

fn record(index: u64) -> Bytes {
    let payload = Payload::Membership(configuration());
    let position = at(index);
    LogRecord { position, payload }.encode()
}

fn configuration() -> Bytes {
    let peer = |id: u64| {
        let address = format!("host-{id}:7701");
        (id, Peer { address })
    };
    let voters = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([2, 3, 4])];
    let members = BTreeMap::from([peer(1), peer(2), peer(3), peer(4), peer(9)]);
    WireMembership::new(Some(at(5)), &Membership::new(voters, members).unwrap()).encode()
}

#[test]
fn requests_and_answers() {
    message(
        11,
        &[
            Request::Append {
                vote: vote(),
                previous: Some(at(4)),
                committed: None,
                records: vec![record(5), record(6)],
                standing: None,
            },
            Request::Vote {
                pre: true,
                vote: vote(),
                last: Some(at(9)),
                transfer: false,
            },
            Request::Transfer {
                from: vote(),
                to: 4,
                last: None,
            },
            Request::Fence,
        ],
    );
    message(
        12,
        &[
            Response::Append {
                answer: AppendAnswer::Partial(Some(at(7))),
                low_space: true,
            },
            Response::Vote {
                vote: vote(),
                granted: false,
                last: Some(at(2)),
            },
            Response::Transfer(Err(TransferRefusal::VoteChanged {
                expected: vote(),
                actual: vote(),
            })),
            Response::Fence(17),
            Response::Failed("a reason".into()),
        ],
    );
    message(
        13,
        &[ImageStart {
            vote: vote(),
            total_bytes: 1 << 40,
        }],
    );
    message(
        14,
        &[
            ImageAnswer::Taken,
            ImageAnswer::Done(vote()),
            ImageAnswer::Failed("no".into()),
        ],
    );
}

#[test]
fn configurations_and_the_entries_that_carry_them() {
    let valid = vec![configuration().to_vec()];
    let tally = fuzz(
        15,
        &valid,
        COUNT,
        |bytes| mend(bytes),
        |bytes| {
            let position = at(5);
            let payload = Payload::Membership(Bytes::copy_from_slice(bytes));
            let carried = entry(LogRecord { position, payload });
            let stored = stored_membership(Some(Bytes::copy_from_slice(bytes)));
            // The state and the log read the same bytes: they must agree on whether they can.
            assert_eq!(carried.is_ok(), stored.is_ok());
            depth(bytes, stored)
        },
    );
    tally.must_be_deep();
}

/// Outside of a runtime: its tasks may only do so much before they let others run.
#[test]
fn greetings() {
    let hello = Hello {
        protocol: handshake::PROTOCOL,
        sender: MemberId(1),
        cluster: ClusterId("a cluster".into()),
        group: GroupId(0),
        addressed: MemberId(2),
        purpose: Purpose::Append,
        client_address: "host:7700".into(),
        recovery: Some(Recovery {
            number: 1,
            by: MemberId(2),
        }),
    };
    let valid = vec![encode(&(hello, [7_u8; 32])).to_vec()];
    let tally = fuzz(
        16,
        &valid,
        COUNT / 4,
        |bytes| mend(bytes),
        |bytes| {
            let served = futures::executor::block_on(greeted(bytes));
            match served {
                // It was understood: the acceptor asked for a proof, and there was none.
                true => Depth::Whole,
                false => depth(bytes, Err::<(), _>(std::io::ErrorKind::InvalidData.into())),
            }
        },
    );
    tally.must_be_deep();
}

/// Whether a greeting is answered with a challenge.
async fn greeted(greeting: &[u8]) -> bool {
    let (mut near, mut far) = tokio::io::duplex(1 << 16);
    write_frame(&mut near, 1, greeting).await.unwrap();
    let mut near_reads = near;
    tokio::io::AsyncWriteExt::shutdown(&mut near_reads)
        .await
        .unwrap();
    let tokens = ["a secret".into()];
    let refused = handshake::accept(
        &mut far,
        &tokens,
        |_| {},
        |_| async { panic!("nobody is let in without a proof") },
    );
    assert!(refused.await.is_err());
    drop(far);
    matches!(read_frame(&mut near_reads, 4 << 10).await, Ok(Some(_)))
}

#[test]
fn frames() {
    let mut valid = Vec::new();
    for (number, body) in [(1, &b"one"[..]), (2, b""), (u64::MAX, &[9; 200])] {
        futures::executor::block_on(write_frame(&mut valid, number, body)).unwrap();
    }
    let tally = fuzz(
        17,
        &[valid],
        COUNT,
        |_| {},
        |bytes| {
            futures::executor::block_on(async {
                let mut rest = bytes;
                let mut frames = 0;
                loop {
                    match read_frame(&mut rest, 1 << 10).await {
                        Ok(Some((_, body))) => {
                            assert!(body.len() <= 1 << 10);
                            frames += 1;
                        }
                        Ok(None) => return Depth::Whole,
                        Err(_) if frames > 0 => return Depth::Body,
                        Err(_) => return Depth::Header,
                    }
                }
            })
        },
    );
    tally.must_be_deep();
}
