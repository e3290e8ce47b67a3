//! A connection through a [`super::Proxy`].

use std::{future::pending, io::Result, net::SocketAddr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::Mode;

/// Serves the connection with this `number`, from the time it was accepted.
pub(super) async fn link(
    mut client: TcpStream,
    target: SocketAddr,
    mode: watch::Sender<Mode>,
    number: u64,
) {
    let mut watched = mode.subscribe();
    let dropped = async move { drop(watched.wait_for(|mode| *mode == Mode::Drop).await) };
    let closed = tokio::select! {
        biased;
        () = dropped => false,
        end = forward(&mut client, target, &mode, number) => end.is_ok(),
    };
    if !closed {
        let _ = client.set_zero_linger();
    }
}

async fn forward(
    client: &mut TcpStream,
    target: SocketAddr,
    mode: &watch::Sender<Mode>,
    number: u64,
) -> Result<()> {
    let mut server = TcpStream::connect(target).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let ((asked, answer), (answered, ask)) = (client.split(), server.split());
    let (sender, line) = mpsc::unbounded_channel();
    tokio::select! {
        end = requests(asked, ask, mode.subscribe()) => end,
        end = receive(answered, sender) => end,
        end = replies(line, answer, mode, number) => end,
    }
}

/// Returns once the mode is not a black hole.
async fn lit(mode: &mut watch::Receiver<Mode>) {
    drop(mode.wait_for(|mode| *mode != Mode::BlackHole).await);
}

async fn requests(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut mode: watch::Receiver<Mode>,
) -> Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut bytes).await?;
        lit(&mut mode).await;
        if count == 0 {
            // The server closes its side after its answer.
            to.shutdown().await?;
            return pending().await;
        }
        to.write_all(&bytes[..count]).await?;
    }
}

/// Bytes of a server with their time.
type Said = (Instant, Vec<u8>);

/// Reads replies as they arrive, so that each can be delayed by the same time.
async fn receive(mut from: ReadHalf<'_>, line: mpsc::UnboundedSender<Said>) -> Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut bytes).await?;
        // An empty read is the end, which follows all bytes before it.
        let _ = line.send((Instant::now(), bytes[..count].to_vec()));
        if count == 0 {
            return pending().await;
        }
    }
}

async fn replies(
    mut line: mpsc::UnboundedReceiver<Said>,
    mut to: WriteHalf<'_>,
    mode: &watch::Sender<Mode>,
    number: u64,
) -> Result<()> {
    let (mut watched, mut place) = (mode.subscribe(), 0_u64);
    while let Some((came, mut bytes)) = line.recv().await {
        lit(&mut watched).await;
        let now = *watched.borrow();
        match now {
            _ if bytes.is_empty() => break,
            Mode::Delay(time) => sleep_until(came + time).await,
            Mode::Truncate(count) if mode.send_if_modified(|mode| take_over(mode, now)) => {
                to.write_all(&bytes[..count.min(bytes.len())]).await?;
                break;
            }
            Mode::Flip { seed, one_in } => {
                // By position, so that the split of the bytes into reads does not matter.
                let start = mix(seed ^ mix(number)).wrapping_add(place);
                flip(&mut bytes, start, one_in);
            }
            _ => {}
        }
        place += bytes.len() as u64;
        to.write_all(&bytes).await?;
    }
    to.shutdown().await
}

/// Returns `true` if the mode was still this one: only the next reply of all connections is
/// truncated.
fn take_over(mode: &mut Mode, was: Mode) -> bool {
    let same = *mode == was;
    if same {
        *mode = Mode::Pass;
    }
    same
}

fn flip(bytes: &mut [u8], start: u64, one_in: u64) {
    for (byte, place) in bytes.iter_mut().zip(0..) {
        let draw = mix(start.wrapping_add(place));
        if draw.is_multiple_of(one_in) {
            *byte ^= draw.to_be_bytes()[0] | 1;
        }
    }
}

/// Returns a pseudo-random number (splitmix64).
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
