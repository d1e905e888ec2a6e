//! Receiving an image: written beside the state on the image lane, frame by frame, verified,
//! then installed by the consensus library when the state's turn comes. The sender hears of
//! every frame, and that the node lives while it installs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use flower_store::{Disk, ImageError, Received, Receiving, Verified};
use openraft::Snapshot;
use tokio::io::{ReadHalf, WriteHalf};

use super::{
    Raft,
    links::Stream,
    state::{IMAGE_CACHE_BYTES, Image},
    transfer::FRAME_LIMIT,
    types::{SnapshotMeta, WireVote, decode, encode, log_id, stored_membership},
    wire::{ImageAnswer, ImageStart, Purpose, read_frame, write_frame},
};
use crate::env::{Env, Fatal, LaneId};

/// How often the sender hears that the node is still installing.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// What receiving needs.
pub(crate) struct Receiver {
    pub(crate) env: Env,
    pub(crate) raft: Raft,
    /// One image at a time: there is one file for it.
    pub(crate) one: Arc<tokio::sync::Mutex<()>>,
}

impl Receiver {
    /// Takes one image from a connection and answers; errors end the connection.
    pub(crate) async fn run(
        &self,
        read: &mut ReadHalf<Stream>,
        write: &mut WriteHalf<Stream>,
    ) -> std::io::Result<()> {
        let Ok(_one) = self.one.try_lock() else {
            let why = "another image is being received".to_owned();
            return answer(write, &ImageAnswer::Failed(why)).await;
        };
        let Some((_, start)) = read_frame(read, Purpose::Image.max_frame()).await? else {
            return Ok(());
        };
        let start: ImageStart = decode(&start)?;
        answer(write, &ImageAnswer::Taken).await?;
        let (begun, total_bytes) = (self.env.clock.mono(), start.total_bytes);
        tracing::info!(total_bytes, "receiving an image");
        let verified = match self.receive(read, write).await {
            Ok(verified) => verified,
            Err(why) => {
                tracing::warn!(%why, "an image was not taken");
                return answer(write, &ImageAnswer::Failed(why)).await;
            }
        };
        match self.install(start.vote, verified, write).await? {
            Ok(vote) => {
                let took = self.env.clock.mono() - begun;
                self.env.probe.image_received(total_bytes, took);
                answer(write, &ImageAnswer::Done(vote)).await
            }
            Err(why) => {
                tracing::warn!(%why, "an image was not installed");
                answer(write, &ImageAnswer::Failed(why)).await
            }
        }
    }

    async fn receive(
        &self,
        read: &mut ReadHalf<Stream>,
        write: &mut WriteHalf<Stream>,
    ) -> Result<Verified, String> {
        let mut receiving = start(&self.env).await?;
        loop {
            let max = Purpose::Image.max_frame();
            let frame = match self.env.within(FRAME_LIMIT, read_frame(read, max)).await {
                Some(Ok(Some((_, frame)))) => frame,
                Some(Ok(None)) => return Err("the connection ended before the image did".into()),
                Some(Err(error)) => return Err(error.to_string()),
                None => return Err(format!("no frame within {FRAME_LIMIT:?}")),
            };
            receiving = match accept(&self.env, receiving, frame).await? {
                Received::More(receiving) => *receiving,
                Received::Whole(verified) => {
                    answer(write, &ImageAnswer::Taken)
                        .await
                        .map_err(|e| e.to_string())?;
                    return Ok(*verified);
                }
            };
            answer(write, &ImageAnswer::Taken)
                .await
                .map_err(|e| e.to_string())?;
        }
    }

    async fn install(
        &self,
        vote: WireVote,
        verified: Verified,
        write: &mut WriteHalf<Stream>,
    ) -> std::io::Result<Result<WireVote, String>> {
        let meta = SnapshotMeta {
            last_log_id: verified.applied().map(log_id),
            last_membership: stored_membership(verified.membership().map(|(_, bytes)| bytes))?,
        };
        let snapshot = Snapshot {
            meta,
            snapshot: Image::Incoming(Box::new(verified)),
        };
        let install = self.raft.install_full_snapshot(vote.into(), snapshot);
        tokio::pin!(install);
        loop {
            tokio::select! {
                done = &mut install => {
                    return Ok(match done {
                        Ok(response) => Ok(WireVote::from(&response.vote)),
                        Err(error) => Err(error.to_string()),
                    });
                }
                () = self.env.sleep(SIGN_OF_LIFE) => {
                    answer(write, &ImageAnswer::Working).await?;
                }
            }
        }
    }
}

async fn answer(write: &mut WriteHalf<Stream>, answer: &ImageAnswer) -> std::io::Result<()> {
    write_frame(write, 0, &encode(answer)).await
}

async fn start(env: &Env) -> Result<Receiving, String> {
    let disk: Arc<dyn Disk> = env.disk.clone();
    let work = move || Receiving::start(disk, IMAGE_CACHE_BYTES);
    match env.run_on(LaneId::Image, work).await {
        Ok(Ok(receiving)) => Ok(receiving),
        Ok(Err(fatal)) => Err(fail(env, &fatal)),
        Err(gone) => Err(gone.to_string()),
    }
}

async fn accept(env: &Env, receiving: Receiving, frame: Bytes) -> Result<Received, String> {
    let work = move || receiving.accept(&frame);
    match env.run_on(LaneId::Image, work).await {
        Ok(Ok(received)) => Ok(received),
        Ok(Err(ImageError::Fatal(fatal))) => Err(fail(env, &fatal)),
        Ok(Err(refused)) => Err(refused.to_string()),
        Err(gone) => Err(gone.to_string()),
    }
}

/// A disk that fails ends the node.
fn fail(env: &Env, fatal: &flower_store::Fatal) -> String {
    let why = fatal.to_string();
    env.tasks.fail(Fatal::new(why.clone()));
    why
}
