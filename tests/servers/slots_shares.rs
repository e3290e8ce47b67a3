//! The slots that three processes with waiting requests get on one server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use tokio::{task::JoinHandle, time::sleep};
use tower_sluice::{Limiter, Quota};

use crate::{
    accounts::{Account, connect},
    servers::Server,
    slots::{held, until_held},
};

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Three processes with unequal hold times, and clients that think between their requests, so that the
/// queue of a process is often empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_get_similar_numbers_of_slots() {
    let server = Server::redis().await;
    let cases = [
        // The limit, the clients of a process, their pause, and the hold times.
        (1, 2, 10, [10, 20, 40]),
        (5, 6, 10, [20; 3]),
    ];
    for (limit, clients, pause, times) in cases {
        let quota = Quota::concurrent(limit);
        let store = async || connect(&server.url()).await;
        let stores = [store().await, store().await, store().await];
        let counts = [(); 3].map(|()| Arc::new(AtomicU32::new(0)));
        let mut tasks = Vec::new();
        let what = format!("limit {limit}, {clients} clients, pause {pause} ms, held {times:?} ms");
        let key = Account::new(what.clone(), quota);
        for ((store, count), time) in stores.iter().zip(&counts).zip(times) {
            for _ in 0..clients {
                let limiter = Limiter::named("default", store.clone());
                let (count, key) = (count.clone(), key.clone());
                tasks.push(tokio::spawn(async move {
                    loop {
                        let work = async {
                            count.fetch_add(1, SeqCst);
                            sleep(millis(time.into())).await;
                        };
                        limiter
                            .try_throttle(key.key.clone(), &key.quotas, work)
                            .await
                            .expect("a slot");
                        sleep(millis(pause)).await;
                    }
                }));
            }
            sleep(millis(200)).await;
        }
        // The shares settle.
        sleep(millis(1_500)).await;
        let before: Vec<_> = counts.iter().map(|count| count.load(SeqCst)).collect();
        let start = Instant::now();
        sleep(millis(3_000)).await;
        let took = start.elapsed();
        let got: Vec<_> =
            counts.iter().zip(&before).map(|(count, before)| count.load(SeqCst) - before).collect();
        tasks.iter().for_each(JoinHandle::abort);
        let time = got.iter().zip(times).map(|(got, time)| got * time).sum::<u32>();
        let most = f64::from(limit) * took.as_secs_f64();
        let used = millis(time.into()).as_secs_f64() / most;
        println!("{what}: {got:?}, {:.0} % of the slots used", used * 100.0);
        // In slot time: a process with long hold times asks less often, and has as much of it. The
        // simulation has narrower bounds, because a busy machine favours a process for a while.
        for (got, held) in got.iter().zip(times) {
            let share = f64::from(*got * held) / f64::from(time);
            assert!((0.1..0.6).contains(&share), "{what}: {share:.2}");
        }
        assert!(used > 0.2, "{what}: {used}");
        drop(join_all(tasks).await);
        until_held(&stores[0], &key, 0).await;
        assert_eq!(held(&stores[1], &key).await, 0);
    }
}
