//! A closed loop: so many requests in flight on a volume, each followed by the next.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use surgetank_device::{Buffer, Completion, Operation, Poller, Volume, VolumeIo};
use surgetank_model::Instant;
use surgetank_model::random::Random;

/// What is asked of a volume.
#[derive(Clone, Copy)]
pub struct Load {
    /// Share of the requests that write; the others read.
    pub writes: f64,
    /// Bytes of a request.
    pub block: u64,
    /// Anywhere; else one after the other, from the start again at the end.
    pub random: bool,
    /// Requests in flight.
    pub depth: usize,
}

/// What came of it.
pub struct Measured {
    /// From the first request until no more were made. What was answered later does not count: some member has it alone.
    pub seconds: f64,
    /// Of these, the thread had a core for.
    busy_s: f64,
    pub requests: u64,
    /// Nanoseconds of each request, if they were wanted.
    latencies: Vec<u64>,
}

impl Measured {
    pub fn requests_per_s(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// The same for each second that the thread had a core.
    pub fn requests_per_busy_s(&self) -> f64 {
        self.requests as f64 / self.busy_s
    }

    /// The latency that 99 of 100 requests do not exceed, in ms.
    pub fn p99_ms(&mut self) -> f64 {
        let place = self.latencies.len() * 99 / 100;
        *self.latencies.select_nth_unstable(place).1 as f64 / 1e6
    }
}

/// The time that volumes are driven by.
#[derive(Clone, Copy)]
pub struct Clock(std::time::Instant);

impl Clock {
    pub fn new() -> Self {
        Self(std::time::Instant::now())
    }

    pub fn now(&self) -> Instant {
        Instant::ZERO + self.0.elapsed()
    }
}

/// What drives one volume.
pub struct Driver<'a> {
    pub clock: Clock,
    volume: &'a mut dyn Volume,
    poller: Poller,
    random: Random,
    /// Bytes from the start that requests go to.
    span: u64,
    next: u64,
    ended: Vec<Completion>,
}

impl<'a> Driver<'a> {
    pub fn new(volume: &'a mut dyn Volume, clock: Clock, span: u64) -> Self {
        let poller = Poller::new().expect("epoll");
        volume.descriptor().map_or(Ok(()), |descriptor| poller.add(descriptor, 0)).expect("it can be watched");
        Self { clock, volume, poller, random: Random::from_seed(1), span, next: 0, ended: Vec::new() }
    }

    /// Writes the whole span once, in order.
    pub fn fill(&mut self) -> Measured {
        let block = 1 << 20;
        let requests = self.span / block;
        self.run(Load { writes: 1.0, block, random: false, depth: 64 }, false, |made, _| made < requests)
    }

    /// Puts the load on the volume for so long.
    pub fn measure(&mut self, load: Load, time: Duration) -> Measured {
        let until = self.clock.now() + time;
        self.run(load, false, |_, now| now < until)
    }

    /// Puts the load on the volume while it `goes_on`, which is told of the requests made so far and the time.
    pub fn run(&mut self, load: Load, latencies: bool, mut goes_on: impl FnMut(u64, Instant) -> bool) -> Measured {
        let buffers: Vec<Buffer> = (0..load.depth).map(|_| touched(load.block as usize)).collect();
        let mut free: Vec<usize> = (0..load.depth).collect();
        let mut begun = vec![Instant::ZERO; load.depth];
        let start = self.clock.now();
        let busy = busy_s();
        let mut measured = Measured { seconds: 0.0, busy_s: 0.0, requests: 0, latencies: Vec::new() };
        let mut made = 0;
        loop {
            let now = self.clock.now();
            let mut more = true;
            while !free.is_empty() && more {
                more = goes_on(made, now);
                if let Some(place) = free.pop_if(|_| more) {
                    begun[place] = now;
                    made += 1;
                    let io = self.io(load, place as u64, &buffers[place]);
                    self.volume.submit(now, io);
                }
            }
            self.volume.poll(now, &mut self.ended);
            let any = !self.ended.is_empty();
            let now = if latencies && any { self.clock.now() } else { now };
            for completion in self.ended.drain(..) {
                completion.result.expect("nothing fails");
                let place = completion.token as usize;
                measured.requests += u64::from(measured.seconds == 0.0);
                if latencies {
                    measured.latencies.push((now - begun[place]).as_nanos() as u64);
                }
                free.push(place);
            }
            if !more && measured.seconds == 0.0 {
                measured.busy_s = busy_s() - busy;
                measured.seconds = (self.clock.now() - start).as_secs_f64();
            }
            if free.len() == load.depth && !more {
                return measured;
            }
            if !any {
                self.wait();
            }
        }
    }

    /// Polls the volume until this holds.
    pub fn until(&mut self, mut holds: impl FnMut() -> bool) {
        loop {
            let now = self.clock.now();
            self.volume.poll(now, &mut self.ended);
            if holds() {
                return;
            }
            self.wait();
        }
    }

    fn io(&mut self, load: Load, token: u64, buffer: &Buffer) -> VolumeIo {
        let offset = if load.random { self.random.below(self.span / load.block) * load.block } else { self.next };
        self.next = (offset + load.block) % self.span;
        let writes = load.writes >= 1.0 || load.writes > 0.0 && self.random.chance(load.writes);
        let operation = if writes { Operation::Write { fua: false } } else { Operation::Read };
        let memory = smallvec::smallvec![buffer.slice(0, buffer.len())];
        VolumeIo { token, operation, offset, length: load.block, memory }
    }

    /// Waits until the volume has something to pass on.
    fn wait(&mut self) {
        let now = self.clock.now().as_nanoseconds();
        let left = self.volume.next_deadline().map(|at| at.as_nanoseconds().saturating_sub(now));
        let timeout = Duration::from_nanos(left.unwrap_or(u64::MAX)).min(Duration::from_millis(100));
        self.poller.wait(Some(timeout), &mut Vec::new()).expect("epoll");
    }
}

/// What this thread has had of cores, in s.
fn busy_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Memory whose pages are there.
fn touched(length: usize) -> Buffer {
    let mut buffer = Buffer::zeroed(length);
    buffer.unique().expect("a new buffer has one handle").fill(0x5a);
    buffer
}
