//! Runs a fault: load before it, during it and after it.

use std::{thread, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    app::{App, Plan},
    child::Child,
    fault::World,
    log::{Entry, Log, now},
    options::Options,
    stack::{APPS, Policy},
};

/// The record of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) logs: Vec<Log>,
    /// The instants at which the fault struck and was repaired.
    pub(crate) struck: Duration,
    pub(crate) healed: Duration,
    pub(crate) ended: Duration,
}

impl Ran {
    /// All entries, with the number of the app.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, &Entry)> + Clone {
        self.logs
            .iter()
            .enumerate()
            .flat_map(|(app, log)| log.entries.iter().map(move |e| (app, e)))
    }
}

pub(crate) async fn play(
    world: &mut impl World,
    name: &str,
    policy: Policy,
    options: &Options,
) -> Ran {
    let mut apps = Vec::new();
    for number in 0..APPS {
        let (rate, keys) = (options.rate, options.keys);
        let plan = Plan { name: name.into(), door: world.door(number), policy, rate, keys, number };
        apps.push(match world.has_processes() {
            true => App::Process(Child::start(plan)),
            false => App::start(plan).await,
        });
    }
    sleep(options.before).await;

    let (struck, end) = (now(), Instant::now() + options.during);
    world.strike(&apps, end).await;
    if !world.ends_itself() {
        sleep_until(end).await;
    }
    world.heal().await;
    let healed = now();
    sleep(options.after).await;

    let ended = now();
    apps.iter().for_each(App::stop);
    // Apps finish their requests, and the world must be able to answer them.
    let logs = thread::spawn(move || apps.into_iter().map(App::log).collect());
    while !logs.is_finished() {
        sleep(Duration::from_millis(5)).await;
    }
    Ran { logs: logs.join().expect("the thread only waits"), struck, healed, ended }
}
