//! A process of the load while it runs, as the demo sees it.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use surgetank_report::{Doing, Failure, Interrupt};

use super::load::{Order, Said, Tick};
use crate::child;
use crate::mode::{LOOK_AGAIN, interrupted};

/// What the process has said.
#[derive(Debug, Default)]
struct Heard {
    ticks: Vec<Tick>,
    done: Option<u64>,
}

/// See the module. The process is killed when this is dropped.
#[derive(Debug)]
pub struct Job {
    child: Child,
    heard: Arc<Mutex<Heard>>,
    hearing: Option<JoinHandle<()>>,
}

impl Job {
    /// Starts the process.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(order: Order) -> Result<Self, Failure> {
        let doing = || "cannot start a process of the load".to_owned();
        let child = child::spawn(&child::Order::Load(order)).doing(doing)?;
        let mut job = Self { child, heard: Arc::default(), hearing: None };
        let stdout = job.child.stdout.take();
        let heard = job.heard.clone();
        let hearing = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
            let lines = stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok));
            for line in lines {
                match serde_json::from_str(&line) {
                    Ok(Said::Tick(tick)) => guard(&heard).ticks.push(tick),
                    Ok(Said::Done { bytes }) => guard(&heard).done = Some(bytes),
                    Err(_) => {}
                }
            }
        });
        job.hearing = Some(hearing.doing(doing)?);
        Ok(job)
    }

    /// How far it is.
    #[must_use]
    pub fn last_tick(&self) -> Tick {
        guard(&self.heard).ticks.last().copied().unwrap_or_default()
    }

    /// Whether it has ended well.
    ///
    /// # Errors
    /// Why it has not.
    pub fn has_ended(&mut self) -> Result<bool, Failure> {
        match self.child.try_wait().doing(|| "cannot wait for a process of the load".to_owned())? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => {
                let reason = child::reason(&mut self.child).unwrap_or_else(|| format!("it ended with {status}"));
                Err(Failure::Failed(format!("the load failed: {reason}")))
            }
        }
    }

    /// What an ended process has said: how far it was when, and the bytes of its task.
    ///
    /// # Errors
    /// It has not said that it is done.
    pub fn finish(mut self) -> Result<(Vec<Tick>, u64), Failure> {
        if let Some(hearing) = self.hearing.take() {
            let _ = hearing.join();
        }
        let heard = std::mem::take(&mut *guard(&self.heard));
        let done = heard.done.ok_or_else(|| Failure::failed("the load did not say what it did"))?;
        Ok((heard.ticks, done))
    }

    /// Waits for the process: the bytes of its task.
    ///
    /// # Errors
    /// It failed, or was interrupted.
    pub fn wait(mut self, interrupt: &Interrupt) -> Result<u64, Failure> {
        while !self.has_ended()? {
            if interrupt.sleep(LOOK_AGAIN) {
                return Err(interrupted());
            }
        }
        self.finish().map(|(_, bytes)| bytes)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was heard stays right if a thread panics beside it.
fn guard(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}
