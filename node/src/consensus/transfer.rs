//! Images on the wire: streamed from a view with bounded memory, at most one at a time on the
//! sending side, acknowledged frame by frame. Every frame has an idle limit, the whole has
//! none. The receiving side writes beside its state and installs at the end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use flower_api::{MemberId, report::ImageProgress};
use flower_store::{ImageReader, StateView};
use parking_lot::Mutex;
use tokio::{
    io::{ReadHalf, WriteHalf},
    sync::{Semaphore, mpsc},
};

use super::{
    links::{CallError, Links, Stream, lost},
    types::{WireVote, decode, encode},
    wire::{ImageAnswer, ImageStart, SMALL_FRAME, read_frame, write_frame},
};
use crate::env::{Env, LaneId};

/// A frame that takes longer to be taken ends the transfer.
pub(crate) const FRAME_LIMIT: Duration = Duration::from_secs(15);
/// Frames sent ahead of their acknowledgement.
const WINDOW: usize = 4;

/// Images that this node sends.
pub(crate) struct Outgoing {
    one: Semaphore,
    current: Mutex<Option<(MemberId, ImageProgress)>>,
    sent: AtomicU64,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            one: Semaphore::new(1),
            current: Mutex::new(None),
            sent: AtomicU64::new(0),
        }
    }
}

impl Outgoing {
    /// The image on its way now.
    pub(crate) fn current(&self) -> Option<(MemberId, ImageProgress)> {
        *self.current.lock()
    }

    /// Images delivered since the start.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Ends the progress report whichever way a transfer ends.
struct InProgress<'a>(&'a Outgoing);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        *self.0.current.lock() = None;
    }
}

/// Sends `view` to a member; resolves when it is installed there, with that member's vote.
pub(crate) async fn send(
    links: &Arc<Links>,
    outgoing: &Outgoing,
    member: MemberId,
    address: &str,
    vote: WireVote,
    view: Arc<StateView>,
) -> Result<WireVote, CallError> {
    // A second one does not wait here: it would hold its view, and that its pages, meanwhile.
    let _one = outgoing
        .one
        .try_acquire()
        .map_err(|_| links.unreachable(member, address, "another image is on its way"))?;
    let begun = links.env().clock.mono();
    let total_bytes = view.totals().stored_bytes();
    *outgoing.current.lock() = Some((
        member,
        ImageProgress {
            sent_bytes: 0,
            total_bytes,
        },
    ));
    let _in_progress = InProgress(outgoing);
    let stream = links
        .connect(member, address, super::wire::Purpose::Image)
        .await?;
    tracing::info!(to = %member, address, total_bytes, "sending an image");
    let (mut read, mut write) = tokio::io::split(stream);
    let start = encode(&ImageStart { vote, total_bytes });
    let frames = read_image(links.env(), view);
    let taken = Semaphore::new(WINDOW);
    let env = links.env();
    let writing = write_image(env, &mut write, start, frames, &taken, |bytes| {
        if let Some((_, progress)) = &mut *outgoing.current.lock() {
            progress.sent_bytes += bytes;
        }
    });
    let done = tokio::select! {
        // Answers first: a refusal explains why writing failed.
        biased;
        answer = read_answers(env, &mut read, &taken) => answer,
        failed = writing => Err(failed),
    };
    match done {
        Ok(vote) => {
            outgoing.sent.fetch_add(1, Ordering::Relaxed);
            env.probe.image_sent(total_bytes, env.clock.mono() - begun);
            tracing::info!(to = %member, "an image was installed");
            Ok(vote)
        }
        Err(why) => Err(lost(member, address, why)),
    }
}

/// Writes until all is written, then waits for ever; returns why it could not.
async fn write_image(
    env: &Env,
    write: &mut WriteHalf<Stream>,
    start: Bytes,
    mut frames: mpsc::Receiver<Result<Bytes, String>>,
    taken: &Semaphore,
    progress: impl Fn(u64),
) -> String {
    let mut number = 0;
    let mut next = Some(Ok(start));
    while let Some(frame) = next {
        let frame = match frame {
            Ok(frame) => frame,
            Err(why) => return why,
        };
        // The answers' side gives up when acknowledgements stay away.
        match taken.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_) => return "the node stops".into(),
        }
        match env
            .within(FRAME_LIMIT, write_frame(write, number, &frame))
            .await
        {
            Some(Ok(())) => progress(frame.len() as u64),
            Some(Err(error)) => return error.to_string(),
            None => return format!("a frame was not taken within {FRAME_LIMIT:?}"),
        }
        number += 1;
        next = frames.recv().await;
    }
    std::future::pending().await
}

/// Reads acknowledgements until the end: the receiver's vote, or why there is none.
async fn read_answers(
    env: &Env,
    read: &mut ReadHalf<Stream>,
    taken: &Semaphore,
) -> Result<WireVote, String> {
    loop {
        let answer = match env.within(FRAME_LIMIT, read_frame(read, SMALL_FRAME)).await {
            Some(Ok(Some((_, body)))) => decode(&body).map_err(|e| e.to_string())?,
            Some(Ok(None)) => return Err("the connection ended".into()),
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err(format!("no sign of life within {FRAME_LIMIT:?}")),
        };
        match answer {
            ImageAnswer::Taken => taken.add_permits(1),
            ImageAnswer::Working => {}
            ImageAnswer::Done(vote) => return Ok(vote),
            ImageAnswer::Failed(why) => return Err(why),
        }
    }
}

/// Frames of an image, read on the image lane a few at a time: a job for each, so that the
/// lane is never held by a slow receiver.
fn read_image(env: &Env, view: Arc<StateView>) -> mpsc::Receiver<Result<Bytes, String>> {
    let (send, frames) = mpsc::channel(1);
    let task_env = env.clone();
    env.tasks.spawn_brief("image reader", async move {
        let mut reader = ImageReader::new(view);
        loop {
            let read = task_env
                .run_on(LaneId::Image, move || {
                    let frame = reader.next();
                    (reader, frame)
                })
                .await;
            let frame = match read {
                Ok((back, Some(frame))) => {
                    reader = back;
                    frame.map_err(|e| e.to_string())
                }
                Ok((_, None)) => return,
                Err(gone) => {
                    let _ = send.send(Err(gone.to_string())).await;
                    return;
                }
            };
            let failed = frame.is_err();
            if send.send(frame).await.is_err() || failed {
                return;
            }
        }
    });
    frames
}
